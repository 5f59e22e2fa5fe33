"""What the charts of a cost report show, added up in the database: a million rows stay there."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from itertools import pairwise
from typing import Any

import sqlalchemy as sa

from kvsdk.cost.ledger import schema
from kvsdk.cost.ledger.ledger import Ledger
from kvsdk.cost.ledger.records import at_us, to_dollars
from kvsdk.cost.reports.charts import CLASSES, Bin, Saving, Span
from kvsdk.cost.reports.page_text import visible
from kvsdk.cost.reports.sql import Window, priced
from kvsdk.errors import LedgerError

TOP_SESSIONS = 15
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_HOUR_US = 3_600_000_000
_DAY_US = 24 * _HOUR_US
_MONDAY_US = 4 * _DAY_US
"""1970-01-01 was a Thursday: weeks are counted from the Monday after it."""
_BEFORE_US = 719_162 * _DAY_US
"""From the first day that a `datetime` can be to 1970."""
_MILLION = 1_000_000
_PARTS = ("input", "cache_read", "cache_write", "output")
_SUMS = ("total", "itemised", *_PARTS, "read_tokens", "metered_tokens", "attempts")
_EDGES = {4: (10, 13, 16, 20, 25, 32, 40, 50, 63, 79), 8: (10, 16, 25, 40, 63), 99: (10, 32)}
"""Where bins begin within a decade, in tenths, by how many decades there are at most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A length of time that a chart counts by."""

    name: str
    length_us: int
    form: str
    begins_us: int = 0

    @property
    def shift_us(self) -> int:
        """What makes every moment positive, because databases divide towards zero."""
        return self.length_us * (_BEFORE_US // self.length_us + 1) - self.begins_us

    def place(self, moment_us: int) -> int:
        """Which step a moment lies in."""
        return (moment_us + self.shift_us) // self.length_us

    def start(self, place: int) -> datetime:
        """When a step begins."""
        return _EPOCH + timedelta(microseconds=max(place * self.length_us - self.shift_us, -_BEFORE_US))


HOUR = Step(name="hour", length_us=_HOUR_US, form="%m-%d %H:%M")
DAY = Step(name="day", length_us=_DAY_US, form="%m-%d")
WEEK = Step(name="week", length_us=7 * _DAY_US, form="%Y-%m-%d", begins_us=_MONDAY_US)
FOUR_WEEKS = Step(name="four weeks", length_us=28 * _DAY_US, form="%Y-%m-%d", begins_us=_MONDAY_US)
YEAR = Step(name="365 days", length_us=365 * _DAY_US, form="%Y-%m-%d")


@dataclass(frozen=True, slots=True, kw_only=True)
class Extent:
    """When the first and the last request of a period were sent."""

    first: datetime
    last: datetime

    @property
    def cost_step(self) -> Step:
        """What cost is counted by: days, unless there are too many for a page."""
        return DAY if self.hit_step is HOUR else self.hit_step

    @property
    def hit_step(self) -> Step:
        """What the hit rate is counted by: hours while the period is under 3 days."""
        days = (self.last - self.first) / timedelta(days=1)
        limits = ((3, HOUR), (120, DAY), (840, WEEK), (3650, FOUR_WEEKS))
        return next((step for limit, step in limits if days < limit), YEAR)


@dataclass(frozen=True, slots=True, kw_only=True)
class Distribution:
    """How many requests cost how much; those that cost nothing and those without a known cost are apart.

    `partial` ones are in a bin with what is known of their attempts.
    """

    bins: tuple[Bin, ...]
    free: int
    unpriced: int
    partial: int

    @property
    def requests(self) -> int:
        """All of them."""
        return sum(bin.requests for bin in self.bins) + self.free + self.unpriced


class ChartData:
    """The rows of a ledger in a window. Each method is one query, in which every attempt counts.

    Args:
        ledger: Where the rows are.
        window: Which of them, and at which prices.
    """

    def __init__(self, ledger: Ledger, window: Window) -> None:
        self._ledger = ledger
        self._where = window.conditions()
        self._priced, self._source = priced(ledger, window.prices)

    def extent(self) -> Extent | None:
        """The first and the last request, None without any."""
        when = schema.rows.c.at_us
        query = sa.select(sa.func.min(when).label("first"), sa.func.max(when).label("last"))
        (found,) = self._ledger.select(query.where(*self._where))
        if found["first"] is None:
            return None
        first, last = (_EPOCH + timedelta(microseconds=int(found[name])) for name in ("first", "last"))
        return Extent(first=first, last=last)

    def spans(self, extent: Extent) -> tuple[list[Span], list[Span]]:
        """The extent in steps for its cost and in steps for its hit rate, both without holes."""
        fine = extent.hit_step
        table, total = schema.rows.c, self._priced["total_pico_usd"]
        is_itemised = total.is_not(None) & self._priced["input_pico_usd"].is_not(None)
        money = {"total": total, "itemised": sa.case((is_itemised, total))}
        for name in _PARTS:
            money[name] = sa.case((is_itemised, self._priced[f"{name}_pico_usd"]))
        tokens = {
            "read_tokens": table.cache_read_tokens,
            "metered_tokens": sa.case((table.cache_read_tokens.is_not(None), table.input_tokens)),
        }
        place = ((table.at_us + fine.shift_us) // fine.length_us).label("place")

        def build(unit: int) -> sa.Executable:
            sums = [_sum(column, unit).label(name) for name, column in money.items()]
            for name, column in tokens.items():
                counted = column if unit == 1 else sa.cast(column, sa.Float)
                sums.append(sa.func.sum(counted).label(name))
            query = sa.select(place, *sums, sa.func.count().label("attempts")).select_from(self._source)
            return query.where(*self._where).group_by(place)

        records, unit = self._select(build)
        found = {
            fine.start(int(record["place"])): {
                name: int(record[name] or 0) * (unit if name in money else 1) for name in _SUMS
            }
            for record in records
        }
        return _spans(found, extent, extent.cost_step), _spans(found, extent, fine)

    def savings(self) -> list[Saving]:
        """The sessions that saved or lost the most, best first, and then all the others as one."""
        session, saved = schema.rows.c.session, self._priced["saved_pico_usd"]

        def build(unit: int) -> sa.Executable:
            query = sa.select(session, _sum(saved, unit).label("saved")).select_from(self._source)
            each = query.where(*self._where, saved.is_not(None)).group_by(session).subquery().c
            everything = sa.func.sum(each.saved).over().label("all_saved")
            query = sa.select(*each, everything, sa.func.count().over().label("sessions"))
            return query.order_by(sa.func.abs(each.saved).desc(), each.session).limit(TOP_SESSIONS)

        records, unit = self._select(build)
        top = sorted(records, key=lambda record: (-int(record["saved"]), record["session"] or ""))
        savings = [Saving(name=_name(one["session"]), saved_usd=_dollars(one["saved"], unit)) for one in top]
        if records and records[0]["sessions"] > len(records):
            rest = records[0]["all_saved"] - sum(record["saved"] for record in records)
            others = f"all others ({records[0]['sessions'] - len(records):,})"
            savings.append(Saving(name=others, saved_usd=_dollars(rest, unit), is_rest=True))
        return savings

    def distribution(self) -> Distribution:
        """What requests cost. SQL counts by the first two digits of the cost, which is exact everywhere."""
        operation, price = schema.rows.c.operation_id, self._priced["total_pico_usd"]

        def build(unit: int) -> sa.Executable:
            query = sa.select(
                _sum(price, unit).label("cost"),
                sa.func.count(price).label("priced"),
                sa.func.count().label("attempts"),
            ).select_from(self._source)
            each = query.where(*self._where).group_by(operation).subquery().c
            digits = sa.case((each.cost > 0, sa.cast(each.cost, sa.String)), else_="")
            is_partial = sa.and_(each.priced > 0, each.priced < each.attempts)
            kinds = sa.select(
                sa.func.length(digits).label("length"),
                sa.func.substr(digits, 1, 2).label("lead"),
                sa.case((each.priced == 0, 1), else_=0).label("unpriced"),
                sa.case((is_partial, 1), else_=0).label("partial"),
            ).subquery()
            return sa.select(*kinds.c, sa.func.count().label("requests")).group_by(*kinds.c)

        return _distribution(*self._select(build))

    def _select(self, build: Callable[[int], sa.Executable]) -> tuple[Sequence[sa.RowMapping], int]:
        """Ask, in units of one; where SQLite's sums do not fit into 64 bits, in units of a million."""
        try:
            return self._ledger.select(build(1)), 1
        except LedgerError as error:
            if "integer overflow" not in str(error.__cause__):
                raise
            return self._ledger.select(build(_MILLION)), _MILLION


