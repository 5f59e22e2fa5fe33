"""How many seconds of the engine each request has in a period. Pure; see `kvsdk.cost.engine.allocation`.

Measured seconds are exact fractions. What they leave is shared out in whole numbers, and what is rounded
there is rounded down by less than 1e-20 seconds, so parts never exceed the whole. Instead of dividing each
stretch of time among all who are active in it, one counter says what one unit of weight has got so far, and
each takes the difference between its end and its start: n log n in all.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fractions import Fraction

from kvsdk.cost.engine.use import TICKS_PER_S, EngineUse, Kind, Phase

KINDS: tuple[Kind, ...] = ("prefill", "load", "store", "decode")
"""What is billed; `queue` is not."""

_WEIGHT = 96
_RATE = 128
_UNIT = 256
"""Binary places of a weight, of a rate and of the counter."""

Seconds = dict[Kind, Fraction]
"""Seconds by kind, `queue` among them."""


def seconds_in(uses: Sequence[EngineUse], first: int, last: int) -> list[Seconds]:
    """The seconds of each use that lie in the period, by kind, as measured or by tokens."""
    phases = [use.phases() for use in uses]
    by_tokens = [
        (number, phase)
        for number, (use, its) in enumerate(zip(uses, phases, strict=True))
        if use.engine is None
        for phase in its
    ]
    measured = [
        phase for use, its in zip(uses, phases, strict=True) if use.engine is not None for phase in its
    ]
    parts: list[Seconds] = [dict.fromkeys(("queue", *KINDS), Fraction(0)) for _ in uses]
    for use, its, seconds in zip(uses, phases, parts, strict=True):
        if use.engine is not None:
            for phase in its:
                seconds[phase.kind] = phase.amount * phase.part_in(first, last)
    shared = share_out([phase for _, phase in by_tokens], measured, first, last)
    for (number, phase), amount in zip(by_tokens, shared, strict=True):
        parts[number][phase.kind] += amount
    return parts


def fit(uses: Sequence[EngineUse], parts: list[Seconds], period: Fraction) -> tuple[list[Seconds], bool]:
    """The same seconds, scaled down where they come to more than the period; estimates give way first."""
    sums = {True: Fraction(0), False: Fraction(0)}
    for use, seconds in zip(uses, parts, strict=True):
        sums[use.engine is not None] += busy(seconds)
    measured, by_tokens = sums[True], sums[False]
    if measured + by_tokens <= period:
        return parts, False
    room = max(period - measured, Fraction(0))
    scales = {
        True: min(period / measured, Fraction(1)) if measured else Fraction(1),
        False: room / by_tokens if by_tokens else Fraction(1),
    }
    scaled = [
        {
            kind: amount if kind == "queue" else amount * scales[use.engine is not None]
            for kind, amount in seconds.items()
        }
        for use, seconds in zip(uses, parts, strict=True)
    ]
    return scaled, True


def busy(seconds: Seconds) -> Fraction:
    """Those that are billed."""
    return sum((seconds[kind] for kind in KINDS), Fraction(0))


def share_out(
    waiting: Sequence[Phase], measured: Iterable[Phase], start: int, end: int
) -> tuple[Fraction, ...]:
    """Seconds of the engine for each phase of unmeasured requests, between two times in ticks.

    In each stretch in which the same phases are active, the time that the measured phases leave is divided
    among the others by tokens per second. A phase's tokens and its measured seconds are spread evenly over
    it, so the shares of two periods side by side are those of both together.

    Args:
        waiting: The phases to share among; `amount` is tokens.
        measured: The phases that come first; `amount` is seconds of the engine.
        start: The period's start.
        end: Its end.
    """
    weights = [max(1, int(phase.amount * (1 << _WEIGHT)) // (phase.end - phase.start)) for phase in waiting]
    events: list[tuple[int, int, int, int]] = []  # time, change of weight, change of rate, which phase
    for number, (phase, weight) in enumerate(zip(waiting, weights, strict=True)):
        events += _edges(phase, start, end, weight, 0, number)
    if events:
        for phase in measured:
            if phase.start < phase.end and phase.kind != "queue":
                events += _edges(phase, start, end, 0, _rate(phase), -1)
    events.sort()
    per_weight = total_weight = rate = 0
    now = start
    got = [0] * len(waiting)
    for at, more_weight, more_rate, number in events:
        if at > now and total_weight:
            left = (at - now) * max(0, (1 << _RATE) - rate)
            per_weight += (left << (_UNIT - _RATE)) // total_weight
        now = at
        total_weight += more_weight
        rate += more_rate
        if more_weight:
            got[number] += per_weight if more_weight < 0 else -per_weight
    scale = TICKS_PER_S << _UNIT
    return tuple(Fraction(units * weight, scale) for units, weight in zip(got, weights, strict=True))


def _edges(
    phase: Phase, start: int, end: int, weight: int, rate: int, number: int
) -> tuple[tuple[int, int, int, int], ...]:
    """The events of a phase's part in the period; none where it has none."""
    begins, ends = max(phase.start, start), min(phase.end, end)
    if begins >= ends:
        return ()
    return (begins, weight, rate, number), (ends, -weight, -rate, number)


def _rate(phase: Phase) -> int:
    """Seconds of the engine per second, rounded up."""
    amount = phase.amount * TICKS_PER_S
    return -(-(amount.numerator << _RATE) // (amount.denominator * (phase.end - phase.start)))
