"""A vendor's report held against the ledger."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kvsdk import Cost, InvalidRequest, Usage
from kvsdk.cost import Ledger, LedgerRow
from kvsdk.cost.exports.reading import Export, ExportLine
from kvsdk.cost.exports.reconcile import Figures, Reconciliation, read_export, reconcile
from kvsdk.cost.exports.rows import tally_rows

DAY = date(2026, 11, 28)
MIDNIGHT = datetime(2026, 11, 28, tzinfo=UTC)
NOON = MIDNIGHT + timedelta(hours=12)
DOLLAR = Decimal(1)


def row(id: str, cost: Cost | str | None = "1", **changes: Any) -> LedgerRow:
    fields: dict[str, Any] = {
        "id": id,
        "operation_id": f"op_{id}",
        "attempt": 1,
        "at": NOON,
        "state": "ok",
        "backend": "openai",
        "model": "m",
        "reply_id": "r",
        "usage": Usage.of_parts(fresh=10, read=60, write=30, output=5),
        "cost": cost if isinstance(cost, Cost) else Cost(total=None if cost is None else Decimal(cost)),
    }
    return LedgerRow(**(fields | changes))


def failed(id: str, *, is_billed_unknown: bool = True, **changes: Any) -> LedgerRow:
    cost = Cost(reason="no answer") if is_billed_unknown else Cost(total=Decimal(0), reason="refused")
    fields: dict[str, Any] = {
        "state": "failed",
        "usage": Usage(),
        "cost": cost,
        "error": "BackendTimeout",
        "reply_id": None,
    }
    return row(id, **(fields | changes))


def hours(*days: date) -> frozenset[datetime]:
    starts = [datetime(day.year, day.month, day.day, tzinfo=UTC) for day in days]
    return frozenset(start + timedelta(hours=hour) for start in starts for hour in range(24))


def costs(*lines: tuple[str | None, str], day: date = DAY, **changes: Any) -> Export:
    found = tuple(ExportLine(day=day, model=model, cost_usd=Decimal(cost)) for model, cost in lines)
    fields: dict[str, Any] = {"name": "bill.json", "vendor": "openai", "kind": "costs", "lines": found}
    return Export(**(fields | {"hours": hours(day)} | changes))


def usage(requests: int | None, counts: Usage, model: str | None = "m") -> Export:
    line = ExportLine(day=DAY, model=model, requests=requests, usage=counts)
    return Export(name="bill.json", vendor="openai", kind="usage", lines=(line,), hours=hours(DAY))


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    with Ledger(tmp_path / "costs.db") as made:
        yield made


def put(ledger: Ledger, *rows: LedgerRow) -> Ledger:
    for one in rows:
        ledger.append(one)
    return ledger


# ---------------------------------------------------------------------- dollars


def test_dollars_are_compared_exactly(ledger: Ledger) -> None:
    """A thousand rows of a tenth of a cent are a dollar; the report has 3e-12 less."""
    put(ledger, *(row(f"r{number}", "0.001") for number in range(1000)))
    (line,) = reconcile(ledger, costs(("m", "0.999999999997"))).lines
    assert line.ledger.cost_usd == 1000 * Decimal("0.001")
    assert line.difference.cost_usd == Decimal("0.000000000003")
    assert line.matches


@pytest.mark.parametrize(
    ("cost", "is_equal"),
    [("0.995", False), ("0.99500000001", True), ("1.00499999999", True), ("1.005", False), ("-1", False)],
)
def test_half_a_cent_is_a_difference(ledger: Ledger, cost: str, is_equal: bool) -> None:
    """Reports are rounded to cents: less than half a cent on either side matches."""
    result = reconcile(put(ledger, row("r")), costs(("m", cost)))
    assert result.matches == result.lines[0].matches == is_equal
    assert result.total.difference.cost_usd == DOLLAR - Decimal(cost)


def test_one_line_that_does_not_match_is_enough(ledger: Ledger) -> None:
    """Two models that are off by opposite amounts do not match, though their total does."""
    put(ledger, row("a", "1", model="m"), row("b", "2", model="n"))
    result = reconcile(ledger, costs(("m", "2"), ("n", "1")))
    assert [(line.model, line.difference.cost_usd) for line in result.lines] == [("m", -1), ("n", 1)]
    assert result.total.matches
    assert not result.matches


def test_results_of_a_model_and_day_are_added(ledger: Ledger) -> None:
    """Input, cached input and output are items of their own: $0.2 + $0.3 + $0.5."""
    result = reconcile(put(ledger, row("r")), costs(("m", "0.2"), ("m", "0.3"), ("m", "0.5")))
    (line,) = result.lines
    assert line.vendor == Figures(cost_usd=DOLLAR)
    assert line.matches


def test_a_cost_that_the_report_does_not_say_is_unknown(ledger: Ledger) -> None:
    """Neither the line nor the total has it, and nothing shows that they match."""
    export = costs(("m", "1"))
    export = costs(lines=(*export.lines, ExportLine(day=DAY, model="m")))
    result = reconcile(put(ledger, row("r")), export)
    assert (result.lines[0].vendor.cost_usd, result.lines[0].difference.cost_usd) == (None, None)
    assert result.total.vendor.cost_usd is None
    assert not result.matches


# ---------------------------------------------------------------------- counts


def test_counts_are_compared_by_class(ledger: Ledger) -> None:
    """Two rows of 100 in, 60 of them read and 30 written; the report has 10 more read and 10 fewer fresh."""
    put(ledger, row("a"), row("b"))
    counts = Usage.of_parts(fresh=2 * 10 - 10, read=2 * 60 + 10, write=2 * 30, output=2 * 5)
    (line,) = reconcile(ledger, usage(2, counts)).lines
    assert line.difference == Figures(
        requests=0,
        input_tokens=0,
        cache_read_tokens=-10,
        cache_write_tokens=0,
        fresh_tokens=10,
        output_tokens=0,
        cost_usd=None,
    )
    assert line.ledger.cost_usd == 2
    assert not line.matches


def test_counts_that_are_equal_match(ledger: Ledger) -> None:
    """Without dollars every count of the report must be equal; one that it lacks is passed by."""
    put(ledger, row("a"))
    assert reconcile(ledger, usage(1, Usage.of_parts(fresh=10, read=60, write=30, output=5))).matches
    assert reconcile(ledger, usage(None, Usage.of_total(100, read=60, output=5))).matches
    assert not reconcile(ledger, usage(2, Usage.of_total(100, read=60, output=5))).matches
    assert not reconcile(ledger, usage(None, Usage())).matches


def test_a_total_that_the_report_does_not_say_is_not_compared(ledger: Ledger) -> None:
    """Without the writes, the sum of the other parts is no total."""
    (line,) = reconcile(put(ledger, row("a")), usage(1, Usage.of_parts(fresh=10, read=60, write=None))).lines
    assert line.vendor == Figures(requests=1, cache_read_tokens=60, fresh_tokens=10)
    assert line.matches


def test_requests_that_did_not_go_through_the_ledger(ledger: Ledger) -> None:
    """Nine in the report; five answered here and one that may have been: three are others'."""
    put(ledger, *(row(f"r{number}") for number in range(5)), failed("f"))
    put(ledger, failed("refused", is_billed_unknown=False))
    counts = Usage.of_parts(fresh=10, read=60, write=30, output=5)
    (line,) = reconcile(ledger, usage(9, counts)).lines
    assert line.ledger.requests == 5
    assert line.unlogged_requests == 9 - 5 - 1
    assert reconcile(ledger, usage(5, counts)).lines[0].unlogged_requests == 0
    assert reconcile(ledger, usage(None, counts)).lines[0].unlogged_requests is None


