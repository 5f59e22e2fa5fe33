"""What a ledger adds up to."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from decimal import Decimal
from pathlib import Path

import pytest
from kvsdk import Cost, InvalidRequest, Usage
from kvsdk.cost import Ledger, report
from report_rows import AT, row


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    with Ledger(tmp_path / "costs.db") as made:
        yield made


def test_an_empty_ledger_adds_up_to_nothing(ledger: Ledger) -> None:
    """No lines, no requests, and unknown sums."""
    empty = report(ledger)
    assert empty.rows == ()
    assert (empty.total.requests, empty.total.attempts, empty.total.unpriced) == (0, 0, 0)
    assert (empty.total.cost_usd, empty.total.hit_rate, empty.total.input_tokens) == (None, None, None)


def test_money_is_summed_exactly(ledger: Ledger) -> None:
    """A thousand times a tenth of a cent is a dollar, to the last digit."""
    for number in range(1000):
        ledger.append(row(f"r{number}", "0.001"))
    total = report(ledger).total
    assert total.cost_usd == Decimal("0.001") * 1000
    assert total.saved_usd == (2 - Decimal("0.001")) * 1000
    assert total.without_cache_usd == 2 * 1000
    assert (total.requests, total.input_tokens, total.output_tokens) == (1000, 100 * 1000, 5 * 1000)


def test_attempts_of_one_call_are_one_request(ledger: Ledger) -> None:
    """Two failed and one good: one line, one request, three attempts; the failed ones may have cost."""
    for attempt, state, dollars in ((1, "failed", "0"), (2, "failed", None), (3, "ok", "0.5")):
        usage = Usage.of_parts(fresh=10, read=60, write=30, output=5) if state == "ok" else Usage()
        ledger.append(
            row(f"r{attempt}", dollars, operation_id="op", attempt=attempt, state=state, usage=usage)
        )
    (line,) = report(ledger).rows
    assert (line.requests, line.attempts, line.unpriced) == (1, 3, 1)
    assert line.cost_usd == Decimal("0.5")
    assert line.hit_rate == 60 / 100
    assert line.group["operation_id"] == "op"


def test_lines_are_requests_in_their_order(ledger: Ledger) -> None:
    """Without grouping: one line per request, by time, with what it stands for."""
    ledger.append(row("late", "1", at=AT + timedelta(seconds=5), session="s", tenant="acme"))
    ledger.append(row("early", "1"))
    lines = report(ledger).rows
    assert [line.group["operation_id"] for line in lines] == ["early", "late"]
    assert lines[1].group == {
        "operation_id": "late",
        "at": "2026-12-01T00:00:04.000Z",
        "backend": "anthropic",
        "model": "m",
        "session": "s",
        "tenant": "acme",
    }


@pytest.mark.parametrize("column", ["backend", "model", "session", "tenant"])
def test_lines_may_be_grouped_by_a_column(ledger: Ledger, column: str) -> None:
    """Each value is a line; so is none."""
    ledger.append(row("r1", "1", **{column: "a"}))
    ledger.append(row("r2", "2", **{column: "a"}))
    ledger.append(row("r3", "4", **{column: "b"}))
    grouped = report(ledger, by=[column])
    assert [(line.group, line.cost_usd, line.requests) for line in grouped.rows] == [
        ({column: "a"}, Decimal(3), 2),
        ({column: "b"}, Decimal(4), 1),
    ]
    assert (grouped.total.cost_usd, grouped.by) == (Decimal(7), (column,))


def test_a_missing_value_is_a_group_of_its_own(ledger: Ledger) -> None:
    """Calls without a tenant are not another tenant's."""
    ledger.append(row("r1", "1"))
    ledger.append(row("r2", "2", tenant="acme"))
    assert {line.group["tenant"]: line.cost_usd for line in report(ledger, by=["tenant"]).rows} == {
        None: Decimal(1),
        "acme": Decimal(2),
    }


def test_days_are_in_utc(ledger: Ledger) -> None:
    """A second before midnight and a second after."""
    ledger.append(row("r1", "1", at=AT))
    ledger.append(row("r2", "2", at=AT + timedelta(seconds=2)))
    assert [(line.group["day"], line.cost_usd) for line in report(ledger, by=["day"]).rows] == [
        ("2026-11-30", Decimal(1)),
        ("2026-12-01", Decimal(2)),
    ]


def test_several_columns_together(ledger: Ledger) -> None:
    """Each pair is a line."""
    for id, tenant, model in (("r1", "a", "x"), ("r2", "a", "y"), ("r3", "b", "x"), ("r4", "a", "x")):
        ledger.append(row(id, "1", tenant=tenant, model=model))
    lines = report(ledger, by=["tenant", "model"]).rows
    assert [(line.group["tenant"], line.group["model"], line.requests) for line in lines] == [
        ("a", "x", 2),
        ("a", "y", 1),
        ("b", "x", 1),
    ]


def test_the_hit_rate_leaves_out_what_was_not_metered(ledger: Ledger) -> None:
    """A backend that does not say what it read does not lower the rate of one that does."""
    ledger.append(row("r1", "1"))
    ledger.append(row("r2", "1", usage=Usage.of_total(100_000, output=5)))
    total = report(ledger).total
    assert total.hit_rate == 60 / 100
    assert total.input_tokens == 100 + 100_000


def test_unpriced_and_estimated_are_counted(ledger: Ledger) -> None:
    """A sum that leaves something out says so."""
    ledger.append(row("r1", None))
    ledger.append(
        row("r2", "1", cost=Cost(total=Decimal(1), estimated=True, low=Decimal(0), high=Decimal(1)))
    )
    ledger.append(row("r3", "2"))
    total = report(ledger).total
    assert (total.unpriced, total.estimated, total.cost_usd) == (1, 1, Decimal(3))


def test_the_first_tokens_time_is_a_mean(ledger: Ledger) -> None:
    """Of those that have one."""
    for id, ttft_s in (("r1", 0.1), ("r2", 0.3), ("r3", None)):
        ledger.append(row(id, "1", ttft_s=ttft_s))
    assert report(ledger).total.ttft_s == pytest.approx((0.1 + 0.3) / 2)


def test_an_unknown_column_is_refused(ledger: Ledger) -> None:
    """With the nearest known."""
    with pytest.raises(InvalidRequest, match="tenant") as caught:
        report(ledger, by=["tenat"])
    assert caught.value.field == "by"


def test_a_batched_ledger_is_read_to_its_end(tmp_path: Path) -> None:
    """A report waits for what is still being written."""
    with Ledger(tmp_path / "costs.db", durability="batched") as ledger:
        ledger.append(row("r1", "1"))
        assert report(ledger).total.requests == 1
