"""Reused memory: new memory costs several times more than anything that is done with it.

One entry of a store, header and payload together, lies in one `Buffer`. The memory tier keeps it, the writers
of the other tiers write it, a reader converts from it; whoever keeps it holds it, and the last one to let go
gives the memory back to the pool.
"""

from __future__ import annotations

import mmap
import threading
from collections import defaultdict

_STEP_BYTES = 1 << 16
"""Sizes are rounded up to this, so that chunks of nearly one size share their memory."""


class Buffer:
    """Memory of a pool, with a count of its holders.

    Attributes:
        view: The bytes, writable. Nothing writes them once the buffer was given to a second holder.
    """

    __slots__ = ("_block", "_holders", "_pool", "view")

    def __init__(self, pool: BufferPool, block: mmap.mmap, size: int) -> None:
        self.view = memoryview(block)[:size]
        self._pool = pool
        self._block = block
        self._holders = 1

    def __len__(self) -> int:
        return len(self.view)

    @property
    def memory_bytes(self) -> int:
        """What it takes of the memory: its size, rounded up."""
        return len(self._block)

    def hold(self) -> Buffer:
        """One holder more; gives the buffer itself."""
        with self._pool.lock:
            assert self._holders > 0, "a buffer that nobody holds is not there any more"
            self._holders += 1
        return self

    def release(self) -> None:
        """One holder less. After the last one the memory is another's: do not touch `view` again."""
        with self._pool.lock:
            assert self._holders > 0, "released more often than held"
            self._holders -= 1
            if self._holders == 0:
                self._pool._take_back(self._block)  # the two are one thing


class BufferPool:
    """Where buffers come from. Thread-safe.

    Args:
        spare_bytes: How much memory that nobody uses it keeps for the next ones.
    """

    def __init__(self, spare_bytes: int = 256 << 20) -> None:
        self.lock = threading.Lock()
        self._spare_bytes = spare_bytes
        self._spare: dict[int, list[mmap.mmap]] = defaultdict(list)
        self._kept_bytes = 0
        self._used_bytes = 0

    @property
    def used_bytes(self) -> int:
        """Memory that somebody holds."""
        return self._used_bytes

    def take(self, size: int) -> Buffer:
        """A buffer of this many bytes, held once; what is in it is undefined."""
        rounded = max(_STEP_BYTES, -(-size // _STEP_BYTES) * _STEP_BYTES)
        with self.lock:
            self._used_bytes += rounded
            spare = self._spare.get(rounded)
            if spare:
                self._kept_bytes -= rounded
                return Buffer(self, spare.pop(), size)
        return Buffer(self, mmap.mmap(-1, rounded), size)

    def _take_back(self, block: mmap.mmap) -> None:
        """Keep it for the next one, or leave it to the system; under the lock."""
        size = len(block)
        self._used_bytes -= size
        if self._kept_bytes + size <= self._spare_bytes:
            self._spare[size].append(block)
            self._kept_bytes += size
