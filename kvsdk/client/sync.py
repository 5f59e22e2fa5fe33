"""The sync client."""

from __future__ import annotations

import time
from collections.abc import Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Any, Unpack

from kvsdk.backend import Answer, Call, Channel, Events
from kvsdk.client.options import CallOptions
from kvsdk.client.shared import ClientBase
from kvsdk.errors import InvalidRequest
from kvsdk.prompt import MessagesLike
from kvsdk.reply import Event, Explanation, Reply, TextDelta, TokenCount
from kvsdk.session import SessionState
from kvsdk.wire import Cancelled, Done, Effect, Emit, Flow, Machine, advance

if TYPE_CHECKING:
    from kvsdk.cost import Ledger, LedgerRow
    from kvsdk.cost.budgets.budget import Question, Spent


class Client(ClientBase):
    """One client for prompt caching, wherever the cache lives. Thread-safe.

    Args:
        backend: `"scheme:target"`, such as `"anthropic:claude-sonnet-5-5"`, or a `Backend`.
        ledger: A file, a database URL, or a `Ledger`; every attempt is written to it.
        prices: A TOML file with contract prices, or a `PriceBook`; list prices by default.
        tenant: The tenant of calls that name none; caches are kept apart by tenant where the backend can.
        retry: A `RetryPolicy`, a number of attempts, or False. 3 attempts by default.
        budget: What may be spent: a `Budget`, US dollars such as `"10.00"`, or a list of them, all of which
            must hold. A call that could cost more than is left raises `BudgetExceeded` and is not sent.
        cache: `"auto"` places breakpoints itself in calls that do not say otherwise.
        strict: Raise `InvalidBreakpoints` rather than change or drop a breakpoint.
        on_unsupported: `"raise"` or `"drop"` settings that the backend does not take.
        **options: The backend's own, such as `base_url=` and `api_key=`.

    Raises:
        ConfigurationError: The set-up is wrong (`UnknownScheme`, `BackendNotInstalled`,
            `MissingCredentials`, an unknown option).
        LedgerError: The ledger cannot be opened.
    """

    _io: _IO | None = None

    def generate(self, messages: MessagesLike, **options: Unpack[CallOptions]) -> Reply:
        """Send a prompt and wait for the whole answer.

        Args:
            messages: A string, `Message`s, or dicts in the OpenAI or the Anthropic shape.
            **options: See `CallOptions`.

        Raises:
            InvalidRequest: The call is wrong; nothing was sent.
            BackendError: The backend refused, failed, or did not answer, after all attempts.
            DeadlineExceeded: `timeout_s` is over.
            BudgetExceeded: It could cost more than a budget has left; it was not sent.
        """
        reply: Reply = self._run(self._operation(messages, options).generate())
        return reply

    def stream(self, messages: MessagesLike, **options: Unpack[CallOptions]) -> Stream:
        """A context manager over the answer's events; the request is sent when they are first asked for."""
        return Stream(self._operation(messages, options).stream(), self._channel())

    def prewarm(self, messages: MessagesLike, **options: Unpack[CallOptions]) -> Reply:
        """Write the prompt's prefix to the cache without an answer; the reply has its usage and cost.

        Raises:
            Unsupported: The backend cannot do that.
        """
        reply: Reply = self._run(self._operation(messages, options, is_prewarm=True).generate())
        return reply

    def count_tokens(self, messages: MessagesLike, **options: Unpack[CallOptions]) -> TokenCount:
        """Tokens of a prompt: exact where the backend can tell, else an estimate that says so."""
        count: TokenCount = self._run(self._operation(messages, options).count_tokens())
        return count

    def explain(self, messages: MessagesLike, **options: Unpack[CallOptions]) -> Explanation:
        """What the call would become: its breakpoints after mapping and its size. Sends nothing."""
        return self._operation(messages, options).explain()

    def session(self, name: str, *, tenant: str | None = None) -> Session:
        """A conversation; the same name and tenant give the same one."""
        return Session(self, self._session_state(name, tenant))

    def close(self) -> None:
        """Close connections and write the ledger's rest. May be called twice."""
        with self._lock:
            io, self._io = self._io, None
        try:
            if io is not None:
                io.channel.close()
        finally:
            self._close_ledger()

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _channel(self) -> _IO:
        with self._lock:
            if self._io is None:
                self._io = _IO(self._backend.open(), self._ledger)
            return self._io

    def _run(self, flow: Flow[Any]) -> Any:
        machine = Machine(flow)
        done = advance(machine, self._channel(), machine.resume(None))
        assert isinstance(done, Done)
        return done.value


