"""What the suite for tiers builds on: what an author says of a tier, and the fixtures."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import ClassVar

import pytest

from kvsdk.store.tiers.buffers import BufferPool
from kvsdk.store.tiers.tier import Hints, Tier


class Clock:
    """Seconds since 1970, as the test wants them.

    Attributes:
        now: What it says.
    """

    def __init__(self) -> None:
        self.now = 1_900_000_000.0

    def __call__(self) -> float:
        """What it says."""
        return self.now


class TierFixtures:
    """What a standard test may ask for; an author overrides the first three methods and what follows.

    Attributes:
        persists: Whether a second tier at the same place has what the first one had.
        finds_foreign: Whether what `raw_set` lays there is found, as what another process put would be.
        keeps_hints: Whether expiry, sessions and pins are kept.
    """

    persists: ClassVar[bool] = False
    finds_foreign: ClassVar[bool] = True
    keeps_hints: ClassVar[bool] = True

    def make_tier(self) -> Tier:
        """A tier with room for at least 64 MiB, not yet open; within one test always at the same place."""
        raise NotImplementedError("override `make_tier`")

    def raw_set(self, tier: Tier, name: str, data: bytes) -> None:
        """Lay an entry where the tier keeps it, past the tier."""
        raise NotImplementedError("override `raw_set`")

    def raw_get(self, tier: Tier, name: str) -> bytes | None:
        """What lies where the tier keeps this entry, read past the tier; None where nothing does."""
        raise NotImplementedError("override `raw_get`")

    # ------------------------------------------------------------------ not to be overridden

    @pytest.fixture
    def pool(self) -> Iterator[BufferPool]:
        """Where the suite and the tier take memory. When the tier is closed, nothing is in use."""
        pool = BufferPool()
        yield pool
        assert pool.used_bytes == 0, "a closed tier holds memory"

    @pytest.fixture
    def clock(self) -> Clock:
        """What the tier takes for the time."""
        return Clock()

    @pytest.fixture
    def tier(self, pool: BufferPool, clock: Clock) -> Iterator[Tier]:
        """The tier, open and empty."""
        tier = self.make_tier()
        tier.open(clock=clock)
        yield tier
        tier.close()


def content(name: str, size: int) -> bytes:
    """The bytes that stand for a name in the tests."""
    return random.Random(f"{name} {size}").randbytes(size)


def keep(tier: Tier, pool: BufferPool, name: str, data: bytes, hints: Hints | None = None) -> bool:
    """Put an entry, as the store does."""
    buffer = pool.take(len(data))
    try:
        buffer.view[:] = data
        kept = tier.put(name, buffer, hints or Hints())
        assert buffer.view == data, "put has changed what it was given"
        return kept
    finally:
        buffer.release()


def read(tier: Tier, pool: BufferPool, name: str) -> bytes | None:
    """Get an entry and let go of it; reading leaves nothing in use."""
    before = pool.used_bytes
    buffer = tier.get(name, pool)
    if buffer is None:
        assert pool.used_bytes == before, "a miss has left memory in use"
        return None
    data = bytes(buffer.view)
    buffer.release()
    assert pool.used_bytes == before, "a released entry is still in use, or was not held for the reader"
    return data
