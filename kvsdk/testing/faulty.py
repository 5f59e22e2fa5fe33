"""A tier that fails, lies or hangs as it is told to; for tests of what stands above a tier."""

from __future__ import annotations

import builtins
import copy
import threading
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from kvsdk.errors import InvalidRequest
from kvsdk.store.tiers.buffers import Buffer, BufferPool
from kvsdk.store.tiers.tier import Tier
from kvsdk.testing.wrappers import OPERATIONS, WrapperTier

T = TypeVar("T")


class Stuck:
    """Calls that do not come back before they are let go.

    Attributes:
        entered: Set once a call is stuck.
        release: To be set; then all that are stuck go on, and no more get stuck.
    """

    __slots__ = ("entered", "release")

    def __init__(self) -> None:
        self.entered = threading.Event()
        self.release = threading.Event()


@dataclass(slots=True, kw_only=True, eq=False)
class _Fault:
    operations: frozenset[str]
    names: frozenset[str] | None
    times: int | None
    act: Callable[[], None]


class FaultyTier(WrapperTier):
    """A tier that fails, lies or hangs as it is told to. Without orders it does nothing. Thread-safe.

    ```python
    tier = FaultyTier(Memory("1GiB"))
    tier.fail(OSError("disk full"), on="put", times=3)
    tier.flip("kv/0/1", at=100)
    stuck = tier.stick(on="get")       # ... stuck.release.set()
    ```

    Args:
        inner: The tier that does the work.
    """

    def __init__(self, inner: Tier) -> None:
        super().__init__(inner)
        self._lock = threading.Lock()
        self._faults: builtins.list[_Fault] = []
        self._changes: dict[str, Callable[[Buffer, BufferPool], Buffer | None]] = {}

    # ------------------------------------------------------------------ orders

    def fail(
        self,
        error: Exception,
        *,
        on: str | Collection[str] = OPERATIONS,
        names: Iterable[str] | None = None,
        times: int | None = None,
    ) -> None:
        """Raise this.

        Args:
            error: What is raised, each time a copy of it.
            on: The methods that raise, all of them unless said.
            names: Only when the call is about one of these entries.
            times: How often, or None until `heal`.
        """

        def act() -> None:
            raise copy.copy(error)

        self._order(act, on, names, times)

    def stick(
        self,
        *,
        on: str | Collection[str] = "get",
        names: Iterable[str] | None = None,
        times: int | None = None,
    ) -> Stuck:
        """Have calls hang until they are let go; then they do what they were to do.

        `may_block` is true from now on, so give this order before a store is made.
        """
        stuck = Stuck()

        def act() -> None:
            stuck.entered.set()
            stuck.release.wait()

        self.may_block = True
        self._order(act, on, names, times)
        return stuck

    def flip(self, name: str, *, at: int = 0) -> None:
        """Hand out this entry with one byte wrong."""

        def change(data: Buffer, pool: BufferPool) -> Buffer:
            wrong = _copy(data, pool, len(data))
            wrong.view[at] ^= 0xFF
            return wrong

        self._changes[name] = change

    def truncate(self, name: str, size: int) -> None:
        """Hand out only so many bytes of this entry."""
        self._changes[name] = lambda data, pool: _copy(data, pool, min(size, len(data)))

    def swap(self, name: str, other: str) -> None:
        """Hand out another entry under this name."""
        self._changes[name] = lambda data, pool: self.inner.get(other, pool)

    def heal(self) -> None:
        """No faults any more. Calls that are stuck stay so."""
        with self._lock:
            self._faults.clear()
            self._changes.clear()

    # ------------------------------------------------------------------ their effect

    def get(self, name: str, pool: BufferPool) -> Buffer | None:
        """Read it, and change what was read where that was ordered."""
        data = super().get(name, pool)
        change = self._changes.get(name)
        if data is None or change is None:
            return data
        try:
            return change(data, pool)
        finally:
            data.release()

    def around(self, operation: str, names: Sequence[str], call: Callable[[], T]) -> T:
        """Fail or hang first, if that was ordered."""
        for fault in self._due(operation, names):
            fault.act()
        return call()

    def _order(
        self,
        act: Callable[[], None],
        on: str | Collection[str],
        names: Iterable[str] | None,
        times: int | None,
    ) -> None:
        operations = frozenset((on,) if isinstance(on, str) else on)
        if not operations <= OPERATIONS:
            raise InvalidRequest(f"a tier has no {', '.join(sorted(operations - OPERATIONS))}", field="on")
        wanted = None if names is None else frozenset(names)
        with self._lock:
            self._faults.append(_Fault(operations=operations, names=wanted, times=times, act=act))

    def _due(self, operation: str, names: Sequence[str]) -> builtins.list[_Fault]:
        """The faults that this call meets; each counts it."""
        with self._lock:
            due = [fault for fault in self._faults if self._meets(fault, operation, names)]
            for fault in due:
                if fault.times is not None:
                    fault.times -= 1
            self._faults = [fault for fault in self._faults if fault.times != 0]
            return due

    @staticmethod
    def _meets(fault: _Fault, operation: str, names: Sequence[str]) -> bool:
        return operation in fault.operations and (fault.names is None or not fault.names.isdisjoint(names))


def _copy(data: Buffer, pool: BufferPool, size: int) -> Buffer:
    """The first bytes in memory of their own: what a tier hands out may be what it keeps."""
    own = pool.take(size)
    own.view[:] = data.view[:size]
    return own
