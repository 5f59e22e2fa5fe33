"""The way to an object store: its URL and options, checked at once, and limits on every request."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar, cast
from urllib.parse import urlsplit

import obstore.store
from obstore.exceptions import BaseError

from kvsdk.errors import InvalidRequest
from kvsdk.store.tiers.object_errors import failure, plain_words, secrets_of

T = TypeVar("T")

LOCAL: Mapping[str, frozenset[str]] = {
    "file": frozenset({"mkdir", "automatic_cleanup"}),
    "memory": frozenset(),
}
"""Schemes without a server, and the options that they take: obstore itself ignores the others."""
_RETRY_OPTIONS = frozenset({"max_retries", "retry_timeout", "backoff"})  # obstore does not look at others
_SCHEMES = (*LOCAL, "s3", "s3a", "gs", "az", "azure", "adl", "abfs", "abfss")


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Bucket:
    """An object store, and what its errors are to say.

    Attributes:
        scheme: Of the URL.
        shown: The URL.
        store: As obstore takes it.
        secrets: What no error shows.
    """

    scheme: str
    shown: str
    store: obstore.store.ObjectStore
    secrets: tuple[str, ...]

    @property
    def is_local(self) -> bool:
        """Whether there is no server."""
        return self.scheme in LOCAL

    def ask(self, doing: str, ask: Callable[[], T]) -> T:
        """Do it; what obstore raises becomes an error of ours, which does not carry obstore's along.

        Raises:
            BackendError: It failed.
        """
        try:
            return ask()
        except (BaseError, OSError, ValueError) as error:
            ours = failure(error, f"{self.shown}: cannot {doing}", self.scheme, self.secrets)
        except BaseException as error:
            if not _is_panic(error):
                raise
            ours = failure(error, f"{self.shown}: cannot {doing}", self.scheme, self.secrets)
        raise ours


def connect(url: str, timeout_s: float, options: Mapping[str, Any]) -> Bucket:
    """The store behind a URL. Nothing is sent; the folder of a `file:` URL is made.

    Args:
        url: Of the store.
        timeout_s: How long one request may take.
        options: Of obstore.

    Raises:
        InvalidRequest: The URL or an option is none.
    """
    scheme, shown = _check_url(url)
    settings = _settings(scheme, check_seconds(timeout_s, "timeout_s"), options)
    secrets = secrets_of(options)
    try:
        store = obstore.store.from_url(url, **cast(Any, settings))
    except (BaseError, OSError, ValueError, TypeError) as error:
        words = plain_words(error, secrets)
    except BaseException as error:
        if not _is_panic(error):  # obstore's way to refuse some of the options
            raise
        words = f"an option among {', '.join(sorted(options))} is not taken"
    else:
        return Bucket(scheme=scheme, shown=shown, store=store, secrets=secrets)
    raise InvalidRequest(f"Object({shown!r}): {words}", field="url")


def _is_panic(error: BaseException) -> bool:
    """Whether obstore's Rust has panicked; that is no Exception in Python."""
    return type(error).__name__ == "PanicException"


def check_seconds(value: float, field: str) -> float:
    """Seconds above 0.

    Raises:
        InvalidRequest: They are not.
    """
    if type(value) not in (int, float) or not (0 < value < math.inf):
        raise InvalidRequest(f"{field} is a positive number of seconds, not {value!r:.80}", field=field)
    return value


def _settings(scheme: str, timeout_s: float, options: Mapping[str, Any]) -> dict[str, Any]:
    """The options, and with them what bounds every request."""
    if scheme in LOCAL:
        _refuse(set(options) - LOCAL[scheme], f"a {scheme}: URL")
        return {**({"mkdir": True} if scheme == "file" else {}), **options}
    limit = timedelta(seconds=timeout_s)
    client = {"timeout": limit, "connect_timeout": limit, **_mapping(options, "client_options")}
    retry = {"max_retries": 2, "retry_timeout": limit / 2, **_mapping(options, "retry_config")}
    _refuse(set(retry) - _RETRY_OPTIONS, "retry_config")
    endpoint = options.get("endpoint") or options.get("aws_endpoint")
    if isinstance(endpoint, str) and endpoint.startswith("http://"):
        client.setdefault("allow_http", True)  # whoever writes http:// means it
    return {**options, "client_options": client, "retry_config": retry}


def _refuse(unknown: set[str], what: str) -> None:
    for name in sorted(unknown):
        raise InvalidRequest(f"{name!r} is no option of {what}", field=name)


def _mapping(options: Mapping[str, Any], field: str) -> Mapping[str, Any]:
    value = options.get(field) or {}
    if not isinstance(value, Mapping):
        raise InvalidRequest(f"{field} is a dict, not a {type(value).__name__}", field=field)
    return value


def _check_url(url: str) -> tuple[str, str]:
    """Its scheme, and the URL as it may be shown."""
    if not isinstance(url, str):
        raise InvalidRequest(f"url is a text such as 's3://bucket/prefix', not {url!r:.80}", field="url")
    parts = urlsplit("")
    with contextlib.suppress(ValueError):  # it is no URL, and has no scheme then
        parts = urlsplit(url)
    is_user = parts.password is not None or ("@" in parts.netloc and not parts.scheme.startswith("abfs"))
    place = parts.netloc.rpartition("@")[2] if is_user else parts.netloc
    shown = f"{parts.scheme}://{place}{parts.path}"
    if parts.scheme not in _SCHEMES:
        wrong = f"the URL begins with one of {', '.join(f'{known}://' for known in _SCHEMES)}"
    elif is_user:
        wrong = "credentials are options or come from the environment; they are no part of the URL"
    elif parts.query or parts.fragment:
        wrong = "the URL has no query and no fragment; what they say is an option"
    elif ".." in parts.path.split("/"):
        wrong = "the URL's path has no '..'"
    else:
        return parts.scheme, shown
    raise InvalidRequest(f"Object({shown!r}): {wrong}", field="url")
