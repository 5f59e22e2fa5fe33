"""The ledger on a real PostgreSQL server."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path

import pytest
from kvsdk.cost import Ledger, LedgerRow, report
from kvsdk.cost.ledger.row import PrefixMark
from kvsdk.cost.reports.report import request_lines
from kvsdk.errors import LedgerError, LedgerTooNew
from kvsdk.reply import Cost
from kvsdk.usage import Usage

FIRST = datetime(2026, 11, 28, 23, 59, 59, 999_999, tzinfo=UTC)


def _row(number: int, **changes: object) -> LedgerRow:
    fields: dict[str, object] = {
        "id": f"row_{number}",
        "operation_id": f"op_{number}",
        "attempt": 1,
        "at": FIRST + timedelta(microseconds=number),
        "state": "ok",
        "backend": "anthropic",
        "model": "claude-sonnet-5-5",
        "session": f"s{number % 2}",
        "usage": Usage.of_parts(fresh=7, read=93, write=0, output=5, write_by_ttl={"5m": 0}),
        "cost": Cost(total=Decimal("0.000000000001"), saved=Decimal("-0.5"), price_source="a test"),
        "metadata": {"feature": "handbook"},
    }
    return LedgerRow(**(fields | changes))  # type: ignore[arg-type]


def test_a_row_comes_back_as_it_was_written(postgres_url: str) -> None:
    """Every field, money to the last digit, also after the ledger was opened anew."""
    with Ledger(postgres_url) as ledger:
        ledger.append(_row(1))
    with Ledger(postgres_url) as ledger:
        assert list(ledger.rows()) == [_row(1)]
        assert list(ledger.rows(session="s0")) == []


def test_a_row_written_twice_is_one(postgres_url: str) -> None:
    """The key is our id, so the retry of a write changes nothing."""
    with Ledger(postgres_url, durability="batched") as ledger:
        for number in (1, 1, 2, 1):
            ledger.append(_row(number))
        assert [row.id for row in ledger.rows()] == ["row_1", "row_2"]


def test_many_writers_lose_nothing(postgres_url: str) -> None:
    """Eight ledgers on one database, 50 rows each, at the same time."""
    ledgers = [Ledger(postgres_url) for _ in range(8)]

    def write(writer: int) -> None:
        for number in range(50):
            ledgers[writer].append(_row(writer * 50 + number))

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(write, range(8)))
    with Ledger(postgres_url) as reader:
        assert len(list(reader.rows())) == 400
    for ledger in ledgers:
        ledger.close()


def test_a_report_adds_up_as_on_sqlite(postgres_url: str, tmp_path: Path) -> None:
    """The same rows give the same lines and totals, grouped and not, on both sides of midnight."""
    rows = [_row(number) for number in range(4)]
    with Ledger(postgres_url) as there, Ledger(tmp_path / "costs.db") as here:
        for row in rows:
            there.append(row)
            here.append(row)
        for by in ((), ("day",), ("session", "day"), ("backend", "model", "tenant")):
            assert report(there, by=by) == report(here, by=by)
        days = [(line.group["day"], line.requests) for line in report(there, by=("day",)).rows]
    assert days == [("2026-11-28", 1), ("2026-11-29", 3)]


def test_labels_prices_and_other_backends_are_reported_as_on_sqlite(
    postgres_url: str, tmp_path: Path
) -> None:
    """Labels of any name and none, later prices, estimated bounds and what would have been paid elsewhere."""
    labels = (
        {'say "hi"': "1", "a.b": "x"},
        {'say "hi"': "größe", "名前": "2"},
        {},
        {"a.b": "x", "it's": "%"},
    )
    guess = Cost(total=Decimal(3), estimated=True, low=Decimal(1), high=Decimal(3))
    document = (PrefixMark(100, "document"),)
    rows = [_row(number, metadata=each, prefix=document, cost=guess) for number, each in enumerate(labels)]
    ratings = [("row_1", Cost(total=Decimal(5)))], [("row_1", Cost(total=Decimal(7)))]
    with Ledger(postgres_url) as there, Ledger(tmp_path / "costs.db") as here:
        for ledger in (there, here):
            for row in rows:
                ledger.append(row)
            for number, costs in enumerate(ratings, 1):
                ledger.add_ratings(costs, number)
        for by in (
            ('tag:say "hi"',),
            ("tag:a.b", "tag:名前"),
            ("tag:it's",),
            ("tag",),
            ("tag:none", "session"),
        ):
            for prices in ("latest", "original"):
                assert report(there, by=by, prices=prices) == report(here, by=by, prices=prices)
        versus = ("anthropic:claude-sonnet-5-5",)
        assert report(there, by=("session",), versus=versus) == report(here, by=("session",), versus=versus)
        assert report(there, latest=2) == report(here, latest=2)
        assert tuple(request_lines(there)) == report(there).rows
        total = report(there, by=("tag:a.b",)).total
    assert (total.cost_usd, total.low_usd) == (Decimal(3 + 7 + 3 + 3), Decimal(1 + 7 + 1 + 1))


@pytest.mark.parametrize("text", ["a\x00b", "half \ud800"])
def test_a_label_that_is_no_text_to_postgres_is_grouped_by(postgres_url: str, text: str) -> None:
    """PostgreSQL cannot take such a label apart; the rows are read and added up."""
    with Ledger(postgres_url) as ledger:
        ledger.append(_row(1, metadata={"feature": text}))
        ledger.append(_row(2, metadata={"feature": "handbook"}))
        groups = {
            line.group["tag:feature"]: line.requests for line in report(ledger, by=("tag:feature",)).rows
        }
    assert groups == {text: 1, "handbook": 1}


def test_sums_beyond_64_bits_are_exact_on_postgres(postgres_url: str) -> None:
    """Three rows of nine million dollars; the server adds them up as numeric."""
    most = Decimal("9000000.000000000001")
    with Ledger(postgres_url) as ledger:
        for number in range(3):
            ledger.append(_row(number, cost=Cost(total=most)))
        assert report(ledger, by=("model",)).rows[0].cost_usd == 3 * most


def test_a_newer_ledger_is_refused(postgres_url: str) -> None:
    """What a newer kvsdk has written is not touched."""
    import psycopg

    Ledger(postgres_url).close()
    with psycopg.connect(postgres_url) as connection:
        connection.execute("UPDATE kvsdk_ledger_info SET value = '99' WHERE key = 'version'")
    with pytest.raises(LedgerTooNew, match="version 99"):
        Ledger(postgres_url)


def test_a_server_that_is_away_is_an_error_of_ours() -> None:
    """Nobody there: the reason is told, the password is not."""
    with pytest.raises(LedgerError) as caught:
        Ledger("postgresql://user:hunter2@127.0.0.1:9/costs?connect_timeout=1")
    assert "hunter2" not in str(caught.value)
