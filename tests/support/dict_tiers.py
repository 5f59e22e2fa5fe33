"""Two tiers that fit on a page: what a tier is, without anything that makes one fast."""

from __future__ import annotations

import builtins
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from kvsdk.store.tiers.buffers import Buffer, BufferPool
from kvsdk.store.tiers.tier import Hints, PolicyName, Size, Tier, TierStats, check_name, parse_size


class DictTier(Tier):
    """Entries in a dict, which outlives the tier."""

    name = "dict"
    may_block = False

    def __init__(self, place: dict[str, bytes]) -> None:
        self.entries = place
        self.lock = threading.RLock()

    def put(self, name: str, data: Buffer, hints: Hints) -> bool:
        with self.lock:
            self.entries.setdefault(check_name(name), bytes(data.view))
            return True

    def get(self, name: str, pool: BufferPool) -> Buffer | None:
        data = self.entries.get(check_name(name))
        if data is None:
            return None
        buffer = pool.take(len(data))
        buffer.view[:] = data
        return buffer

    def contains(self, names: Sequence[str]) -> builtins.list[bool]:
        return [check_name(name) in self.entries for name in names]

    def list(self, prefix: str) -> builtins.list[str]:
        with self.lock:
            return sorted(name for name in self.entries if name.startswith(prefix))

    def remove(self, name: str) -> bool:
        with self.lock:
            return self.entries.pop(check_name(name), None) is not None

    def stats(self) -> TierStats:
        with self.lock:
            return TierStats(entries=len(self.entries), used_bytes=self.used_bytes(), capacity_bytes=None)

    def used_bytes(self) -> int:
        return sum(map(len, self.entries.values()))


class HintedTier(DictTier):
    """And one that has a capacity and keeps what the application said; the oldest go first."""

    def __init__(self, place: dict[str, bytes]) -> None:
        super().__init__(place)
        self.capacity_bytes = 64 << 20
        self.hints: dict[str, Hints] = {}

    def open(self, *, policy: PolicyName = "hints", clock: Callable[[], float] = time.time) -> None:
        self.clock = clock

    def of(self, name: str) -> Hints:
        return self.hints.get(name, Hints())

    def is_over(self, name: str) -> bool:
        expires_at = self.of(check_name(name)).expires_at
        return expires_at is not None and expires_at <= self.clock()

    def put(self, name: str, data: Buffer, hints: Hints) -> bool:
        with self.lock:
            if self.is_over(name):
                self.remove(name)
            if name not in self.entries:
                if not self.make_room(len(data)):
                    return False
                self.hints[name] = hints
            self.hints[name] = self.merged(self.of(name), hints)
            return super().put(name, data, hints)

    def make_room(self, size: int) -> bool:
        for name in [*self.entries]:
            if self.used_bytes() + size <= self.capacity_bytes or size > self.capacity_bytes:
                break
            if not self.of(name).pinned:
                self.remove(name)
        return self.used_bytes() + size <= self.capacity_bytes

    def get(self, name: str, pool: BufferPool) -> Buffer | None:
        return None if self.is_over(name) else super().get(name, pool)

    def contains(self, names: Sequence[str]) -> builtins.list[bool]:
        return [
            there and not self.is_over(name)
            for name, there in zip(names, super().contains(names), strict=True)
        ]

    def expiry(self, name: str) -> float | None:
        return self.of(check_name(name)).expires_at

    def remove(self, name: str) -> bool:
        with self.lock:
            self.hints.pop(check_name(name), None)
            return super().remove(name)

    def touch(self, names: Sequence[str], hints: Hints) -> None:
        with self.lock:
            for name in names:
                if name in self.entries:
                    old = self.of(name)
                    ends = old.expires_at if hints.expires_at is None else hints.expires_at
                    self.hints[name] = self.merged(old, replace(hints, expires_at=ends))

    def merged(self, old: Hints, new: Hints) -> Hints:
        ends = (old.expires_at, new.expires_at)
        later = None if None in ends else max(filter(None, ends))
        session = new.session or old.session
        return replace(old, session=session, expires_at=later, pinned=old.pinned or new.pinned)

    def unpin(self, names: Sequence[str]) -> None:
        with self.lock:
            for name in names:
                if name in self.entries:
                    self.hints[name] = replace(self.of(name), pinned=False)

    def end_session(self, session: str) -> int:
        with self.lock:
            theirs = [name for name in self.entries if self.of(name).session == session]
            self.unpin(theirs)
            return len(theirs)

    def resize(self, capacity: Size) -> None:
        with self.lock:
            self.capacity_bytes = parse_size(capacity)
            self.make_room(0)

    def collect(self) -> int:
        with self.lock:
            return sum(self.remove(name) for name in [*self.entries] if self.is_over(name))

    def stats(self) -> TierStats:
        return replace(super().stats(), capacity_bytes=self.capacity_bytes)
