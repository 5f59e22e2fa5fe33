"""What a call says of itself: the reply, the ledger's rows, and what its session remembers."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import UTC, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from kvsdk._ids import new_id
from kvsdk.backend import Backend, Bill, Call, Outcome
from kvsdk.caching import (
    Seen,
    TokenScale,
    cached_blocks,
    digest,
    explain_miss,
    known_traits,
    lint,
    plan,
    traits,
    with_diagnosis,
    with_prediction,
)
from kvsdk.client.bound import Bound, upper_bound
from kvsdk.client.forecast import Forecast
from kvsdk.client.marks import prefix_marks
from kvsdk.client.options import CheckedCall
from kvsdk.cost import LedgerRow, rate
from kvsdk.cost.ledger.row import RowState
from kvsdk.errors import KvsdkError
from kvsdk.reply import (
    BreakpointReport,
    CacheReport,
    Cost,
    Finding,
    Latency,
    Predicted,
    Reply,
    TokenCount,
)
from kvsdk.usage import Usage

if TYPE_CHECKING:
    from kvsdk.cost import PriceBook


@dataclass(frozen=True, slots=True)
class Attempt:
    """One sending of a call: its number from 1, and when it was sent, in seconds since 1970."""

    number: int
    at_s: float

    @property
    def at(self) -> datetime:
        """When it was sent, in UTC."""
        return datetime.fromtimestamp(self.at_s, UTC)


class Account:
    """The plan and the prefix of one call, and what is made of its outcomes. No I/O and no clock."""

    def __init__(
        self, backend: Backend, call: CheckedCall, forecast: Forecast, prices: PriceBook | None = None
    ) -> None:
        self.operation_id = new_id("op")
        self.plan = plan(call.request, backend.capabilities, strict=call.strict)
        self.prefix = digest(call.request)
        self._backend = backend
        self._call = call
        self._forecast = forecast
        self._prices = prices
        self._before = call.state.seen if call.state else None

    # ------------------------------------------------------------------ for the caller

    def bill(self, outcome: Outcome) -> Bill:
        """What an outcome is billed for."""
        return self._backend.bill(outcome, self.plan.request)

    def reply(
        self, outcome: Outcome, bill: Bill, attempt: Attempt, latency: Latency, *, request_id: str | None
    ) -> Reply:
        """The reply to an outcome; the call's session remembers it."""
        return Reply(
            id=outcome.reply_id,
            request_id=request_id,
            operation_id=self.operation_id,
            parts=outcome.parts,
            stop_reason=outcome.stop_reason,
            usage=outcome.usage,
            cost=self._cost(bill, attempt),
            cache=self._cache_report(outcome, attempt),
            backend=self._backend.scheme,
            model=outcome.model or self._backend.model,
            session=self._call.request.session,
            latency=latency,
            attempts=attempt.number,
            raw=outcome.raw,
            response_format=self._call.request.response_format,
        )

    def _cost(self, bill: Bill, attempt: Attempt) -> Cost:
        """What is billed, at the prices of the attempt's day."""
        return rate(bill, at=attempt.at, prices=self._prices)

    def bound(self, call: Call, attempt: Attempt, timeout_s: float | None) -> Bound:
        """The most that an attempt could cost, before it is sent."""
        return upper_bound(
            self._backend,
            self.plan.request,
            call,
            self.prefix.size_bytes,
            at=attempt.at,
            timeout_s=timeout_s,
            prices=self._prices,
        )

    def notes(self) -> tuple[str, ...]:
        """What is known before anything is sent: settings left out, and how the backend will cache."""
        return self._call.notes + self._backend.notes(self.plan.request)

    def estimate(self) -> TokenCount:
        """Tokens of the prompt before any were reported, scaled by what the session's last one had."""
        return TokenCount(self._scale().tokens(self.prefix.size_bytes), is_estimated=True)

    def lint(self) -> tuple[Finding, ...]:
        """What keeps the prompt from being cached, or costs more than it saves."""
        capabilities = self._backend.capabilities
        return lint(self._call.request, self.plan, self.prefix, capabilities, self._scale())

    def predict(self, at_s: float) -> tuple[Predicted | None, Cost | None]:
        """What would be read and written now, and what that input would cost without an answer."""
        predicted = self._forecast.predict(self.plan.request, self.prefix, at_s, self._scale())
        if predicted is None:
            return None, None
        usage = Usage(
            input_tokens=predicted.total_tokens,
            cache_read_tokens=predicted.read_tokens,
            cache_write_tokens=predicted.write_tokens,
            fresh_tokens=predicted.fresh_tokens,
            output_tokens=0,
            cache_write_by_ttl=predicted.write_by_ttl or None,
            estimated=frozenset({"input_tokens"}),
        )
        outcome = Outcome.of_usage(self._backend.model, usage)
        return predicted, self._cost(self.bill(outcome), Attempt(1, at_s))

    def _scale(self) -> TokenScale:
        seen = self._call.state.seen if self._call.state else None
        return seen.scale if seen else TokenScale()

    def breakpoints(self, total: TokenCount | None) -> tuple[BreakpointReport, ...]:
        """The plan's report with token counts: exact at the end of the prompt, else scaled by bytes."""
        if total is None:
            return self.plan.breakpoints
        scale = TokenScale.measured(self.prefix.size_bytes, total)
        last = len(self.prefix.blocks) - 1
        return tuple(
            entry
            if end is None
            else replace(
                entry,
                tokens=int(total) if end == last else scale.tokens(self.prefix.ends_bytes[end]),
                tokens_estimated=end != last or total.is_estimated,
            )
            for entry, end in zip(self.plan.breakpoints, self.plan.ends, strict=True)
        )

    def _cache_report(self, outcome: Outcome, attempt: Attempt) -> CacheReport:
        usage, capabilities, state = outcome.usage, self._backend.capabilities, self._call.state
        before = state.seen if state else None
        now = Seen(
            f"{self._backend.scheme}:{self._backend.model}",
            self.prefix,
            cached_blocks(self.plan, self.prefix, capabilities),
            attempt.at_s,
            self.plan.ttl_s,
            TokenScale.measured(self.prefix.size_bytes, usage.input_tokens),
            traits(self._call.request, self.prefix, known_traits(before)) if state else (),
        )
        miss = explain_miss(now, before, usage, capabilities, has_session=state is not None)
        predicted = self._forecast.observe(self.plan.request, self.prefix, attempt.at_s, now.scale)
        miss = with_diagnosis(with_prediction(miss, before, predicted), outcome.diagnosis)
        if state is not None:
            state.remember(now, outcome.reply_id)
        notes = self.notes() + outcome.notes
        if usage.cache_read_tokens is None:
            notes += ("the backend did not report what it read from its cache",)
        total = None
        if usage.input_tokens is not None:
            total = TokenCount(usage.input_tokens, is_estimated="input_tokens" in usage.estimated)
        return CacheReport(self.breakpoints(total), usage.hit_rate, notes, miss, predicted)

    # ------------------------------------------------------------------ for the ledger

    def row(
        self,
        reply: Reply,
        bill: Bill,
        attempt: Attempt,
        state: RowState,
        *,
        took_s: float,
        error: BaseException | None,
    ) -> LedgerRow:
        """The row of an attempt that was answered, wholly or in part."""
        before = self._before.prefix if self._before else None
        return LedgerRow(
            **self._row_head(attempt),
            state=state,
            model=reply.model,
            reply_id=reply.id,
            request_id=reply.request_id,
            error=type(error).__name__ if error else None,
            stop_reason=reply.stop_reason if state == "ok" else None,
            usage=reply.usage,
            cost=reply.cost,
            bill=bill,
            prefix=prefix_marks(self.plan, self.prefix, before, reply.usage.input_tokens),
            ttft_s=reply.latency.ttft_s,
            total_s=took_s,
        )

    def failure_row(self, error: BaseException, attempt: Attempt, *, took_s: float) -> LedgerRow:
        """The row of an attempt without an answer; whether it was billed may be unknown."""
        if isinstance(error, KvsdkError) and error.billed is False:
            cost = Cost(total=Decimal(0), reason="refused; nothing was billed")
        else:
            cost = Cost(reason="no answer; it is not known whether anything was billed")
        return LedgerRow(
            **self._row_head(attempt),
            state="failed" if isinstance(error, KvsdkError) else "cancelled",
            model=self._backend.model,
            request_id=getattr(error, "request_id", None),
            error=type(error).__name__,
            cost=cost,
            total_s=took_s,
        )

    def _row_head(self, attempt: Attempt) -> dict[str, Any]:
        request = self._call.request
        return {
            "id": new_id("row"),
            "operation_id": self.operation_id,
            "attempt": attempt.number,
            "at": attempt.at,
            "backend": self._backend.scheme,
            "session": request.session,
            "tenant": request.tenant,
            "metadata": self._call.metadata,
        }


