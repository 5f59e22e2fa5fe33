"""A corrected price is applied to old rows, and both figures stay."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from kvsdk import LedgerError, Usage
from kvsdk.backend import Bill, BillLine, Tariff
from kvsdk.cost import Ledger, LedgerRow, PriceBook, rate
from kvsdk.cost.ledger.rerate import rerate
from ledger_rows import row

MTOK = 1_000_000
AT = datetime(2026, 11, 15, 12, tzinfo=UTC)
USAGE = Usage.of_total(1_000_000, read=600_000, write=0, output=100_000)
LISTED = Decimal(1) * 400_000 / MTOK + Decimal("0.05") * 600_000 / MTOK + Decimal(5) * 100_000 / MTOK


def priced(number: int, day: int = 15, **changes: Any) -> LedgerRow:
    """A request to gpt-6.1-terra, at the list's price."""
    at = AT.replace(day=day) + timedelta(seconds=number)
    tariff = Tariff(model="gpt-6.1-terra", provider="openai", default_ttl="30m")
    bill = Bill(lines=(BillLine(usage=Usage.of_total(200_000, read=0, write=0, output=0), tariff=tariff),))
    cost = rate(bill, at=at)
    fields = {"at": at, "model": "gpt-6.1-terra", "usage": bill.lines[0].usage, "bill": bill, "cost": cost}
    return row(number, **(fields | changes))


@pytest.fixture
def half_price(tmp_path: Path) -> PriceBook:
    path = tmp_path / "half.toml"
    path.write_text(
        """
        version = "corrected"
        [[prices]]
        provider = "openai"
        models = ["gpt-6.1-terra"]
        since = 2026-11-16
        factor = "0.5"
        source = "the vendor's mail"
        date = 2026-11-20
        """
    )
    return PriceBook(path)


@pytest.fixture(params=["sqlite", "postgresql"])
def ledger(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Ledger]:
    is_file = request.param == "sqlite"
    with Ledger(tmp_path / "costs.db" if is_file else request.getfixturevalue("postgres_url")) as made:
        yield made


def test_rows_get_the_price_of_their_own_day(ledger: Ledger, half_price: PriceBook) -> None:
    """The correction holds from the 16th on: the row of the 15th stays, that of the 17th is halved."""
    before, after = priced(1, day=15), priced(2, day=17)
    ledger.append(before)
    ledger.append(after)
    done = rerate(ledger, half_price)
    assert (done.rows, done.changed, done.without_bill) == (2, 1, 0)
    assert done.before_usd == Decimal(200_000) / MTOK
    assert done.after_usd == Decimal("0.5") * 200_000 / MTOK
    kept, changed = ledger.rows()
    assert kept == before
    assert changed.cost == after.cost
    assert changed.rerated is not None
    assert changed.rerated.total == Decimal("0.1")
    assert changed.current_cost.total == Decimal("0.1")
    assert "half.toml corrected" in str(changed.rerated.price_source)


def test_the_last_correction_holds(ledger: Ledger, half_price: PriceBook) -> None:
    """Corrected, and taken back: the row has its own price, and its latest, which is that again."""
    ledger.append(priced(1, day=17))
    assert rerate(ledger, half_price).changed == 1
    assert rerate(ledger, half_price).changed == 0
    assert rerate(ledger).changed == 1
    (read,) = ledger.rows()
    assert read.rerated is not None
    assert read.rerated.total == read.cost.total == Decimal("0.2")


def test_a_dry_run_writes_nothing(ledger: Ledger, half_price: PriceBook) -> None:
    """It says what it would do."""
    ledger.append(priced(1, day=17))
    assert rerate(ledger, half_price, dry_run=True).changed == 1
    assert [read.rerated for read in ledger.rows()] == [None]


def test_what_cannot_be_priced_anew_is_left_and_counted(ledger: Ledger, half_price: PriceBook) -> None:
    """Rows without an answer, and of a ledger that kept no bills."""
    ledger.append(priced(1, day=17, bill=None, state="failed"))
    done = rerate(ledger, half_price)
    assert (done.changed, done.without_bill) == (0, 1)


def test_a_model_that_had_no_price_gets_one(ledger: Ledger, half_price: PriceBook, tmp_path: Path) -> None:
    """Unknown became known: before it counted for nothing in the sum."""
    tariff = Tariff(model="house-model", api_url="https://gateway.example.com/v1")
    bill = Bill(lines=(BillLine(usage=USAGE, tariff=tariff),))
    ledger.append(row(1, usage=USAGE, bill=bill, cost=rate(bill, at=AT)))
    path = tmp_path / "own.toml"
    path.write_text(
        """
        [[prices]]
        host = "gateway.example.com"
        models = ["house-model"]
        input_usd_per_mtok = "1"
        cache_read_usd_per_mtok = "0.05"
        output_usd_per_mtok = "5"
        source = "ours"
        date = 2026-11-20
        """
    )
    done = rerate(ledger, PriceBook(path))
    assert (done.changed, done.before_usd, done.after_usd) == (1, 0, LISTED)


def test_rows_can_be_chosen(ledger: Ledger, half_price: PriceBook) -> None:
    """By time and by their columns."""
    for number in (1, 2, 3):
        ledger.append(priced(number, day=17 + number, tenant="acme" if number < 3 else None))
    assert rerate(ledger, half_price, since=AT.replace(day=19, hour=0), tenant="acme").changed == 1
    assert [read.rerated is None for read in ledger.rows()] == [True, False, True]


def test_many_rows_are_written_in_batches(ledger: Ledger, half_price: PriceBook) -> None:
    """More than one batch, each row once."""
    for number in range(700):
        ledger.append(priced(number, day=17))
    assert rerate(ledger, half_price).changed == 700
    assert all(read.current_cost.total == Decimal("0.1") for read in ledger.rows())


def test_a_ledger_that_takes_no_prices_is_an_error(half_price: PriceBook, tmp_path: Path) -> None:
    """Of our tree, and the rows are as they were."""
    import sqlite3

    with Ledger(tmp_path / "costs.db") as ledger:
        ledger.append(priced(1, day=17))
        connection = sqlite3.connect(ledger.name)
        with connection:
            connection.execute(
                "CREATE TRIGGER full BEFORE INSERT ON kvsdk_ledger_rating "
                "BEGIN SELECT RAISE(ABORT, 'full'); END"
            )
        connection.close()
        with pytest.raises(LedgerError, match=r"1 price.* not written: full"):
            rerate(ledger, half_price)
        assert [read.rerated for read in ledger.rows()] == [None]
