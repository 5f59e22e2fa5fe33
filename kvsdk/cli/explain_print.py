"""What `kvsdk explain` prints: rows, sums, findings, and a summary."""

from __future__ import annotations

import json
import re
from collections import Counter
from dataclasses import dataclass, field
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Protocol

import typer

from kvsdk.cli.tables import Column, Format, count, dollars, render, show

if TYPE_CHECKING:
    from kvsdk.cli.explain_findings import FindingBook
    from kvsdk.cli.explain_log import ExplainedRequest

_SCHEME = re.compile(r"\bextra\.\w+\.(?=\w)")
"""A log of bodies has the settings themselves, not the `extra` of a call."""

_COLUMNS = (
    Column("line", "line"),
    Column("session", "session", is_number=False),
    Column("miss", "miss", is_number=False),
    Column("where", "where", is_number=False),
    Column("how", "how", is_number=False),
    Column("input_tokens", "input", count),
    Column("read_tokens", "read", count),
    Column("missed_tokens", "not read", count),
    Column("cost_usd", "extra cost", dollars),
)
_FINDING_COLUMNS = (
    Column("finding", "finding", is_number=False),
    Column("where", "where", is_number=False),
    Column("requests", "requests", count),
    Column("first_line", "first line", count),
    Column("detail", "what to do", is_number=False),
)


@dataclass(slots=True)
class Totals:
    """Sums over a log."""

    requests: int = 0
    misses: Counter[str] = field(default_factory=Counter)
    sessions: set[str] = field(default_factory=set)
    input_tokens: int = 0
    read_tokens: int = 0
    missed_tokens: int = 0
    cost_usd: Decimal = Decimal(0)
    unpriced: int = 0
    estimated: int = 0
    bad_lines: int = 0

    def add(self, row: ExplainedRequest) -> None:
        """Take in one request. A session's first request and a short prompt are no faults."""
        self.requests += 1
        self.sessions.add(row.session)
        self.estimated += row.is_estimated
        self.input_tokens += row.input_tokens
        self.read_tokens += row.read_tokens or 0
        self.missed_tokens += row.missed_tokens or 0
        self.cost_usd += row.cost_usd or 0
        self.unpriced += bool(row.missed_tokens) and row.cost_usd is None
        if row.miss is not None and row.miss.kind not in ("first_request", "below_minimum"):
            self.misses[row.miss.kind] += 1

    @property
    def row(self) -> dict[str, Any]:
        """As the last line of the table."""
        return {
            "line": "",
            "session": "total",
            "miss": "",
            "where": "",
            "how": "",
            "input_tokens": self.input_tokens,
            "read_tokens": self.read_tokens,
            "missed_tokens": self.missed_tokens,
            "cost_usd": None if self.unpriced and not self.cost_usd else self.cost_usd,
        }


def _plain(row: ExplainedRequest) -> dict[str, Any]:
    miss = row.miss
    how = None
    if miss is not None:
        how = _SCHEME.sub("", miss.detail.removeprefix(f"{miss.where}: "))
    return {
        "line": row.line,
        "session": row.session,
        "model": row.model,
        "miss": None if miss is None else miss.kind,
        "where": None if miss is None else miss.where,
        "how": how,
        "input_tokens": row.input_tokens,
        "read_tokens": row.read_tokens,
        "missed_tokens": row.missed_tokens,
        "cost_usd": row.cost_usd,
        "estimated": row.is_estimated,
    }


def _found(findings: FindingBook) -> list[dict[str, Any]]:
    return [
        {
            "finding": one.finding.kind,
            "where": one.finding.where,
            "requests": one.requests,
            "first_line": one.first_line,
            "detail": one.detail,
        }
        for one in findings
    ]


# ---------------------------------------------------------------------- printing


class Printer(Protocol):
    """Prints one row after another, and then what they add up to."""

    def row(self, row: ExplainedRequest) -> None: ...

    def end(self, totals: Totals, findings: FindingBook) -> None: ...


def printer(form: Format, limit: int) -> Printer:
    """The printer of a format; `limit` is how many rows a table shows, 0 for all."""
    if form is Format.json:
        return _Json()
    return _Csv() if form is Format.csv else _Table(form, limit)