def test_what_only_one_side_has_is_a_line(ledger: Ledger) -> None:
    """A model that the other side does not have is nothing there, not unknown."""
    result = reconcile(put(ledger, row("a", model="ours")), costs(("theirs", "2")))
    assert [(line.model, line.vendor.cost_usd, line.ledger.cost_usd) for line in result.lines] == [
        ("ours", 0, 1),
        ("theirs", 2, 0),
    ]
    assert result.lines[0].vendor.input_tokens is None  # costs do not say


def test_an_empty_report_says_that_nothing_was_used(ledger: Ledger) -> None:
    """Then the ledger's day is a difference; without rows there is no line."""
    empty = costs(kind=None)
    assert reconcile(ledger, empty).lines == ()
    assert reconcile(ledger, empty).matches
    (line,) = reconcile(put(ledger, row("a")), empty).lines
    assert (line.vendor.cost_usd, line.vendor.requests, line.matches) == (0, 0, False)


def test_rows_that_do_not_know_add_nothing(ledger: Ledger) -> None:
    """One knows its cost, one does not; where none does, it is unknown."""
    put(ledger, row("a"), row("b", None), row("c", None, model="n"))
    first, second = reconcile(ledger, costs(("m", "1"), ("n", "1"))).lines
    assert (first.ledger.cost_usd, first.matches) == (1, True)
    assert (second.ledger.cost_usd, second.difference.cost_usd, second.matches) == (None, None, False)


