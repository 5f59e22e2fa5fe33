"""From an HTTP status to an error of ours; the same for every vendor."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from math import isfinite

from kvsdk._text import excerpt
from kvsdk.errors import (
    AuthenticationFailed,
    BackendError,
    BackendUnavailable,
    ModelNotFound,
    RateLimited,
    RequestRejected,
)

_BY_STATUS: Mapping[int, type[BackendError]] = {
    401: AuthenticationFailed,
    403: AuthenticationFailed,
    404: ModelNotFound,
    408: BackendUnavailable,
    409: BackendUnavailable,
    429: RateLimited,
}

_SHORTEST_KEY = 8  # a shorter one is a placeholder, and part of other words


def error_for_status(status: int) -> type[BackendError]:
    """The class of error that an HTTP status means."""
    if status >= 500:
        return BackendUnavailable
    return _BY_STATUS.get(status, RequestRejected)


def server_words(text: str, sent: Mapping[str, str], limit: int = 200) -> str:
    """The start of what a server said, on one line; the request's key, should it quote that, is blotted out.

    Args:
        text: What the server said.
        sent: The headers of the request.
        limit: Characters at most.
    """
    for name in ("authorization", "x-api-key", "api-key"):
        key = sent.get(name, "").removeprefix("Bearer ")
        if len(key) >= _SHORTEST_KEY:
            text = text.replace(key, "***")
    return excerpt(text, limit)


def retry_after_s(headers: Mapping[str, str]) -> float | None:
    """Seconds that a response asks to wait: `retry-after-ms`, or `retry-after` as seconds or a date."""
    for name, unit_s in (("retry-after-ms", 0.001), ("retry-after", 1.0)):
        value = headers.get(name)
        if value is None:
            continue
        try:
            seconds = float(value) * unit_s
        except ValueError:
            pass
        else:
            return max(0.0, seconds) if isfinite(seconds) else None
        try:
            return max(0.0, (parsedate_to_datetime(value) - datetime.now(UTC)).total_seconds())
        except (ValueError, TypeError):
            continue
    return None
