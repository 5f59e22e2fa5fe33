"""Tiers around a tier: slow ones, and ones that count. For tests of what stands above a tier.

They hold the tier that does the work, so they fit around every tier and around each other.
"""

from __future__ import annotations

import builtins
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from kvsdk.store.tiers.buffers import Buffer, BufferPool
from kvsdk.store.tiers.tier import Hints, PolicyName, Size, Tier, TierStats

T = TypeVar("T")

OPERATIONS = frozenset(
    name for name, member in vars(Tier).items() if callable(member) and not name.startswith("_")
)
"""The names of a tier's methods."""


class WrapperTier(Tier):
    """Passes every call on; a subclass says what happens around it.

    Args:
        inner: The tier that does the work.
    """

    def __init__(self, inner: Tier) -> None:
        self.inner = inner
        self.name = inner.name
        self.may_block = inner.may_block
        self.is_remote = inner.is_remote

    def around(self, operation: str, names: Sequence[str], call: Callable[[], T]) -> T:
        """What happens instead of a call; to be overridden.

        Args:
            operation: The method's name.
            names: The entries that it is about; a prefix or a session is none.
            call: The call itself.
        """
        return call()

    def open(self, *, policy: PolicyName = "hints", clock: Callable[[], float] = time.time) -> None:
        """Pass it on, as all the others do."""
        self.around("open", (), lambda: self.inner.open(policy=policy, clock=clock))

    def put(self, name: str, data: Buffer, hints: Hints) -> bool:
        """Pass it on."""
        return self.around("put", (name,), lambda: self.inner.put(name, data, hints))

    def get(self, name: str, pool: BufferPool) -> Buffer | None:
        """Pass it on."""
        return self.around("get", (name,), lambda: self.inner.get(name, pool))

    def contains(self, names: Sequence[str]) -> builtins.list[bool]:
        """Pass it on."""
        return self.around("contains", names, lambda: self.inner.contains(names))

    def expiry(self, name: str) -> float | None:
        """Pass it on."""
        return self.around("expiry", (name,), lambda: self.inner.expiry(name))

    def list(self, prefix: str) -> builtins.list[str]:
        """Pass it on."""
        return self.around("list", (), lambda: self.inner.list(prefix))

    def remove(self, name: str) -> bool:
        """Pass it on."""
        return self.around("remove", (name,), lambda: self.inner.remove(name))

    def touch(self, names: Sequence[str], hints: Hints) -> None:
        """Pass it on."""
        self.around("touch", names, lambda: self.inner.touch(names, hints))

    def demote(self, names: Sequence[str]) -> None:
        """Pass it on."""
        self.around("demote", names, lambda: self.inner.demote(names))

    def unpin(self, names: Sequence[str]) -> None:
        """Pass it on."""
        self.around("unpin", names, lambda: self.inner.unpin(names))

    def end_session(self, session: str) -> int:
        """Pass it on."""
        return self.around("end_session", (), lambda: self.inner.end_session(session))

    def resize(self, capacity: Size) -> None:
        """Pass it on."""
        self.around("resize", (), lambda: self.inner.resize(capacity))

    def collect(self) -> int:
        """Pass it on."""
        return self.around("collect", (), self.inner.collect)

    def stats(self) -> TierStats:
        """Pass it on."""
        return self.around("stats", (), self.inner.stats)

    def sync(self) -> None:
        """Pass it on."""
        self.around("sync", (), self.inner.sync)

    def close(self) -> None:
        """Pass it on."""
        self.around("close", (), self.inner.close)


class SlowTier(WrapperTier):
    """A tier that takes its time; `may_block` is true.

    Args:
        inner: The tier that does the work.
        get_s: How long a `get` waits before it begins, in seconds.
        put_s: How long a `put` waits.
        ask_s: How long `contains` and `list` wait.
        sleep: Waits.
    """

    def __init__(
        self,
        inner: Tier,
        *,
        get_s: float = 0.0,
        put_s: float = 0.0,
        ask_s: float = 0.0,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        super().__init__(inner)
        self.may_block = True
        self._wait_s = {"get": get_s, "put": put_s, "contains": ask_s, "list": ask_s}
        self._sleep = sleep

    def around(self, operation: str, names: Sequence[str], call: Callable[[], T]) -> T:
        """Wait, then go on."""
        wait_s = self._wait_s.get(operation, 0.0)
        if wait_s > 0:
            self._sleep(wait_s)
        return call()


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One call of a tier.

    Attributes:
        operation: The method's name.
        names: The entries that it was about.
        error: The class of what it raised, or None.
    """

    operation: str
    names: tuple[str, ...]
    error: str | None


class CountingTier(WrapperTier):
    """A tier that remembers what was asked of it. Thread-safe.

    Args:
        inner: The tier that does the work.
    """

    def __init__(self, inner: Tier) -> None:
        super().__init__(inner)
        self._lock = threading.Lock()
        self._calls: builtins.list[Call] = []

    @property
    def calls(self) -> builtins.list[Call]:
        """All calls that are over, in the order in which they ended."""
        with self._lock:
            return [*self._calls]

    def count(self, operation: str | None = None) -> int:
        """How often it was called, all in all or of one method."""
        return sum(operation in (None, call.operation) for call in self.calls)

    def counts(self) -> Counter[str]:
        """How often each method was called."""
        return Counter(call.operation for call in self.calls)

    def forget(self) -> None:
        """Begin anew."""
        with self._lock:
            self._calls.clear()

    def around(self, operation: str, names: Sequence[str], call: Callable[[], T]) -> T:
        """Remember it."""
        failed: str | None = None
        try:
            return call()
        except BaseException as error:
            failed = type(error).__name__
            raise
        finally:
            with self._lock:
                self._calls.append(Call(operation=operation, names=tuple(names), error=failed))
