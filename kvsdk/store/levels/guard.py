"""A tier behind its circuit breaker: what fails there is counted and never reaches the caller as it is."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import TypeVar

from kvsdk.errors import CircuitOpen
from kvsdk.resilience import CircuitBreaker
from kvsdk.store.tiers.tier import Tier

T = TypeVar("T")

_log = logging.getLogger(__name__)

_NOT_THE_TIERS = (KeyboardInterrupt, SystemExit, GeneratorExit)
"""What comes from outside while a tier works."""


class TierUnavailable(Exception):
    """A tier failed, or is not asked for a while since it failed before."""


class Guard:
    """One tier of a store. Thread-safe.

    Attributes:
        tier: The tier.
        name: Its name.
        breaker: Opens after some failures in a row; then nothing is asked of the tier for a while.
    """

    def __init__(self, tier: Tier, *, failures: int = 3, rest_s: float = 10.0) -> None:
        self.tier = tier
        self.name = tier.name
        self.breaker = CircuitBreaker(
            f"the {tier.name} tier", time.monotonic, failures=failures, rest_s=rest_s
        )
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter()

    def run(self, what: str, job: Callable[[], T]) -> T:
        """Do it, unless the breaker is open.

        Raises:
            TierUnavailable: It failed, or it was not tried.
        """
        try:
            self.breaker.check()
        except CircuitOpen as error:
            self.count("not_asked")
            raise TierUnavailable(str(error)) from error
        try:
            result = job()
        except BaseException as error:  # what panics in Rust is no Exception
            self.fail(what, error)
            if isinstance(error, _NOT_THE_TIERS):
                raise
            raise TierUnavailable(f"the {self.name} tier failed to {what}: {error}") from error
        self.breaker.succeed()
        return result

    def fail(self, what: str, error: BaseException | str) -> None:
        """Count a failure; of a call that did not come back too."""
        self.breaker.fail()
        self.count("failures")
        _log.warning("the %s tier failed to %s: %s", self.name, what, error)

    def count(self, what: str, number: int = 1) -> None:
        """Count something that happened."""
        with self._lock:
            self._counts[what] += number

    def counts(self) -> dict[str, int]:
        """What was counted so far."""
        with self._lock:
            return dict(self._counts)
