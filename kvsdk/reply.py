"""What comes out: the reply, its cost, what became of the cache, and the events of a stream."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, Literal, TypeAlias

from kvsdk.prompt import Message, Part, ResponseFormat, ToolCall
from kvsdk.usage import Usage

StopReason = Literal["end_turn", "max_tokens", "tool_use", "stop_sequence", "refusal", "paused", "other"]
BreakpointStatus = Literal["honoured", "mapped", "advisory", "dropped"]
MissKind = Literal[
    "model",
    "tools",
    "system",
    "messages",
    "settings",
    "ttl_expired",
    "below_minimum",
    "first_request",
    "evicted_or_unknown",
]
FindingKind = Literal["volatile", "below_minimum", "no_breakpoint", "never_read", "tool_order"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """What a request cost, in US dollars as `Decimal`, never rounded. **Unknown is None.**

    Attributes:
        input: For tokens neither read from nor written to a cache.
        cache_read: For tokens read from a cache.
        cache_write: For tokens written to a cache.
        output: For generated tokens.
        storage: For keeping a cache, where a vendor sells that by time.
        tools: For server tools that are billed by the call, such as web searches.
        total: The sum; with `estimated`, the upper bound.
        without_cache: The same tokens with no cache at all.
        saved: `without_cache - total`; negative when a write has not paid off yet.
        price_source: Where the prices are from, with version or date.
        estimated: Whether a count or a rate that matters was not reported.
        low: With `estimated`, the least it can have cost.
        high: With `estimated`, the most it can have cost.
        reason: Why there is no price, or what was estimated.
    """

    input: Decimal | None = None
    cache_read: Decimal | None = None
    cache_write: Decimal | None = None
    output: Decimal | None = None
    storage: Decimal | None = None
    tools: Decimal | None = None
    total: Decimal | None = None
    without_cache: Decimal | None = None
    saved: Decimal | None = None
    price_source: str | None = None
    estimated: bool = False
    low: Decimal | None = None
    high: Decimal | None = None
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class BreakpointReport:
    """What became of one breakpoint.

    Attributes:
        where: Where it was set, such as `system[0]`.
        status: `honoured` as asked; `mapped` to another place or TTL; `advisory`: the backend caches as it
            sees fit; `dropped`.
        reason: Why, unless honoured.
        requested_ttl: The TTL asked for, None for the backend's default.
        granted_ttl: The TTL sent, None where the backend has none.
        tokens: Tokens of the prefix it ends.
        tokens_estimated: Whether `tokens` is an estimate.
    """

    where: str
    status: BreakpointStatus
    reason: str | None = None
    requested_ttl: str | None = None
    granted_ttl: str | None = None
    tokens: int | None = None
    tokens_estimated: bool = True


@dataclass(frozen=True, slots=True)
class Miss:
    """Why a prefix was not read from the cache: what kind, where the prompt moved, and in words."""

    kind: MissKind
    where: str | None
    detail: str


@dataclass(frozen=True, slots=True)
class Finding:
    """Something in a prompt that keeps it from being cached, or that costs more than it saves.

    Attributes:
        where: The place in the prompt, such as `system[0]`.
        kind: `volatile`, `below_minimum`, `no_breakpoint`, `never_read`, or, in a log, `tool_order`.
        detail: What it is, and what to do.
    """

    where: str
    kind: FindingKind
    detail: str


@dataclass(frozen=True, slots=True)
class Predicted:
    """What a model says of one request; the three counts sum to the prompt's tokens.

    Attributes:
        read_tokens: Read from the cache.
        write_tokens: Written to it.
        write_by_ttl: `write_tokens` by TTL, only those that are not 0; empty where a write has no TTL.
        fresh_tokens: The rest.
    """

    read_tokens: int
    write_tokens: int
    write_by_ttl: Mapping[str, int]
    fresh_tokens: int

    @property
    def total_tokens(self) -> int:
        """All of the prompt."""
        return self.read_tokens + self.write_tokens + self.fresh_tokens


@dataclass(frozen=True, slots=True)
class CacheReport:
    """What became of the cache in one request.

    Attributes:
        breakpoints: One entry per breakpoint of the request.
        hit_rate: Share of the input read from a cache, 0 to 1; None where the backend does not say.
        notes: What else the caller should know, such as a setting that was left out.
        miss: Why the prefix was not (wholly) read; None when it was, or when nothing was to be cached.
        predicted: What the backend's documented rules give for this request after those that this client sent
            before; stands beside what `usage` reports. None where there are no rules to go by.
    """

    breakpoints: tuple[BreakpointReport, ...] = ()
    hit_rate: float | None = None
    notes: tuple[str, ...] = ()
    miss: Miss | None = None
    predicted: Predicted | None = None


@dataclass(frozen=True, slots=True)
class Latency:
    """Seconds from the call to the first token (None where it cannot be known) and to the end."""

    ttft_s: float | None
    total_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """The answer to one call.

    Attributes:
        id: The backend's id of the response.
        request_id: The backend's id of the request, or ours on a local engine.
        operation_id: Ours; every attempt of the call has it in the ledger.
        parts: Texts, tool calls and thinking, in order.
        stop_reason: Why the model stopped.
        usage: Token counts.
        cost: Dollars.
        cache: What became of the breakpoints.
        backend: The scheme, such as `"anthropic"`.
        model: The model that answered, as the backend calls it.
        session: The session's name.
        latency: Seconds.
        attempts: How often the request was sent.
        raw: The backend's body, decoded and otherwise untouched.
        response_format: The shape that was asked for; `parsed` is the text in it.
    """

    id: str | None
    request_id: str | None
    operation_id: str
    parts: tuple[Part, ...]
    stop_reason: StopReason
    usage: Usage
    cost: Cost
    cache: CacheReport
    backend: str
    model: str
    session: str | None
    latency: Latency
    attempts: int = 1
    raw: Mapping[str, Any] = field(default_factory=dict)
    response_format: ResponseFormat | None = None

    @property
    def parsed(self) -> Any:
        """The text as `response_format` asks: a pydantic model's instance, or decoded JSON; None without one.

        Raises:
            InvalidAnswer: The text does not have that shape.
        """
        return None if self.response_format is None else self.response_format.parse(self.text)

    @property
    def message(self) -> Message:
        """The assistant's turn, to append to the conversation; nothing is lost in it."""
        return Message("assistant", self.parts)

    @property
    def text(self) -> str:
        """The text parts, joined."""
        return self.message.text

    @property
    def tool_calls(self) -> tuple[ToolCall, ...]:
        """The tool calls among the parts."""
        return self.message.tool_calls


