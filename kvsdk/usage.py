"""What a request used, as one set of meters for every backend."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from kvsdk.errors import InvalidRequest

MeterState = Literal["reported", "absent", "estimated"]

_COUNTS = (
    "input_tokens",
    "cache_read_tokens",
    "cache_write_tokens",
    "fresh_tokens",
    "output_tokens",
    "reasoning_tokens",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """Token counts of one request. **Unknown is None, never 0.**

    `input_tokens` is the total; `cache_read_tokens`, `cache_write_tokens` and `fresh_tokens` are parts of
    it and sum to it. (Anthropic and Bedrock report the parts, OpenAI and its kin the total; adapters bring
    both to this form.)

    Attributes:
        input_tokens: All prompt tokens.
        cache_read_tokens: Prompt tokens served from a cache.
        cache_write_tokens: Prompt tokens written to a cache, at a write rate where the vendor has one.
        fresh_tokens: Prompt tokens processed and neither read nor written.
        output_tokens: Generated tokens, reasoning included.
        reasoning_tokens: The part of `output_tokens` spent on reasoning.
        cache_write_by_ttl: `cache_write_tokens` by TTL, such as `{"5m": 1000, "1h": 500}`.
        estimated: Names of the meters that are estimates of ours.
    """

    input_tokens: int | None = None
    cache_read_tokens: int | None = None
    cache_write_tokens: int | None = None
    fresh_tokens: int | None = None
    output_tokens: int | None = None
    reasoning_tokens: int | None = None
    cache_write_by_ttl: Mapping[str, int] | None = None
    estimated: frozenset[str] = field(default_factory=frozenset)

    @classmethod
    def of_total(
        cls,
        total: int | None,
        *,
        read: int | None = None,
        write: int | None = None,
        output: int | None = None,
        reasoning: int | None = None,
        write_by_ttl: Mapping[str, int] | None = None,
    ) -> Usage:
        """From a vendor that reports the total and some of its parts (OpenAI, vLLM)."""
        fresh = None if total is None or read is None or write is None else total - read - write
        return cls(
            input_tokens=total,
            cache_read_tokens=read,
            cache_write_tokens=write,
            fresh_tokens=None if fresh is not None and fresh < 0 else fresh,
            output_tokens=output,
            reasoning_tokens=reasoning,
            cache_write_by_ttl=write_by_ttl,
        )

    @classmethod
    def of_parts(
        cls,
        *,
        fresh: int | None,
        read: int | None,
        write: int | None,
        output: int | None = None,
        reasoning: int | None = None,
        write_by_ttl: Mapping[str, int] | None = None,
    ) -> Usage:
        """From a vendor that reports the parts (Anthropic, Bedrock).

        Where a cache meter is absent, the total is the sum of the others, and an estimate.
        """
        is_whole = read is not None and write is not None
        return cls(
            input_tokens=None if fresh is None else fresh + (read or 0) + (write or 0),
            cache_read_tokens=read,
            cache_write_tokens=write,
            fresh_tokens=fresh,
            output_tokens=output,
            reasoning_tokens=reasoning,
            cache_write_by_ttl=write_by_ttl,
            estimated=frozenset() if is_whole or fresh is None else frozenset({"input_tokens"}),
        )

    @classmethod
    def sum(cls, usages: Sequence[Usage]) -> Usage:
        """Several usages of one request together; a meter that is unknown in one is unknown in the sum."""
        counts: dict[str, int | None] = {}
        for name in _COUNTS:
            values = [getattr(usage, name) for usage in usages]
            counts[name] = None if None in values else sum(values)
        splits = [usage.cache_write_by_ttl for usage in usages]
        by_ttl: dict[str, int] | None = None
        if None not in splits:
            by_ttl = {}
            for split in splits:
                for ttl, tokens in (split or {}).items():
                    by_ttl[ttl] = by_ttl.get(ttl, 0) + tokens
        estimated = frozenset().union(*(usage.estimated for usage in usages))
        return cls(**counts, cache_write_by_ttl=by_ttl, estimated=estimated)

    def __post_init__(self) -> None:
        for name in _COUNTS:
            value = getattr(self, name)
            if value is not None and value < 0:
                raise InvalidRequest(f"{name} is {value}; a count of tokens cannot be negative", field=name)

    @property
    def is_consistent(self) -> bool:
        """Whether the parts fit into the total. Some servers report more cached than sent."""
        if self.input_tokens is None:
            return True
        return (self.cache_read_tokens or 0) + (self.cache_write_tokens or 0) <= self.input_tokens

    @property
    def hit_rate(self) -> float | None:
        """`cache_read_tokens / input_tokens`, 0 to 1; None where either is unknown or they do not fit."""
        if self.cache_read_tokens is None or not self.input_tokens or not self.is_consistent:
            return None
        return self.cache_read_tokens / self.input_tokens

    def meter(self, name: str) -> MeterState:
        """How the meter called `name` is known."""
        if name in self.estimated:
            return "estimated"
        return "absent" if getattr(self, name) is None else "reported"