class Session:
    """A conversation: its calls share what keeps their prefix stable. It keeps no messages."""

    def __init__(self, client: Client, state: SessionState) -> None:
        self._client = client
        self.state = state

    @property
    def name(self) -> str:
        """The session's name."""
        return self.state.name

    @property
    def tenant(self) -> str | None:
        """The session's tenant."""
        return self.state.tenant

    def generate(self, messages: MessagesLike, **options: Unpack[CallOptions]) -> Reply:
        """`Client.generate` in this session."""
        return self._client.generate(messages, **_in_session(options, self))

    def stream(self, messages: MessagesLike, **options: Unpack[CallOptions]) -> Stream:
        """`Client.stream` in this session."""
        return self._client.stream(messages, **_in_session(options, self))

    def prewarm(self, messages: MessagesLike, **options: Unpack[CallOptions]) -> Reply:
        """`Client.prewarm` in this session."""
        return self._client.prewarm(messages, **_in_session(options, self))

    def count_tokens(self, messages: MessagesLike, **options: Unpack[CallOptions]) -> TokenCount:
        """`Client.count_tokens` in this session."""
        return self._client.count_tokens(messages, **_in_session(options, self))

    def explain(self, messages: MessagesLike, **options: Unpack[CallOptions]) -> Explanation:
        """`Client.explain` in this session."""
        return self._client.explain(messages, **_in_session(options, self))


class Stream:
    """An answer as it arrives. Iterate it for events, or `text_stream` for text; then read `reply`.

    Leaving the `with` block early cancels the answer and records what it cost.
    """

    def __init__(self, flow: Flow[Reply], io: _IO) -> None:
        self._machine = Machine(flow)
        self._io = io
        self._step: Effect | Emit | Done | None = None
        self._reply: Reply | None = None
        self._is_over = False

    @property
    def reply(self) -> Reply:
        """The reply, once the stream has ended or was left."""
        if self._reply is None:
            raise InvalidRequest("the stream has no reply yet; read it to its end first")
        return self._reply

    @property
    def text_stream(self) -> Iterator[str]:
        """The text alone, piece by piece."""
        for event in self:
            if isinstance(event, TextDelta):
                yield event.text

    def __iter__(self) -> Iterator[Event]:
        return self

    def __next__(self) -> Event:
        if self._is_over:
            raise StopIteration
        try:
            self._step = advance(self._machine, self._io, self._machine.resume(None))
        except BaseException:
            self._is_over = True
            raise
        if isinstance(self._step, Emit):
            return self._step.event
        self._finish(self._step)
        raise StopIteration

    def close(self) -> None:
        """Cancel what has not arrived. May be called twice."""
        if self._is_over:
            return
        self._is_over = True
        if self._step is not None:
            self._finish(advance(self._machine, self._io, self._machine.fail(Cancelled())))

    def _finish(self, done: Emit | Done) -> None:
        self._is_over = True
        self._reply = done.value if isinstance(done, Done) else None

    def __enter__(self) -> Stream:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class _IO:
    """What a flow's effects do here."""

    def __init__(self, channel: Channel, ledger: Ledger | None) -> None:
        self.channel = channel
        self._ledger = ledger

    def send(self, call: Call, timeout_s: float | None) -> Answer:
        return self.channel.send(call, timeout_s)

    def open_stream(self, call: Call, timeout_s: float | None) -> Events:
        return self.channel.stream(call, timeout_s)

    def pull(self, events: Events) -> Any:
        return next(events, None)

    def close_stream(self, events: Events) -> None:
        events.close()

    def count_tokens(self, call: Call, timeout_s: float | None) -> int | None:
        return self.channel.count_tokens(call, timeout_s)

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)

    def record(self, row: LedgerRow) -> None:
        assert self._ledger is not None
        self._ledger.append(row)

    def spent(self, question: Question) -> Spent:
        from kvsdk.cost.budgets.spent import spent

        assert self._ledger is not None
        return spent(self._ledger, question)


def _in_session(options: CallOptions, session: Session) -> CallOptions:
    if "session" in options:
        raise InvalidRequest("a session's call takes no session=", field="session")
    return {**options, "session": session}
