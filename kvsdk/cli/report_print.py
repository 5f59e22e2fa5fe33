"""How a report is written: columns, and which of them say something."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import IO, TYPE_CHECKING, Any

from kvsdk.cli.tables import (
    Column,
    Format,
    Row,
    count,
    dollars,
    milliseconds,
    percent,
    render,
    show,
    stream,
)

if TYPE_CHECKING:
    from kvsdk.cost.reports.report import Report, ReportRow, RequestLines

_TITLES = {"operation_id": "request", "at": "sent (UTC)"}
_PER_REQUEST = ("at", "backend", "model", "session", "tenant")
_NUMBERS = (
    Column("requests", "requests", count),
    Column("attempts", "attempts", count, rank=2),
    Column("input_tokens", "input", count),
    Column("cache_read_tokens", "read from cache", count, rank=2),
    Column("cache_write_tokens", "written", count, rank=2),
    Column("fresh_tokens", "fresh", count, rank=3),
    Column("output_tokens", "output", count, rank=2),
    Column("reasoning_tokens", "reasoning", count, rank=3),
    Column("hit_rate", "hit rate", percent),
    Column("ttft_s", "first token", milliseconds, rank=2),
    Column("input_usd", "fresh cost", dollars, rank=3),
    Column("cache_read_usd", "read cost", dollars, rank=3),
    Column("cache_write_usd", "write cost", dollars, rank=3),
    Column("output_usd", "output cost", dollars, rank=3),
    Column("storage_usd", "storage cost", dollars, rank=3),
    Column("tools_usd", "tools cost", dollars, rank=3),
    Column("cost_usd", "cost", dollars),
    Column("low_usd", "at least", dollars, rank=2),
    Column("high_usd", "at most", dollars, rank=2),
    Column("without_cache_usd", "without cache", dollars, rank=2),
    Column("saved_usd", "saved", dollars),
    Column("unpriced", "unpriced", count, rank=1),
    Column("estimated", "estimated", count, rank=1),
)
_SAY_NOTHING_AT_ZERO = (
    "reasoning_tokens",
    "input_usd",
    "cache_read_usd",
    "cache_write_usd",
    "output_usd",
    "storage_usd",
    "tools_usd",
    "unpriced",
    "estimated",
)


def stream_requests(lines: RequestLines, form: Format) -> Iterator[str]:
    """A line per request for programs, as the ledger is read."""
    names = ("operation_id", *_PER_REQUEST)
    columns = [*_group_columns(names), *_NUMBERS, *_versus_columns(lines.versus)]
    return stream(columns, (_flat(row) for row in lines), lambda: _flat(lines.total), form)


def print_report(result: Report, form: Format, file: IO[str]) -> None:
    """Write a report. To people, columns that say nothing are left out."""
    names = result.by or _PER_REQUEST
    rows = [_flat(row) for row in result.rows]
    total = _flat(result.total)
    numbers = [*_NUMBERS, *_versus_columns(result.versus)]
    if form in (Format.json, Format.csv):
        keys = names if result.by else ("operation_id", *names)
        file.write(render([*_group_columns(keys), *numbers], rows, total, form) + "\n")
        return
    columns = _group_columns(names)
    if not result.by:
        columns = [column for column in columns if any(row[column.key] is not None for row in rows)]
    kept = [column for column in numbers if _says_something(column.key, [*rows, total], bool(result.by))]
    total = {(columns or _group_columns(names))[0].key: "total", **total}
    if form is Format.md:
        file.write(render([*columns, *kept], rows, total, form) + "\n")
    else:
        show("", [*columns, *kept], rows, total, file)
    _print_rest(result, file)


def _print_rest(result: Report, file: IO[str]) -> None:
    left_out = result.total.requests - len(result.rows)
    if not result.by and left_out > 0:
        file.write(
            f"\nThe latest {len(result.rows):,} of {result.total.requests:,} requests; the total is of all. "
            "See the others with --format csv or json, a part of them with --since and --until, or sums with "
            "--by.\n"
        )
    for address in result.versus:
        file.write(
            f"\n{address}: an estimate: list prices of the tokens counted here, through that cache's "
            "documented rules.\n"
        )


def _group_columns(names: Sequence[str]) -> list[Column]:
    return [Column(name, _TITLES.get(name, name), is_number=False) for name in names]


def _versus_columns(addresses: Sequence[str]) -> list[Column]:
    columns = []
    for address in addresses:
        columns.append(Column(f"versus_usd:{address}", f"{address} (estimate)", dollars))
        columns.append(Column(f"versus_unpriced:{address}", f"{address} unpriced", count, rank=2))
    return columns


def _flat(row: ReportRow) -> Row:
    flat: dict[str, Any] = {**row.group, **{column.key: getattr(row, column.key) for column in _NUMBERS}}
    for address, other in row.versus.items():
        flat[f"versus_usd:{address}"] = other.cost_usd
        flat[f"versus_unpriced:{address}"] = other.unpriced
    return flat


def _says_something(key: str, rows: Sequence[Row], is_grouped: bool) -> bool:
    values = [row[key] for row in rows]
    if key in _SAY_NOTHING_AT_ZERO or key.startswith("versus_unpriced:"):
        return any(values)
    if key == "requests":
        return is_grouped
    if key == "attempts":
        return any(row["attempts"] != row["requests"] for row in rows)
    return key.startswith("versus_usd:") or any(value is not None for value in values)
