"""The memory tier: buffers that are kept, and an index of them."""

from __future__ import annotations

import builtins
import threading
import time
from collections.abc import Callable, Sequence

from kvsdk.errors import InvalidRequest
from kvsdk.store.tiers.buffers import Buffer, BufferPool
from kvsdk.store.tiers.index.database import Database
from kvsdk.store.tiers.index.index import Admission, Index
from kvsdk.store.tiers.index.policy import Policy
from kvsdk.store.tiers.index.rows import Measured
from kvsdk.store.tiers.tier import Hints, PolicyName, Size, Tier, TierStats, check_name, parse_size

_OWNER = "memory"


class Memory(Tier):
    """Entries in the memory of this process; nothing is copied. Thread-safe.

    Args:
        capacity: How much fits, such as `"2GiB"`. What counts is the memory that entries take: a little more
            than their sizes.

    Raises:
        InvalidRequest: That is no size.
    """

    name = "memory"
    may_block = False

    def __init__(self, capacity: Size) -> None:
        self._capacity_bytes = parse_size(capacity)
        self._lock = threading.RLock()
        self._buffers = _Buffers()
        self._database: Database | None = None
        self._index: Index | None = None

    def open(self, *, policy: PolicyName = "hints", clock: Callable[[], float] = time.time) -> None:
        """Get ready.

        Raises:
            InvalidRequest: There is no such policy, or the tier is open already.
        """
        with self._lock:
            if self._index is not None:
                raise InvalidRequest("the memory tier is open already; a store needs its own")
            order = Policy(policy)
            self._database = Database(":memory:")
            self._index = Index(self._database, self._buffers, order, clock, _OWNER)
            self._index.set_capacity(self._capacity_bytes)

    def close(self) -> None:
        """Let go of all entries. May be called twice."""
        with self._lock:
            if self._database is not None:
                self._database.close()
            self._database = self._index = None
            self._buffers.clear()

    def put(self, name: str, data: Buffer, hints: Hints) -> bool:
        """Keep an entry's buffer, evicting what has to go for it; False where there is no room.

        Raises:
            InvalidRequest: It is no name.
        """
        check_name(name)
        with self._lock:
            index = self._now()
            admission = index.admit(name, data.memory_bytes, hints)
            if admission is Admission.WRITE:
                self._buffers.keep(name, data)
                index.publish(name, data.memory_bytes)
            return admission is not Admission.REFUSED

    def get(self, name: str, pool: BufferPool) -> Buffer | None:
        """An entry's buffer itself, held once more. This is no use: `touch` says what was used.

        Raises:
            InvalidRequest: It is no name.
        """
        with self._lock:
            return self._buffers.get(name) if self.contains([name])[0] else None

    def contains(self, names: Sequence[str]) -> builtins.list[bool]:
        """Which of these are there.

        Raises:
            InvalidRequest: One is no name.
        """
        for name in names:
            check_name(name)
        return self._now().contains(names)

    def expiry(self, name: str) -> float | None:
        """When an entry expires."""
        entry = self._now().find(check_name(name))
        return None if entry is None else entry.expires_at

    def remove(self, name: str) -> bool:
        """Drop an entry; False where it was not there."""
        check_name(name)
        with self._lock:
            return self._now().remove(name)

    def touch(self, names: Sequence[str], hints: Hints) -> None:
        """These were used now, all at once."""
        self._now().touch(names, hints)

    def demote(self, names: Sequence[str]) -> None:
        """These go first, until they are used again."""
        self._now().demote(names)

    def unpin(self, names: Sequence[str]) -> None:
        """These may be evicted again, whoever pinned them."""
        self._now().unpin(names)

    def end_session(self, session: str) -> int:
        """The session is over; how many entries it held."""
        return self._now().end_session(session)

    def resize(self, capacity: Size) -> None:
        """Set how much fits; what is too much is evicted at once."""
        with self._lock:
            index = self._now()
            index.set_capacity(parse_size(capacity))
            index.shrink()

    def collect(self) -> int:
        """Drop what has expired; how many entries."""
        with self._lock:
            return self._now().expire()

    def stats(self) -> TierStats:
        """What it holds, with what has expired but is not collected yet."""
        return self._now().stats()

    def list(self, prefix: str) -> builtins.list[str]:
        """The names that begin so, sorted."""
        return self._now().names(prefix)

    def _now(self) -> Index:
        index = self._index
        if index is None:
            raise InvalidRequest("the memory tier is closed, or not opened yet")
        return index


class _Buffers:
    """The buffers that are kept, each held once."""

    def __init__(self) -> None:
        self._held: dict[str, Buffer] = {}

    def keep(self, name: str, data: Buffer) -> None:
        """Hold this one."""
        self._held[name] = data.hold()

    def get(self, name: str) -> Buffer:
        """One that is there, held once more."""
        return self._held[name].hold()

    def measure(self, name: str) -> Measured | None:
        """Memory has nothing that its index does not know."""
        kept = self._held.get(name)
        return None if kept is None else Measured(kept.memory_bytes, 0.0)

    def drop(self, name: str) -> None:
        """Let go of one, if it is there."""
        kept = self._held.pop(name, None)
        if kept is not None:
            kept.release()

    def clear(self) -> None:
        """Let go of all."""
        for name in list(self._held):
            self.drop(name)