# ---------------------------------------------------------------------- streams without their counts


def with_estimates(outcome: Outcome, prompt_tokens: int) -> Outcome:
    """A stream's outcome, with estimates where it ended without the counts that decide its cost."""
    usage = outcome.usage
    guesses: dict[str, Any] = {}
    if usage.input_tokens is None:
        guesses["input_tokens"] = prompt_tokens
    if usage.output_tokens is None:
        guesses["output_tokens"] = _tokens_of(outcome)
    if not guesses:
        return outcome
    return replace(outcome, usage=replace(usage, **guesses, estimated=usage.estimated | set(guesses)))


def as_partial(outcome: Outcome, prompt_tokens: int) -> Outcome:
    """A broken stream's outcome: output is at least what arrived, and the count says it is an estimate."""
    outcome = with_estimates(outcome, prompt_tokens)
    usage = outcome.usage
    output = max(usage.output_tokens or 0, _tokens_of(outcome))
    estimated = replace(usage, output_tokens=output, estimated=usage.estimated | {"output_tokens"})
    return replace(outcome, usage=estimated, complete=False)


def _tokens_of(outcome: Outcome) -> int:
    """Tokens of what was generated: an estimate."""
    return TokenScale().tokens(sum(_size_bytes(part) for part in outcome.parts))


def _size_bytes(part: object) -> int:
    text: str = getattr(part, "text", "") or getattr(part, "arguments_json", "")
    return len(text.encode("utf-8", "surrogatepass"))
