"""Caches that hold a prefix only where a request marks its end: Anthropic's, and those made like it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from kvsdk.backend.cache_model.prefixes import PrefixStore, ends_tokens
from kvsdk.backend.cache_model.values import CacheBlock, one_of, split_by_ttl
from kvsdk.errors import InvalidBreakpoints
from kvsdk.reply import Predicted

_RUNS = ("tool_use", "tool_result")


@dataclass(frozen=True, slots=True, kw_only=True)
class MarkRules:
    """How a vendor's marked prefixes behave.

    Attributes:
        ttl_s: Seconds of each TTL, the shortest first.
        min_tokens: The shortest prefix that is written.
        min_on: What must have that length: the whole `prefix`, or the `increment` over the last mark
            before it that has it.
        lookback_positions: How many positions before and at a mark are looked up.
        group_tool_runs: Whether a message's neighbouring tool calls, and likewise its tool results, are
            one position.
        refresh: What a read keeps alive: the `chain` of entries up to the one read, or that `hit_only`.
    """

    ttl_s: Mapping[str, float]
    min_tokens: int
    min_on: Literal["prefix", "increment"] = "prefix"
    lookback_positions: int = 20
    group_tool_runs: bool = False
    refresh: Literal["chain", "hit_only"] = "chain"
    longest_first: tuple[str, ...] = field(init=False)

    def __post_init__(self) -> None:
        one_of("min_on", self.min_on, ("prefix", "increment"))
        one_of("refresh", self.refresh, ("chain", "hit_only"))
        object.__setattr__(self, "longest_first", tuple(self.ttl_s)[::-1])


class Look(NamedTuple):
    """What a request finds: the counts, the block it reads up to, the marks it writes."""

    predicted: Predicted
    hit: int | None
    writes: list[int]


class MarkedPrefixes:
    """The lookup, the write and the refresh of marked prefixes. Not thread-safe: its model locks."""

    def __init__(self, rules: MarkRules) -> None:
        self._rules = rules
        self._store = PrefixStore()

    def __len__(self) -> int:
        return len(self._store)

    def look(
        self, t_s: float, blocks: Sequence[CacheBlock], keys: Sequence[int], marks: Mapping[int, str]
    ) -> Look:
        """What a request reads and writes. No change.

        Marks are tried from the last to the first; the first live prefix within a mark's positions is
        read. The marks after it, if long enough, are written.

        Args:
            t_s: When the request starts.
            blocks: The prompt.
            keys: The keys of its prefixes.
            marks: TTL by index of the marked block.
        """
        ends = ends_tokens(blocks)
        order = sorted(marks)
        hit = self._find(t_s, blocks, keys, order)
        read = 0 if hit is None else ends[hit]
        writes = self._writes(order, ends, read)
        split = split_by_ttl(read, [(ends[at], marks[at]) for at in writes], self._rules.longest_first)
        write = ends[writes[-1]] - read if writes else 0
        total = ends[-1] if ends else 0
        return Look(Predicted(read, write, split, total - read - write), hit, writes)

    def keep(
        self, t_s: float, keys: Sequence[int], marks: Mapping[int, str], look: Look, visible_s: float
    ) -> None:
        """Make what a look found so: write, refresh, forget what is over."""
        self._store.drop_expired(t_s)
        if look.hit is not None:
            first = 0 if self._rules.refresh == "chain" else look.hit
            self._store.refresh(keys[first : look.hit + 1], t_s)
        for at in look.writes:
            self._store.write(keys[at], t_s, self._rules.ttl_s[marks[at]], visible_s)

    def _find(
        self, t_s: float, blocks: Sequence[CacheBlock], keys: Sequence[int], order: Sequence[int]
    ) -> int | None:
        for mark in reversed(order):
            hit = self._store.first_live(keys, self._window(blocks, mark), t_s)
            if hit is not None:
                return hit
        return None

    def _window(self, blocks: Sequence[CacheBlock], mark: int) -> Iterator[int]:
        """The blocks of the positions up to a mark, from it backwards."""
        left = self._rules.lookback_positions
        if not self._rules.group_tool_runs:
            yield from range(mark, max(-1, mark - left), -1)
            return
        for at in range(mark, -1, -1):
            if at == mark or blocks[at].kind not in _RUNS or not _same_run(blocks[at], blocks[at + 1]):
                left -= 1
                if left < 0:
                    return
            yield at

    def _writes(self, order: Sequence[int], ends: Sequence[int], read: int) -> list[int]:
        shortest = self._rules.min_tokens
        if self._rules.min_on == "prefix":
            return [at for at in order if ends[at] > read and ends[at] >= shortest]
        writes = []
        last = 0
        for at in order:
            if ends[at] - last >= shortest:
                last = ends[at]
                if last > read:
                    writes.append(at)
        return writes


def _same_run(one: CacheBlock, following: CacheBlock) -> bool:
    return (
        one.kind == following.kind and one.message == following.message and one.section == following.section
    )


def check_ttls(marks: Mapping[int, str], allowed: Mapping[str, float]) -> None:
    """Raise `InvalidBreakpoints` for a TTL that the vendor does not have."""
    for at, ttl in marks.items():
        if ttl not in allowed:
            raise InvalidBreakpoints(
                f"blocks[{at}] has the TTL {ttl!r}; the vendor has {', '.join(allowed)}",
                field=f"blocks[{at}].ttl",
            )
