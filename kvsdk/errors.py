"""Every error kvsdk raises, in one tree.

```
KvsdkError
├── ConfigurationError         the set-up is wrong; nothing was sent
│   ├── UnknownScheme          no backend of that name
│   ├── BackendNotInstalled    the extra is missing; the text has the pip line
│   └── MissingCredentials     no API key
├── InvalidRequest             the call is wrong; nothing was sent
│   ├── UnknownKeyword         a keyword that the call does not take
│   ├── InvalidBreakpoints     breakpoints that the backend cannot keep as asked (`strict=True`)
│   ├── UnsupportedSetting     a setting that this backend or model does not take
│   └── UnknownLayout          a layout of KV that nothing here knows; it is never guessed
├── Unsupported                an operation that this backend does not have
├── BackendError               the backend refused, failed, or did not answer
│   ├── RequestRejected        4xx: the request itself (not retried)
│   ├── AuthenticationFailed   401, 403
│   ├── ModelNotFound          404
│   ├── RateLimited            429 (retried)
│   ├── BackendUnavailable     408, 409, 5xx, overloaded (retried)
│   ├── BackendUnreachable     no connection (retried)
│   │   └── BackendTimeout     no answer in time (retried)
│   ├── BackendProtocolError   an answer that is not one
│   ├── InvalidAnswer          an answer that does not have the shape asked for
│   └── StreamTruncated        a stream that stopped before its end
├── DeadlineExceeded           `timeout_s` is over
├── CircuitOpen                a breaker holds requests back
├── BudgetExceeded             the call could cost more than a budget has left; it was not sent
├── InvalidFile                a file of KV that is not whole, not ours, or a newer kvsdk's
└── LedgerError                the cost ledger cannot be used
    └── LedgerTooNew           written by a newer kvsdk
```

A cache miss is a value (`kvsdk.Miss`), never an error.
"""

from __future__ import annotations

from datetime import datetime
from decimal import Decimal
from typing import Any, ClassVar, Literal


class KvsdkError(Exception):
    """Root of every error of kvsdk.

    Attributes:
        backend: The backend's scheme, such as `"anthropic"`, or None where no backend was involved.
        model: The model asked for.
        request_id: The backend's own id of the request, for its support.
        status: HTTP status, where there was one.
        retry_after_s: How long the backend asked to wait, in seconds.
        retryable: Whether the same request may succeed when sent again.
        billed: False when certainly nothing was billed, None when unknown.
    """

    retryable: ClassVar[bool] = False
    billed: ClassVar[bool | None] = False

    def __init__(
        self,
        message: str,
        *,
        backend: str | None = None,
        model: str | None = None,
        request_id: str | None = None,
        status: int | None = None,
        retry_after_s: float | None = None,
    ) -> None:
        super().__init__(message)
        self.backend = backend
        self.model = model
        self.request_id = request_id
        self.status = status
        self.retry_after_s = retry_after_s

    def __str__(self) -> str:
        text = super().__str__()
        where = [f"{name}={value}" for name, value in self._context() if value is not None]
        return f"{text} [{', '.join(where)}]" if where else text

    def _context(self) -> tuple[tuple[str, object], ...]:
        return (
            ("backend", self.backend),
            ("model", self.model),
            ("status", self.status),
            ("request_id", self.request_id),
        )


class ConfigurationError(KvsdkError):
    """The client cannot be set up as asked."""


class UnknownScheme(ConfigurationError):
    """No backend has this scheme."""


class BackendNotInstalled(ConfigurationError):
    """The backend's extra is not installed."""


class MissingCredentials(ConfigurationError):
    """No API key was given and none is in the environment."""


class InvalidRequest(KvsdkError):
    """The call itself is wrong; nothing was sent.

    Attributes:
        field: The argument at fault, such as `"messages[2].content"`.
    """

    def __init__(
        self, message: str, *, field: str | None = None, backend: str | None = None, model: str | None = None
    ) -> None:
        super().__init__(message, backend=backend, model=model)
        self.field = field


class UnknownKeyword(InvalidRequest):
    """A keyword argument that the call does not take."""


