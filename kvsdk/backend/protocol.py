"""The protocol between the core and an adapter.

An adapter translates: `encode` makes a `Call` of a `Request`, `decode` and a `Reader` make an `Outcome` of
what came back, and none of them does I/O. A *channel* does the I/O: it sends a `Call` through the vendor's
own SDK, with that SDK's retries off, and turns its errors into ours. Retry, deadline, prices, the ledger and
the reply are the core's.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, Self

from kvsdk.backend.bill import Bill, EngineTime
from kvsdk.backend.cache_model import CacheModel
from kvsdk.backend.capabilities import Capabilities
from kvsdk.prompt import Part, Request
from kvsdk.reply import Event, Miss, StopReason
from kvsdk.usage import Usage


@dataclass(frozen=True, slots=True)
class Call:
    """A request as one channel sends it.

    Attributes:
        body: What is sent, in the vendor's shape.
        stream: Whether the answer comes as events.
        headers: HTTP headers beside the SDK's own.
        extra: Members of the body that the SDK's method does not know by name.
        id: Our id of the attempt, for backends that let the client choose it.
        request: The request the body was made of, for channels that need more than the body.
    """

    body: Mapping[str, Any]
    stream: bool
    headers: Mapping[str, str] = field(default_factory=dict)
    extra: Mapping[str, Any] = field(default_factory=dict)
    id: str = ""
    request: Request | None = None


@dataclass(frozen=True, slots=True)
class Answer:
    """A whole answer: the decoded body and the backend's request id."""

    body: Any
    request_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What an answer says, in our terms.

    Attributes:
        reply_id: The backend's id of the response.
        model: The model that answered.
        parts: Texts, tool calls and thinking.
        stop_reason: Why it stopped.
        usage: Token counts.
        raw: The body.
        complete: Whether the answer has its end (a stream may be cut).
        terms: What the price depends on beside the counts, as the answer says it: the service tier that was
            billed, the speed, the region.
        calls: Server tools that are billed by the call, such as `{"web_search": 2}`.
        engine: The seconds that a local engine measured.
        ttft_s: Seconds to the first token, where the backend itself says so.
        diagnosis: Why the cache missed, where the backend itself says so.
        notes: What else the caller should know.
    """

    reply_id: str | None
    model: str
    parts: tuple[Part, ...]
    stop_reason: StopReason
    usage: Usage
    raw: Mapping[str, Any]
    complete: bool = True
    terms: Mapping[str, str] = field(default_factory=dict)
    calls: Mapping[str, int] = field(default_factory=dict)
    engine: EngineTime | None = None
    ttft_s: float | None = None
    diagnosis: Miss | None = None
    notes: tuple[str, ...] = ()

    @classmethod
    def of_usage(cls, model: str, usage: Usage) -> Self:
        """Counts without an answer: what a price is asked for."""
        return cls(reply_id=None, model=model, parts=(), stop_reason="other", usage=usage, raw={})


class Reader(Protocol):
    """Builds an outcome from a stream's events. Pure: no I/O, one per stream."""

    def feed(self, event: Any, /) -> Iterable[Event]:
        """Take in one event of the vendor and give the events it means for the caller.

        Raises:
            BackendError: The stream itself reports an error.
        """
        ...

    def outcome(self) -> Outcome:
        """What has arrived so far; `complete` says whether that is all."""
        ...


class Events(Protocol):
    """An open stream of a vendor's decoded events (sync); None is never an event."""

    request_id: str | None

    def __next__(self) -> Any: ...

    def __iter__(self) -> Iterator[Any]: ...

    def close(self) -> None:
        """Stop the answer and release the connection. May be called twice."""
        ...


class AsyncEvents(Protocol):
    """An open stream of a vendor's decoded events (async); None is never an event."""

    request_id: str | None

    async def __anext__(self) -> Any: ...

    def __aiter__(self) -> AsyncIterator[Any]: ...

    async def close(self) -> None:
        """Stop the answer and release the connection. May be called twice."""
        ...


class Channel(Protocol):
    """Sends calls (sync). Thread-safe. Every error it raises is of our tree."""

    def send(self, call: Call, timeout_s: float | None) -> Answer: ...

    def stream(self, call: Call, timeout_s: float | None) -> Events: ...

    def count_tokens(self, call: Call, timeout_s: float | None) -> int | None:
        """Exact count of the prompt's tokens, or None where the backend cannot tell."""
        ...

    def close(self) -> None: ...


class AsyncChannel(Protocol):
    """Sends calls (async), within one event loop. Every error it raises is of our tree."""

    async def send(self, call: Call, timeout_s: float | None) -> Answer: ...

    async def stream(self, call: Call, timeout_s: float | None) -> AsyncEvents: ...

    async def count_tokens(self, call: Call, timeout_s: float | None) -> int | None: ...

    async def close(self) -> None: ...


class Backend(Protocol):
    """One model behind one API. Cheap to make; opens nothing until a channel is asked for.

    Attributes:
        scheme: Its name in `"scheme:target"`; also the key of its part of `extra=`.
        model: The model.
    """

    @property
    def scheme(self) -> str: ...

    @property
    def model(self) -> str: ...

    @property
    def capabilities(self) -> Capabilities: ...

    def check(self) -> None:
        """Raise unless it can be used here.

        Raises:
            BackendNotInstalled: Its extra is missing.
            MissingCredentials: It has no API key.
        """
        ...

    def encode(self, request: Request, *, stream: bool, call_id: str) -> Call:
        """Translate a planned request, whose breakpoints are exactly the marks to send. Pure."""
        ...

    def decode(self, call: Call, answer: Answer) -> Outcome:
        """Read a whole answer. Pure.

        Raises:
            BackendProtocolError: The body is not an answer.
        """
        ...

    def reader(self, call: Call) -> Reader:
        """A reader for one stream."""
        ...

    def notes(self, request: Request) -> tuple[str, ...]:
        """What the caller should know of how a planned request is cached, such as the mode. Pure."""
        ...

    def bill(self, outcome: Outcome, request: Request) -> Bill:
        """What the answer is billed for; `kvsdk.cost.rate` makes dollars of it. Pure."""
        ...

    def cache_model(self, **switches: Any) -> CacheModel:
        """The cache's rules as a pure model. Needs no key and no SDK; each call gives an empty cache.

        Raises:
            ConfigurationError: The model has no such switch.
        """
        ...

    def open(self) -> Channel: ...

    def open_async(self) -> AsyncChannel: ...
