"""What obstore raises, as errors of ours: by kind, on one line, without any credential.

obstore's errors are texts: the first paragraph is for people and holds the status where there was one, then
comes a dump of the Rust value, which alone says whether a connection failed or a time was over.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

from obstore.exceptions import PermissionDeniedError, UnauthenticatedError

from kvsdk._text import excerpt
from kvsdk.backend.http_errors import error_for_status
from kvsdk.errors import (
    AuthenticationFailed,
    BackendError,
    BackendTimeout,
    BackendUnreachable,
    ModelNotFound,
    RequestRejected,
)

_SECRET_OPTION = re.compile(r"key|secret|token|password|credential|sas|authorization|header", re.IGNORECASE)
_SECRET_VARIABLE = re.compile(r"(AWS|AZURE|GOOGLE)_\w*(KEY|SECRET|TOKEN|SAS)\w*")
_SHORTEST_SECRET = 6
"""What is shorter is a placeholder, and part of other words."""

_STATUS = re.compile(r"non-2xx status code: (\d{3})")
_QUERY = re.compile(r"\?\S*")
_KINDS: Mapping[str, type[BackendError]] = {"Timeout": BackendTimeout, "Connect": BackendUnreachable}
_KIND = re.compile(rf"kind: ({'|'.join(_KINDS)}),")


def secrets_of(options: Mapping[str, Any]) -> tuple[str, ...]:
    """What must not be shown: from the options, and from the environment, which obstore reads too."""
    found = [*_texts(options), *(os.environ[name] for name in os.environ if _SECRET_VARIABLE.fullmatch(name))]
    written = {form for text in found for form in (text, quote(text, safe=""))}
    return tuple(sorted((text for text in written if len(text) >= _SHORTEST_SECRET), key=len, reverse=True))


def _texts(options: Mapping[str, Any], secret: bool = False) -> list[str]:
    found: list[str] = []
    for name, value in options.items():
        is_secret = secret or _SECRET_OPTION.search(name) is not None
        if isinstance(value, Mapping):
            found += _texts(value, is_secret)
        elif is_secret and isinstance(value, str | bytes):
            found.append(value if isinstance(value, str) else value.decode("utf-8", "replace"))
    return found


def plain_words(error: BaseException, secrets: tuple[str, ...]) -> str:
    """What an error of obstore says to people, on one line; queries of URLs may be signed, so they go."""
    text = str(error).partition("\n\nDebug source")[0]
    for secret in secrets:
        text = text.replace(secret, "***")
    return excerpt(_QUERY.sub("", text), 300)


def failure(error: BaseException, doing: str, scheme: str, secrets: tuple[str, ...]) -> BackendError:
    """The error of ours that says what went wrong."""
    status = _STATUS.search(str(error))
    code = int(status.group(1)) if status else None
    kind = _kind(error, code)
    return kind(f"{doing}: {plain_words(error, secrets)}", backend=scheme, status=code)


def _kind(error: BaseException, status: int | None) -> type[BackendError]:
    if isinstance(error, PermissionDeniedError | UnauthenticatedError):
        return AuthenticationFailed
    if status is not None:
        kind = error_for_status(status)
        return RequestRejected if kind is ModelNotFound else kind
    found = _KIND.search(str(error))
    return _KINDS[found.group(1)] if found else BackendError
