"""Tables for people and for programs."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import ROUND_HALF_UP, Decimal
from enum import StrEnum
from typing import Any


class Format(StrEnum):
    """How data is printed."""

    table = "table"
    md = "md"
    csv = "csv"
    json = "json"


@dataclass(frozen=True, slots=True)
class Column:
    """A column: its key in a row, its title, and how a value is written for people."""

    key: str
    title: str
    write: Any = str
    is_number: bool = True


Row = Mapping[str, Any]


def render(columns: Sequence[Column], rows: Iterable[Row], total: Row | None, form: Format) -> str:
    """A table in one of the machine-readable formats or Markdown; money is exact in `csv` and `json`."""
    lines = list(rows)
    if form is Format.json:
        data = {"rows": [_plain(row) for row in lines], "total": None if total is None else _plain(total)}
        return json.dumps(data, indent=2, ensure_ascii=False)
    if form is Format.csv:
        buffer = io.StringIO()
        writer = csv.writer(buffer, lineterminator="\n")
        writer.writerow([column.key for column in columns])
        writer.writerows([_plain(row).get(column.key) for column in columns] for row in lines)
        return buffer.getvalue().rstrip("\n")
    header = "| " + " | ".join(column.title for column in columns) + " |"
    rule = "| " + " | ".join("---:" if column.is_number else "---" for column in columns) + " |"
    body = [
        "| " + " | ".join(text.replace("|", "\\|") for text in words(columns, row)) + " |"
        for row in [*lines, *([total] if total is not None else [])]
    ]
    return "\n".join([header, rule, *body])


def show(title: str, columns: Sequence[Column], rows: Iterable[Row], total: Row | None) -> None:
    """Print a table: with rules and colour to a terminal, plain to a pipe."""
    from rich import box
    from rich.console import Console
    from rich.table import Table

    console = Console()
    if not console.is_terminal:
        console = Console(width=240, color_system=None)
    table = Table(
        title=title,
        title_justify="left",
        box=box.SIMPLE_HEAD if console.is_terminal else box.ASCII2,
        show_footer=False,
    )
    for column in columns:
        table.add_column(
            column.title, justify="right" if column.is_number else "left", overflow="fold", no_wrap=False
        )
    for row in rows:
        table.add_row(*words(columns, row))
    if total is not None:
        table.add_section()
        table.add_row(*words(columns, total), style="bold")
    console.print(table)


def words(columns: Sequence[Column], row: Row) -> list[str]:
    """A row as people read it: unknown is a dash."""
    return ["-" if row.get(column.key) is None else column.write(row[column.key]) for column in columns]


def count(value: int) -> str:
    """A number with thousands apart."""
    return f"{value:,}"


def percent(value: float) -> str:
    """A share, 0 to 1."""
    return f"{value:.1%}"


def milliseconds(value: float) -> str:
    """Seconds as milliseconds."""
    return f"{value * 1000:,.0f} ms"


def dollars(value: Decimal) -> str:
    """Dollars to a cent, or to three figures where that would hide them."""
    if value == 0:
        return "$0"
    places = 2 if abs(value) >= 10 else min(12, 2 - value.adjusted())
    rounded = value.quantize(Decimal(1).scaleb(-places), ROUND_HALF_UP)
    return f"-${-rounded:,f}" if value < 0 else f"${rounded:,f}"


def _plain(row: Row) -> dict[str, Any]:
    return {key: _exact(value) for key, value in row.items()}


def _exact(value: Any) -> Any:
    if not isinstance(value, Decimal):
        return value
    return format(value.normalize(), "f") if value else "0"
