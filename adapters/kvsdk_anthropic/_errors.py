"""The SDK's errors as ours."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from contextlib import contextmanager

from kvsdk._text import excerpt
from kvsdk.backend.http_errors import error_for_status, retry_after_s, server_words
from kvsdk.errors import (
    BackendError,
    BackendProtocolError,
    BackendTimeout,
    BackendUnreachable,
)

#: Status of the errors that arrive inside a stream, whose HTTP status is 200 (anthropic 2.14.0).
_STATUS_BY_TYPE: Mapping[str, int] = {
    "invalid_request_error": 400,
    "authentication_error": 401,
    "billing_error": 402,
    "permission_error": 403,
    "not_found_error": 404,
    "request_too_large": 413,
    "rate_limit_error": 429,
    "api_error": 500,
    "timeout_error": 504,
    "overloaded_error": 529,
}


@contextmanager
def our_errors(model: str) -> Generator[None]:
    """Raise errors of our tree instead of the SDK's; the SDK's is the cause."""
    import anthropic
    import httpx2

    where = {"backend": "anthropic", "model": model}
    try:
        yield
    except anthropic.APIStatusError as error:
        raise _from_status(error, model) from error
    except (anthropic.APITimeoutError, httpx2.TimeoutException) as error:
        raise BackendTimeout("no answer in time", **where) from error
    except (anthropic.APIConnectionError, httpx2.TransportError) as error:
        raise BackendUnreachable(f"no connection: {error.__cause__ or error}", **where) from error
    except (anthropic.APIError, ValueError) as error:
        raise BackendProtocolError(f"not understood: {excerpt(str(error))}", **where) from error


def _from_status(error: object, model: str) -> BackendError:
    from anthropic import APIStatusError

    assert isinstance(error, APIStatusError)
    status = error.status_code
    if status < 400:
        status = _STATUS_BY_TYPE.get(str(error.type), 500)
    body = error.body
    inner = body.get("error") if isinstance(body, Mapping) else None
    message = inner.get("message") if isinstance(inner, Mapping) else None
    return error_for_status(status)(
        server_words(str(message or error.message), error.request.headers, 500),
        backend="anthropic",
        model=model,
        status=status,
        request_id=error.request_id,
        retry_after_s=retry_after_s(error.response.headers),
    )
