"""One call, from its request to its reply, as flows without I/O."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kvsdk._text import excerpt
from kvsdk.backend import Answer, Backend, Bill, Call, Events, Outcome, Reader
from kvsdk.client.account import Account, Attempt, as_partial, with_estimates
from kvsdk.client.forecast import Forecast
from kvsdk.client.options import CheckedCall
from kvsdk.client.reserving import Reserving
from kvsdk.cost import LedgerRow
from kvsdk.cost.budgets.account import Budgets
from kvsdk.cost.ledger.row import RowState
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
    End,
    Event,
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

if TYPE_CHECKING:
    from kvsdk.cost import PriceBook

logger = logging.getLogger("kvsdk")

_DELTAS = (TextDelta, ThinkingDelta, ToolCallDelta)


@dataclass(frozen=True, slots=True, kw_only=True)
class Runtime:
    """What all calls of a client share."""

    backend: Backend
    retry: RetryPolicy
    has_ledger: bool
    forecast: Forecast
    prices: PriceBook | None = None
    budgets: Budgets | None = None
    clock: Callable[[], float] = time.monotonic
    wall_clock_s: Callable[[], float] = time.time


class Operation:
    """One call as flows: what is sent when, what is tried again, and when it is over."""

    def __init__(self, runtime: Runtime, call: CheckedCall) -> None:
        self._runtime = runtime
        self._backend = runtime.backend
        self._call = call
        self._account = Account(runtime.backend, call, runtime.forecast, runtime.prices)
        self._deadline = Deadline(call.timeout_s, runtime.clock)
        self._attempts = runtime.retry.begin()
        self._attempt = Attempt(1, runtime.wall_clock_s())
        self._started_s = self._attempt_started_s = runtime.clock()
        self._first_token_s: float | None = None
        self._reserving = Reserving(runtime.budgets, runtime.backend, self._account)
        self._last_error: BackendError | None = None

    # ------------------------------------------------------------------ flows

    def generate(self) -> Flow[Reply]:
        """Send, retry, and reply."""
        try:
            return (yield from self._generate())
        finally:
            self._end()

    def stream(self) -> Flow[Reply]:
        """Send, retry until the first event, pass events on, and reply."""
        try:
            return (yield from self._stream())
        finally:
            self._end()

    def _generate(self) -> Flow[Reply]:
        self._start_clock()
        while True:
            wire_call = self._encode(stream=False)
            yield from self._reserve(wire_call)
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
            bill = self._account.bill(outcome)
            reply = self._reply(outcome, bill, answer.request_id)
            yield from self._record_reply(reply, bill, "ok")
            return reply

    def _stream(self) -> Flow[Reply]:
        self._start_clock()
        while True:
            wire_call = self._encode(stream=True)
            yield from self._reserve(wire_call)
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
        return TokenCount(exact, is_estimated=False) if exact is not None else self._account.estimate()

    def explain(self) -> Explanation:
        """What would be sent, without sending it."""
        count = self._account.estimate()
        return Explanation(
            self._backend.scheme,
            self._backend.model,
            self._account.breakpoints(count),
            count,
            self._backend.capabilities.min_tokens,
            self._account.notes(),
            self._account.lint(),
            *self._account.predict(self._runtime.wall_clock_s()),
        )

    # ------------------------------------------------------------------ a stream's middle

    def _read(self, wire_call: Call, events: Events) -> Flow[Reply | None]:
        """Pass a stream on to its end. None means: nothing had been passed on, try again."""
        reader = self._backend.reader(wire_call)
        pull = Effect("pull", (events,))
        has_begun = has_emitted = False
        try:
            while (item := (yield pull)) is not None:
                has_begun = True
                for event in self._feed(reader, item, events):
                    if self._first_token_s is None and isinstance(event, _DELTAS):
                        self._first_token_s = self._runtime.clock() - self._started_s
                    has_emitted = True
                    yield Emit(event)
            outcome = with_estimates(reader.outcome(), self._account.estimate())
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
            arrived = self._partial(reader)
            bill = self._account.bill(arrived)
            partial = self._reply(arrived, bill, events.request_id)
            state: RowState = "partial" if isinstance(error, KvsdkError) else "cancelled"
            yield from self._record_reply(partial, bill, state, error)
            if isinstance(error, Cancelled):
                return partial
            if not isinstance(error, BackendError):
                raise
            if not has_emitted and error.retryable:
                yield from self._wait_or_raise(error)
                return None
            raise self._truncated(error, partial, events) from error.__cause__
        yield Effect("close_stream", (events,))
        bill = self._account.bill(outcome)
        reply = self._reply(outcome, bill, events.request_id)
        yield from self._record_reply(reply, bill, "ok")
        with suppress(Cancelled):  # a reader that leaves now has missed nothing
            yield Emit(End(reply))
        return reply

    def _feed(self, reader: Reader, item: Any, events: Events) -> tuple[Event, ...]:
        """What one event of the vendor means; all of it is read before any is passed on."""
        try:
            return tuple(reader.feed(item))
        except Exception:
            with self._understood(item, events.request_id):
                raise

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
            outcome = Outcome.of_usage(self._backend.model, Usage())
        return as_partial(outcome, self._account.estimate())

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
        self._attempt = Attempt(self._attempts.number, self._runtime.wall_clock_s())
        self._attempt_started_s = self._runtime.clock()
        call_id = f"{self._account.operation_id}-{self._attempt.number}"
        return self._backend.encode(self._account.plan.request, stream=stream, call_id=call_id)

    def _end(self) -> None:
        """An attempt that was given up without a word may have been billed."""
        self._reserving.settle(None)
        self._last_error = None  # its traceback holds this flow

    def _reserve(self, wire_call: Call) -> Flow[None]:
        """Nothing is sent that a budget does not hold."""
        remaining_s = self._deadline.remaining_s()
        yield from self._reserving.reserve(wire_call, self._attempt, remaining_s, self._last_error)

    def _wait_or_raise(self, error: BaseException) -> Flow[None]:
        """Wait for the next attempt, or raise: not retryable, or no attempt or time left."""
        if not isinstance(error, BackendError):
            raise error
        self._last_error = error
        wait_s = self._attempts.wait_after(error)
        try:
            self._deadline.check(wait_s)
        except DeadlineExceeded as over:
            raise over from error
        yield Effect("sleep", (wait_s,))

    # ------------------------------------------------------------------ reply and ledger

    def _reply(self, outcome: Outcome, bill: Bill, request_id: str | None) -> Reply:
        latency = Latency(self._first_token_s, self._runtime.clock() - self._started_s)
        return self._account.reply(outcome, bill, self._attempt, latency, request_id=request_id)

    def _record_reply(
        self, reply: Reply, bill: Bill, state: RowState, error: BaseException | None = None
    ) -> Flow[None]:
        self._reserving.settle(reply.cost.total)
        if self._runtime.has_ledger:
            took_s = self._took_s()
            row = self._account.row(reply, bill, self._attempt, state, took_s=took_s, error=error)
            yield from self._record(row)

    def _record_failure(self, error: BaseException) -> Flow[None]:
        self._reserving.fail(error)
        yield from self._record(self._account.failure_row(error, self._attempt, took_s=self._took_s()))

    def _took_s(self) -> float:
        """Seconds of the current attempt."""
        return self._runtime.clock() - self._attempt_started_s

    def _record(self, row: LedgerRow) -> Flow[None]:
        """Write a row; a ledger that fails must not cost the caller a paid answer, but is loud."""
        if not self._runtime.has_ledger:
            return
        try:
            yield Effect("record", (row,))
        except (LedgerError, InvalidRequest) as error:
            logger.error("a ledger row was lost: %s; the row: %r", error, row)
