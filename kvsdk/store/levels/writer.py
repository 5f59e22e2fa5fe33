"""Write-behind: entries on their way to a tier that takes its time, readable until they are there.

The queue is bounded by the memory that it holds: when it is full whoever puts waits, and when nothing moves
the entry is dropped and counted, since serving goes before keeping.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress

from kvsdk.store.levels.guard import Guard, TierUnavailable
from kvsdk.store.tiers.buffers import Buffer
from kvsdk.store.tiers.tier import Hints

_MOST_JOBS = 1000
"""Beyond them nothing that may be left out is added: a tier that hangs must not fill the memory."""


class Writer:
    """One tier's queue and the thread that empties it. Thread-safe.

    Args:
        guard: The tier.
        limit_bytes: How much memory may wait. One entry alone may be larger.
        patience_s: How long a put waits for room, and how long nothing may move.
    """

    def __init__(self, guard: Guard, *, limit_bytes: int, patience_s: float) -> None:
        self._guard = guard
        self._limit_bytes = limit_bytes
        self._patience_s = patience_s
        self._changed = threading.Condition()
        self._jobs: deque[Callable[[], None]] = deque()
        self._pending: dict[str, Buffer] = {}
        self._waiting_bytes = 0
        self._held_bytes = 0
        self._busy = False
        self._done = 0
        self._stalled_at: int | None = None
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
            patience_s: How long to wait for room, if not as long as usual. After somebody waited in vain
                nobody waits, until something moves again.

        Returns:
            False where there was no room in time, or the tier's breaker is open: the entry is dropped.
        """
        if self._guard.breaker.state == "open":
            self._guard.count("dropped")
            return False
        with self._changed:
            if patience_s is None:
                patience_s = 0.0 if self._stalled_at == self._done else self._patience_s
            if not self._changed.wait_for(lambda: self._takes(name, data), patience_s):
                self._guard.count("dropped")
                if patience_s:
                    self._stalled_at = self._done
                    self._guard.fail("take entries in time", f"{self._waiting_bytes} bytes wait")
                return False
            if name in self._pending:
                return True
            if self._closed:
                return False
            self._pending[name] = data.hold()
            self._waiting_bytes += len(data)
            self._held_bytes += data.memory_bytes
            self._add(lambda: self._write(name, data, hints))
        return True

    def later(self, what: str, job: Callable[[], object], *, may_be_left_out: bool = False) -> None:
        """Have something else done in the tier, after what waits already.

        Args:
            what: In words.
            job: What.
            may_be_left_out: Whether nothing is lost by it where very much waits.
        """

        def run() -> None:
            self._guard.run(what, job)

        with self._changed:
            if may_be_left_out and len(self._jobs) >= _MOST_JOBS:
                self._guard.count("left_out")
            elif not self._closed:
                self._add(run)

    def remove(self, name: str) -> Future[bool]:
        """Have an entry removed, before all that waits; what is on its way under this name is forgotten.

        Returns:
            Whether it was done, once that is known; False where the tier has failed.
        """
        answer: Future[bool] = Future()

        def run() -> None:
            is_done = False
            try:
                self._guard.run("remove", lambda: self._guard.tier.remove(name))
                is_done = True
            finally:
                answer.set_result(is_done)

        with self._changed:
            self._pending.pop(name, None)
            if self._closed:
                answer.set_result(False)
            else:
                self._add(run, is_first=True)
        return answer

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
        """Wait until nothing waits; False where that took too long, or where nothing moved any more."""
        with self._changed:
            if timeout_s is not None:
                return self._changed.wait_for(self._is_idle, timeout_s)
            while not self._is_idle():
                if not self._moves():
                    self._guard.fail("write in time", f"{self._waiting_bytes} bytes wait")
                    return False
            return True

    def close(self, timeout_s: float) -> bool:
        """Write what waits, then end; False where something was left."""
        done = self.flush(timeout_s)
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        return done

    def _moves(self) -> bool:
        """Wait until something is done; False where that takes too long."""
        before = self._done
        return self._changed.wait_for(lambda: self._done != before, self._patience_s)

    def _is_idle(self) -> bool:
        return not self._jobs and not self._busy

    def _takes(self, name: str, data: Buffer) -> bool:
        """Whether an entry need not wait; another may have put the same meanwhile."""
        is_over = self._closed or name in self._pending
        return is_over or not self._held_bytes or self._held_bytes + data.memory_bytes <= self._limit_bytes

    def _add(self, job: Callable[[], None], *, is_first: bool = False) -> None:
        if is_first:
            self._jobs.appendleft(job)
        else:
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
                self._done += 1
                self._changed.notify_all()
                self._changed.wait_for(lambda: self._jobs or self._closed)
                if not self._jobs:
                    return
                job = self._jobs.popleft()
                self._busy = True
            with suppress(TierUnavailable, SystemExit):  # counted and logged by the guard
                job()
            del job

    def _write(self, name: str, data: Buffer, hints: Hints) -> None:
        started_s = time.monotonic()
        try:
            if self._pending.get(name) is not data:  # removed, since it was put
                return
            kept = self._guard.run("put", lambda: self._guard.tier.put(name, data, hints))
            self._guard.count("written_bytes" if kept else "no_room", len(data) if kept else 1)
            self._guard.count("writing_us", int((time.monotonic() - started_s) * 1e6))
        finally:
            with self._changed:
                if self._pending.get(name) is data:
                    del self._pending[name]
                data.release()
                self._waiting_bytes -= len(data)
                self._held_bytes -= data.memory_bytes
                self._changed.notify_all()
