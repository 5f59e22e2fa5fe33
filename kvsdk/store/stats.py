"""What a store counts."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from kvsdk.resilience.breaker import State
from kvsdk.store.levels.level import Level
from kvsdk.store.levels.levels import Levels
from kvsdk.store.results import Hit, Miss, Stored
from kvsdk.store.tiers.tier import TierStats


@dataclass(frozen=True, slots=True, kw_only=True)
class LevelStats:
    """One tier of a store.

    Attributes:
        holds: What it holds; None where it did not answer.
        breaker: Whether it is asked at all.
        waiting_bytes: What is not written to it yet.
        counts: What happened, by name: `failures`, `not_asked` (breaker open), `corrupt`, `unopened` (no
            memory to open it), `unconverted`, `dropped` (no room in the queue), `left_out` (uses that were
            not noted, since too much waits), `no_room` (in the tier), `written_bytes`, `writing_us`.
    """

    holds: TierStats | None
    breaker: State
    waiting_bytes: int
    counts: Mapping[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreStats:
    """What a store was asked and answered, since it was opened.

    Attributes:
        asked_tokens: Tokens of the prompts that `get` was called with.
        hit_tokens: Tokens of those that were served, by tier; `writing` is what was on its way to one.
        ends: Why a prompt was not served whole, by kind, how often.
        put_tokens: Tokens that `put` was given.
        new_tokens: Those of them that were not there yet.
        new_bytes: Bytes of those, as they are stored, once.
        tiers: By name.
    """

    asked_tokens: int
    hit_tokens: Mapping[str, int]
    ends: Mapping[str, int]
    put_tokens: int
    new_tokens: int
    new_bytes: int
    tiers: Mapping[str, LevelStats]

    @property
    def hit_rate(self) -> float | None:
        """Served of asked tokens; None before the first question."""
        return sum(self.hit_tokens.values()) / self.asked_tokens if self.asked_tokens else None


class Counts:
    """Counts what a store does. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._totals: Counter[str] = Counter()
        self._hits: Counter[str] = Counter()
        self._ends: Counter[str] = Counter()

    def put(self, stored: Stored) -> None:
        """A prompt was put."""
        with self._lock:
            self._totals["put"] += stored.tokens
            self._totals["new"] += stored.new_tokens
            self._totals["bytes"] += stored.new_bytes

    def get(self, tokens: int, found: Hit | Miss) -> None:
        """A prompt was asked for."""
        end = found if isinstance(found, Miss) else found.ended_by
        with self._lock:
            self._totals["asked"] += tokens
            if isinstance(found, Hit):
                self._hits.update(found.tokens_by_tier)
            if end is not None:
                self._ends[end.kind] += 1

    def stats(self, levels: Levels) -> StoreStats:
        """All of it, and what each tier says."""
        tiers = {level.guard.name: _of(level, levels) for level in levels.all}
        with self._lock:
            return StoreStats(
                asked_tokens=self._totals["asked"],
                hit_tokens=dict(self._hits),
                ends=dict(self._ends),
                put_tokens=self._totals["put"],
                new_tokens=self._totals["new"],
                new_bytes=self._totals["bytes"],
                tiers=tiers,
            )


def _of(level: Level, levels: Levels) -> LevelStats:
    return LevelStats(
        holds=levels.ask(level, "say what it holds", lambda tier: tier.stats()),
        breaker=level.guard.breaker.state,
        waiting_bytes=0 if level.writer is None else level.writer.waiting_bytes,
        counts=level.guard.counts(),
    )
