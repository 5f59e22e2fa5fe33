"""The bill of an engine of one's own, divided among its requests, to the last digit.

A machine that runs an engine costs the same whether it works or not. Closing the books on a period means:
every request gets a share of the bill, what no request used is *idle*, and both together are the bill.

**The bill** is dollars per hour times the period's length, rounded to 1e-12 dollars.

**Measured** are the seconds of requests on an engine in this process (`EngineTime`). The engine divides each
of its steps by the tokens that it computed for each request in it, so overlapping requests share a step and
the seconds of all of them sum to the time that the engine was busy. A request wholly inside the period pays
exactly those seconds: at the same dollars per hour, its share is the `cost.total` of its reply and its row.

**Assumed** is where in time the seconds lie, which matters at the period's edges only. From the time of
sending: waiting, then loading KV, then computing the prompt until the first token, then generating, and
storing KV at the end. Within each of these phases the seconds are spread evenly, and of a request that an
edge cuts, each phase pays the part that lies inside. A phase without room (its seconds are known, its time
is not) is spread over the whole request. Without a first token's time, prompt and answer divide the room in
proportion to their seconds.

**By tokens**, and so estimated, go requests whose seconds nobody measured: a server does not say how long it
was busy with one. While at least one of them is active the engine counts as busy. In every stretch of time in
which the same requests are active, what the measured ones leave of it is divided by the tokens per second
that each computes in its phase: until the first token its fresh input (input less what was read from the
cache), then its output. Where the first token's time is not known (an answer that was not streamed), input
and output together count as computed evenly from sending to end: a token is a token. A count that is not
known, or 0, counts as one token.

**Queueing** is apart: a request that waits in the engine uses nothing and pays nothing. `queue_s` is the sum
of the waits that were measured. (The wait of a request that goes by tokens is not known; it is part of the
time to its first token, over which its input is spread.)

**Idle** is the rest: no request was there; or one whose row has neither seconds nor tokens (`skipped`), or
that is in no ledger; or the last batch of one that was aborted. Every share is rounded down to 1e-12 dollars,
by kind, and what that leaves, less than 5e-12 dollars a request, is in the idle dollars too.

**Too much.** Clocks differ and phases are spread, so the seconds may come to more than the period has. Then
those that go by tokens are scaled down to what the measured leave; where the measured alone exceed it, they
are scaled down to fill it and the others get nothing. `is_scaled` says so. Otherwise periods side by side add
up: a request's shares of two of them are its share of both, within 1e-12 dollars a kind and edge.

An example: 100 seconds at $3.60 an hour, a tenth of a cent a second. `a` and `b` overlap; the engine measured
6 and 4 seconds of theirs. `c` began 10 seconds before the period, generates until 10 seconds into it, and
half of its 8 seconds lie inside. `d` and `e` went to a server, from 60 to 80 and from 70 to 80 seconds, with
100 and 100 tokens of output, so 5 and 10 tokens a second: `d` alone has 10 seconds, and of the 10 together
`d` has 5 parts of 15 and `e` 10.

>>> from datetime import UTC, datetime, timedelta
>>> from kvsdk.backend import EngineTime
>>> from kvsdk.usage import Usage
>>> start = datetime(2026, 11, 30, tzinfo=UTC)
>>> def use(id, after_s, total_s, ttft_s=None, **more):
...     return EngineUse(id=id, at=start + timedelta(seconds=after_s), total_s=total_s, ttft_s=ttft_s, **more)
>>> allocation = allocate(
...     [
...         use("a", 20, 10, 2, engine=EngineTime(prefill_s=2.0, decode_s=4.0)),
...         use("b", 21, 9, 5, engine=EngineTime(prefill_s=1.0, decode_s=3.0, queue_s=1.0)),
...         use("c", -10, 20, 0, engine=EngineTime(prefill_s=0.0, decode_s=8.0)),
...         use("d", 60, 20, 0, usage=Usage(output_tokens=100)),
...         use("e", 70, 10, 0, usage=Usage(output_tokens=100)),
...     ],
...     EngineBill(usd_per_hour="3.60"),
...     start=start,
...     end=start + timedelta(seconds=100),
... )
>>> for share in allocation.shares:
...     how = "tokens" if share.is_estimated else "measured"
...     print(share.use.id, share.total_usd, how, "cut" if share.is_cut else "whole")
a 0.006000000000 measured whole
b 0.004000000000 measured whole
c 0.004000000000 measured cut
d 0.013333333333 tokens whole
e 0.006666666666 tokens whole
>>> print(allocation.idle_usd, allocation.idle_s, allocation.queue_s)
0.066000000001 66.0 1.0
>>> print(allocation.total_usd)
0.100000000000
>>> sum(share.total_usd for share in allocation.shares) + allocation.idle_usd == allocation.total_usd
True
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from fractions import Fraction

from kvsdk.cost.engine.price import EXACT, EngineBill
from kvsdk.cost.engine.sweep import KINDS, Seconds, busy, fit, seconds_in
from kvsdk.cost.engine.use import (
    TICKS_PER_S,
    EngineUse,
    SkippedUse,
    engine_uses,
    span,
    ticks,
)
from kvsdk.errors import InvalidRequest

__all__ = ["Allocation", "EngineBill", "EngineUse", "Share", "SkippedUse", "allocate", "engine_uses", "span"]

_PICO = 10**12


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """What one use has of the period's bill: dollars and seconds of the engine by kind.

    Attributes:
        use: Whose.
        prefill_usd: Computing the prompt.
        load_usd: Loading KV.
        store_usd: Storing KV.
        decode_usd: Generating.
        prefill_s: The seconds of each.
        load_s: Likewise.
        store_s: Likewise.
        decode_s: Likewise.
        queue_s: Waiting, which is not billed; None where it was not measured.
        is_estimated: Whether it goes by tokens; otherwise it was measured.
        is_cut: Whether part of it lies outside the period.
    """

    use: EngineUse
    prefill_usd: Decimal
    load_usd: Decimal
    store_usd: Decimal
    decode_usd: Decimal
    prefill_s: float
    load_s: float
    store_s: float
    decode_s: float
    queue_s: float | None
    is_estimated: bool
    is_cut: bool

    @property
    def total_usd(self) -> Decimal:
        """Its dollars, exactly."""
        return self.prefill_usd + self.load_usd + self.store_usd + self.decode_usd

    @property
    def busy_s(self) -> float:
        """Its seconds of the engine."""
        return self.prefill_s + self.load_s + self.store_s + self.decode_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Allocation:
    """A period's bill, divided. `total_usd` is exactly the shares' sum and `idle_usd`, which is 0 or more.

    Attributes:
        bill: What the engine costs.
        start: The period's start.
        end: Its end.
        total_usd: The bill.
        shares: One for each use that reaches into the period, as they came.
        idle_usd: What no request used.
        idle_s: The seconds of that.
        queue_s: Seconds that requests waited, as far as they were measured; None where none was.
        is_scaled: Whether the shares were scaled down, because they came to more than the period has.
        skipped: Uses that could not be counted, and why.
    """

    bill: EngineBill
    start: datetime
    end: datetime
    total_usd: Decimal
    shares: tuple[Share, ...]
    idle_usd: Decimal
    idle_s: float
    queue_s: float | None
    is_scaled: bool
    skipped: tuple[SkippedUse, ...]

    @property
    def period_s(self) -> float:
        """The period's length."""
        return (self.end - self.start).total_seconds()


