"""How a row lies in the ledger's tables."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

from kvsdk.cost.ledger.bill_json import from_json, to_json
from kvsdk.cost.ledger.row import LedgerRow, PrefixMark
from kvsdk.cost.ledger.schema import COUNTS, MONEY, PICO
from kvsdk.errors import InvalidRequest
from kvsdk.reply import Cost
from kvsdk.usage import Usage

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
_LARGEST = 2**63 - 1
_encode = json.JSONEncoder(separators=(",", ":")).encode


def to_record(row: LedgerRow) -> dict[str, Any]:
    """A row as the table's columns.

    Raises:
        InvalidRequest: A number is larger than the table can hold, or a time has no time zone.
    """
    usage = row.usage
    record: dict[str, Any] = {name: storable(getattr(row, name)) for name in _PLAIN}
    record["at_us"] = at_us(row.at)
    for name in COUNTS:
        record[name] = _fitting(name, getattr(usage, name))
    record |= cost_columns(row.cost)
    by_ttl = usage.cache_write_by_ttl
    record["cache_write_by_ttl"] = None if by_ttl is None else _encode(dict(by_ttl))
    record["estimated"] = ",".join(sorted(usage.estimated)) or None
    record["metadata"] = json.dumps(dict(row.metadata), sort_keys=True) if row.metadata else None
    record["bill"] = None if row.bill is None else storable(to_json(row.bill, usage))
    record["prefix"] = _encode(row.prefix) if row.prefix else None
    return record


def at_us(moment: datetime) -> int:
    """Microseconds since 1970.

    Raises:
        InvalidRequest: It has no time zone.
    """
    if moment.tzinfo is None:
        raise InvalidRequest(f"{moment} has no time zone; write datetime.now(UTC)", field="at")
    return (moment - _EPOCH) // _MICROSECOND


def cost_columns(cost: Cost) -> dict[str, Any]:
    """A cost as columns, each figure to the nearest 1e-12 dollars."""
    columns: dict[str, Any] = {}
    for name in MONEY:
        dollars = getattr(cost, name)
        columns[f"{name}_pico_usd"] = None if dollars is None else _fitting(name, round(dollars * PICO))
    columns["price_source"] = storable(cost.price_source)
    columns["is_cost_estimated"] = cost.estimated
    columns["cost_reason"] = storable(cost.reason)
    return columns


def to_row(record: Mapping[str, Any], rating: Mapping[str, Any] | None = None) -> LedgerRow:
    """The table's columns as a row; `rating` has the columns of a later price."""
    by_ttl, bill = record["cache_write_by_ttl"], record["bill"]
    counts: dict[str, Any] = {name: record[name] for name in COUNTS}
    plain: dict[str, Any] = {name: record[name] for name in _PLAIN}
    usage = Usage(
        **counts,
        cache_write_by_ttl=None if by_ttl is None else json.loads(by_ttl),
        estimated=frozenset((record["estimated"] or "").split(",")) - {""},
    )
    return LedgerRow(
        **plain,
        at=_EPOCH + record["at_us"] * _MICROSECOND,
        usage=usage,
        cost=to_cost(record),
        bill=None if bill is None else from_json(bill, usage),
        rerated=None if rating is None else to_cost(rating),
        prefix=tuple(PrefixMark(*mark) for mark in json.loads(record["prefix"] or "[]")),
        metadata=json.loads(record["metadata"] or "{}"),
    )


def to_cost(record: Mapping[str, Any]) -> Cost:
    """The columns of a cost as one."""
    money: dict[str, Any] = {name: to_dollars(record[f"{name}_pico_usd"]) for name in MONEY}
    return Cost(
        **money,
        price_source=record["price_source"],
        estimated=record["is_cost_estimated"],
        reason=record["cost_reason"],
    )


def to_dollars(pico: int | Decimal | None) -> Decimal | None:
    """Dollars from whole numbers of 1e-12 dollars; PostgreSQL's sums of them come as Decimal."""
    return None if pico is None else Decimal(int(pico)).scaleb(-12)


def _fitting(name: str, number: int | None) -> int | None:
    if number is not None and abs(number) > _LARGEST:
        raise InvalidRequest(f"{name} is too large for the ledger: {number}", field=name)
    return number


def storable(value: Any) -> Any:
    """Text that every database takes: no lone surrogates and no NUL, which a server may send."""
    if isinstance(value, str) and not (value.isascii() and "\x00" not in value):
        return value.encode("utf-8", "backslashreplace").decode().replace("\x00", "\\x00")
    return value
