"""A wall clock that goes back: nothing breaks, no row is lost, no budget opens again."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from decimal import Decimal

import pytest
from anthropic_wire import message
from kvsdk import Budget, BudgetExceeded, Client, Text
from kvsdk.cost import LedgerRow, report
from loopback import Loopback

Rows = Callable[[], list[LedgerRow]]
MIDNIGHT_S = 1_796_083_200.0  # 2026-12-01


def with_clock(client: Client, *times_s: float) -> Client:
    """The same client, whose wall clock shows these times, then the last one."""
    shown: Iterator[float] = iter(times_s)
    last = [0.0]

    def clock() -> float:
        last[0] = next(shown, last[0])
        return last[0]

    client._runtime = replace(client._runtime, wall_clock_s=clock)
    return client


def test_calls_go_on_and_every_row_is_there(
    connect: Callable[..., Client], loopback: Loopback, rows: Rows
) -> None:
    """An hour back between two turns: answers, costs and durations are as ever; rows lie by their times."""
    loopback.script(message(id="msg_1"), message(id="msg_2"))
    client = with_clock(connect(), *[MIDNIGHT_S] * 2, MIDNIGHT_S - 3600)
    chat = client.session("s")
    system = [Text("y" * 9000, cache="5m")]
    replies = [chat.generate("x", system=system) for _ in range(2)]
    assert replies[0].cost.total == replies[1].cost.total
    assert all(reply.latency.total_s >= 0 for reply in replies)
    assert [row.reply_id for row in rows()] == ["msg_2", "msg_1"]
    assert all(row.total_s is not None and row.total_s >= 0 for row in rows())
    assert client.ledger is not None
    lines = report(client.ledger, by=("day",)).rows
    assert [(line.group["day"], line.requests) for line in lines] == [("2026-11-30", 1), ("2026-12-01", 1)]


def test_a_day_that_is_over_does_not_begin_again(connect: Callable[..., Client], loopback: Loopback) -> None:
    """Spent on the first of December, back on the thirtieth of November: still spent."""
    loopback.script(message())
    cost = Decimal("0.008464")
    client = connect(budget=Budget(cost * 3, every="day"))
    with_clock(client, *[MIDNIGHT_S + 5] * 2, MIDNIGHT_S - 3600)
    assert client.generate("x", max_tokens=1500).cost.total == cost
    with pytest.raises(BudgetExceeded, match="2026-12-02"):
        client.generate("x", max_tokens=1700)
