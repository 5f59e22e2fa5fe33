"""Pricing old rows anew, when a price turns out to have been wrong. Both figures stay."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal

import sqlalchemy as sa

from kvsdk.cost.ledger import schema
from kvsdk.cost.ledger.ledger import Ledger
from kvsdk.cost.ledger.records import cost_columns
from kvsdk.cost.ledger.row import LedgerRow
from kvsdk.cost.prices.book import PriceBook
from kvsdk.cost.prices.rating import rate
from kvsdk.reply import Cost

_BATCH = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class Rerating:
    """What pricing anew has changed.

    Attributes:
        rows: Rows that were looked at.
        changed: Rows whose cost is another now.
        without_bill: Rows that say nothing of what was billed: without an answer, or of an older ledger.
        before_usd: What the rows that changed cost before, as far as that was known.
        after_usd: What they cost now, as far as it is known.
    """

    rows: int
    changed: int
    without_bill: int
    before_usd: Decimal
    after_usd: Decimal


def rerate(
    ledger: Ledger,
    prices: PriceBook | None = None,
    *,
    since: datetime | None = None,
    until: datetime | None = None,
    dry_run: bool = False,
    **filters: str | None,
) -> Rerating:
    """Price rows anew, each at the prices of its own day, and write the new cost beside the old one.

    A row's own cost is never changed. Reports use the latest, and can be asked for the original. Rows whose
    cost is the same are left as they are.

    Args:
        ledger: Where the rows are.
        prices: The corrected prices; those known now by default.
        since: Only rows that were sent then or later.
        until: Only rows that were sent before.
        dry_run: Whether to count only, and write nothing.
        **filters: Columns that must be equal, as for `Ledger.rows`.

    Raises:
        LedgerError: It cannot be read or written.
    """
    tally = _Tally()
    number = _next_rating(ledger)
    changes: list[tuple[str, Cost]] = []
    for row, cost in _changes(ledger.rows(since=since, until=until, **filters), prices, tally):
        changes.append((row.id, cost))
        if len(changes) == _BATCH and not dry_run:
            ledger.add_ratings(changes, number)
            changes.clear()
    if changes and not dry_run:
        ledger.add_ratings(changes, number)
    return tally.result()


def _changes(
    rows: Iterator[LedgerRow], prices: PriceBook | None, tally: _Tally
) -> Iterator[tuple[LedgerRow, Cost]]:
    for row in rows:
        tally.rows += 1
        if row.bill is None:
            tally.without_bill += 1
            continue
        cost = rate(row.bill, at=row.at, prices=prices)
        if not _is_same(cost, row.current_cost):
            tally.count(row.current_cost, cost)
            yield row, cost


def _is_same(now: Cost, before: Cost) -> bool:
    """Whether two costs are equal but for where they are from; the ledger keeps 1e-12 dollars."""
    return _stored(now) == _stored(before)


def _stored(cost: Cost) -> list[object]:
    columns = cost_columns(cost)
    return [cost.estimated, *(columns[f"{name}_pico_usd"] for name in schema.MONEY)]


def _next_rating(ledger: Ledger) -> int:
    (found,) = ledger.select(sa.select(sa.func.max(schema.ratings.c.rating).label("last")))
    return int(found["last"] or 0) + 1


@dataclass(slots=True)
class _Tally:
    rows: int = 0
    changed: int = 0
    without_bill: int = 0
    before_usd: Decimal = Decimal(0)
    after_usd: Decimal = Decimal(0)

    def count(self, before: Cost, after: Cost) -> None:
        self.changed += 1
        self.before_usd += before.total or 0
        self.after_usd += after.total or 0

    def result(self) -> Rerating:
        return Rerating(
            rows=self.rows,
            changed=self.changed,
            without_bill=self.without_bill,
            before_usd=self.before_usd,
            after_usd=self.after_usd,
        )
