"""A few threads for what may block; a thread that never comes back is replaced, and holds up no exit."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

T = TypeVar("T")


class Workers:
    """Runs jobs in threads. They are daemons: a read that is stuck must not keep the process from ending.

    Args:
        count: How many threads.
        name: Of the threads.
    """

    def __init__(self, count: int, name: str) -> None:
        self._jobs: queue.SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._name = name
        self._wanted = count
        self._running = 0
        self._closed = False

    def submit(self, job: Callable[[], T]) -> Future[T]:
        """Run it when a thread is free; after `close` in a thread of its own."""
        future: Future[T] = Future()
        with self._lock:
            if self._closed:
                threading.Thread(target=_do, args=(future, job), name=self._name, daemon=True).start()
                return future
            if self._running < self._wanted:
                self._start()
            self._jobs.put((future, job))
        return future

    def replace(self) -> None:
        """One thread is stuck: have another in its place."""
        with self._lock:
            if not self._closed:
                self._start()

    def close(self) -> None:
        """End the threads that are not stuck; jobs that are still waiting are run first."""
        with self._lock:
            if not self._closed:
                self._closed = True
                for _ in range(self._running):
                    self._jobs.put(None)

    def _start(self) -> None:
        self._running += 1
        threading.Thread(target=self._run, name=self._name, daemon=True).start()

    def _run(self) -> None:
        while (item := self._jobs.get()) is not None:
            _do(*item)
            del item


def _do(future: Future[Any], job: Callable[[], Any]) -> None:
    if not future.set_running_or_notify_cancel():
        return
    try:
        result = job()
    except BaseException as error:  # noqa: BLE001  it is the caller's, whatever it is
        future.set_exception(error)
    else:
        future.set_result(result)
