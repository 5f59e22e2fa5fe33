"""The ledger's tables, by version.

Money is stored as whole numbers of 1e-12 dollars, so that SUM is exact; time as microseconds since 1970.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from decimal import Decimal

import sqlalchemy as sa

VERSION = 2
PICO = Decimal(10) ** 12

COUNTS = (
    "input_tokens",
    "cache_read_tokens",
    "cache_write_tokens",
    "fresh_tokens",
    "output_tokens",
    "reasoning_tokens",
)
MONEY = (
    "input",
    "cache_read",
    "cache_write",
    "output",
    "storage",
    "tools",
    "total",
    "without_cache",
    "saved",
    "low",
    "high",
)

metadata = sa.MetaData()

info = sa.Table(
    "kvsdk_ledger_info",
    metadata,
    sa.Column("key", sa.String, primary_key=True),
    sa.Column("value", sa.String, nullable=False),
)

rows = sa.Table(
    "kvsdk_ledger",
    metadata,
    sa.Column("id", sa.String, primary_key=True),
    sa.Column("operation_id", sa.String, nullable=False),
    sa.Column("attempt", sa.Integer, nullable=False),
    sa.Column("at_us", sa.BigInteger, nullable=False),
    sa.Column("state", sa.String, nullable=False),
    sa.Column("backend", sa.String, nullable=False),
    sa.Column("model", sa.String, nullable=False),
    sa.Column("session", sa.String),
    sa.Column("tenant", sa.String),
    sa.Column("reply_id", sa.String),
    sa.Column("request_id", sa.String),
    sa.Column("error", sa.String),
    sa.Column("stop_reason", sa.String),
    *(sa.Column(name, sa.BigInteger) for name in COUNTS),
    sa.Column("cache_write_by_ttl", sa.String),
    sa.Column("estimated", sa.String),
    *(sa.Column(f"{name}_pico_usd", sa.BigInteger) for name in MONEY),
    sa.Column("price_source", sa.String),
    sa.Column("is_cost_estimated", sa.Boolean, nullable=False),
    sa.Column("cost_reason", sa.String),
    sa.Column("ttft_s", sa.Float),
    sa.Column("total_s", sa.Float),
    sa.Column("metadata", sa.String),
    sa.Column("bill", sa.String),
    sa.Column("prefix", sa.String),
    sa.Index("kvsdk_ledger_at", "at_us"),
    sa.Index("kvsdk_ledger_operation", "operation_id"),
)

ratings = sa.Table(
    "kvsdk_ledger_rating",
    metadata,
    sa.Column("row_id", sa.String, primary_key=True),
    sa.Column("rating", sa.Integer, primary_key=True),  # the run: 1, 2, ...; the last one holds
    *(sa.Column(f"{name}_pico_usd", sa.BigInteger) for name in MONEY),
    sa.Column("price_source", sa.String),
    sa.Column("is_cost_estimated", sa.Boolean, nullable=False),
    sa.Column("cost_reason", sa.String),
)


def is_latest_rating() -> sa.ColumnElement[bool]:
    """Which rating goes with a row: the last, found by the ratings' key for each row.

    A join with the ratings' maxima by group would say the same, and takes SQLite minutes for a million rows.
    """
    run = sa.alias(ratings)
    last = sa.select(sa.func.max(run.c.rating)).where(run.c.row_id == rows.c.id).correlate(rows)
    return (ratings.c.row_id == rows.c.id) & (ratings.c.rating == last.scalar_subquery())


ADDED: Mapping[int, Sequence[sa.Column[object]]] = {2: (rows.c.tools_pico_usd, rows.c.bill, rows.c.prefix)}
"""What each version has added to the table of rows; whole tables that are missing are made."""