def allocate(
    uses: Iterable[EngineUse | SkippedUse], bill: EngineBill, *, start: datetime, end: datetime
) -> Allocation:
    """Divide a period's bill among the uses of the engine; the module says how.

    Args:
        uses: In any order. Those outside the period have no share.
        bill: What the engine costs.
        start: The period's start, with a time zone.
        end: Its end.

    Raises:
        InvalidRequest: The period ends before it starts, or a time has no time zone.
    """
    first, last = ticks(start, "start"), ticks(end, "end")
    if last < first:
        raise InvalidRequest(f"the period ends at {end}, before it starts at {start}", field="end")
    inside: list[EngineUse] = []
    skipped: list[SkippedUse] = []
    for use in uses:
        if isinstance(use, SkippedUse):
            skipped.append(use)
        elif use.is_in(first, last):
            inside.append(use)
    period = Fraction(last - first, TICKS_PER_S)
    parts, is_scaled = fit(inside, seconds_in(inside, first, last), period)
    rate = Fraction(bill.usd_per_hour) / 3600
    shares = tuple(
        _share(use, seconds, rate, is_cut=use.start < first or use.end > last)
        for use, seconds in zip(inside, parts, strict=True)
    )
    total_pico = round(rate * period * _PICO)
    idle_pico = total_pico - sum(_pico(seconds[kind], rate) for seconds in parts for kind in KINDS)
    queues = [share.queue_s for share in shares if share.queue_s is not None]
    return Allocation(
        bill=bill,
        start=start,
        end=end,
        total_usd=_dollars(total_pico),
        shares=shares,
        idle_usd=_dollars(idle_pico),
        idle_s=float(period - sum(map(busy, parts))),
        queue_s=sum(queues) if queues else None,
        is_scaled=is_scaled,
        skipped=tuple(skipped),
    )


def _share(use: EngineUse, seconds: Seconds, rate: Fraction, *, is_cut: bool) -> Share:
    is_queue_known = use.engine is not None and use.engine.queue_s is not None
    dollars = {kind: _dollars(_pico(seconds[kind], rate)) for kind in KINDS}
    return Share(
        use=use,
        prefill_usd=dollars["prefill"],
        load_usd=dollars["load"],
        store_usd=dollars["store"],
        decode_usd=dollars["decode"],
        prefill_s=float(seconds["prefill"]),
        load_s=float(seconds["load"]),
        store_s=float(seconds["store"]),
        decode_s=float(seconds["decode"]),
        queue_s=float(seconds["queue"]) if is_queue_known else None,
        is_estimated=use.engine is None,
        is_cut=is_cut,
    )


def _pico(seconds: Fraction, usd_per_s: Fraction) -> int:
    """In 1e-12 dollars, rounded down."""
    return int(seconds * usd_per_s * _PICO)


def _dollars(pico: int) -> Decimal:
    return Decimal(pico).scaleb(-12, EXACT)
