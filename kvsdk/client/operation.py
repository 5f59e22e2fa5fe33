"""One call, from its request to its reply, as flows without I/O."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

from kvsdk._ids import new_id
from kvsdk._text import excerpt
from kvsdk.backend import Answer, Backend, Call, Events, Outcome, Reader
from kvsdk.caching import Seen, TokenScale, cached_blocks, digest, explain_miss, plan
from kvsdk.client.options import CheckedCall
from kvsdk.cost import LedgerRow
from kvsdk.cost.row import RowState
from kvsdk.errors import (
    BackendError,
    BackendProtocolError,
    DeadlineExceeded,
    InvalidRequest,
    KvsdkError,
    LedgerError,
    StreamTruncated,
)
from kvsdk.reply import (
    BreakpointReport,
    CacheReport,
    Cost,
    End,
    Explanation,
    Latency,
    Reply,
    TextDelta,
    ThinkingDelta,
    TokenCount,
    ToolCallDelta,
)
from kvsdk.resilience import Deadline, RetryPolicy
from kvsdk.usage import Usage
from kvsdk.wire import Cancelled, Effect, Emit, Flow

logger = logging.getLogger("kvsdk")

_DELTAS = (TextDelta, ThinkingDelta, ToolCallDelta)


@dataclass(frozen=True, slots=True, kw_only=True)
class Runtime:
    """What all calls of a client share."""

    backend: Backend
    retry: RetryPolicy
    has_ledger: bool
    clock: Callable[[], float] = time.monotonic
    wall_clock_s: Callable[[], float] = time.time


class Operation:
    """One call: its plan, its clock, and what it writes to the ledger and the session."""

    def __init__(self, runtime: Runtime, call: CheckedCall) -> None:
        self.id = new_id("op")
        self._runtime = runtime
        self._backend = runtime.backend
        self._call = call
        self._plan = plan(call.request, self._backend.capabilities, strict=call.strict)
        self._prefix = digest(call.request)
        self._deadline = Deadline(call.timeout_s, runtime.clock)
        self._attempts = runtime.retry.begin()
        self._started_s = runtime.clock()
        self._attempt_at_s = runtime.wall_clock_s()
        self._attempt_started_s = self._started_s
        self._first_token_s: float | None = None

    # ------------------------------------------------------------------ flows

    def generate(self) -> Flow[Reply]:
        """Send, retry, and reply."""
        self._start_clock()
        while True:
            wire_call = self._encode(stream=False)
            try:
                answer: Answer = yield Effect("send", (wire_call, self._deadline.remaining_s()))
                with self._understood(answer.body, answer.request_id):
                    outcome = self._backend.decode(wire_call, answer)
            except GeneratorExit:
                raise
            except BaseException as error:  # noqa: BLE001  a cancelled attempt may have been billed too
                yield from self._record_failure(error)
                yield from self._wait_or_raise(error)
                continue
            self._first_token_s = outcome.ttft_s
            reply = self._reply(outcome, answer.request_id)
            yield from self._record(self._row(reply, "ok"))
            return reply

    def stream(self) -> Flow[Reply]:
        """Send, retry until the first event, pass events on, and reply."""
        self._start_clock()
        while True:
            wire_call = self._encode(stream=True)
            try:
                events: Events = yield Effect("open_stream", (wire_call, self._deadline.remaining_s()))
            except GeneratorExit:
                raise
            except BaseException as error:  # noqa: BLE001  a cancelled attempt may have been billed too
                yield from self._record_failure(error)
                yield from self._wait_or_raise(error)
                continue
            reply = yield from self._read(wire_call, events)
            if reply is not None:
                return reply

    def count_tokens(self) -> Flow[TokenCount]:
        """Exact where the backend can, else an estimate."""
        wire_call = self._encode(stream=False)
        exact: int | None = yield Effect("count_tokens", (wire_call, self._deadline.remaining_s()))
        return TokenCount(exact, is_estimated=False) if exact is not None else self._estimate()

    def explain(self) -> Explanation:
        """What would be sent, without sending it."""
        count = self._estimate()
        return Explanation(
            self._backend.scheme,
            self._backend.model,
            self._breakpoints(count),
            count,
            self._backend.capabilities.min_tokens,
            self._call.notes,
        )

    # ------------------------------------------------------------------ a stream's middle

    def _read(self, wire_call: Call, events: Events) -> Flow[Reply | None]:
        """Pass a stream on to its end. None means: nothing had been passed on, try again."""
        reader = self._backend.reader(wire_call)
        has_begun = has_emitted = False
        try:
            while (item := (yield Effect("pull", (events,)))) is not None:
                has_begun = True
                with self._understood(item, events.request_id):
                    fed = tuple(reader.feed(item))
                for event in fed:
                    if self._first_token_s is None and isinstance(event, _DELTAS):
                        self._first_token_s = self._runtime.clock() - self._started_s
                    has_emitted = True
                    yield Emit(event)
            outcome = self._with_estimates(reader.outcome())
            if not outcome.complete:
                raise StreamTruncated("the stream stopped before its end", **self._where(events))
        except GeneratorExit:
            raise
        except BaseException as error:
            yield Effect("close_stream", (events,))
            self._place(error, events.request_id)
            if not has_begun:
                yield from self._record_failure(error)
                yield from self._wait_or_raise(error)
                return None
            partial = self._reply(self._partial(reader), events.request_id)
            state: RowState = "partial" if isinstance(error, KvsdkError) else "cancelled"
            yield from self._record(self._row(partial, state, error))
            if isinstance(error, Cancelled):
                return partial
            if not isinstance(error, BackendError):
                raise
            if not has_emitted and error.retryable:
                yield from self._wait_or_raise(error)
                return None
            raise self._truncated(error, partial, events) from error.__cause__
        yield Effect("close_stream", (events,))
        reply = self._reply(outcome, events.request_id)
        yield from self._record(self._row(reply, "ok"))
        with suppress(Cancelled):  # a reader that leaves now has missed nothing
            yield Emit(End(reply))
        return reply

    @contextmanager
    def _understood(self, body: object, request_id: str | None) -> Generator[None]:
        """Where a backend's words are read: what does not fit is its fault; its errors get their place."""
        try:
            yield
        except BackendError as error:
            self._place(error, request_id)
            raise
        except (InvalidRequest, LookupError, TypeError, AttributeError, ValueError) as error:
            raise BackendProtocolError(
                f"not understood ({type(error).__name__}: {error}); it starts with: {excerpt(str(body))}",
                backend=self._backend.scheme,
                model=self._backend.model,
                request_id=request_id,
            ) from error

    def _place(self, error: BaseException, request_id: str | None) -> None:
        """Say where an error comes from that was found inside an answer."""
        if isinstance(error, BackendError):
            error.backend, error.model = self._backend.scheme, self._backend.model
            error.request_id = error.request_id or request_id

    def _partial(self, reader: Reader) -> Outcome:
        """What has arrived of a broken stream; where not even that is understood, nothing."""
        try:
            outcome = reader.outcome()
        except (BackendError, InvalidRequest, LookupError, TypeError, AttributeError, ValueError):
            outcome = Outcome(
                reply_id=None,
                model=self._backend.model,
                parts=(),
                stop_reason="other",
                usage=Usage(),
                raw={},
            )
        return _as_partial(self._with_estimates(outcome))

    def _with_estimates(self, outcome: Outcome) -> Outcome:
        """The outcome of a stream, with estimates where it ended without the counts that decide its cost."""
        usage = outcome.usage
        guesses: dict[str, Any] = {}
        if usage.input_tokens is None:
            guesses["input_tokens"] = int(self._estimate())
        if usage.output_tokens is None:
            guesses["output_tokens"] = _tokens_of(outcome)
        if not guesses:
            return outcome
        return replace(outcome, usage=replace(usage, **guesses, estimated=usage.estimated | set(guesses)))

    def _truncated(self, error: BackendError, partial: Reply, events: Events) -> StreamTruncated:
        if not isinstance(error, StreamTruncated):
            cause = error
            error = StreamTruncated(f"the stream broke off: {cause.args[0]}", **self._where(events))
            error.__cause__ = cause
        error.reply = partial
        return error

    def _where(self, events: Events) -> dict[str, Any]:
        return {
            "backend": self._backend.scheme,
            "model": self._backend.model,
            "request_id": events.request_id,
        }

    # ------------------------------------------------------------------ attempts

    def _start_clock(self) -> None:
        """The call begins when its flow does, not while a channel is still being opened."""
        self._deadline = Deadline(self._call.timeout_s, self._runtime.clock)
        self._started_s = self._runtime.clock()

    def _encode(self, *, stream: bool) -> Call:
        self._deadline.check()
        self._attempt_at_s = self._runtime.wall_clock_s()
        self._attempt_started_s = self._runtime.clock()
        call_id = f"{self.id}-{self._attempts.number}"
        return self._backend.encode(self._plan.request, stream=stream, call_id=call_id)

    def _wait_or_raise(self, error: BaseException) -> Flow[None]:
        """Wait for the next attempt, or raise: not retryable, or no attempt or time left."""
        if not isinstance(error, BackendError):
            raise error
        wait_s = self._attempts.wait_after(error)
        try:
            self._deadline.check(wait_s)
        except DeadlineExceeded as over:
            raise over from error
        yield Effect("sleep", (wait_s,))

    def _record_failure(self, error: BaseException) -> Flow[None]:
        if isinstance(error, KvsdkError) and error.billed is False:
            cost = Cost(total=Decimal(0), reason="refused; nothing was billed")
        else:
            cost = Cost(reason="no answer; it is not known whether anything was billed")
        state: RowState = "failed" if isinstance(error, KvsdkError) else "cancelled"
        yield from self._record(
            LedgerRow(
                **self._row_head(),
                state=state,
                model=self._backend.model,
                request_id=getattr(error, "request_id", None),
                error=type(error).__name__,
                cost=cost,
                total_s=self._runtime.clock() - self._attempt_started_s,
            )
        )

    # ------------------------------------------------------------------ reply

    def _reply(self, outcome: Outcome, request_id: str | None) -> Reply:
        at = datetime.fromtimestamp(self._attempt_at_s, UTC)
        usage = outcome.usage
        return Reply(
            id=outcome.reply_id,
            request_id=request_id,
            operation_id=self.id,
            parts=outcome.parts,
            stop_reason=outcome.stop_reason,
            usage=usage,
            cost=self._backend.cost(outcome, self._plan.request, at),
            cache=self._cache_report(outcome),
            backend=self._backend.scheme,
            model=outcome.model or self._backend.model,
            session=self._call.request.session,
            latency=Latency(self._first_token_s, self._runtime.clock() - self._started_s),
            attempts=self._attempts.number,
            raw=outcome.raw,
        )

    def _cache_report(self, outcome: Outcome) -> CacheReport:
        usage, capabilities, state = outcome.usage, self._backend.capabilities, self._call.state
        scale = TokenScale.measured(self._prefix.size_bytes, usage.input_tokens)
        now = Seen(
            f"{self._backend.scheme}:{self._backend.model}",
            self._prefix,
            cached_blocks(self._plan, self._prefix, capabilities),
            self._attempt_at_s,
            self._plan.ttl_s,
            scale,
        )
        before = state.seen if state else None
        miss = explain_miss(now, before, usage, capabilities, has_session=state is not None)
        if state is not None:
            state.remember(now, outcome.reply_id)
        total = usage.input_tokens
        notes = self._call.notes + outcome.notes
        if usage.cache_read_tokens is None:
            notes += ("the backend did not report what it read from its cache",)
        return CacheReport(
            self._breakpoints(
                None if total is None else TokenCount(total, is_estimated="input_tokens" in usage.estimated)
            ),
            usage.hit_rate,
            notes,
            miss,
        )

    def _breakpoints(self, total: TokenCount | None) -> tuple[BreakpointReport, ...]:
        """The plan's report with token counts: exact at the end of the prompt, else scaled by bytes."""
        if total is None:
            return self._plan.breakpoints
        scale = TokenScale.measured(self._prefix.size_bytes, total)
        last = len(self._prefix.blocks) - 1
        return tuple(
            entry
            if end is None
            else replace(
                entry,
                tokens=int(total) if end == last else scale.tokens(self._prefix.ends_bytes[end]),
                tokens_estimated=end != last or total.is_estimated,
            )
            for entry, end in zip(self._plan.breakpoints, self._plan.ends, strict=True)
        )

    def _estimate(self) -> TokenCount:
        seen = self._call.state.seen if self._call.state else None
        scale = seen.scale if seen else TokenScale()
        return TokenCount(scale.tokens(self._prefix.size_bytes), is_estimated=True)

    # ------------------------------------------------------------------ ledger

    def _row_head(self) -> dict[str, Any]:
        request = self._call.request
        return {
            "id": new_id("row"),
            "operation_id": self.id,
            "attempt": self._attempts.number,
            "at": datetime.fromtimestamp(self._attempt_at_s, UTC),
            "backend": self._backend.scheme,
            "session": request.session,
            "tenant": request.tenant,
            "metadata": self._call.metadata,
        }

    def _row(self, reply: Reply, state: RowState, error: BaseException | None = None) -> LedgerRow:
        return LedgerRow(
            **self._row_head(),
            state=state,
            model=reply.model,
            reply_id=reply.id,
            request_id=reply.request_id,
            error=type(error).__name__ if error else None,
            stop_reason=reply.stop_reason if state == "ok" else None,
            usage=reply.usage,
            cost=reply.cost,
            ttft_s=reply.latency.ttft_s,
            total_s=self._runtime.clock() - self._attempt_started_s,
        )

    def _record(self, row: LedgerRow) -> Flow[None]:
        """Write a row; a ledger that fails must not cost the caller a paid answer, but is loud."""
        if not self._runtime.has_ledger:
            return
        try:
            yield Effect("record", (row,))
        except LedgerError as error:
            logger.error("a ledger row was lost: %s; the row: %r", error, row)


def _as_partial(outcome: Outcome) -> Outcome:
    """A broken stream's outcome: output is at least what arrived, and the count says it is an estimate."""
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
