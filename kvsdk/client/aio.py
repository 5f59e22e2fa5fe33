"""The async client: the same flows, awaited."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from functools import cached_property
from types import TracebackType
from typing import TYPE_CHECKING, Any, Unpack
from weakref import WeakKeyDictionary

from kvsdk.backend import Answer, AsyncChannel, AsyncEvents, Call
from kvsdk.client.options import CallOptions
from kvsdk.client.shared import ClientBase
from kvsdk.errors import InvalidRequest
from kvsdk.prompt import MessagesLike
from kvsdk.reply import Event, Explanation, Reply, TextDelta, TokenCount
from kvsdk.session import SessionState
from kvsdk.wire import Cancelled, Done, Effect, Emit, Flow, Machine, aadvance

if TYPE_CHECKING:
    from kvsdk.cost import Ledger, LedgerRow
    from kvsdk.cost.budgets.budget import Question, Spent


class AsyncClient(ClientBase):
    """`Client` for asyncio: the same arguments, the same methods, awaited.

    One `AsyncClient` may be used from several event loops, also one after the other; it opens the vendor's
    client once per running loop.
    """

    @cached_property
    def _ios(self) -> WeakKeyDictionary[asyncio.AbstractEventLoop, _AsyncIO]:
        return WeakKeyDictionary()

    async def generate(self, messages: MessagesLike, **options: Unpack[CallOptions]) -> Reply:
        """Send a prompt and wait for the whole answer. See `Client.generate`."""
        reply: Reply = await self._run(self._operation(messages, options).generate())
        return reply

    def stream(self, messages: MessagesLike, **options: Unpack[CallOptions]) -> AsyncStream:
        """A context manager over the answer's events; the request is sent when they are first asked for."""
        return AsyncStream(self._operation(messages, options).stream(), self._channel())

    async def prewarm(self, messages: MessagesLike, **options: Unpack[CallOptions]) -> Reply:
        """Write the prompt's prefix to the cache without an answer; the reply has its usage and cost.

        Raises:
            Unsupported: The backend cannot do that.
        """
        reply: Reply = await self._run(self._operation(messages, options, is_prewarm=True).generate())
        return reply

    async def count_tokens(self, messages: MessagesLike, **options: Unpack[CallOptions]) -> TokenCount:
        """Tokens of a prompt: exact where the backend can tell, else an estimate that says so."""
        count: TokenCount = await self._run(self._operation(messages, options).count_tokens())
        return count

    async def explain(self, messages: MessagesLike, **options: Unpack[CallOptions]) -> Explanation:
        """What the call would become: its breakpoints after mapping and its size. Sends nothing."""
        return self._operation(messages, options).explain()

    def session(self, name: str, *, tenant: str | None = None) -> AsyncSession:
        """A conversation; the same name and tenant give the same one."""
        return AsyncSession(self, self._session_state(name, tenant))

    async def aclose(self) -> None:
        """Close this loop's connections and write the ledger's rest. May be called twice."""
        with self._lock:
            io = self._ios.pop(asyncio.get_running_loop(), None)
        try:
            if io is not None:
                await io.channel.close()
        finally:
            await asyncio.to_thread(self._close_ledger)

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    def _channel(self) -> _AsyncIO:
        loop = asyncio.get_running_loop()
        with self._lock:
            io = self._ios.get(loop)
            if io is None:
                io = self._ios[loop] = _AsyncIO(self._backend.open_async(), self._ledger)
            return io

    async def _run(self, flow: Flow[Any]) -> Any:
        machine = Machine(flow)
        done = await aadvance(machine, self._channel(), machine.resume(None))
        assert isinstance(done, Done)
        return done.value


class AsyncSession:
    """A conversation: its calls share what keeps their prefix stable. It keeps no messages."""

    def __init__(self, client: AsyncClient, state: SessionState) -> None:
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

    async def generate(self, messages: MessagesLike, **options: Unpack[CallOptions]) -> Reply:
        """`AsyncClient.generate` in this session."""
        return await self._client.generate(messages, **_in_session(options, self))

    def stream(self, messages: MessagesLike, **options: Unpack[CallOptions]) -> AsyncStream:
        """`AsyncClient.stream` in this session."""
        return self._client.stream(messages, **_in_session(options, self))

    async def prewarm(self, messages: MessagesLike, **options: Unpack[CallOptions]) -> Reply:
        """`AsyncClient.prewarm` in this session."""
        return await self._client.prewarm(messages, **_in_session(options, self))

    async def count_tokens(self, messages: MessagesLike, **options: Unpack[CallOptions]) -> TokenCount:
        """`AsyncClient.count_tokens` in this session."""
        return await self._client.count_tokens(messages, **_in_session(options, self))

    async def explain(self, messages: MessagesLike, **options: Unpack[CallOptions]) -> Explanation:
        """`AsyncClient.explain` in this session."""
        return await self._client.explain(messages, **_in_session(options, self))


class AsyncStream:
    """An answer as it arrives. Iterate it for events, or `text_stream` for text; then read `reply`.

    Leaving the `async with` block early cancels the answer and records what it cost.
    """

    def __init__(self, flow: Flow[Reply], io: _AsyncIO) -> None:
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
    async def text_stream(self) -> AsyncIterator[str]:
        """The text alone, piece by piece."""
        async for event in self:
            if isinstance(event, TextDelta):
                yield event.text

    def __aiter__(self) -> AsyncIterator[Event]:
        return self

    async def __anext__(self) -> Event:
        if self._is_over:
            raise StopAsyncIteration
        try:
            self._step = await aadvance(self._machine, self._io, self._machine.resume(None))
        except BaseException:
            self._is_over = True
            raise
        if isinstance(self._step, Emit):
            return self._step.event
        self._finish(self._step)
        raise StopAsyncIteration

    async def aclose(self) -> None:
        """Cancel what has not arrived. May be called twice."""
        if self._is_over:
            return
        self._is_over = True
        if self._step is not None:
            self._finish(await aadvance(self._machine, self._io, self._machine.fail(Cancelled())))

    def _finish(self, done: Emit | Done) -> None:
        self._is_over = True
        self._reply = done.value if isinstance(done, Done) else None

    async def __aenter__(self) -> AsyncStream:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()


class _AsyncIO:
    """What a flow's effects do here. A ledger that commits each row does so on a thread."""

    def __init__(self, channel: AsyncChannel, ledger: Ledger | None) -> None:
        self.channel = channel
        self._ledger = ledger

    async def send(self, call: Call, timeout_s: float | None) -> Answer:
        return await self.channel.send(call, timeout_s)

    async def open_stream(self, call: Call, timeout_s: float | None) -> AsyncEvents:
        return await self.channel.stream(call, timeout_s)

    async def pull(self, events: AsyncEvents) -> Any:
        return await anext(events, None)

    async def close_stream(self, events: AsyncEvents) -> None:
        await events.close()

    async def count_tokens(self, call: Call, timeout_s: float | None) -> int | None:
        return await self.channel.count_tokens(call, timeout_s)

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    async def record(self, row: LedgerRow) -> None:
        assert self._ledger is not None
        if self._ledger.is_batched:
            self._ledger.append(row)
        else:
            await asyncio.to_thread(self._ledger.append, row)

    async def spent(self, question: Question) -> Spent:
        from kvsdk.cost.budgets.spent import spent

        assert self._ledger is not None
        return await asyncio.to_thread(spent, self._ledger, question)


def _in_session(options: CallOptions, session: AsyncSession) -> CallOptions:
    if "session" in options:
        raise InvalidRequest("a session's call takes no session=", field="session")
    return {**options, "session": session}
