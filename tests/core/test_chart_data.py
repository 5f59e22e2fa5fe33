"""The charts of a page: their numbers are those of the ledger's rows."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kvsdk import Cost, Usage
from kvsdk.cost import Ledger, LedgerRow, report
from kvsdk.cost.reports.chart_data import ChartData
from kvsdk.cost.reports.charts import Span, hit_chart
from kvsdk.cost.reports.page import report_page
from kvsdk.cost.reports.page_text import visible
from kvsdk.cost.reports.sql import Window
from ledger_rows import row
from page_reader import FIRST, MADE, PARTS, USAGE, cost, fill, page


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    with Ledger(tmp_path / "costs.db", durability="batched") as made:
        yield made


def test_charts_have_the_latest_prices(ledger: Ledger) -> None:
    """A corrected price is drawn, unless the original ones are asked for."""
    ledger.append(row(cost=cost("1")))
    ledger.add_ratings([("row_1", cost("0.5"))], 1)
    ledger.add_ratings([("row_1", cost("0.25"))], 2)
    assert "In all: other $0.250." in page(ledger).text
    assert "In all: other $1.00." in page(ledger, prices="original").text


def test_sums_that_do_not_fit_into_64_bits_are_drawn(ledger: Ledger) -> None:
    """Nine million dollars twice are more than 2**63 units of 1e-12 dollars; so are 2**62 tokens twice."""
    usage = Usage(input_tokens=2**62, cache_read_tokens=2**61)
    for number in range(2):
        changes = {"operation_id": "op", "session": "s", "usage": usage, "at": FIRST}
        ledger.append(row(number, cost=cost("9000000", without="9000001"), **changes))
    data = ChartData(ledger, Window())
    extent = data.extent()
    assert extent is not None
    ((day,), (hour,)) = data.spans(extent)
    assert day.cost_usd["other"] == 2 * 9_000_000
    assert hour.hit_rate == 0.5
    assert [saving.saved_usd for saving in data.savings()] == [2]
    (only,) = data.distribution().bins
    assert (only.low_usd, only.requests) == (16_000_000, 1)
    assert len(page(ledger).svgs) == 4


def test_cost_is_stacked_by_class(ledger: Ledger) -> None:
    """What a total has beside its classes is other; a rounding is not."""
    fill(ledger)
    assert (
        "input $0.100, cache read $0.0200, cache write $0.0300, output $0.400, other $6.25"
        in page(ledger).text
    )  # 6.80 - (0.10 + 0.02 + 0.03 + 0.40)
    dust = Decimal("0.55") + Decimal("0.000000000001")
    ledger.append(row(9, at=FIRST + timedelta(days=9), cost=cost(dust, parts=PARTS)))
    data = ChartData(ledger, Window(since=FIRST + timedelta(days=8)))
    extent = data.extent()
    assert extent is not None
    assert data.spans(extent)[0][0].cost_usd["other"] == 0


def test_days_without_metered_requests_are_gaps(ledger: Ledger) -> None:
    """Two days, a gap of two, and a day: the line begins anew, and is nowhere at zero."""
    for number, (days, usage) in enumerate(((0, USAGE), (1, USAGE), (2, Usage(input_tokens=9)), (4, USAGE))):
        ledger.append(row(number, at=FIRST + timedelta(days=days), usage=usage))
    data = ChartData(ledger, Window())
    extent = data.extent()
    assert extent is not None
    _, spans = data.spans(extent)
    assert [span.hit_rate for span in spans] == [0.6, 0.6, None, None, 0.6]
    assert "A gap is a time without a request" in page(ledger).text
    svg = hit_chart(spans, title="t", step="day", form="%m-%d")
    (line,) = re.findall(r'd="([^"]*)"[^>]*style="fill: none; stroke: #1f4e79', svg)
    points = re.findall(r"([ML]) (\S+) (\S+)", line)
    assert [kind for kind, _, _ in points] == ["M", "L", "M"]
    assert len({height for _, _, height in points}) == 1


@pytest.mark.parametrize(
    ("days", "cost_step", "hit_step"),
    [
        (0, "day", "hour"),
        (2.9, "day", "hour"),
        (3, "day", "day"),
        (119, "day", "day"),
        (120, "week", "week"),
        (840, "four weeks", "four weeks"),
        (3650, "365 days", "365 days"),
        (20000, "365 days", "365 days"),
    ],
)
def test_steps_grow_with_the_period(ledger: Ledger, days: float, cost_step: str, hit_step: str) -> None:
    """Hours for hit rates under three days; days until a page is full of them; never more than 121 steps."""
    start = FIRST - timedelta(days=days)
    for number, at in enumerate((start, FIRST)):
        ledger.append(row(number, at=at, usage=USAGE, cost=cost("1")))
    data = ChartData(ledger, Window())
    extent = data.extent()
    assert extent is not None
    assert (extent.cost_step.name, extent.hit_step.name) == (cost_step, hit_step)
    for spans in data.spans(extent):
        assert len(spans) <= 121
        assert sum(span.cost_usd["other"] for span in spans) == 2
        assert spans[0].start <= start <= FIRST
    assert f"Cost by {cost_step}" in page(ledger).text


def test_times_at_the_ends_of_the_calendar_are_drawn(ledger: Ledger) -> None:
    """The first and the last moment that a row can have, and moments just before 1970."""
    moments = (
        datetime.min.replace(tzinfo=UTC),
        datetime(1969, 12, 31, 23, 59, tzinfo=UTC),
        datetime.max.replace(tzinfo=UTC),
    )
    for number, at in enumerate(moments):
        ledger.append(row(number, at=at, usage=USAGE, cost=cost("1")))
    for window in (Window(), Window(since=FIRST), Window(until=FIRST), Window(since=moments[1], until=FIRST)):
        data = ChartData(ledger, window)
        extent = data.extent()
        assert extent is not None
        kept = report(ledger, by=["model"], since=window.since, until=window.until).total.requests
        for spans in data.spans(extent):
            assert sum(span.cost_usd["other"] for span in spans) == kept


def test_the_sessions_that_matter_most_are_drawn(ledger: Ledger) -> None:
    """Fifteen by how much they saved or lost, best first, and the others as one."""
    for number in range(20):
        ledger.append(row(number, session=f"s{number}", cost=cost("10", without=str(10 + number))))
    ledger.append(row(20, session="loss", cost=cost("100", without="1")))
    ledger.append(row(21, session="unknown"))
    savings = ChartData(ledger, Window()).savings()
    assert [saving.name for saving in savings] == [
        *(f"s{number}" for number in range(19, 5, -1)),
        "loss",
        "all others (6)",
    ]
    assert savings[-2].saved_usd == 1 - 100
    assert savings[-1].saved_usd == 0 + 1 + 2 + 3 + 4 + 5
    made = page(ledger)
    assert "Below zero, writing to the cache cost more" in made.text
    assert "-$99.00" in made.svgs[1]


def test_one_operation_is_one_request(ledger: Ledger) -> None:
    """Its cost is that of all its attempts; those without a known cost are told apart from free ones."""
    for number, (operation, total) in enumerate(
        (("twice", "0.4"), ("twice", "0.4"), ("free", "0"), ("unknown", None), ("half", "3"), ("half", None))
    ):
        priced = Cost() if total is None else cost(total)
        ledger.append(row(number, operation_id=operation, attempt=number + 1, cost=priced))
    found = ChartData(ledger, Window()).distribution()
    assert (found.free, found.unpriced, found.partial, found.requests) == (1, 1, 1, 4)
    filled = [(bin.low_usd, bin.high_usd) for bin in found.bins if bin.requests]
    assert filled == [(Decimal("0.79"), 1), (Decimal("2.5"), Decimal("3.2"))]
    assert (
        "2 requests; 1 cost nothing, 1 without a known cost, 1 counted with the known part"
        in page(ledger).text
    )


@settings(max_examples=30, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.integers(0, 40 * 24), st.sampled_from("abc"), st.integers(0, 10**14), st.integers(0, 10**14)
        ),
        min_size=1,
        max_size=25,
    )
)
def test_what_is_drawn_is_what_the_rows_add_up_to(drawn: list[tuple[int, str, int, int]]) -> None:
    """Against the rows, read one by one and added up in Python."""
    with TemporaryDirectory() as folder, Ledger(Path(folder) / "l.db", durability="batched") as ledger:
        for number, (hours, name, pico, without) in enumerate(drawn):
            total, instead = Decimal(pico).scaleb(-12), Decimal(without).scaleb(-12)
            priced = Cost(total=total, without_cache=instead, saved=instead - total)
            usage = Usage.of_parts(fresh=pico % 7, read=without % 11, write=1, output=1)
            at = FIRST + timedelta(hours=hours)
            ledger.append(row(number, at=at, session=name, operation_id=name, cost=priced, usage=usage))
        data, rows = ChartData(ledger, Window()), list(ledger.rows())
        extent = data.extent()
        assert extent is not None
        by_cost, by_hit = data.spans(extent)
        savings, found = data.savings(), data.distribution()
    _check_spans(by_cost, by_hit, rows, extent.hit_step.name == "hour")
    sums: dict[str | None, Decimal] = defaultdict(Decimal)
    for one in rows:
        sums[one.session] += one.cost.saved or 0
    assert {saving.name: saving.saved_usd for saving in savings} == sums
    totals: dict[str, Decimal] = defaultdict(Decimal)
    for one in rows:
        totals[one.operation_id] += one.cost.total or 0
    assert found.free == sum(total == 0 for total in totals.values())
    for bin in found.bins:
        assert bin.requests == sum(bin.low_usd <= total < bin.high_usd for total in totals.values())
    assert sum(bin.requests for bin in found.bins) == sum(total > 0 for total in totals.values())
    assert all(low.high_usd == high.low_usd for low, high in pairwise(found.bins))


def _check_spans(by_cost: list[Span], by_hit: list[Span], rows: list[LedgerRow], is_hourly: bool) -> None:
    costs: dict[datetime, Decimal] = defaultdict(Decimal)
    read: dict[datetime, int] = defaultdict(int)
    sent: dict[datetime, int] = defaultdict(int)
    for one in rows:
        day = one.at.replace(hour=0, minute=0, second=0, microsecond=0)
        step = one.at.replace(minute=0, second=0, microsecond=0) if is_hourly else day
        costs[day] += one.cost.total or 0
        read[step] += one.usage.cache_read_tokens or 0
        sent[step] += one.usage.input_tokens or 0
    assert {span.start: span.cost_usd["other"] for span in by_cost if span.start in costs} == costs
    assert {span.start: span.hit_rate for span in by_hit if span.hit_rate is not None} == {
        step: read[step] / sent[step] for step in sent
    }
    for spans in (by_cost, by_hit):
        gaps = {later.start - span.start for span, later in pairwise(spans)}
        assert gaps <= {timedelta(hours=1) if is_hourly and spans is by_hit else timedelta(days=1)}


def test_postgresql_makes_the_same_page(ledger: Ledger, postgres_url: str) -> None:
    """Every byte but the ledger's name, with corrected prices too."""
    with Ledger(postgres_url) as other:
        for each in (ledger, other):
            fill(each)
            for number in range(40):
                each.append(row(50 + number, session=f"s{number}", usage=USAGE, cost=cost(f"0.{number:02}7")))
            each.add_ratings([("row_1", cost("0.125"))], 1)
        pages = [
            report_page(each, report(each, by=["session"]), made_at=MADE).replace(visible(each.name), "NAME")
            for each in (ledger, other)
        ]
        name = other.name
    assert pages[0] == pages[1].replace(name.replace("&", "&amp;"), "NAME")
