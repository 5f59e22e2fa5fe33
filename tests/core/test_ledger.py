"""The ledger: what is appended stays, once."""

from __future__ import annotations

import sqlite3
from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from kvsdk import ConfigurationError, Cost, InvalidRequest, LedgerError, LedgerTooNew
from kvsdk.backend import Bill
from kvsdk.cost import Ledger
from ledger_rows import AT, BILLS, FULL_V1, PREFIX, USAGE, row


@pytest.fixture(params=["commit", "batched"])
def ledger(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    with Ledger(tmp_path / "costs.db", durability=request.param) as made:
        yield made


FULL = replace(FULL_V1, cost=replace(FULL_V1.cost, tools=Decimal("0.02")), bill=BILLS[0], prefix=PREFIX)


def test_a_row_comes_back_as_it_went_in(ledger: Ledger) -> None:
    """Every field: dollars to a millionth of a millionth, time to a microsecond, labels in any script."""
    ledger.append(FULL)
    assert list(ledger.rows()) == [FULL]


@pytest.mark.parametrize("bill", BILLS, ids=["a line", "two lines", "an engine", "no price"])
def test_a_bill_comes_back_as_it_went_in(ledger: Ledger, bill: Bill) -> None:
    """Terms, tools, counts of their own, charges and seconds: all that a later price needs."""
    ledger.append(row(usage=USAGE, bill=bill))
    assert [read.bill for read in ledger.rows()] == [bill]


def test_what_is_unknown_comes_back_unknown(ledger: Ledger) -> None:
    """None stays None and never becomes 0."""
    bare = row()
    ledger.append(bare)
    (read,) = ledger.rows()
    assert read == bare
    assert read.usage.input_tokens is None
    assert read.cost.total is None


def test_a_row_appended_twice_is_one(ledger: Ledger) -> None:
    """Its id is the key; the first one stays."""
    ledger.append(row(1, state="ok"))
    ledger.append(row(1, state="failed"))
    assert [read.state for read in ledger.rows()] == ["ok"]


def test_rows_are_in_the_order_in_which_they_were_sent(ledger: Ledger) -> None:
    """By time, however they were appended."""
    for number in (3, 1, 2):
        ledger.append(row(number))
    assert [read.id for read in ledger.rows()] == ["row_1", "row_2", "row_3"]


def test_rows_can_be_chosen_by_their_columns(ledger: Ledger) -> None:
    """Equal to a value, or without one; several columns together."""
    ledger.append(row(1, tenant="acme", session="a"))
    ledger.append(row(2, tenant="acme", session="b"))
    ledger.append(row(3))
    assert [read.id for read in ledger.rows(tenant="acme")] == ["row_1", "row_2"]
    assert [read.id for read in ledger.rows(tenant="acme", session="b")] == ["row_2"]
    assert [read.id for read in ledger.rows(tenant=None)] == ["row_3"]
    with pytest.raises(InvalidRequest, match="tenant"):
        list(ledger.rows(tenat="acme"))


def test_a_closed_ledger_can_be_opened_again(tmp_path: Path) -> None:
    """By another instance, from a string or a path."""
    with Ledger(tmp_path / "costs.db") as first:
        first.append(FULL)
    first.close()
    with Ledger(str(tmp_path / "costs.db")) as second:
        assert list(second.rows()) == [FULL]


def test_a_batched_ledger_writes_behind(tmp_path: Path) -> None:
    """`flush` returns when all is on disk; after `close` nothing more is taken."""
    ledger = Ledger(tmp_path / "costs.db", durability="batched")
    for number in range(600):
        ledger.append(row(number))
    ledger.flush()
    with sqlite3.connect(tmp_path / "costs.db") as connection:
        assert connection.execute("SELECT count(*) FROM kvsdk_ledger").fetchone() == (600,)
    connection.close()
    ledger.append(row(600))
    ledger.close()
    with pytest.raises(LedgerError, match="closed"):
        ledger.append(row(601))
    with Ledger(tmp_path / "costs.db") as again:
        assert sum(1 for _ in again.rows()) == 601


def test_a_ledger_of_a_newer_version_is_refused(tmp_path: Path) -> None:
    """And is left as it is."""
    path = tmp_path / "costs.db"
    with Ledger(path) as ledger:
        ledger.append(row())
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE kvsdk_ledger_info SET value = '99' WHERE key = 'version'")
    connection.close()
    with pytest.raises(LedgerTooNew, match="99"):
        Ledger(path)
    with sqlite3.connect(path) as connection:
        assert connection.execute("SELECT count(*) FROM kvsdk_ledger").fetchone() == (1,)
    connection.close()


@pytest.mark.parametrize("content", [b"this is no database, it is a text" * 50, b"\x00" * 4096])
def test_a_file_that_is_no_database_is_refused(tmp_path: Path, content: bytes) -> None:
    """With the file's name, and unchanged."""
    path = tmp_path / "notes.txt"
    path.write_bytes(content)
    with pytest.raises(LedgerError, match=r"notes\.txt"):
        Ledger(path)
    assert path.read_bytes() == content


def test_a_folder_that_does_not_exist_is_refused(tmp_path: Path) -> None:
    """No folder is made behind the caller's back."""
    with pytest.raises(LedgerError, match="folder"):
        Ledger(tmp_path / "missing" / "costs.db")
    assert not (tmp_path / "missing").exists()


def test_a_folder_is_no_ledger(tmp_path: Path) -> None:
    """It cannot be opened."""
    with pytest.raises(LedgerError):
        Ledger(tmp_path)


@pytest.mark.parametrize(
    "url", ["nonsense://host/costs", "://", "sqlite+nothing:///x", "postgresql://host:port/x"]
)
def test_a_url_without_a_driver_is_refused(url: str) -> None:
    """As an error of the ledger."""
    with pytest.raises(LedgerError):
        Ledger(url)


@pytest.mark.parametrize("url", ["sqlite://", ":memory:", "sqlite:///:memory:"])
def test_a_ledger_in_memory_is_refused(url: str) -> None:
    """It would keep nothing, and each thread would have another."""
    with pytest.raises(LedgerError, match="memory"):
        Ledger(url)


def test_a_password_in_a_url_is_not_shown() -> None:
    """Not in the error, nor in the ledger's name."""
    with pytest.raises(LedgerError) as caught:
        Ledger("nonsense://user:hunter22@host/costs")
    assert "hunter22" not in f"{caught.value} {caught.value!r}"


def test_an_unknown_durability_is_refused(tmp_path: Path) -> None:
    """Before a file is made."""
    with pytest.raises(ConfigurationError, match="'commit' or 'batched'"):
        Ledger(tmp_path / "costs.db", durability="later")  # type: ignore[arg-type]
    assert list(tmp_path.iterdir()) == []


def test_a_time_zone_is_kept_as_the_moment(ledger: Ledger) -> None:
    """Rows are in UTC, whatever zone they were written in."""
    there = timezone(timedelta(hours=5))
    ledger.append(row(at=AT.astimezone(there)))
    (read,) = ledger.rows()
    assert (read.at, read.at.tzinfo) == (AT, UTC)


def test_rows_can_be_chosen_by_time(ledger: Ledger) -> None:
    """From a moment on, and before one; moments without a zone are refused, they could be anyone's."""
    for number in range(5):
        ledger.append(row(number))
    since, until = AT + timedelta(seconds=1), AT + timedelta(seconds=3)
    assert [read.id for read in ledger.rows(since=since, until=until)] == ["row_1", "row_2"]
    with pytest.raises(InvalidRequest, match="time zone"):
        list(ledger.rows(since=datetime(2026, 11, 30)))


@pytest.mark.parametrize(
    "changes",
    [
        {"cost": Cost(total=Decimal("9223372.036854775808"))},
        {"usage": replace(USAGE, input_tokens=2**63)},
        {"at": datetime(2026, 11, 30)},
    ],
    ids=["money", "tokens", "time"],
)
def test_what_no_table_holds_is_refused(ledger: Ledger, changes: dict[str, Any]) -> None:
    """Before anything is written, and the row beside it is not lost."""
    with pytest.raises(InvalidRequest):
        ledger.append(row(1, **changes))
    ledger.append(row(2))
    assert [read.id for read in ledger.rows()] == ["row_2"]


def test_text_that_a_database_does_not_take_is_escaped(ledger: Ledger) -> None:
    """Half a surrogate pair or a NUL in what a server sent costs no row."""
    ledger.append(row(model="m\ud83d", reply_id="a\x00b"))
    (read,) = ledger.rows()
    assert (read.model, read.reply_id) == ("m\\ud83d", "a\\x00b")