def test_a_corrected_price_is_what_counts() -> None:
    """The row was priced at $1 then, and at $2 when the price was known."""
    rows = [row("a", rerated=Cost(total=2 * DOLLAR))]
    (tally,) = tally_rows(rows, hours(DAY), is_by_model=True).values()
    assert tally.figures["cost_usd"] == 2


# ---------------------------------------------------------------------- which rows count


def test_only_the_vendors_own_backend_counts(ledger: Ledger) -> None:
    """Azure and servers that speak OpenAI's API are billed elsewhere."""
    put(ledger, row("a"), *(row(name, backend=name) for name in ("azure", "openai+http", "anthropic")))
    assert reconcile(ledger, costs(("m", "1"))).matches
    assert reconcile(ledger, costs(("m", "1"), vendor="anthropic")).matches


def test_only_days_of_the_report_are_compared(ledger: Ledger) -> None:
    """A row an instant before the day and one at its end are not of it."""
    instant = timedelta(microseconds=1)
    put(ledger, row("before", at=MIDNIGHT - instant), row("first", at=MIDNIGHT))
    put(ledger, row("last", at=MIDNIGHT + timedelta(days=1) - instant))
    put(ledger, row("after", at=MIDNIGHT + timedelta(days=1)), row("later", at=MIDNIGHT + timedelta(days=9)))
    (line,) = reconcile(ledger, costs(("m", "2"))).lines
    assert (line.day, line.ledger.cost_usd) == (DAY, 2)


def test_a_gap_between_days_is_left_out(ledger: Ledger) -> None:
    """The report has the 28th and the 30th; the ledger's 29th is not compared."""
    put(ledger, *(row(f"d{number}", at=NOON + timedelta(days=number)) for number in range(3)))
    last = date(2026, 11, 30)
    lines = (*costs(("m", "1")).lines, *costs(("m", "1"), day=last).lines)
    result = reconcile(ledger, costs(lines=lines, hours=hours(DAY, last)))
    assert [(line.day, line.matches) for line in result.lines] == [(DAY, True), (last, True)]


def test_a_part_of_a_day(ledger: Ledger) -> None:
    """A report of two hours is compared with these two hours; a note says so."""
    put(ledger, row("in", at=MIDNIGHT + timedelta(hours=1.5)), row("out", at=NOON))
    part = frozenset({MIDNIGHT, MIDNIGHT + timedelta(hours=1)})
    result = reconcile(ledger, costs(("m", "1"), hours=part))
    assert result.matches
    assert result.notes == ("2026-11-28: the report covers 2 of 24 hours; only these are compared",)


# ---------------------------------------------------------------------- what may explain it


def why(result: Reconciliation) -> dict[str, tuple[str, ...]]:
    return {one.id: one.causes for line in result.lines for one in line.rows}