@dataclass(frozen=True, slots=True)
class TextDelta:
    """More text of the answer."""

    text: str


@dataclass(frozen=True, slots=True)
class ThinkingDelta:
    """More text of the model's reasoning."""

    text: str


@dataclass(frozen=True, slots=True)
class ToolCallDelta:
    """More of a tool call's arguments, as JSON text; `id` and `name` say which call."""

    id: str
    name: str
    arguments_json: str


@dataclass(frozen=True, slots=True)
class PartEnd:
    """A part is complete."""

    part: Part


@dataclass(frozen=True, slots=True)
class End:
    """The answer is complete."""

    reply: Reply


Event: TypeAlias = TextDelta | ThinkingDelta | ToolCallDelta | PartEnd | End


class TokenCount(int):
    """A number of tokens that says whether it is exact."""

    is_estimated: bool

    def __new__(cls, tokens: int, *, is_estimated: bool) -> TokenCount:
        count = super().__new__(cls, tokens)
        count.is_estimated = is_estimated
        return count


@dataclass(frozen=True, slots=True)
class Explanation:
    """What a request would become, without sending it.

    Attributes:
        backend: The scheme.
        model: The model.
        breakpoints: What each breakpoint would become.
        input_tokens: Tokens of the prompt.
        min_tokens: The shortest prefix that is cached, None where unknown or without limit.
        notes: What else the caller should know.
        lint: What keeps the prompt from being cached, or costs more than it saves.
        predicted: What would be read, written and processed, by the backend's documented rules and what this
            client has sent before; None where there are no rules to go by.
        predicted_cost: What that input would cost, without an answer.
    """

    backend: str
    model: str
    breakpoints: tuple[BreakpointReport, ...]
    input_tokens: TokenCount
    min_tokens: int | None
    notes: tuple[str, ...] = ()
    lint: tuple[Finding, ...] = ()
    predicted: Predicted | None = None
    predicted_cost: Cost | None = None
