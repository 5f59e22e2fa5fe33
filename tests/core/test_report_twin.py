"""Reports against sums over plain lists."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from tempfile import TemporaryDirectory
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from kvsdk import Cost, Usage
from kvsdk.cost import Ledger, LedgerRow, report
from kvsdk.cost.reports.reading import read_groups
from kvsdk.cost.reports.report import request_lines
from kvsdk.cost.reports.sql import Window
from report_rows import AT, row

_MONEY = st.none() | st.decimals(-5, 5, places=12)
_COUNTS = st.none() | st.integers(0, 10**6)


@st.composite
def _rows(draw: st.DrawFn) -> list[LedgerRow]:
    rows = []
    for number in range(draw(st.integers(0, 8))):
        total = draw(_MONEY)
        estimated = draw(st.booleans())
        cost = Cost(
            input=draw(_MONEY),
            output=draw(_MONEY),
            total=total,
            saved=draw(_MONEY),
            estimated=estimated,
            low=draw(_MONEY) if estimated else None,
            high=total if estimated else None,
        )
        usage = Usage(
            input_tokens=draw(_COUNTS), cache_read_tokens=draw(_COUNTS), reasoning_tokens=draw(_COUNTS)
        )
        rows.append(
            row(
                f"r{number}",
                None,
                operation_id=draw(st.sampled_from("ab")),
                attempt=number + 1,
                at=AT + timedelta(seconds=number),
                model=draw(st.sampled_from("xy")),
                session=draw(st.sampled_from([None, "s", "ß"])),
                metadata=draw(st.sampled_from([{}, {"team": "blue"}, {"team": "red", "né": "1"}])),
                cost=cost,
                usage=usage,
            )
        )
    return rows


def _sum(values: Sequence[Any]) -> Any:
    known = [value for value in values if value is not None]
    return sum(known[1:], known[0]) if known else None


def _naive(rows: Sequence[LedgerRow]) -> dict[str, Any]:
    """What a group's line must say."""
    costs = [each.cost for each in rows]
    has_estimates = any(cost.estimated for cost in costs)
    return {
        "requests": len({each.operation_id for each in rows}),
        "attempts": len(rows),
        "input_tokens": _sum([each.usage.input_tokens for each in rows]),
        "cache_read_tokens": _sum([each.usage.cache_read_tokens for each in rows]),
        "reasoning_tokens": _sum([each.usage.reasoning_tokens for each in rows]),
        "input_usd": _sum([cost.input for cost in costs]),
        "output_usd": _sum([cost.output for cost in costs]),
        "cost_usd": _sum([cost.total for cost in costs]),
        "saved_usd": _sum([cost.saved for cost in costs]),
        "low_usd": _sum([cost.total if cost.low is None else cost.low for cost in costs])
        if has_estimates
        else None,
        "unpriced": sum(cost.total is None for cost in costs),
        "estimated": sum(cost.estimated for cost in costs),
    }


_BY: dict[str, Any] = {
    "model": lambda each: each.model,
    "session": lambda each: each.session,
    "day": lambda each: each.at.date().isoformat(),
    "tag:team": lambda each: each.metadata.get("team"),
    "tag:né": lambda each: each.metadata.get("né"),
    "tag": lambda each: ", ".join(f"{k}={v}" for k, v in sorted(each.metadata.items())) or None,
}


@settings(deadline=None)  # it writes to a database
@given(_rows(), st.lists(st.sampled_from(list(_BY)), min_size=1, max_size=2, unique=True))
def test_a_report_is_what_adding_up_gives(rows: list[LedgerRow], by: list[str]) -> None:
    """The database's sums and those read row by row both equal sums over plain lists."""
    groups: dict[tuple[str | None, ...], list[LedgerRow]] = {}
    for each in rows:
        groups.setdefault(tuple(_BY[name](each) for name in by), []).append(each)
    expected = {key: _naive(group) for key, group in groups.items()}
    with TemporaryDirectory() as folder, Ledger(f"{folder}/costs.db", durability="batched") as ledger:
        for each in rows:
            ledger.append(each)
        for result in (report(ledger, by=by), read_groups(ledger, by, Window(), ())):
            found = {tuple(line.group.values()): line for line in result.rows}
            assert {
                key: {name: getattr(line, name) for name in _naive([])} for key, line in found.items()
            } == expected
            whole = _naive(rows)
            assert {name: getattr(result.total, name) for name in whole} == whole
        assert report(ledger, by=by) == read_groups(ledger, by, Window(), ())
        lines = list(request_lines(ledger))
        assert tuple(lines) == report(ledger).rows
