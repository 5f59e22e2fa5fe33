"""The time a whole call may take, retries and waits included."""

from __future__ import annotations

from collections.abc import Callable

from kvsdk.errors import DeadlineExceeded, InvalidRequest


class Deadline:
    """A point in time after which a call gives up.

    Args:
        timeout_s: Seconds from now, or None for no limit.
        clock: Seconds that only go forward, such as `time.monotonic`.
    """

    __slots__ = ("_clock", "_ends_at", "timeout_s")

    def __init__(self, timeout_s: float | None, clock: Callable[[], float]) -> None:
        if timeout_s is not None and not (type(timeout_s) in (int, float) and timeout_s > 0):
            raise InvalidRequest(
                f"timeout_s is a positive number of seconds, not {timeout_s!r}", field="timeout_s"
            )
        self.timeout_s = timeout_s
        self._clock = clock
        self._ends_at = None if timeout_s is None else clock() + timeout_s

    def remaining_s(self) -> float | None:
        """Seconds left, never below 0; None without a limit."""
        return None if self._ends_at is None else max(0.0, self._ends_at - self._clock())

    def check(self, wait_s: float = 0.0) -> None:
        """Raise `DeadlineExceeded` when nothing is left after waiting `wait_s` more seconds."""
        left = self.remaining_s()
        if left is not None and left <= wait_s:
            raise DeadlineExceeded(f"the call's timeout_s={self.timeout_s} is over")
