"""The ledger's tables and how a row lies in them.

Money is stored as whole numbers of 1e-12 dollars, so that SUM is exact; time as microseconds since 1970.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import sqlalchemy as sa

from kvsdk.cost.row import LedgerRow
from kvsdk.reply import Cost
from kvsdk.usage import Usage

VERSION = 1
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
    "total",
    "without_cache",
    "saved",
    "low",
    "high",
)
_PLAIN = (
    "id",
    "operation_id",
    "attempt",
    "state",
    "backend",
    "model",
    "session",
    "tenant",
    "reply_id",
    "request_id",
    "error",
    "stop_reason",
    "ttft_s",
    "total_s",
)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)

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
    sa.Index("kvsdk_ledger_at", "at_us"),
    sa.Index("kvsdk_ledger_operation", "operation_id"),
)


def to_record(row: LedgerRow) -> dict[str, Any]:
    """A row as the table's columns."""
    usage, cost = row.usage, row.cost
    record: dict[str, Any] = {name: getattr(row, name) for name in _PLAIN}
    record["at_us"] = (row.at - _EPOCH) // _MICROSECOND
    for name in COUNTS:
        record[name] = getattr(usage, name)
    for name in MONEY:
        dollars = getattr(cost, name)
        record[f"{name}_pico_usd"] = None if dollars is None else round(dollars * PICO)
    by_ttl = usage.cache_write_by_ttl
    record["cache_write_by_ttl"] = None if by_ttl is None else json.dumps(dict(by_ttl))
    record["estimated"] = ",".join(sorted(usage.estimated)) or None
    record["price_source"] = cost.price_source
    record["is_cost_estimated"] = cost.estimated
    record["cost_reason"] = cost.reason
    record["metadata"] = json.dumps(dict(row.metadata)) if row.metadata else None
    return record


def to_row(record: Any) -> LedgerRow:
    """The table's columns as a row."""
    by_ttl = record["cache_write_by_ttl"]
    counts: dict[str, Any] = {name: record[name] for name in COUNTS}
    money: dict[str, Any] = {name: to_dollars(record[f"{name}_pico_usd"]) for name in MONEY}
    plain: dict[str, Any] = {name: record[name] for name in _PLAIN}
    return LedgerRow(
        **plain,
        at=_EPOCH + record["at_us"] * _MICROSECOND,
        usage=Usage(
            **counts,
            cache_write_by_ttl=None if by_ttl is None else json.loads(by_ttl),
            estimated=frozenset((record["estimated"] or "").split(",")) - {""},
        ),
        cost=Cost(
            **money,
            price_source=record["price_source"],
            estimated=record["is_cost_estimated"],
            reason=record["cost_reason"],
        ),
        metadata=json.loads(record["metadata"] or "{}"),
    )


def to_dollars(pico: int | Decimal | None) -> Decimal | None:
    """Dollars from whole numbers of 1e-12 dollars; PostgreSQL's sums of them come as Decimal."""
    return None if pico is None else Decimal(int(pico)).scaleb(-12)
