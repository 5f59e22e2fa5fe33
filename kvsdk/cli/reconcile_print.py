"""What `kvsdk report --reconcile` prints: the comparison, the rows that may explain it, and notes."""

from __future__ import annotations

import json
from collections.abc import Sequence
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import typer

from kvsdk.cli.tables import Column, Format, Row, count, dollars, render, show

if TYPE_CHECKING:
    from kvsdk.cost.exports.reconcile import Comparison, ReconciledLine, Reconciliation
    from kvsdk.cost.exports.rows import ExplainingRow

_FIGURES = {
    "requests": "requests",
    "input_tokens": "input tokens",
    "cache_read_tokens": "read from cache",
    "cache_write_tokens": "written",
    "fresh_tokens": "neither",
    "output_tokens": "output tokens",
    "cost_usd": "cost",
}
_SIDES = ("vendor", "ledger", "difference")


def _amount(value: int | Decimal) -> str:
    return dollars(value) if isinstance(value, Decimal) else count(value)


_COLUMNS = (
    Column("day", "day (UTC)", is_number=False),
    Column("model", "model", is_number=False),
    Column("figure", "", is_number=False),
    Column("vendor", "vendor", _amount),
    Column("ledger", "ledger", _amount),
    Column("difference", "difference", _amount),
    Column("matches", "matches", is_number=False),
)
_ROW_COLUMNS = (
    Column("day", "day (UTC)", is_number=False),
    Column("model", "model", is_number=False),
    Column("at", "sent (UTC)", is_number=False),
    Column("id", "row", is_number=False),
    Column("state", "state", is_number=False),
    Column("cost_usd", "cost", dollars),
    Column("why", "why", is_number=False),
)


def print_reconciliation(result: Reconciliation, form: Format) -> bool:
    """Print a comparison; notes go to stderr, so that the data stays data.

    Returns:
        Whether every line matches; the command exits with 1 where not.
    """
    if form is Format.json:
        typer.echo(json.dumps(_data(result), indent=2, ensure_ascii=False))
    elif form is Format.csv:
        typer.echo(_csv(result))
    else:
        _print_tables(result, form)
    for note in result.notes:
        typer.echo(f"kvsdk: {note}", err=True)
    return result.matches


# ---------------------------------------------------------------------- for people


def _print_tables(result: Reconciliation, form: Format) -> None:
    rows = [row for line in result.lines for row in _figure_rows(_day(line), _model(line, result), line)]
    if len(result.lines) > 1:
        rows += _figure_rows("total", "", result.total, matches=result.matches)
    if rows:
        _print("", _COLUMNS, rows, form)
    off = [line for line in result.lines if not line.matches]
    explaining = [row for line in off for row in _explaining_rows(line, result)]
    if explaining:
        _print("Rows of the ledger that may explain it", _ROW_COLUMNS, explaining, form)
    for line in off:
        for text in _remarks(line, result):
            typer.echo(text)
    typer.echo(_summary(result))


def _print(title: str, columns: Sequence[Column], rows: Sequence[Row], form: Format) -> None:
    if form is Format.md:
        typer.echo((f"**{title}**\n\n" if title else "") + render(columns, rows, None, form) + "\n")
        return
    show(title, columns, rows, None)


def _figure_rows(
    day: str, model: str, line: Comparison, *, matches: bool | None = None
) -> list[dict[str, Any]]:
    """A row for each figure that the report has; day and model stand in the first."""
    rows: list[dict[str, Any]] = []
    for name, title in _FIGURES.items():
        if getattr(line.vendor, name) is None:
            continue
        sides = {side: getattr(getattr(line, side), name) for side in _SIDES}
        rows.append({"day": "", "model": "", "figure": title, **sides, "matches": ""})
    if not rows:
        rows.append({"figure": "not said"})
    rows[0].update(
        day=day, model=model, matches="yes" if (matches if matches is not None else line.matches) else "no"
    )
    return rows


def _explaining_rows(line: ReconciledLine, result: Reconciliation) -> list[dict[str, Any]]:
    head = {"day": _day(line), "model": _model(line, result)}
    return [{**head, **_plain_row(row)} for row in line.rows]


