"""A tier as naive as can be: every entry is looked at for each decision. Oracle for the order of eviction."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from kvsdk.store.tiers.buffers import Buffer, BufferPool
from kvsdk.store.tiers.tier import Hints

UNIT = 1 << 16
"""The pool's memory comes in these, so that sizes are the same in all tiers."""


def key_of(path: Sequence[int]) -> str:
    """The key of the entry at the end of a path of choices."""
    return hashlib.sha256(repr(tuple(path)).encode()).hexdigest()


def name_of(path: Sequence[int]) -> str:
    """An entry's name: the prefix of a path has the same names whatever comes after."""
    return f"kv/{key_of(path[:-1])}/256-{key_of(path)}"


def key_in(name: str) -> str:
    """An entry's own key."""
    return name.rpartition("-")[2]


def key_before(name: str) -> str:
    """The key of the entry before it."""
    return name.split("/")[1]


def chain(*path: int) -> list[str]:
    """The names of all entries of a prefix, head first."""
    return [name_of(path[:end]) for end in range(1, len(path) + 1)]


def content_of(name: str, size: int) -> bytes:
    """The bytes that belong to a name."""
    digest = hashlib.sha256(name.encode()).digest()
    return (digest * (size // len(digest) + 1))[:size]


def buffer_of(pool: BufferPool, name: str, size: int = UNIT) -> Buffer:
    """A buffer with an entry's bytes."""
    buffer = pool.take(size)
    buffer.view[:] = content_of(name, size)
    return buffer


@dataclass
class Clock:
    """Stands still until it is moved."""

    now: float = 1000.0

    def __call__(self) -> float:
        return self.now


@dataclass
class Kept:
    size: int
    number: int
    used_at: float
    depth: int
    expires_at: float | None
    is_demoted: bool = False
    holds: dict[str, bool] = field(default_factory=dict)

    @property
    def is_pinned(self) -> bool:
        return any(self.holds.values())

    @property
    def is_held(self) -> bool:
        return any(session for session in self.holds)


@dataclass
class Twin:
    """What a tier should have. `evicted` and `expired` collect what went, in order."""

    policy: str
    capacity: int
    clock: Clock
    kept: dict[str, Kept] = field(default_factory=dict)
    evicted: list[str] = field(default_factory=list)
    expired: list[str] = field(default_factory=list)
    count: int = 0

    def used(self) -> int:
        return sum(each.size for each in self.kept.values())

    def is_over(self, name: str) -> bool:
        expires_at = self.kept[name].expires_at
        return expires_at is not None and expires_at <= self.clock()

    def there(self) -> list[str]:
        return sorted(name for name in self.kept if not self.is_over(name))

    def tails(self, name: str) -> list[str]:
        key = name.rsplit("-", maxsplit=1)[-1]
        return [other for other in self.kept if key_before(other) == key]

    def heads(self, name: str) -> list[str]:
        before = key_before(name)
        return [other for other in self.kept if key_in(other) == before]

    def next_victim(self, newcomer: str | None = None) -> str | None:
        may_go = [name for name in self.kept if not self.tails(name)]
        if newcomer is not None:
            may_go = [name for name in may_go if key_in(name) != key_before(newcomer)]
        over = [name for name in may_go if self.is_over(name)]
        if over:
            return min(over, key=self.by_expiry)
        loose = [name for name in may_go if not self.kept[name].is_pinned]
        return min(loose, key=self.by_policy) if loose else None

    def by_expiry(self, name: str) -> tuple[float, int, int]:
        one = self.kept[name]
        assert one.expires_at is not None
        return one.expires_at, -one.depth, one.number

    def by_policy(self, name: str) -> tuple[float, ...]:
        one = self.kept[name]
        order = (one.used_at, -one.depth, one.number)
        return order if self.policy == "lru" else (not one.is_demoted, one.is_held, *order)

    def evict(self, size: int, newcomer: str | None = None) -> bool:
        """Until no more than `size` is used; False where that cannot be."""
        while self.used() > size:
            victim = self.next_victim(newcomer)
            if victim is None:
                return False
            (self.expired if self.is_over(victim) else self.evicted).append(victim)
            del self.kept[victim]
        return True

    def put(self, name: str, size: int, hints: Hints) -> bool:
        if name in self.kept:
            self.put_again(name, hints)
            return True
        if size > self.capacity:
            return False
        if hints.depth_tokens and self.used() + size > self.capacity and not self.heads(name):
            return False
        trial = replace(self, kept=dict(self.kept), evicted=[], expired=[])
        if not trial.evict(self.capacity - size, name):
            return False
        self.kept = trial.kept
        self.evicted += trial.evicted
        self.expired += trial.expired
        self.count += 1
        self.kept[name] = Kept(size, self.count, self.clock(), hints.depth_tokens, hints.expires_at)
        self.hold(self.kept[name], hints)
        return True

    def put_again(self, name: str, hints: Hints) -> None:
        one = self.kept[name]
        if self.is_over(name):
            one.holds = {}
            one.expires_at = hints.expires_at
        elif hints.expires_at is None:
            one.expires_at = None
        one.depth = max(one.depth, hints.depth_tokens)
        self.touch([name], hints)

    def touch(self, names: Sequence[str], hints: Hints) -> None:
        for name in names:
            if name in self.kept and not self.is_over(name):
                one = self.kept[name]
                one.used_at = self.clock()
                one.is_demoted = False
                if one.expires_at is not None and hints.expires_at is not None:
                    one.expires_at = max(one.expires_at, hints.expires_at)
                self.hold(one, hints)

    @staticmethod
    def hold(one: Kept, hints: Hints) -> None:
        if hints.session or hints.pinned:
            session = hints.session or ""
            one.holds[session] = one.holds.get(session, False) or hints.pinned

    def demote(self, names: Sequence[str]) -> None:
        for name in set(names).intersection(self.there()):
            self.kept[name].is_demoted = True

    def unpin(self, names: Sequence[str]) -> None:
        for name in set(names).intersection(self.kept):
            one = self.kept[name]
            one.holds = {session: False for session in one.holds if session}

    def end_session(self, session: str) -> int:
        held = [one for one in self.kept.values() if session in one.holds]
        for one in held:
            del one.holds[session]
        return len(held)

    def remove(self, name: str) -> bool:
        was_there = name in self.there()
        self.kept.pop(name, None)
        return was_there

    def collect(self) -> int:
        over = [name for name in self.kept if self.is_over(name)]
        for name in over:
            self.expired.append(name)
            del self.kept[name]
        return len(over)

    def resize(self, capacity: int) -> None:
        self.capacity = capacity
        self.evict(capacity)
