"""One row of the ledger: one attempt of one call."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal, NamedTuple

from kvsdk.backend import Bill
from kvsdk.reply import Cost
from kvsdk.usage import Usage

RowState = Literal["ok", "failed", "partial", "cancelled"]


class PrefixMark(NamedTuple):
    """A place in a prompt where a prefix ends: its tokens, a digest of it, and the breakpoint's TTL.

    `ttl` is None for a breakpoint with the backend's default TTL, and `""` where the place is no breakpoint:
    the prompt's end, or the end of what it has in common with the session's last one. The digest is a hash of
    the text, never the text.
    """

    tokens: int
    digest: str
    ttl: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerRow:
    """One attempt. It never holds a prompt, an answer or a key.

    Attributes:
        id: Ours, and the key: appending a row twice keeps one.
        operation_id: The call; its attempts share it.
        attempt: From 1.
        at: When the attempt was sent, in UTC.
        state: `ok`; `failed`: no answer; `partial`: a stream that broke; `cancelled`: left by its reader.
        backend: The scheme.
        model: The model that answered, or that was asked for.
        session: The session's name.
        tenant: The tenant.
        reply_id: The backend's id of the response, None without an answer.
        request_id: The backend's id of the request.
        error: The error's class, for a failed or partial row.
        stop_reason: Why the model stopped.
        usage: Token counts.
        cost: Dollars, at the prices that were known then.
        bill: What was billed, on which tariff: what a corrected price is applied to. None without an answer.
        rerated: Dollars at prices that were corrected later; None where they never were. `cost` stays.
        prefix: Where the prompt's prefixes end: what another backend's cache model needs to know.
        ttft_s: Seconds to the first token.
        total_s: Seconds to the end.
        metadata: The caller's own labels.
    """

    id: str
    operation_id: str
    attempt: int
    at: datetime
    state: RowState
    backend: str
    model: str
    session: str | None = None
    tenant: str | None = None
    reply_id: str | None = None
    request_id: str | None = None
    error: str | None = None
    stop_reason: str | None = None
    usage: Usage = field(default_factory=Usage)
    cost: Cost = field(default_factory=Cost)
    bill: Bill | None = None
    rerated: Cost | None = None
    prefix: tuple[PrefixMark, ...] = ()
    ttft_s: float | None = None
    total_s: float | None = None
    metadata: Mapping[str, str] = field(default_factory=dict)

    @property
    def current_cost(self) -> Cost:
        """The cost at the latest prices: corrected where they were."""
        return self.rerated or self.cost
