"""What a ledger says was spent before, for a budget."""

from __future__ import annotations

import sqlalchemy as sa

from kvsdk.cost.budgets.budget import Question, Spent
from kvsdk.cost.ledger import schema
from kvsdk.cost.ledger.ledger import Ledger
from kvsdk.cost.ledger.records import at_us, storable

_MICRO = 1_000_000
"""1e-12 dollars in a millionth of a dollar."""


def spent(ledger: Ledger, question: Question) -> Spent:
    """The sum of the rows that a question asks for, and how many of them have no known cost.

    Raises:
        LedgerError: The ledger cannot be read.
    """
    table = schema.rows.c
    total = table.total_pico_usd
    query = sa.select(
        # in two parts: SQLite's sums end at 64 bits, which is 9.2 million dollars
        sa.func.sum(total // _MICRO).label("micro_usd"),
        sa.func.sum(total % _MICRO).label("rest_pico_usd"),
        sa.func.count().label("rows"),
        sa.func.count(total).label("priced"),
    ).select_from(schema.rows)
    for name, value in question.where.items():
        query = query.where(table[name] == storable(value))
    if question.since is not None:
        query = query.where(table.at_us >= at_us(question.since))
    (found,) = ledger.select(query)
    # PostgreSQL's sums come as Decimal; of no rows, the sum is NULL.
    pico_usd = int(found["micro_usd"] or 0) * _MICRO + int(found["rest_pico_usd"] or 0)
    return Spent(pico_usd, found["rows"] - found["priced"])