class _Json:
    """Rows as they come, then the sums and the findings."""

    def __init__(self) -> None:
        self._has_rows = False

    def row(self, row: ExplainedRequest) -> None:
        typer.echo(("," if self._has_rows else '{"rows": [') + "\n" + self._line(_plain(row)), nl=False)
        self._has_rows = True

    def end(self, totals: Totals, findings: FindingBook) -> None:
        total = {
            "requests": totals.requests,
            "sessions": len(totals.sessions),
            **{name: value for name, value in totals.row.items() if name.endswith(("_tokens", "_usd"))},
            "misses": dict(totals.misses),
            "unpriced": totals.unpriced,
            "bad_lines": totals.bad_lines,
        }
        typer.echo('\n], "total": ' if self._has_rows else '{"rows": [], "total": ', nl=False)
        typer.echo(f'{self._line(total)}, "findings": {self._line(_found(findings))}}}')

    @staticmethod
    def _line(value: Any) -> str:
        return json.dumps(value, ensure_ascii=False, default=lambda number: format(number.normalize(), "f"))


class _Csv:
    """Rows as they come; sums and findings have no place in it."""

    def __init__(self) -> None:
        self._columns = (*_COLUMNS, Column("model", "model"), Column("estimated", "estimated"))
        typer.echo(",".join(column.key for column in self._columns))

    def row(self, row: ExplainedRequest) -> None:
        typer.echo(render(self._columns, [_plain(row)], None, Format.csv).partition("\n")[2])

    def end(self, totals: Totals, findings: FindingBook) -> None:
        pass


class _Table:
    """Up to `limit` rows, the sums, and the findings below."""

    def __init__(self, form: Format, limit: int) -> None:
        self._form = form
        self._limit = limit
        self._rows: list[dict[str, Any]] = []
        self._more = 0

    def row(self, row: ExplainedRequest) -> None:
        if self._limit and len(self._rows) >= self._limit:
            self._more += 1
            return
        plain = _plain(row)
        if plain["miss"] is None and row.read_tokens:
            plain["miss"] = "hit"
        if plain["miss"] == "first_request":
            plain["how"] = None
        if plain["miss"] == "settings":  # how names it
            plain["where"] = None
        self._rows.append(plain)

    def end(self, totals: Totals, findings: FindingBook) -> None:
        if self._rows:
            self._print("", _COLUMNS, self._rows, totals.row)
        if self._more:
            typer.echo(f"{self._more:,} more rows; --limit 0 shows all, --format csv or json streams them.\n")
        if len(findings):
            self._print("What to change", _FINDING_COLUMNS, _found(findings), None)
        if totals.requests:
            typer.echo(_summary(totals))

    def _print(self, title: str, columns: Any, rows: list[dict[str, Any]], total: Any) -> None:
        kept = [column for column in columns if any(row.get(column.key) is not None for row in rows)]
        if self._form is Format.md:
            typer.echo(render(kept, rows, total, Format.md) + "\n")
        else:
            show(title, kept, rows, total)


def _summary(totals: Totals) -> str:
    sessions = len(totals.sessions)
    text = f"{_many(totals.requests, 'request')} in {_many(sessions, 'session')}"
    if not totals.misses:
        return f"{text}: none missed the cache without need."
    kinds = ", ".join(f"{kind} {number}" for kind, number in totals.misses.most_common())
    cost = f", which cost {dollars(totals.cost_usd)} more than reading them" if totals.cost_usd else ""
    return (
        f"{text}, {_many(totals.misses.total(), 'miss')} ({kinds}): {totals.missed_tokens:,} tokens that had "
        f"been in the cache were not read{cost}."
    )


def _many(number: int, word: str) -> str:
    ending = "" if number == 1 else "es" if word.endswith("s") else "s"
    return f"{number:,} {word}{ending}"


def say_the_rest(totals: Totals, unnamed: int, *, skip_bad: bool) -> None:
    """What the reader of the rows should know, beside them."""
    notes = []
    if not totals.requests:
        notes.append("the log holds no request")
    if totals.estimated:
        notes.append(
            f"{_many(totals.estimated, 'request')} without usage: misses are predicted, and counts are "
            "estimates at 4 bytes a token"
        )
    if unnamed:
        notes.append(
            f"{_many(unnamed, 'request')} without a known backend: --backend gives its minimum, TTLs and "
            "prices"
        )
    if totals.unpriced:
        notes.append(f"{_many(totals.unpriced, 'miss')} without a known price")
    if skip_bad and totals.bad_lines:
        notes.append(f"{_many(totals.bad_lines, 'bad line')} skipped")
    for note in notes:
        typer.echo(f"kvsdk: {note}", err=True)
