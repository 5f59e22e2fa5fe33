"""What stands in a report's line: bounds of time, classes, later prices, and sums of any size."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from kvsdk import Cost, InvalidRequest, Usage
from kvsdk.cost import Ledger, report
from kvsdk.cost.reports.report import request_lines
from report_rows import AT, row


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    with Ledger(tmp_path / "costs.db") as made:
        yield made


def test_since_and_until_bound_the_time(ledger: Ledger) -> None:
    """The first moment is in, the last is not; lines and totals agree."""
    for number in range(4):
        ledger.append(row(f"r{number}", "1", at=AT + timedelta(microseconds=number)))
    bounds = {"since": AT + timedelta(microseconds=1), "until": AT + timedelta(microseconds=3)}
    lines = report(ledger, **bounds)
    assert [line.group["operation_id"] for line in lines.rows] == ["r1", "r2"]
    assert lines.total.requests == report(ledger, by=["model"], **bounds).total.requests == 2
    assert [line.group["operation_id"] for line in request_lines(ledger, **bounds)] == ["r1", "r2"]


@pytest.mark.parametrize(
    ("wrong", "field"),
    [
        ({"since": datetime(2026, 11, 30)}, "at"),
        ({"until": datetime(2026, 11, 30)}, "at"),
        ({"prices": "newest"}, "prices"),
        ({"latest": -1}, "latest"),
        ({"latest": 1, "by": ["model"]}, "latest"),
    ],
)
def test_wrong_questions_are_refused(ledger: Ledger, wrong: dict[str, Any], field: str) -> None:
    """Times without a zone, and words that mean nothing."""
    with pytest.raises(InvalidRequest) as caught:
        report(ledger, **wrong)
    assert caught.value.field == field


def test_tokens_and_cost_come_by_class(ledger: Ledger) -> None:
    """Each class is summed over the rows in which it is known."""
    parts = {
        "input": Decimal("0.1"),
        "cache_read": Decimal("0.02"),
        "cache_write": Decimal("0.003"),
        "output": Decimal("0.0004"),
        "storage": Decimal("0.00005"),
        "tools": Decimal("0.000006"),
    }
    usage = Usage.of_parts(fresh=10, read=60, write=30, output=5)
    ledger.append(row("r1", None, cost=Cost(**parts, total=sum(parts.values(), Decimal(0))), usage=usage))
    thinking = Usage.of_total(7, output=9, reasoning=8)
    ledger.append(row("r2", None, cost=Cost(input=Decimal(1), total=Decimal(1)), usage=thinking))
    total = report(ledger).total
    assert (total.input_tokens, total.output_tokens, total.reasoning_tokens) == (100 + 7, 5 + 9, 8)
    assert (total.cache_read_tokens, total.cache_write_tokens, total.fresh_tokens) == (60, 30, 10)
    assert (total.input_usd, total.cache_read_usd) == (Decimal("0.1") + 1, parts["cache_read"])
    assert (total.cache_write_usd, total.output_usd) == (parts["cache_write"], parts["output"])
    assert (total.storage_usd, total.tools_usd) == (parts["storage"], parts["tools"])
    assert total.cost_usd == Decimal("0.123456") + 1


def test_bounds_are_given_where_costs_are_estimated(ledger: Ledger) -> None:
    """An exact cost counts in full in both; without an estimate there are none."""
    guess = Cost(total=Decimal(3), estimated=True, low=Decimal(1), high=Decimal(3))
    ledger.append(row("r1", None, cost=guess, model="a"))
    ledger.append(row("r2", "0.5", model="a"))
    ledger.append(row("r3", "0.25", model="b"))
    bounds = {
        line.group["model"]: (line.low_usd, line.high_usd) for line in report(ledger, by=["model"]).rows
    }
    assert bounds == {"a": (1 + Decimal("0.5"), 3 + Decimal("0.5")), "b": (None, None)}
    assert report(ledger).total.low_usd == 1 + Decimal("0.5") + Decimal("0.25")


def test_the_latest_of_later_prices_counts(ledger: Ledger) -> None:
    """Of several runs the last; rows without one keep their own; `original` looks at none."""
    ledger.append(row("r1", "1"))
    ledger.append(row("r2", "0.5", model="n"))
    ledger.append(row("r3", None))
    ledger.add_ratings([("r1", Cost(total=Decimal(7), input=Decimal(7))), ("r3", Cost(total=Decimal(9)))], 1)
    ledger.add_ratings([("r1", Cost(total=Decimal(2), estimated=True, low=Decimal(1), high=Decimal(2)))], 2)
    now = report(ledger, by=["model"])
    assert {line.group["model"]: line.cost_usd for line in now.rows} == {
        "m": Decimal(2 + 9),
        "n": Decimal("0.5"),
    }
    assert (now.total.unpriced, now.total.estimated, now.total.input_usd) == (0, 1, None)
    assert now.total.low_usd == 1 + 9 + Decimal("0.5")
    before = report(ledger, prices="original").total
    assert (before.cost_usd, before.unpriced, before.estimated) == (1 + Decimal("0.5"), 1, 0)
    assert [line.cost_usd for line in request_lines(ledger)] == [2, Decimal("0.5"), 9]
    assert [line.cost_usd for line in request_lines(ledger, prices="original")] == [1, Decimal("0.5"), None]


def test_sums_beyond_64_bits_are_exact(ledger: Ledger) -> None:
    """Nine million dollars are 9e18 of what is stored, so two rows are more than SQLite's SUM can hold."""
    most = Decimal("9000000.000000000001")
    cost = Cost(total=most, without_cache=Decimal("0.000000000003"), saved=-most)
    for number in range(3):
        ledger.append(row(f"r{number}", None, cost=cost, usage=Usage(output_tokens=2**62 + 1)))
    ledger.append(row("small", "0.25", model="n"))
    grouped = report(ledger, by=["model"])
    assert [line.cost_usd for line in grouped.rows] == [3 * most, Decimal("0.25")]
    assert grouped.rows[0].saved_usd == -3 * most
    assert grouped.rows[0].without_cache_usd == Decimal("0.000000000009")
    assert grouped.rows[0].output_tokens == 3 * (2**62 + 1)
    assert report(ledger).total.cost_usd == grouped.total.cost_usd == 3 * most + Decimal("0.25")
    assert [line.attempts for line in grouped.rows] == [3, 1]