def test_the_causes(ledger: Ledger) -> None:
    """Each kind of row that a vendor may see otherwise, and none that it cannot."""
    edge = MIDNIGHT + timedelta(minutes=1)
    put(
        ledger,
        row("fine"),
        row("unpriced", None),
        row("estimated", cost=Cost(total=DOLLAR, estimated=True)),
        row("counted", usage=Usage(input_tokens=1, estimated=frozenset({"input_tokens"}))),
        failed("failed"),
        failed("refused", is_billed_unknown=False),
        failed("refused at the edge", is_billed_unknown=False, at=edge),
        row("partial", state="partial", error="StreamTruncated"),
        row("cancelled", state="cancelled"),
        failed("left", state="cancelled", error="CancelledError"),
        row("edge", at=edge),
    )
    result = reconcile(ledger, costs(("m", "1")))
    assert why(result) == {
        "unpriced": ("unpriced",),
        "estimated": ("estimated",),
        "counted": ("estimated",),
        "failed": ("unanswered",),
        "partial": ("partial",),
        "cancelled": ("cancelled",),
        "left": ("unanswered", "cancelled"),
        "edge": ("near_edge",),
    }
    (line,) = result.lines
    assert line.more_rows == 0
    assert line.causes == {
        "unpriced": 1,
        "estimated": 2,
        "unanswered": 2,
        "partial": 1,
        "cancelled": 2,
        "near_edge": 1,
    }
    assert line.ledger.requests == 7  # without the two unanswered, "left" and the refused ones: 11 - 4


def test_the_reasons_in_words(ledger: Ledger) -> None:
    """As the ledger wrote them down, with the interval of an estimate."""
    cost = Cost(
        total=Decimal("0.3"), low=Decimal("0.1"), high=Decimal("0.3"), estimated=True, reason="no TTL"
    )
    put(ledger, row("a", cost=Cost(reason="no list price")), row("b", cost=cost), failed("c"))
    words = [one.why for one in reconcile(ledger, costs(("m", "1"))).lines[0].rows]
    assert words == [
        "cost unknown: no list price",
        "estimated, $0.1 to $0.3: no TTL",
        "no answer (BackendTimeout): whether it was billed is unknown",
    ]


@pytest.mark.parametrize(
    ("seconds", "is_near"),
    [
        *((seconds, False) for seconds in (-121, 121, 43200, 86400 - 121, 86400 + 121)),
        *((seconds, True) for seconds in (-119, -1, 0, 119, 86400 - 119, 86399, 86400, 86400 + 119)),
    ],
)
def test_rows_within_two_minutes_of_an_edge(ledger: Ledger, seconds: int, is_near: bool) -> None:
    """On both sides of both ends of the day: the vendor may count by when a request ended."""
    put(ledger, row("noon"), row("r", at=MIDNIGHT + timedelta(seconds=seconds)))
    result = reconcile(ledger, costs(("m", "1")))
    assert why(result) == ({"r": ("near_edge",)} if is_near else {})
    assert result.lines[0].ledger.cost_usd == (2 if 0 <= seconds < 86400 else 1)


def test_a_row_between_two_days_may_explain_both(ledger: Ledger) -> None:
    """It is counted once, and named in both lines."""
    next_day = date(2026, 11, 29)
    put(ledger, row("r", at=MIDNIGHT + timedelta(days=1, seconds=-30)), row("n", at=NOON + timedelta(days=1)))
    lines = (*costs(("m", "0")).lines, *costs(("m", "2"), day=next_day).lines)
    first, second = reconcile(ledger, costs(lines=lines, hours=hours(DAY, next_day))).lines
    assert [one.id for one in (*first.rows, *second.rows)] == ["r", "r"]
    assert (first.difference.cost_usd, second.difference.cost_usd) == (1, -1)
    assert second.rows[0].why == "sent within 2 minutes of the day's edge, counted on 2026-11-28"


def test_an_edge_row_alone_makes_no_line(ledger: Ledger) -> None:
    """A row of another day is no reason for a line in which both sides are empty."""
    put(ledger, row("r", at=MIDNIGHT - timedelta(seconds=1)))
    assert reconcile(ledger, costs()).lines == ()