class InvalidBreakpoints(InvalidRequest):
    """Breakpoints that the backend cannot keep exactly as asked, with `strict=True`."""


class UnsupportedSetting(InvalidRequest):
    """A setting that this backend or model does not take."""


class UnknownLayout(InvalidRequest):
    """A layout of KV that nothing here knows: it is refused, never guessed."""


class Unsupported(KvsdkError):
    """An operation that this backend does not have."""


class BackendError(KvsdkError):
    """The backend refused, failed, or did not answer. The vendor's own error is `__cause__`."""

    billed: ClassVar[bool | None] = None


class RequestRejected(BackendError):
    """The backend refused the request itself."""

    billed: ClassVar[bool | None] = False


class AuthenticationFailed(BackendError):
    """The backend did not accept the credentials."""

    billed: ClassVar[bool | None] = False


class ModelNotFound(BackendError):
    """The backend has no such model or endpoint."""

    billed: ClassVar[bool | None] = False


class RateLimited(BackendError):
    """The backend's rate limit is used up."""

    retryable: ClassVar[bool] = True
    billed: ClassVar[bool | None] = False


class BackendUnavailable(BackendError):
    """The backend failed or is overloaded."""

    retryable: ClassVar[bool] = True


class BackendUnreachable(BackendError):
    """No connection to the backend, or it was lost."""

    retryable: ClassVar[bool] = True


class BackendTimeout(BackendUnreachable):
    """The backend did not answer in time."""


class BackendProtocolError(BackendError):
    """The backend sent something that is not an answer; the text has its start."""


class InvalidAnswer(BackendError):
    """An answer's text does not have the shape of `response_format`; the reply itself is whole."""


class StreamTruncated(BackendError):
    """A stream stopped before its end.

    What had arrived is in `reply`, a `kvsdk.Reply`, and the ledger has a row for it.
    """

    reply: Any = None


class DeadlineExceeded(KvsdkError):
    """The call's `timeout_s` is over; the last attempt's error is `__cause__`."""

    billed: ClassVar[bool | None] = None


class CircuitOpen(KvsdkError):
    """A circuit breaker holds requests back; `retry_after_s` says for how long."""


class BudgetExceeded(KvsdkError):
    """The most that a call could cost does not fit into a budget, or cannot be known. It was not sent.

    For a retry, the earlier attempt's error is `__cause__`.

    Attributes:
        scope: Whose budget it is, in words, such as `tenant 'acme'`.
        limit_usd: What may be spent.
        spent_usd: What was, in the current window.
        reserved_usd: What calls in flight could still cost.
        left_usd: What a call may cost now; never below 0.
        needed_usd: What this call could cost at most; None where nobody can know.
        resets_at: When all of the budget is there again, in UTC; None for never.
    """

    def __init__(
        self,
        message: str,
        *,
        scope: str | None = None,
        limit_usd: Decimal | None = None,
        spent_usd: Decimal | None = None,
        reserved_usd: Decimal | None = None,
        left_usd: Decimal | None = None,
        needed_usd: Decimal | None = None,
        resets_at: datetime | None = None,
        backend: str | None = None,
        model: str | None = None,
    ) -> None:
        super().__init__(message, backend=backend, model=model)
        self.scope = scope
        self.limit_usd = limit_usd
        self.spent_usd = spent_usd
        self.reserved_usd = reserved_usd
        self.left_usd = left_usd
        self.needed_usd = needed_usd
        self.resets_at = resets_at


class InvalidFile(KvsdkError):
    """A file of KV that cannot be used. Nothing of it is given out. A store counts it and has a miss.

    Attributes:
        kind: `truncated`: shorter than it says. `corrupt`: not what was written. `foreign`: kvsdk did not
            write it. `newer`: a newer kvsdk wrote it.
        detail: What is wrong, in words.
    """

    def __init__(
        self, detail: str, *, kind: Literal["truncated", "corrupt", "foreign", "newer"] = "corrupt"
    ) -> None:
        super().__init__(detail)
        self.kind = kind
        self.detail = detail


class LedgerError(KvsdkError):
    """The cost ledger cannot be read or written."""


class LedgerTooNew(LedgerError):
    """The ledger was written by a newer version of kvsdk."""
