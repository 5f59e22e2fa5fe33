"""A process that uses a disk tier and kills itself at a named moment.

`python disk_victim.py ROOT MOMENT JOB`. A moment is a name and how often it comes before it
counts, such as `dropped:2`.
"""

from __future__ import annotations

import errno
import os
import signal
import sys
from pathlib import Path

from kvsdk.store.tiers.buffers import BufferPool
from kvsdk.store.tiers.disk import Disk
from kvsdk.store.tiers.disk_files import Files
from kvsdk.store.tiers.index.rows import Measured
from kvsdk.store.tiers.tier import Hints
from tier_twin import Clock, buffer_of, chain

SIZE = 100_000
CHAIN = chain(1, 2, 3, 4)
BIG = "fp/big"


class Fate:
    """Counts moments, and kills at the one that was named, without giving anything time to clean up."""

    moment = ""
    left = 0
    is_armed = False

    @classmethod
    def come(cls, moment: str) -> None:
        if cls.is_armed and moment == cls.moment:
            cls.left -= 1
            if cls.left == 0:
                os.kill(os.getpid(), signal.SIGKILL)


class DoomedFiles(Files):
    """Files with moments before and after each step."""

    is_full = False

    def write(self, place: Path, data: memoryview) -> None:
        Fate.come("reserved")
        super().write(place, data)
        Fate.come("written")

    def write_all(self, descriptor: int, data: memoryview) -> None:
        if DoomedFiles.is_full:
            DoomedFiles.is_full = False
            raise OSError(errno.ENOSPC, "full")
        half = len(data) // 2
        super().write_all(descriptor, data[:half])
        Fate.come("half written")
        super().write_all(descriptor, data[half:])

    def move(self, place: Path, name: str) -> None:
        super().move(place, name)
        Fate.come("moved")

    def drop(self, name: str) -> None:
        Fate.come("marked")
        super().drop(name)
        Fate.come("dropped")

    def measure(self, name: str) -> Measured | None:
        Fate.come("measured")
        return super().measure(name)

    def clear(self, alive: set[str]) -> None:
        Fate.come("buried")
        super().clear(alive)
        Fate.come("cleared")


class DoomedDisk(Disk):
    def _new_files(self) -> Files:
        return DoomedFiles(self.path)


def put(tier: Disk, pool: BufferPool, name: str, size: int = SIZE, hints: Hints | None = None) -> bool:
    data = buffer_of(pool, name, size)
    try:
        return tier.put(name, data, hints or Hints())
    finally:
        data.release()


def main(root: str, moment: str, job: str) -> None:
    Fate.moment, _, count = moment.partition(":")
    Fate.left = int(count or 1)
    Fate.is_armed = job == "open"
    tier, pool, clock = DoomedDisk(root), BufferPool(), Clock()
    tier.open(clock=clock)
    Fate.is_armed = True
    if job == "put":
        put(tier, pool, BIG)
    elif job == "evict":
        put(tier, pool, BIG, 2 * SIZE)
    elif job == "full":
        DoomedFiles.is_full = True
        put(tier, pool, BIG)
    elif job == "remove":
        tier.remove(CHAIN[3])
    elif job == "resize":
        tier.resize(SIZE)
    elif job == "collect":
        clock.now = 1e9
        tier.collect()


if __name__ == "__main__":
    main(*sys.argv[1:])
