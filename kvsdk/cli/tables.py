"""Tables for people and for programs."""

from __future__ import annotations

import csv
import io
import json
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import ROUND_HALF_UP, Decimal
from enum import StrEnum
from typing import IO, TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table


_PIPE_WIDTH = 240
_NAME_WIDTH = 16
_BETWEEN = 3


class Format(StrEnum):
    """How data is printed."""

    table = "table"
    md = "md"
    csv = "csv"
    json = "json"


@dataclass(frozen=True, slots=True)
class Column:
    """A column: its key in a row, its title, and how a value is written for people.

    A table that is too wide for the terminal leaves columns out: those of the highest rank first, of one rank
    from the right. Columns of rank 0 always stay.
    """

    key: str
    title: str
    write: Any = str
    is_number: bool = True
    rank: int = 0


Row = Mapping[str, Any]


def render(columns: Sequence[Column], rows: Iterable[Row], total: Row | None, form: Format) -> str:
    """A table in one of the machine-readable formats or Markdown; money is exact in `csv` and `json`."""
    return "".join(stream(columns, rows, lambda: total, form)).rstrip("\n")


def stream(
    columns: Sequence[Column], rows: Iterable[Row], total: Callable[[], Row | None], form: Format
) -> Iterator[str]:
    """The same in pieces, as the rows come; `total` is asked for when they are over."""
    if form is Format.json:
        return _stream_json(rows, total)
    if form is Format.csv:
        return _stream_csv(columns, rows)
    return _stream_markdown(columns, rows, total)


def _stream_json(rows: Iterable[Row], total: Callable[[], Row | None]) -> Iterator[str]:
    separator = "\n"
    yield '{\n  "rows": ['
    for row in rows:
        yield f"{separator}{_indented(row, 4)}"
        separator = ",\n"
    last = total()
    yield "]" if separator == "\n" else "\n  ]"
    yield f',\n  "total": {"null" if last is None else _indented(last, 2).lstrip()}\n}}\n'


def _indented(row: Row, spaces: int) -> str:
    text = json.dumps(_plain(row), indent=2, ensure_ascii=False)
    return textwrap.indent(text, " " * spaces) if text != "{}" else " " * spaces + text


def _stream_csv(columns: Sequence[Column], rows: Iterable[Row]) -> Iterator[str]:
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow([column.key for column in columns])
    for row in rows:
        plain = _plain(row)
        writer.writerow([plain.get(column.key) for column in columns])
        yield buffer.getvalue()
        buffer.seek(0)
        buffer.truncate()
    yield buffer.getvalue()


def _stream_markdown(
    columns: Sequence[Column], rows: Iterable[Row], total: Callable[[], Row | None]
) -> Iterator[str]:
    yield "| " + " | ".join(column.title for column in columns) + " |\n"
    yield "| " + " | ".join("---:" if column.is_number else "---" for column in columns) + " |\n"
    for row in rows:
        yield _markdown_line(columns, row)
    last = total()
    if last is not None:
        yield _markdown_line(columns, last)


def _markdown_line(columns: Sequence[Column], row: Row) -> str:
    return "| " + " | ".join(text.replace("|", "\\|") for text in words(columns, row)) + " |\n"


def show(
    title: str, columns: Sequence[Column], rows: Iterable[Row], total: Row | None, file: IO[str] | None = None
) -> None:
    """Print a table: with rules and colour to a terminal, plain to a pipe or a file."""
    from rich.console import Console

    console = Console(file=file)
    lines = [words(columns, row) for row in rows]
    last = None if total is None else words(columns, total)
    if not console.is_terminal:
        table = _table(title, columns, lines, last, is_plain=True)
        width = max(_PIPE_WIDTH, _natural_width(table, console))
        Console(file=file, width=width, color_system=None).print(table)
        return
    kept = _fitting(columns, [*lines, *([] if last is None else [last])], console.width)
    table = _table(
        title,
        [columns[at] for at in kept],
        [[line[at] for at in kept] for line in lines],
        None if last is None else [last[at] for at in kept],
        is_plain=False,
    )
    left_out = [column.title for at, column in enumerate(columns) if at not in kept]
    if left_out:
        table.caption = f"no room for: {', '.join(left_out)}; a wider terminal or --format csv has all"
    console.print(table)


def _fitting(columns: Sequence[Column], lines: Sequence[Sequence[str]], width: int) -> list[int]:
    """The columns that a terminal has room for; numbers are never broken, long names are."""
    needs = _least_widths(columns, lines)
    kept = list(range(len(columns)))
    for at in sorted(kept, key=lambda at: (-columns[at].rank, -at)):
        if columns[at].rank == 0 or sum(needs[one] + _BETWEEN for one in kept) <= width:
            break
        kept.remove(at)
    return kept


def _least_widths(columns: Sequence[Column], lines: Sequence[Sequence[str]]) -> list[int]:
    """What each column needs: all of a number, the longest word of a title, the start of a name."""
    widths = []
    for at, column in enumerate(columns):
        longest = max((len(line[at]) for line in lines), default=0)
        word = max((len(word) for word in column.title.split()), default=0)
        widths.append(max(min(word, _NAME_WIDTH), longest if column.is_number else min(longest, _NAME_WIDTH)))
    return widths


def _table(
    title: str,
    columns: Sequence[Column],
    lines: Sequence[Sequence[str]],
    last: Sequence[str] | None,
    *,
    is_plain: bool,
) -> Table:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(
        title=Text(title) if title else None,
        title_justify="left",
        caption_justify="left",
        box=box.ASCII2 if is_plain else box.SIMPLE_HEAD,
        show_footer=False,
    )
    widths = _least_widths(columns, [*lines, *([] if last is None else [last])])
    for column, least in zip(columns, widths, strict=True):
        justify: Literal["right", "left"] = "right" if column.is_number else "left"
        table.add_column(Text(column.title), justify=justify, overflow="fold", min_width=least)
    for line in lines:
        table.add_row(*(Text(word) for word in line))  # names are no markup
    if last is not None:
        table.add_section()
        table.add_row(*(Text(word) for word in last), style="bold")
    return table


def _natural_width(table: Table, console: Console) -> int:
    from rich.measure import Measurement

    return Measurement.get(console, console.options.update(max_width=10_000), table).maximum


def words(columns: Sequence[Column], row: Row) -> list[str]:
    """A row as people read it: unknown is a dash, and what would move the cursor is spelled out."""
    return [
        "-" if row.get(column.key) is None else _visible(column.write(row[column.key])) for column in columns
    ]


def _visible(text: str) -> str:
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else ascii(each)[1:-1] for each in text)


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
