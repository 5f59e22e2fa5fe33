"""Ledgers of earlier versions are brought to this one; the rows stay what they were."""

from __future__ import annotations

import sqlite3
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from kvsdk.cost import Ledger, report
from kvsdk.cost.ledger import schema
from ledger_rows import BILLS, FULL_V1, row

V1 = (Path(__file__).parent.parent / "support" / "ledger_v1.sql").read_text("utf-8")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A ledger as the first version wrote it."""
    made = tmp_path / "costs.db"
    connection = sqlite3.connect(made)
    connection.executescript(V1)
    connection.close()
    return made


def version(path: Path) -> str:
    connection = sqlite3.connect(path)
    (found,) = connection.execute("SELECT value FROM kvsdk_ledger_info WHERE key = 'version'").fetchone()
    connection.close()
    return str(found)


def test_the_first_versions_rows_are_read(path: Path) -> None:
    """Every field it had, and what it had not is unknown."""
    with Ledger(path) as ledger:
        assert list(ledger.rows()) == [FULL_V1, row(2)]
    assert version(path) == str(schema.VERSION)


def test_an_older_ledger_goes_on(path: Path) -> None:
    """New rows stand beside the old ones, with all that this version writes."""
    with Ledger(path) as ledger:
        ledger.append(row(3, bill=BILLS[3]))
        assert [read.bill for read in ledger.rows()] == [None, None, BILLS[3]]
        assert report(ledger).total.requests == 3


def test_many_open_an_older_ledger_at_once(path: Path) -> None:
    """One of them changes the tables, the others wait."""
    with ThreadPoolExecutor(8) as pool:
        ledgers = list(pool.map(lambda _: Ledger(path), range(8)))
    for number, ledger in enumerate(ledgers, 3):
        ledger.append(row(number))
        ledger.close()
    with Ledger(path) as ledger:
        assert sum(1 for _ in ledger.rows()) == 2 + 8


def test_every_version_is_reached(path: Path) -> None:
    """A version that adds columns says which; the table has exactly those of a new one."""
    Ledger(path).close()
    fresh = path.with_name("fresh.db")
    Ledger(fresh).close()
    columns = [
        {tuple(column[1:3]) for column in connection.execute("PRAGMA table_info(kvsdk_ledger)")}
        for connection in (sqlite3.connect(path), sqlite3.connect(fresh))
    ]
    assert columns[0] == columns[1]
    assert set(schema.ADDED) == set(range(2, schema.VERSION + 1))


def test_the_first_versions_rows_are_read_from_postgresql(postgres_url: str) -> None:
    """The same tables behind a URL."""
    import psycopg

    with psycopg.connect(postgres_url) as connection:
        connection.execute(V1)
    with Ledger(postgres_url) as ledger:
        ledger.append(row(3, bill=BILLS[3]))
        assert list(ledger.rows()) == [FULL_V1, row(2), row(3, bill=BILLS[3])]


def test_many_open_an_empty_database_at_once(postgres_url: str) -> None:
    """A fleet that starts together makes the tables once."""
    with ThreadPoolExecutor(8) as pool:
        ledgers = list(pool.map(lambda _: Ledger(postgres_url), range(8)))
    for number, ledger in enumerate(ledgers):
        ledger.append(row(number))
        ledger.close()
    with Ledger(postgres_url) as ledger:
        assert sum(1 for _ in ledger.rows()) == 8
