"""What the ledger adds up to: per request, or by any of a few columns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import sqlalchemy as sa

from kvsdk._text import did_you_mean
from kvsdk.cost import schema
from kvsdk.cost.ledger import Ledger
from kvsdk.errors import InvalidRequest

GROUPS = ("backend", "model", "session", "tenant", "day")
_DAY_US = 86_400_000_000
_TOKENS = ("input_tokens", "cache_read_tokens", "cache_write_tokens", "fresh_tokens", "output_tokens")
_MONEY = ("total", "without_cache", "saved")


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportRow:
    """One line: a request, or a group of them.

    `group` holds what the line stands for. `requests` counts calls and `attempts` what was sent for them.
    Sums leave out what is unknown: `unpriced` says how many attempts have no known cost, `estimated` how many
    an estimated one. `ttft_s` is the mean.
    """

    group: dict[str, str | None]
    requests: int
    attempts: int
    input_tokens: int | None
    cache_read_tokens: int | None
    cache_write_tokens: int | None
    fresh_tokens: int | None
    output_tokens: int | None
    hit_rate: float | None
    ttft_s: float | None
    cost_usd: Decimal | None
    without_cache_usd: Decimal | None
    saved_usd: Decimal | None
    unpriced: int
    estimated: int


@dataclass(frozen=True, slots=True)
class Report:
    """Lines and their total."""

    by: tuple[str, ...]
    rows: tuple[ReportRow, ...]
    total: ReportRow


def report(ledger: Ledger, *, by: Sequence[str] = ()) -> Report:
    """Add up a ledger.

    Args:
        ledger: Where the rows are.
        by: Columns to group by: backend, model, session, tenant, day (UTC). None gives a line per request.

    Raises:
        InvalidRequest: Another column.
    """
    for name in by:
        if name not in GROUPS:
            raise InvalidRequest(
                f"a report cannot group by {name!r}.{did_you_mean(name, GROUPS)}", field="by"
            )
    table = schema.rows.c
    if by:
        keys = [_key(name) for name in by]
        query = sa.select(*keys, *_sums()).group_by(*keys).order_by(*keys)
    else:
        keys = [
            table.operation_id,
            sa.func.min(table.at_us).label("at"),
            *(sa.func.max(table[name]).label(name) for name in ("backend", "model", "session", "tenant")),
        ]
        query = sa.select(*keys, *_sums()).group_by(table.operation_id).order_by("at", table.operation_id)
    names = tuple(by) or ("operation_id", "at", "backend", "model", "session", "tenant")
    lines = tuple(_line(record, names) for record in ledger.select(query))
    (whole,) = ledger.select(sa.select(*_sums()))
    return Report(tuple(by), lines, _line(whole, ()))


def _key(name: str) -> sa.ColumnElement[Any]:
    column = schema.rows.c.at_us // _DAY_US if name == "day" else schema.rows.c[name]
    return column.label(name)


def _sums() -> list[sa.ColumnElement[Any]]:
    table = schema.rows.c
    seen = table.cache_read_tokens.is_not(None)
    return [
        sa.func.count(table.operation_id.distinct()).label("requests"),
        sa.func.count().label("attempts"),
        *(sa.func.sum(table[name]).label(name) for name in _TOKENS),
        sa.func.sum(sa.case((seen, table.input_tokens))).label("metered_tokens"),
        sa.func.avg(table.ttft_s).label("ttft_s"),
        *(sa.func.sum(table[f"{name}_pico_usd"]).label(name) for name in _MONEY),
        sa.func.sum(sa.case((table.total_pico_usd.is_(None), 1), else_=0)).label("unpriced"),
        sa.func.sum(sa.case((table.is_cost_estimated, 1), else_=0)).label("estimated"),
    ]


def _line(record: sa.RowMapping, names: Sequence[str]) -> ReportRow:
    counts: dict[str, Any] = {
        name: None if record[name] is None else int(record[name])
        for name in ("requests", "attempts", *_TOKENS)
    }
    metered = record["metered_tokens"]
    return ReportRow(
        **counts,
        group={name: _words(name, record[name]) for name in names},
        hit_rate=int(record["cache_read_tokens"]) / int(metered) if metered else None,
        ttft_s=record["ttft_s"],
        cost_usd=schema.to_dollars(record["total"]),
        without_cache_usd=schema.to_dollars(record["without_cache"]),
        saved_usd=schema.to_dollars(record["saved"]),
        unpriced=int(record["unpriced"] or 0),
        estimated=int(record["estimated"] or 0),
    )


def _words(name: str, value: Any) -> str | None:
    if value is None:
        return None
    if name == "day":
        return (datetime(1970, 1, 1, tzinfo=UTC) + timedelta(days=int(value))).date().isoformat()
    if name == "at":
        moment = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=int(value))
        return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
    return str(value)
