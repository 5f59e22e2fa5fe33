"""One GET of a server's `/metrics`."""

from __future__ import annotations

from http.client import HTTPException, IncompleteRead
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit
from urllib.request import urlopen

from kvsdk.errors import (
    BackendProtocolError,
    BackendTimeout,
    BackendUnavailable,
    BackendUnreachable,
    ConfigurationError,
)

MAX_BYTES = 64 << 20
"""A page that is larger is none. A server's has 100 kB."""


def get_text(address: str, timeout_s: float) -> str:
    """The page.

    Raises:
        ConfigurationError: The address is none.
        BackendUnreachable: No answer, or none in time (`BackendTimeout`).
        BackendUnavailable: It answered that it cannot.
        BackendProtocolError: Its answer is no page of metrics.
    """
    url = metrics_url(address)
    try:
        with urlopen(url, timeout=timeout_s) as answer:
            page = answer.read(MAX_BYTES + 1)
            missing = 0 if len(page) > MAX_BYTES else answer.length  # a short page is no error to `read`
            if missing:
                raise IncompleteRead(page, missing)
    except HTTPError as error:
        error.close()
        kind = BackendUnavailable if error.code >= 500 else BackendProtocolError
        raise kind(
            f"{url} answered {error.code}; is it a vLLM server?", backend="vllm", status=error.code
        ) from error
    except (OSError, HTTPException) as error:
        reason = error.reason if isinstance(error, URLError) else error
        kind = BackendTimeout if isinstance(reason, TimeoutError) else BackendUnreachable
        raise kind(f"no answer from {url}: {reason}", backend="vllm") from error
    if len(page) > MAX_BYTES:
        raise BackendProtocolError(f"{url} answered more than {MAX_BYTES} bytes", backend="vllm")
    return page.decode(errors="replace")


def metrics_url(address: str) -> str:
    """Where a server's metrics are.

    Raises:
        ConfigurationError: The address is none.
    """
    base = address.removeprefix("vllm+").partition("#")[0].rstrip("/")
    base = base.removesuffix("/metrics").removesuffix("/v1")
    try:
        parts = urlsplit(base)
        is_address = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # a port that is none
        is_address = False
    if not is_address:
        raise ConfigurationError(
            f"{address!r} is no address of a vLLM server; write 'http://HOST:PORT'", backend="vllm"
        )
    return f"{base}/metrics"
