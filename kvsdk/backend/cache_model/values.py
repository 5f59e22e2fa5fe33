"""What goes into a cache model and what comes out."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypedDict, Unpack

from kvsdk._text import did_you_mean
from kvsdk.errors import ConfigurationError, InvalidRequest, UnknownKeyword
from kvsdk.prompt import TTL, Section
from kvsdk.reply import Predicted

Role = Literal["user", "assistant", "developer", "system"]


@dataclass(frozen=True, slots=True)
class CacheBlock:
    """One piece of a prompt, as a cache sees it. Blocks are listed in prompt order.

    A block is indivisible: two prompts share a prefix up to the last block that is equal in both. A caller
    who wants a finer answer splits a text into several blocks.

    Attributes:
        section: `"tools"`, `"system"` or `"messages"`, in this order.
        message: Which message the block belongs to; only equal and unequal numbers matter.
        role: Who speaks. Tool results count by their `kind`, whatever the role.
        kind: `"text"`, `"tool_use"`, `"tool_result"`, `"thinking"`, `"redacted_thinking"`, `"image"`, ...
        digest: Stands for the content: equal digests mean equal content.
        tokens: Its tokens; a text without any is an empty text.
        ttl: The TTL of the cache mark on it; None without a mark.
    """

    section: Section
    message: int
    role: Role
    kind: str
    digest: str
    tokens: int
    ttl: TTL | None = None

    def __post_init__(self) -> None:
        if self.section not in ("tools", "system", "messages"):
            raise InvalidRequest(
                f"section is tools, system or messages, not {self.section!r}", field="section"
            )
        if self.tokens < 0:
            raise InvalidRequest(f"tokens is {self.tokens}; a count cannot be negative", field="tokens")


class TtlTokens(dict[str, int]):
    """Tokens by TTL; a TTL that is not there has 0."""

    def __missing__(self, ttl: str) -> int:
        return 0


class CacheSettings(TypedDict, total=False):
    """Settings of one request. Every model takes all of them and leaves aside what its vendor does.

    Attributes:
        mode: `"implicit"` or `"explicit"`, where the vendor has modes.
        ttl: The request's TTL, for marks that the vendor sets itself.
        auto: The vendor's automatic mark: True, or its TTL.
        scope: Whatever else partitions the cache: workspace, tenant, salt, cache key. Compared by value.
        ttft_s: Seconds until the answer begins (0).
        total_s: Seconds until it ends (as `ttft_s` when not given).
        output: The answer as a block, for vendors that cache answers.
        tool_choice, disable_parallel_tool_use, thinking, effort, web_search, citations, speed,
            parallel_tool_calls, text_format, verbosity, service_tier, cache_key: The request's settings of
            these names; each model's docstring says which are part of its key. A default that is spelled
            out is, to a model, another value than one left out.
        images: Whether the request has images; found from the blocks' kinds when not given.
    """

    mode: str | None
    ttl: str | None
    auto: bool | str | None
    scope: Any
    ttft_s: float
    total_s: float | None
    output: CacheBlock | None
    tool_choice: Any
    disable_parallel_tool_use: bool | None
    parallel_tool_calls: bool | None
    thinking: Any
    effort: str | None
    web_search: bool | None
    citations: bool | None
    images: bool | None
    speed: str | None
    text_format: Any
    verbosity: str | None
    service_tier: str | None
    cache_key: str | None


_KNOWN = CacheSettings.__annotations__.keys()


class CacheModel(Protocol):
    """A vendor's cache for one model. Pure: no clock, no I/O, nothing of the vendor's is imported.

    Times are seconds on any one clock and do not go back; a request counts from its start. Thread-safe.
    """

    def observe(
        self, t_s: float, blocks: Sequence[CacheBlock], **settings: Unpack[CacheSettings]
    ) -> Predicted:
        """What a request at `t_s` reads and writes; what it writes is there for later ones.

        Raises:
            InvalidBreakpoints: The vendor would refuse the request's marks. Nothing has changed.
            InvalidRequest: The blocks are not in prompt order.
            UnknownKeyword: A setting that no model has.
        """
        ...

    def predict(
        self, t_s: float, blocks: Sequence[CacheBlock], **settings: Unpack[CacheSettings]
    ) -> Predicted:
        """The same without changing anything."""
        ...


def check_settings(settings: CacheSettings) -> None:
    """Raise `UnknownKeyword` for a setting that no model has."""
    for name in settings:
        if name not in _KNOWN:
            raise UnknownKeyword(f"no setting {name!r}.{did_you_mean(name, _KNOWN)}", field=name)


def one_of(name: str, value: str, allowed: Iterable[str]) -> str:
    """A switch's value, if it is one of those that there are.

    Raises:
        ConfigurationError: It is none of them.
    """
    names = tuple(allowed)
    if value not in names:
        raise ConfigurationError(f"{name} is one of {', '.join(names)}, not {value!r}")
    return value


def key_part(settings: CacheSettings, names: Iterable[str]) -> Hashable:
    """The settings of these names as one value that can be hashed; None counts as left out."""
    given: Mapping[str, Any] = settings
    return tuple((name, _frozen(given[name])) for name in names if given.get(name) is not None)


def _frozen(value: Any) -> Hashable:
    if isinstance(value, Mapping):
        return tuple((name, _frozen(value[name])) for name in sorted(value))
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):
        return tuple(_frozen(each) for each in value)
    if isinstance(value, Set):
        return frozenset(_frozen(each) for each in value)
    if isinstance(value, Hashable):
        return value
    raise InvalidRequest(f"a setting that is compared must be data, not {type(value).__name__}")


def split_by_ttl(read: int, written: Iterable[tuple[int, str]], longest_first: Iterable[str]) -> TtlTokens:
    """Tokens written, by TTL: each token counts for the longest TTL among the boundaries at or after it.

    Args:
        read: Tokens that were read, before all boundaries.
        written: Tokens of the prefix and TTL of each boundary that is written.
        longest_first: The TTLs there are.
    """
    tops: dict[str, int] = {}
    for end, ttl in written:
        tops[ttl] = max(end, tops.get(ttl, read))
    split = TtlTokens()
    reached = read
    for ttl in longest_first:
        top = tops.get(ttl, reached)
        if top > reached:
            split[ttl] = top - reached
            reached = top
    return split


def visible_after_s(settings: CacheSettings, when: str) -> float:
    """Seconds from a request's start until others see what it wrote; `when` is `start` or `completion`."""
    begins = settings.get("ttft_s") or 0.0
    ends = settings.get("total_s")
    return begins if when == "start" or ends is None else ends
