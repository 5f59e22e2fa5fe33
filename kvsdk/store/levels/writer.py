"""Write-behind: entries on their way to a tier that takes its time, readable until they are there.

The queue is bounded by bytes: when it is full whoever puts waits, and when nothing moves the entry is dropped
and counted, since serving goes before keeping.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress

from kvsdk.store.levels.guard import Guard, TierUnavailable
from kvsdk.store.tiers.buffers import Buffer
from kvsdk.store.tiers.tier import Hints


class Writer:
    """One tier's queue and the thread that empties it. Thread-safe.

    Args:
        guard: The tier.
        limit_bytes: How much may wait. One entry alone may be larger.
        patience_s: How long a put waits for room.
    """

    def __init__(self, guard: Guard, *, limit_bytes: int, patience_s: float) -> None:
        self._guard = guard
        self._limit_bytes = limit_bytes
        self._patience_s = patience_s
        self._changed = threading.Condition()
        self._jobs: deque[Callable[[], None]] = deque()
        self._pending: dict[str, Buffer] = {}
        self._waiting_bytes = 0
        self._busy = False
        self._thread: threading.Thread | None = None
        self._closed = False

    @property
    def waiting_bytes(self) -> int:
        """Bytes that are not written yet."""
        return self._waiting_bytes

    def put(self, name: str, data: Buffer, hints: Hints, *, patience_s: float | None = None) -> bool:
        """Have an entry written; the writer holds the data until then.

        Args:
            name: The entry's.
            data: Its bytes.
            hints: What is known of it.
            patience_s: How long to wait for room, if not as long as usual.

        Returns:
            False where there was no room in time, or the tier's breaker is open: the entry is dropped.
        """
        if self._guard.breaker.state == "open":
            self._guard.count("dropped")
            return False
        with self._changed:
            if name in self._pending:
                return True
            patience_s = self._patience_s if patience_s is None else patience_s
            if not self._changed.wait_for(lambda: self._has_room(len(data)), patience_s):
                self._guard.count("dropped")
                if patience_s:
                    self._guard.fail("take entries in time", f"{self._waiting_bytes} bytes wait")
                return False
            if self._closed:
                return False
            self._pending[name] = data.hold()
            self._waiting_bytes += len(data)
            self._add(lambda: self._write(name, data, hints))
        return True

    def later(self, what: str, job: Callable[[], object]) -> None:
        """Have something else done in the tier, after what waits already."""

        def run() -> None:
            self._guard.run(what, job)

        with self._changed:
            if not self._closed:
                self._add(run)

    def find(self, name: str) -> Buffer | None:
        """An entry that is on its way, held for the caller."""
        with self._changed:
            data = self._pending.get(name)
            return None if data is None else data.hold()

    def names(self, prefix: str = "") -> list[str]:
        """The entries that are on their way."""
        with self._changed:
            return [name for name in self._pending if name.startswith(prefix)]

    def flush(self, timeout_s: float | None) -> bool:
        """Wait until nothing waits; False where that took too long."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._jobs and not self._busy, timeout_s)

    def close(self, timeout_s: float) -> bool:
        """Write what waits, then end; False where something was left."""
        done = self.flush(timeout_s)
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        return done

    def _has_room(self, size: int) -> bool:
        return self._closed or not self._pending or self._waiting_bytes + size <= self._limit_bytes

    def _add(self, job: Callable[[], None]) -> None:
        self._jobs.append(job)
        if self._thread is None:
            name = f"kvsdk-store-{self._guard.name}"
            self._thread = threading.Thread(target=self._run, name=name, daemon=True)
            self._thread.start()
        self._changed.notify_all()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._busy = False
                self._changed.notify_all()
                self._changed.wait_for(lambda: self._jobs or self._closed)
                if not self._jobs:
                    return
                job = self._jobs.popleft()
                self._busy = True
            with suppress(TierUnavailable):  # counted and logged by the guard
                job()

    def _write(self, name: str, data: Buffer, hints: Hints) -> None:
        started_s = time.monotonic()
        try:
            kept = self._guard.run("put", lambda: self._guard.tier.put(name, data, hints))
            self._guard.count("written_bytes" if kept else "no_room", len(data) if kept else 1)
            self._guard.count("writing_us", int((time.monotonic() - started_s) * 1e6))
        finally:
            with self._changed:
                self._pending.pop(name).release()
                self._waiting_bytes -= len(data)
                self._changed.notify_all()
