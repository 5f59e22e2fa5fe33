"""A line per request, and what the same tokens would have cost elsewhere."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from decimal import Decimal
from pathlib import Path

import pytest
from kvsdk import UnknownScheme, Usage
from kvsdk.cost import Ledger, report
from kvsdk.cost.ledger.row import PrefixMark
from kvsdk.cost.reports.report import request_lines
from report_rows import AT, row


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    with Ledger(tmp_path / "costs.db") as made:
        yield made


def test_only_the_latest_requests_may_be_asked_for(ledger: Ledger) -> None:
    """All attempts of each, in the order of sending; the total is of all."""
    for number in range(5):
        ledger.append(row(f"r{number}", "1", at=AT + timedelta(seconds=number)))
    ledger.append(row("again", "1", operation_id="r1", attempt=2, at=AT + timedelta(seconds=9)))
    last = report(ledger, latest=4)
    assert [(line.group["operation_id"], line.attempts) for line in last.rows] == [
        ("r1", 2),
        ("r2", 1),
        ("r3", 1),
        ("r4", 1),
    ]
    assert (last.total.requests, last.total.attempts) == (5, 6)
    assert report(ledger, latest=0).rows == ()


def test_requests_are_read_as_they_are_asked_for(ledger: Ledger) -> None:
    """After the first line the total is that line's; at the end, that of the report."""
    for number in range(3):
        ledger.append(row(f"r{number}", "1", at=AT + timedelta(seconds=number)))
    lines = request_lines(ledger)
    one = iter(lines)
    assert next(one).group["operation_id"] == "r0"
    assert (lines.total.requests, lines.total.cost_usd) == (1, Decimal(1))
    assert len(list(one)) == 2
    assert lines.total == report(ledger).total


def test_a_request_is_one_line_however_its_attempts_lie(ledger: Ledger) -> None:
    """Another call's attempts in between; the line stands where the first attempt was sent."""
    for id, operation, second in (
        ("a1", "a", 0),
        ("b1", "b", 1),
        ("a2", "a", 2),
        ("c1", "c", 3),
        ("b2", "b", 4),
    ):
        attempt = int(id[1])
        ledger.append(
            row(id, "1", operation_id=operation, attempt=attempt, at=AT + timedelta(seconds=second))
        )
    lines = list(request_lines(ledger))
    assert [(line.group["operation_id"], line.attempts) for line in lines] == [("a", 2), ("b", 2), ("c", 1)]
    assert tuple(lines) == report(ledger).rows


def test_the_same_tokens_elsewhere(ledger: Ledger) -> None:
    """The first request writes the document there, the second reads it; what cannot be priced is counted."""
    document = PrefixMark(2000, "document")
    usage = Usage.of_total(2000, output=0)
    for number in range(2):
        at = AT + timedelta(minutes=number)
        ledger.append(row(f"r{number}", "1", model=f"m{number}", at=at, prefix=(document,), usage=usage))
    ledger.append(row("lost", None, usage=Usage(), model="m1"))
    address = "anthropic:claude-sonnet-5-5"
    other = report(ledger, by=["model"], versus=[address, "vllm:m", address])
    assert other.versus == (address, "vllm:m")
    written, read = 2000 * Decimal("2.5") / 1_000_000, 2000 * Decimal("0.1") / 1_000_000
    sums = [(line.versus[address].cost_usd, line.versus[address].unpriced) for line in other.rows]
    assert sums == [(written, 0), (read, 1)]
    assert (other.total.versus[address].cost_usd, other.total.versus[address].unpriced) == (written + read, 1)
    assert other.total.versus["vllm:m"].cost_usd is None
    assert other.total.versus["vllm:m"].unpriced == 3
    lines = report(ledger, versus=[address], latest=2)
    assert [line.versus[address].cost_usd for line in lines.rows] == [written, read]
    assert lines.total.versus[address].cost_usd == written + read


def test_an_unknown_backend_is_told(ledger: Ledger) -> None:
    """Before anything is read."""
    with pytest.raises(UnknownScheme):
        report(ledger, versus=["antropic:claude-sonnet-5-5"])
    with pytest.raises(UnknownScheme):
        request_lines(ledger, versus=["antropic:claude-sonnet-5-5"])