def test_twenty_rows_are_kept_and_the_others_counted(ledger: Ledger) -> None:
    """Of 30 near the edge and 5 without a price: the 5 first of all, and 15 of the others."""
    put(ledger, *(row(f"e{number:02}", at=MIDNIGHT + timedelta(seconds=number)) for number in range(30)))
    put(ledger, *(row(f"u{number}", None) for number in range(5)))
    (line,) = reconcile(ledger, costs(("m", "1"))).lines
    assert [one.id for one in line.rows] == [f"e{number:02}" for number in range(15)] + [
        f"u{n}" for n in range(5)
    ]
    assert line.more_rows == 30 + 5 - 20
    assert line.causes == {"near_edge": 30, "unpriced": 5}


# ---------------------------------------------------------------------- models


def test_models_are_matched_by_their_name_without_the_date(ledger: Ledger) -> None:
    """The ledger's `m` and the report's `m-2026-01-01` are one line, under the report's name, with a note."""
    result = reconcile(put(ledger, row("a")), costs(("m-2026-01-01", "1")))
    (line,) = result.lines
    assert (line.model, line.matches) == ("m-2026-01-01", True)
    assert result.notes == ("'m' in the ledger is compared with 'm-2026-01-01' in the report",)


def test_equal_ids_are_matched_first_and_failures_join_them(ledger: Ledger) -> None:
    """A row that failed has the id that was asked for: it is named with the dated model that answered."""
    put(ledger, row("a", model="m-2026-01-01"), failed("f", model="m"))
    (line,) = reconcile(ledger, costs(("m-2026-01-01", "1"))).lines
    assert line.matches
    assert [one.id for one in line.rows] == ["f"]


def test_a_report_without_models_is_compared_by_day(ledger: Ledger) -> None:
    """All models of the day together."""
    put(ledger, row("a", model="m"), row("b", model="n"))
    result = reconcile(ledger, costs((None, "2")))
    (line,) = result.lines
    assert (line.model, line.ledger.cost_usd, line.matches) == (None, 2, True)
    assert "whole days" in result.notes[0]


def test_costs_of_no_model_are_a_line_of_their_own(ledger: Ledger) -> None:
    """A web search is billed and has no row."""
    search = ExportLine(day=DAY, item="web search tool calls", cost_usd=Decimal("0.5"))
    result = reconcile(put(ledger, row("a")), costs(lines=(*costs(("m", "1")).lines, search)))
    assert [(line.model, line.difference.cost_usd, line.matches) for line in result.lines] == [
        ("m", 0, True),
        (None, Decimal("-0.5"), False),
    ]
    assert "web search tool calls" in result.notes[0]


def test_notes_on_the_report(ledger: Ledger) -> None:
    """That pages are missing, and that the vendor gave a discount of $1.50 - $1.20."""
    line = ExportLine(day=DAY, model="m", cost_usd=Decimal("1.2"), list_cost_usd=Decimal("1.5"))
    result = reconcile(ledger, costs(lines=(line,), is_complete=False))
    assert not result.is_complete
    assert "not complete" in result.notes[0]
    assert "a discount of $0.3" in result.notes[1]


# ---------------------------------------------------------------------- files


def test_a_file_is_read(ledger: Ledger, tmp_path: Path) -> None:
    """A path will do, and a byte order mark does not hurt."""
    bucket = {
        "starting_at": "2026-11-28T00:00:00Z",
        "ending_at": "2026-11-29T00:00:00Z",
        "results": [{"amount": "100", "currency": "USD", "model": "m"}],
    }
    path = tmp_path / "bill.json"
    path.write_text(json.dumps({"data": [bucket], "has_more": False}), "utf-8-sig")
    put(ledger, row("a", backend="anthropic"))
    for name in (path, str(path)):
        result = reconcile(ledger, name)
        assert (result.vendor, result.name, result.matches) == ("anthropic", str(path), True)


