"""`kvsdk report`: what a ledger adds up to."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kvsdk.cli.tables import Column, Format, count, dollars, milliseconds, percent, render, show
from kvsdk.errors import InvalidRequest

if TYPE_CHECKING:
    from kvsdk.cost.reports import Report, ReportRow

_TITLES = {"operation_id": "request", "at": "sent (UTC)"}
_NUMBERS = (
    Column("requests", "requests", count),
    Column("attempts", "attempts", count),
    Column("input_tokens", "input", count),
    Column("cache_read_tokens", "read from cache", count),
    Column("cache_write_tokens", "written", count),
    Column("output_tokens", "output", count),
    Column("hit_rate", "hit rate", percent),
    Column("ttft_s", "first token", milliseconds),
    Column("cost_usd", "cost", dollars),
    Column("without_cache_usd", "without cache", dollars),
    Column("saved_usd", "saved", dollars),
    Column("unpriced", "unpriced", count),
    Column("estimated", "estimated", count),
)


def report_command(
    ledger: Annotated[str, typer.Argument(help="A ledger's file, or its database URL.")],
    by: Annotated[
        str, typer.Option(help="Group by any of backend,model,session,tenant,day; none: a line per request.")
    ] = "",
    form: Annotated[Format, typer.Option("--format", help="How to print it.")] = Format.table,
) -> None:
    """Print what the requests in a ledger used, cost and saved."""
    from kvsdk.cost import Ledger, report

    if "://" not in ledger and not Path(ledger).expanduser().is_file():
        raise InvalidRequest(f"there is no ledger at {ledger}", field="ledger")
    groups = tuple(name.strip() for name in by.split(",") if name.strip())
    with Ledger(ledger) as book:
        print_report(report(book, by=groups), form)


def print_report(result: Report, form: Format) -> None:
    """Print a report. To people, columns that say nothing are left out."""
    names = result.by or ("at", "backend", "model", "session", "tenant")
    columns = [Column(name, _TITLES.get(name, name), is_number=False) for name in names]
    rows = [_flat(row) for row in result.rows]
    total = _flat(result.total)
    if form in (Format.json, Format.csv):
        keys = [] if result.by else [Column("operation_id", "request", is_number=False)]
        typer.echo(render([*keys, *columns, *_NUMBERS], rows, total, form))
        return
    if not result.by:
        columns = [column for column in columns if any(row[column.key] is not None for row in rows)]
    numbers = [column for column in _NUMBERS if _says_something(column.key, rows, bool(result.by))]
    total = {names[0]: "total", **{key: value for key, value in total.items() if key not in names}}
    if form is Format.md:
        typer.echo(render([*columns, *numbers], rows, total, form))
    else:
        show("", [*columns, *numbers], rows, total)


def _flat(row: ReportRow) -> dict[str, Any]:
    numbers = {column.key: getattr(row, column.key) for column in _NUMBERS}
    return {**row.group, **numbers}


def _says_something(key: str, rows: list[dict[str, Any]], is_grouped: bool) -> bool:
    values = [row[key] for row in rows]
    if key in ("unpriced", "estimated"):
        return any(values)
    if key == "requests":
        return is_grouped
    if key == "attempts":
        return any(row["attempts"] != row["requests"] for row in rows)
    return any(value is not None for value in values)
