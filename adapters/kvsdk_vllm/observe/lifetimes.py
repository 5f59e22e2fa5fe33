"""Many lifetimes in little memory: counts by their logarithm, so that a quantile is right to one percent."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass

ACCURACY = 0.01
"""A quantile is off by this share of itself at most."""

_SHORTEST_S = 1e-6
"""What is shorter counts as this; batches of events are farther apart."""

_GROWTH = (1 + ACCURACY) / (1 - ACCURACY)
_LOG_GROWTH = math.log(_GROWTH)


@dataclass(frozen=True, slots=True, kw_only=True)
class Lifetimes:
    """How long blocks stayed, from when they were stored until the last copy was removed.

    Only those that were seen from beginning to end. Those that are still there, which may live long, are not
    in it, and neither are those that were cleared away.

    Attributes:
        count: How many.
        median_s: Half of them lived no longer than this, to one percent; None where there are none.
        p90_s: Nine in ten lived no longer than this, to one percent; None where there are none.
        longest_s: The longest, exactly.
    """

    count: int
    median_s: float | None
    p90_s: float | None
    longest_s: float | None


class LifetimeCounts:
    """Counts lifetimes: a number for each two percent of difference, so 1,400 from 1 µs to 12 days."""

    def __init__(self) -> None:
        self._counts: Counter[int] = Counter()
        self._total = 0
        self._longest_s: float | None = None

    def add(self, seconds: float) -> None:
        """A block has lived so long."""
        self._counts[math.ceil(math.log(max(seconds, _SHORTEST_S)) / _LOG_GROWTH)] += 1
        self._total += 1
        self._longest_s = seconds if self._longest_s is None else max(self._longest_s, seconds)

    def summary(self) -> Lifetimes:
        """What they were so far."""
        return Lifetimes(
            count=self._total,
            median_s=self._quantile_s(5),
            p90_s=self._quantile_s(9),
            longest_s=self._longest_s,
        )

    def _quantile_s(self, tenths: int) -> float | None:
        """The shortest lifetime that so many tenths of all do not exceed."""
        rank = -(-tenths * self._total // 10)
        for index in sorted(self._counts):
            rank -= self._counts[index]
            if rank <= 0:
                return 2 * _GROWTH**index / (_GROWTH + 1)  # at most ACCURACY from either end
        return None