def test_a_file_that_cannot_be_read_is_told(tmp_path: Path) -> None:
    """Missing, a folder, or in another encoding."""
    (tmp_path / "wide.json").write_text('{"data": []}', "utf-16")
    for name, words in (
        ("none.json", "cannot be read"),
        ("", "cannot be read"),
        ("wide.json", "save it as UTF-8"),
    ):
        with pytest.raises(InvalidRequest, match=words) as caught:
            read_export(tmp_path / name)
        assert str(tmp_path / name) in str(caught.value)


# ---------------------------------------------------------------------- a naive twin


def twin(rows: Iterable[LedgerRow], export: Export) -> dict[tuple[date, str], tuple[Decimal, set[str]]]:
    """Dollars and explaining rows per day and model, from all rows at once; every edge is a midnight."""
    found: dict[tuple[date, str], tuple[Decimal, set[str]]] = {}
    days = {hour.date() for hour in export.hours}
    for day in days:
        start = datetime(day.year, day.month, day.day, tzinfo=UTC)
        ends = (start, start + timedelta(days=1))
        for model in {one.model for one in rows} | {line.model or "" for line in export.lines}:
            own = [one for one in rows if one.model == model and one.backend == export.vendor]
            mine = [one for one in own if ends[0] <= one.at < ends[1]]
            near = [one for one in own if any(-120 <= (one.at - end).total_seconds() < 120 for end in ends)]
            odd = {one.id for one in mine if one.cost.total is None} | {one.id for one in near}
            if mine or any((line.day, line.model) == (day, model) for line in export.lines):
                known = [one.cost.total for one in mine if one.cost.total is not None]
                found[day, model] = (sum(known, Decimal(0)), odd)
    return found


MOMENTS = st.integers(-400, 3 * 86_400 + 400) | st.sampled_from([0, 86_400, 2 * 86_400, 3 * 86_400]).flatmap(
    lambda end: st.integers(end - 300, end + 300)
)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    sent=st.lists(
        st.tuples(
            MOMENTS,
            st.sampled_from(["m", "n"]),
            st.sampled_from(["openai", "azure"]),
            st.none() | st.integers(0, 10**13),
        ),
        max_size=18,
    ),
    days=st.sets(st.integers(0, 2), min_size=1),
    billed=st.lists(
        st.tuples(st.integers(0, 2), st.sampled_from(["m", "n"]), st.integers(0, 10**13)), max_size=6
    ),
)
def test_it_agrees_with_its_naive_twin(
    tmp_path_factory: pytest.TempPathFactory,
    sent: list[tuple[int, str, str, int | None]],
    days: set[int],
    billed: list[tuple[int, str, int]],
) -> None:
    """Dollars, and the rows that explain them, as one finds them with all rows in hand."""
    rows = [
        row(
            f"r{number}",
            None if pico is None else str(Decimal(pico).scaleb(-12)),
            at=MIDNIGHT + timedelta(seconds=seconds),
            model=model,
            backend=backend,
        )
        for number, (seconds, model, backend, pico) in enumerate(sent)
    ]
    lines = tuple(
        ExportLine(day=DAY + timedelta(days=day), model=model, cost_usd=Decimal(pico).scaleb(-12))
        for day, model, pico in billed
        if day in days
    ) or (ExportLine(day=DAY + timedelta(days=min(days)), model="m", cost_usd=DOLLAR),)
    export = costs(lines=lines, hours=hours(*(DAY + timedelta(days=day) for day in days)))
    with Ledger(tmp_path_factory.mktemp("twin") / "costs.db") as ledger:
        result = reconcile(put(ledger, *rows), export)
    expected = twin(rows, export)
    assert {
        (line.day, line.model or ""): (line.ledger.cost_usd or Decimal(0), {one.id for one in line.rows})
        for line in result.lines
    } == expected
    for line in result.lines:
        theirs = sum(
            (one.cost_usd or 0 for one in lines if (one.day, one.model) == (line.day, line.model)), Decimal(0)
        )
        assert line.vendor.cost_usd == theirs
        assert line.matches == (abs(expected[line.day, line.model or ""][0] - theirs) < Decimal("0.005"))