def _remarks(line: ReconciledLine, result: Reconciliation) -> list[str]:
    """What is to be said of a line that does not match, beside its rows."""
    where = f"{_day(line)}, {_model(line, result)}"
    texts = []
    if line.more_rows:
        causes = ", ".join(f"{cause} {number:,}" for cause, number in sorted(line.causes.items()))
        texts.append(f"{where}: {_many(line.more_rows, 'more row')} may explain it (in all: {causes}).")
    if line.unlogged_requests:
        texts.append(f"{where}: {_many(line.unlogged_requests, 'request')} did not go through this ledger.")
    if not line.causes and not line.unlogged_requests:
        texts.append(f"{where}: no row of the ledger explains it.")
    return texts


def _summary(result: Reconciliation) -> str:
    off = sum(not line.matches for line in result.lines)
    if not result.lines:
        return f"Neither {result.name} nor the ledger has anything of {result.vendor} on these days."
    if not off:
        return f"Every line of {result.name} matches the ledger ({len(result.lines):,} in all)."
    text = f"{off:,} of {_many(len(result.lines), 'line')} of {result.name} do not match the ledger"
    difference = result.total.difference.cost_usd
    if not difference:
        return f"{text}."
    return f"{text}, which has {dollars(abs(difference))} {'more' if difference > 0 else 'less'} in all."


def _day(line: ReconciledLine) -> str:
    return line.day.isoformat()


def _model(line: ReconciledLine, result: Reconciliation) -> str:
    return line.model or ("(no model)" if result.is_by_model else "(all)")


def _many(number: int, word: str) -> str:
    return f"{number:,} {word}{'' if number == 1 else 's'}"


# ---------------------------------------------------------------------- for programs


def _csv(result: Reconciliation) -> str:
    """A line per day and model; the explaining rows are counted."""
    names = ["day", "model", *(f"{side}_{name}" for name in _FIGURES for side in _SIDES)]
    names += ["matches", "unlogged_requests", "explaining_rows"]
    rows = [
        {
            "day": _day(line),
            "model": line.model,
            **{f"{side}_{name}": getattr(getattr(line, side), name) for name in _FIGURES for side in _SIDES},
            "matches": str(line.matches).lower(),
            "unlogged_requests": line.unlogged_requests,
            "explaining_rows": len(line.rows) + line.more_rows,
        }
        for line in result.lines
    ]
    return render([Column(name, name) for name in names], rows, None, Format.csv)


def _data(result: Reconciliation) -> dict[str, Any]:
    return {
        "report": result.name,
        "vendor": result.vendor,
        "matches": result.matches,
        "is_complete": result.is_complete,
        "is_by_model": result.is_by_model,
        "notes": list(result.notes),
        "rows": [_line_data(line) for line in result.lines],
        "total": _sides(result.total),
    }


def _line_data(line: ReconciledLine) -> dict[str, Any]:
    return {
        "day": _day(line),
        "model": line.model,
        "matches": line.matches,
        **_sides(line),
        "unlogged_requests": line.unlogged_requests,
        "causes": dict(line.causes),
        "explaining_rows": [_row_data(row) for row in line.rows],
        "more_rows": line.more_rows,
    }


def _row_data(row: ExplainingRow) -> dict[str, Any]:
    plain = _plain_row(row)
    return {**plain, "cost_usd": _exact(plain["cost_usd"]), "causes": list(row.causes)}


def _sides(line: Comparison) -> dict[str, Any]:
    return {side: {name: _exact(getattr(getattr(line, side), name)) for name in _FIGURES} for side in _SIDES}


def _plain_row(row: ExplainingRow) -> dict[str, Any]:
    return {
        "at": row.at.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        "id": row.id,
        "operation_id": row.operation_id,
        "ledger_model": row.model,
        "state": row.state,
        "cost_usd": row.cost_usd,
        "why": row.why,
    }


def _exact(value: int | Decimal | None) -> int | str | None:
    """Money as text, so that it stays exact."""
    if not isinstance(value, Decimal):
        return value
    return format(value.normalize(), "f") if value else "0"
