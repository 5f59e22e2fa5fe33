"""Opening disk tiers in tests, putting entries and reading them."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Any

from kvsdk.store.tiers.buffers import BufferPool
from kvsdk.store.tiers.disk import Disk
from kvsdk.store.tiers.tier import Hints, Size
from tier_twin import Clock, buffer_of


class Opener(ExitStack):
    """Opens tiers on one folder; they are closed at its end."""

    def __init__(self, root: Path) -> None:
        super().__init__()
        self._root = root

    def __call__(self, capacity: Size | None = None, kind: type[Disk] = Disk) -> Disk:
        tier = kind(self._root, capacity)
        tier.open(clock=Clock())
        self.callback(tier.close)
        return tier


def put(tier: Disk, pool: BufferPool, name: str, size: int = 1000, **hints: Any) -> bool:
    """Put an entry of the bytes that belong to its name."""
    data = buffer_of(pool, name, size)
    try:
        return tier.put(name, data, Hints(**hints))
    finally:
        data.release()


def read(tier: Disk, pool: BufferPool, name: str) -> bytes | None:
    """An entry's bytes."""
    data = tier.get(name, pool)
    if data is None:
        return None
    try:
        return bytes(data.view)
    finally:
        data.release()