def _sum(column: sa.ColumnElement[Any], unit: int) -> sa.ColumnElement[Any]:
    return sa.func.sum(column if unit == 1 else column // unit)


def _spans(found: Mapping[datetime, Mapping[str, int]], extent: Extent, step: Step) -> list[Span]:
    sums: dict[int, dict[str, int]] = {}
    for start, figures in found.items():
        there = sums.setdefault(step.place(at_us(start)), dict.fromkeys(_SUMS, 0))
        for name in _SUMS:
            there[name] += figures[name]
    places = range(step.place(at_us(extent.first)), step.place(at_us(extent.last)) + 1)
    return [_span(step.start(place), sums.get(place, dict.fromkeys(_SUMS, 0))) for place in places]


def _span(start: datetime, sums: Mapping[str, int]) -> Span:
    parts = [sums[name] for name in _PARTS]
    rest = sums["itemised"] - sum(parts)
    # Each figure of a row is rounded, and a charge may be a millionth off the list: neither is a cost.
    dust = max(3 * sums["attempts"], sums["itemised"] // _MILLION)
    other = sums["total"] - sums["itemised"] + (rest if rest > dust else 0)
    money = (_dollars(pico) for pico in (*parts, other))
    metered = sums["metered_tokens"]
    return Span(
        start=start,
        cost_usd=dict(zip(CLASSES, money, strict=True)),
        hit_rate=sums["read_tokens"] / metered if metered else None,
    )


def _distribution(records: Sequence[sa.RowMapping], unit: int) -> Distribution:
    counts: dict[tuple[int, int], int] = {}  # (decade, tenths) of dollars: requests
    free = unpriced = partial = 0
    shift = len(str(unit)) - 14  # in units of one, 1e-12 dollars have one digit
    for record in records:
        requests, length = int(record["requests"]), int(record["length"])
        partial += requests if record["partial"] else 0
        if record["unpriced"]:
            unpriced += requests
        elif length == 0:
            free += requests
        else:
            lead = int(record["lead"]) * (10 if length == 1 else 1)
            key = (length + shift, lead)
            counts[key] = counts.get(key, 0) + requests
    return Distribution(bins=_bins(counts), free=free, unpriced=unpriced, partial=partial)


def _bins(counts: Mapping[tuple[int, int], int]) -> tuple[Bin, ...]:
    """Bins from the cheapest request to the dearest, without holes; the finest of `_EDGES` that is few."""
    if not counts:
        return ()
    decades = range(min(counts)[0], max(counts)[0] + 1)
    within = next(edges for most, edges in _EDGES.items() if len(decades) <= most)
    edges = [(decade, tenths) for decade in (*decades, decades[-1] + 1) for tenths in within]
    bins = [
        Bin(low_usd=_edge(low), high_usd=_edge(high), requests=_between(counts.items(), low, high))
        for low, high in pairwise(edges)
    ]
    while not bins[0].requests:
        bins.pop(0)
    while not bins[-1].requests:
        bins.pop()
    return tuple(bins)


def _between(
    counts: Iterable[tuple[tuple[int, int], int]], low: tuple[int, int], high: tuple[int, int]
) -> int:
    return sum(requests for place, requests in counts if low <= place < high)


def _edge(place: tuple[int, int]) -> Decimal:
    return Decimal(place[1]).scaleb(place[0] - 1)


def _dollars(pico: int | Decimal, unit: int = 1) -> Decimal:
    return to_dollars(int(pico) * unit) or Decimal(0)


def _name(session: str | None) -> str:
    return "no session" if session is None else visible(session) or "(empty)"
