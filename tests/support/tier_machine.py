"""Prefixes with shared heads in a tier and in its naive twin, step by step."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from kvsdk.store.tiers.buffers import BufferPool
from kvsdk.store.tiers.tier import Hints, Tier
from tier_twin import UNIT, Clock, Twin, buffer_of, chain, content_of, name_of

PATHS = st.lists(st.integers(0, 1), min_size=1, max_size=5)
SESSIONS = st.sampled_from([None, "a", "b"])
LIVES = st.sampled_from([None, 5.0, 50.0])


class TierMachine(RuleBasedStateMachine):
    """What a tier has is what its twin has, after every step; no head goes before its tail."""

    policy: Any = "hints"

    def new_tier(self) -> Tier:
        raise NotImplementedError

    @initialize(units=st.integers(2, 8))
    def begin(self, units: int) -> None:
        self.clock = Clock()
        self.pool = BufferPool()
        self.twin = Twin(self.policy, units * UNIT, self.clock)
        self.tier = self.new_tier()
        self.tier.open(policy=self.policy, clock=self.clock)
        self.tier.resize(units * UNIT)
        self.excused: set[str] = set()
        self.staying: set[str] = set()
        self.gone: set[str] = set()

    # ------------------------------------------------------------------ steps

    @rule(path=PATHS, session=SESSIONS, life_s=LIVES, pinned=st.booleans(), units=st.integers(1, 2))
    def use_a_prefix(
        self, path: list[int], session: str | None, life_s: float | None, pinned: bool, units: int
    ) -> None:
        """As a store does: put what may not be there, head first, then touch all of it at once."""
        names = chain(*path)
        for depth in range(len(path)):
            hints = self.hints(depth, session, life_s, pinned)
            if not self.put(names[depth], units, hints):
                break
            self.clock.now += 0.25
        hints = self.hints(0, session, life_s, pinned)
        self.tier.touch(names, hints)
        self.twin.touch(names, hints)

    @rule(path=PATHS, session=SESSIONS, life_s=LIVES, units=st.integers(1, 3))
    def put_one(self, path: list[int], session: str | None, life_s: float | None, units: int) -> None:
        self.put(name_of(path), units, self.hints(len(path) - 1, session, life_s, False))

    @rule(path=PATHS, session=SESSIONS, life_s=LIVES, pinned=st.booleans())
    def touch(self, path: list[int], session: str | None, life_s: float | None, pinned: bool) -> None:
        hints = self.hints(0, session, life_s, pinned)
        self.tier.touch(chain(*path), hints)
        self.twin.touch(chain(*path), hints)

    @rule(path=PATHS)
    def demote(self, path: list[int]) -> None:
        self.tier.demote([name_of(path)])
        self.twin.demote([name_of(path)])

    @rule(path=PATHS)
    def unpin(self, path: list[int]) -> None:
        self.tier.unpin(chain(*path))
        self.twin.unpin(chain(*path))

    @rule(session=st.sampled_from(["a", "b", ""]))
    def end_session(self, session: str) -> None:
        held = self.twin.end_session(session) if session else 0
        assert self.tier.end_session(session) == held

    @rule(path=PATHS)
    def remove(self, path: list[int]) -> None:
        self.gone.add(name_of(path))
        self.excused.update(self.twin.tails(name_of(path)))
        assert self.tier.remove(name_of(path)) == self.twin.remove(name_of(path))

    @rule(units=st.integers(1, 8))
    def resize(self, units: int) -> None:
        self.twin.expired.clear()
        self.tier.resize(units * UNIT)
        self.twin.resize(units * UNIT)
        self.gone.update(self.twin.expired)
        for gone in self.twin.expired:
            self.excused.update(self.twin.tails(gone))

    @precondition(lambda self: any(self.twin.is_over(name) for name in self.twin.kept))
    @rule()
    def collect(self) -> None:
        for name in self.twin.kept:
            if self.twin.is_over(name):
                self.gone.add(name)
                self.excused.update(self.twin.tails(name))
        assert self.tier.collect() == self.twin.collect()

    @rule(seconds=st.sampled_from([1.0, 6.0, 60.0]))
    def wait(self, seconds: float) -> None:
        self.clock.now += seconds

    # ------------------------------------------------------------------ what always holds

    @invariant()
    def the_tier_has_what_the_twin_has(self) -> None:
        there = self.twin.there()
        assert self.tier.list("") == there
        assert self.tier.stats().used_bytes == self.twin.used()
        assert self.tier.stats().entries == len(self.twin.kept)
        names = [*there, name_of([7])]
        assert self.tier.contains(names) == [True] * len(there) + [False]

    @invariant()
    def what_is_read_is_what_was_put(self) -> None:
        for name in self.twin.kept:
            data = self.tier.get(name, self.pool)
            assert (data is not None) == (name in self.twin.there())
            if data is not None:
                assert bytes(data.view) == content_of(name, len(data))
                data.release()

    @invariant()
    def no_head_went_before_its_tail(self) -> None:
        """But where it was missing before the tail came, was removed by name, or has expired."""
        there = set(self.tier.list(""))
        for path in (path for path in self.all_paths() if len(path) > 1 and name_of(path) in there):
            head, tail = name_of(path[:-1]), name_of(path)
            assert head in self.twin.kept or tail in self.excused

    @invariant()
    def what_is_pinned_stays_and_so_does_what_is_before_it(self) -> None:
        """What was there and pinned, and what was before it, is there as long as it is not over."""
        there = set(self.tier.list(""))
        assert self.staying <= there | self.gone | {
            name for name in self.twin.kept if self.twin.is_over(name)
        }
        pinned = [name for name in self.twin.there() if self.twin.kept[name].is_pinned]
        self.gone.clear()
        self.staying = set(pinned)
        for name in pinned:
            self.staying.update(head for head in self.twin.heads(name) if head in there)

    def teardown(self) -> None:
        if hasattr(self, "tier"):
            self.tier.close()
            assert self.pool.used_bytes == 0

    # ------------------------------------------------------------------ inside

    @staticmethod
    def all_paths() -> list[tuple[int, ...]]:
        paths: list[tuple[int, ...]] = [()]
        for path in paths:
            if len(path) < 5:
                paths += [(*path, 0), (*path, 1)]
        return paths[1:]

    def hints(self, depth: int, session: str | None, life_s: float | None, pinned: bool) -> Hints:
        expires_at = None if life_s is None else self.clock.now + life_s
        return Hints(depth_tokens=256 * depth, session=session, expires_at=expires_at, pinned=pinned)

    def put(self, name: str, units: int, hints: Hints) -> bool:
        """Put it in both; a tail whose head is not there has nothing that could go too early."""
        self.twin.evicted.clear()
        self.twin.expired.clear()
        data = buffer_of(self.pool, name, units * UNIT)
        (self.excused.discard if self.twin.heads(name) else self.excused.add)(name)
        is_kept = self.tier.put(name, data, hints)
        data.release()
        for tail in self.twin.tails(name) if is_kept else ():
            self.excused.discard(tail)
        assert is_kept == self.twin.put(name, units * UNIT, hints)
        self.gone.update(self.twin.expired)
        for gone in self.twin.expired:
            self.excused.update(self.twin.tails(gone))
        return is_kept
