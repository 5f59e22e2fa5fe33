"""The ledger: what is appended stays, once."""

from __future__ import annotations

import sqlite3
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from kvsdk import ConfigurationError, Cost, InvalidRequest, LedgerError, LedgerTooNew, Usage
from kvsdk.cost import Ledger, LedgerRow

AT = datetime(2026, 11, 30, 12, 0, 0, 123456, tzinfo=UTC)


def row(number: int = 1, **changes: Any) -> LedgerRow:
    fields: dict[str, Any] = {
        "id": f"row_{number}",
        "operation_id": f"op_{number}",
        "attempt": 1,
        "at": AT + timedelta(seconds=number),
        "state": "ok",
        "backend": "anthropic",
        "model": "m",
    }
    return LedgerRow(**(fields | changes))


FULL = row(
    session="user-42",
    tenant="acme",
    reply_id="msg_1",
    request_id="req_1",
    error="RateLimited",
    stop_reason="end_turn",
    usage=Usage(
        input_tokens=100,
        cache_read_tokens=60,
        cache_write_tokens=30,
        fresh_tokens=10,
        output_tokens=5,
        reasoning_tokens=2,
        cache_write_by_ttl={"5m": 10, "1h": 20},
        estimated=frozenset({"output_tokens", "input_tokens"}),
    ),
    cost=Cost(
        input=Decimal("0.000001"),
        cache_read=Decimal("0.000000000001"),
        cache_write=Decimal(0),
        output=Decimal("12345.678901234567"),
        storage=Decimal(0),
        total=Decimal("1.5"),
        without_cache=Decimal(2),
        saved=Decimal("-0.5"),
        price_source="a list",
        estimated=True,
        low=Decimal(1),
        high=Decimal("1.5"),
        reason="a reason",
    ),
    ttft_s=0.25,
    total_s=1.5,
    metadata={"team": "blue", "ü": "é"},
)


@pytest.fixture(params=["commit", "batched"])
def ledger(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    with Ledger(tmp_path / "costs.db", durability=request.param) as made:
        yield made


def test_a_row_comes_back_as_it_went_in(ledger: Ledger) -> None:
    """Every field: dollars to a millionth of a millionth, time to a microsecond, labels in any script."""
    ledger.append(FULL)
    assert list(ledger.rows()) == [FULL]


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


def test_a_batch_that_fails_is_said(tmp_path: Path) -> None:
    """The next call raises what the writer met."""
    with Ledger(tmp_path / "costs.db", durability="batched") as ledger:
        with sqlite3.connect(tmp_path / "costs.db") as connection:
            connection.execute("DROP TABLE kvsdk_ledger")
        connection.close()
        ledger.append(row())
        with pytest.raises(LedgerError, match="not written"):
            ledger.flush()


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
    from datetime import timezone

    there = timezone(timedelta(hours=5))
    ledger.append(row(at=AT.astimezone(there)))
    (read,) = ledger.rows()
    assert (read.at, read.at.tzinfo) == (AT, UTC)
