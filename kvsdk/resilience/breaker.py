"""A circuit breaker: after several failures in a row, stop asking for a while."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Literal

from kvsdk.errors import CircuitOpen

State = Literal["closed", "open", "half_open"]


class CircuitBreaker:
    """Counts failures in a row; thread-safe.

    Closed lets everything through. After `failures` in a row it opens: `check` raises `CircuitOpen` for
    `rest_s` seconds. Then it is half open: one caller may try, the others are still held back; success
    closes it, failure opens it again.

    Args:
        name: What is protected, for the error's text.
        clock: Seconds that only go forward, such as `time.monotonic`.
        failures: Failures in a row that open it.
        rest_s: Seconds it stays open.
    """

    def __init__(
        self, name: str, clock: Callable[[], float], *, failures: int = 5, rest_s: float = 30.0
    ) -> None:
        self.name = name
        self._clock = clock
        self._limit = failures
        self._rest_s = rest_s
        self._lock = threading.Lock()
        self._failures = 0
        self._opened_at: float | None = None
        self._probing = False

    @property
    def state(self) -> State:
        """What it does now."""
        with self._lock:
            return self._state()

    def check(self) -> None:
        """Raise `CircuitOpen` unless a request may go out now; in half open, take the one try."""
        with self._lock:
            state = self._state()
            if state == "closed":
                return
            if state == "half_open" and not self._probing:
                self._probing = True
                return
            raise CircuitOpen(
                f"{self.name} failed {self._failures} times in a row; not asked again yet",
                retry_after_s=self._rest_left_s(),
            )

    def succeed(self) -> None:
        """A request went well: closed again."""
        with self._lock:
            self._failures = 0
            self._opened_at = None
            self._probing = False

    def fail(self) -> None:
        """A request failed."""
        with self._lock:
            self._failures += 1
            if self._probing or self._failures >= self._limit:
                self._opened_at = self._clock()
            self._probing = False

    def _state(self) -> State:
        if self._opened_at is None:
            return "closed"
        return "open" if self._rest_left_s() > 0 else "half_open"

    def _rest_left_s(self) -> float:
        if self._opened_at is None:
            return 0.0
        return max(0.0, self._opened_at + self._rest_s - self._clock())
