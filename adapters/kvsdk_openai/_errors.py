"""The SDK's errors, and those inside answers, as ours."""

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

#: HTTP status of the error codes that arrive inside a response or a stream (openai 3.57.0,
#: `types/responses/response_error.py`); a code that is not here is the server's fault, a number is a status.
_STATUS_BY_CODE: Mapping[str, int] = {
    "rate_limit_exceeded": 429,
    "invalid_prompt": 400,
    "invalid_request_error": 400,
    "insufficient_quota": 402,
    "context_length_exceeded": 400,
    "content_filter": 400,
    "data_residency_mismatch": 400,
    "bio_policy": 400,
    "misalignment_policy_violation": 400,
    "failed_to_download_image": 400,
}
_REQUESTS_FAULT = ("invalid_", "image_", "unsupported_image_", "empty_image_")


def from_code(code: object, message: str) -> BackendError:
    """An error that an answer itself reports."""
    text = str(code)
    status = 400 if text.startswith(_REQUESTS_FAULT) else 500
    status = int(text) if text.isdecimal() and 400 <= int(text) < 600 else _STATUS_BY_CODE.get(text, status)
    return error_for_status(status)(excerpt(f"{code}: {message}", 500), backend="openai")


@contextmanager
def our_errors(scheme: str, model: str) -> Generator[None]:
    """Raise errors of our tree instead of the SDK's; the SDK's is the cause."""
    import httpx2
    import openai

    where = {"backend": scheme, "model": model}
    try:
        yield
    except openai.APIStatusError as error:
        raise error_for_status(error.status_code)(
            server_words(_message(error), error.request.headers, 500),
            status=error.status_code,
            request_id=error.request_id or error.request.headers.get("X-Request-Id"),
            retry_after_s=retry_after_s(error.response.headers),
            **where,
        ) from error
    except (openai.APITimeoutError, httpx2.TimeoutException) as error:
        raise BackendTimeout("no answer in time", **where) from error
    except (openai.APIConnectionError, httpx2.TransportError) as error:
        raise BackendUnreachable(f"no connection: {error.__cause__ or error}", **where) from error
    except openai.APIError as error:  # an error inside a Chat stream
        raise from_code(error.code or error.type, error.message) from error
    except ValueError as error:
        raise BackendProtocolError(f"not understood: {excerpt(str(error))}", **where) from error


def _message(error: object) -> str:
    """The server's own words, which the SDK wraps in its own."""
    body = getattr(error, "body", None)
    message = body.get("message") if isinstance(body, Mapping) else None
    return str(message or getattr(error, "message", error))
