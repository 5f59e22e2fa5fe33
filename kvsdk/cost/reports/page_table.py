"""A report as the table of a page, in words."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import UTC
from typing import Any

from kvsdk.cost.reports.page_text import cell, printable, visible
from kvsdk.cost.reports.rows import Report, ReportRow
from kvsdk.cost.reports.sql import Window

MAX_LINES = 500
_PER_REQUEST = ("at", "backend", "model", "session", "tenant")
_TITLES = {"at": "sent (UTC)"}
_COLUMNS = {
    "requests": ("requests", "Calls. One call is one request, however often it was sent."),
    "attempts": ("attempts", "What was sent for the requests: the first time, retries, and fallbacks."),
    "cost_usd": (
        "cost",
        "US dollars: the sum of what is known. An estimated cost counts with its upper bound.",
    ),
    "without_cache_usd": ("without cache", "What the same tokens would have cost with no cache at all."),
    "saved_usd": ("saved", "Without cache, less cost; negative where writing to a cache has not paid off."),
    "hit_rate": (
        "hit rate",
        "Tokens read from a cache, of all prompt tokens of those attempts whose backend says what it read.",
    ),
    "input_tokens": ("input", "All prompt tokens."),
    "cache_read_tokens": ("read from cache", "Prompt tokens that were served from a cache."),
    "cache_write_tokens": ("written", "Prompt tokens that were written to a cache."),
    "fresh_tokens": ("fresh", "Prompt tokens that were neither read from a cache nor written to one."),
    "output_tokens": ("output", "Generated tokens, reasoning included."),
    "reasoning_tokens": ("reasoning", "The part of the output that was spent on reasoning."),
    "ttft_s": ("first token", "The mean time until the first token came, in milliseconds."),
    "input_usd": ("input cost", "For tokens neither read from a cache nor written to one."),
    "cache_read_usd": ("read cost", "For tokens read from a cache."),
    "cache_write_usd": ("write cost", "For tokens written to a cache."),
    "output_usd": ("output cost", "For generated tokens."),
    "storage_usd": ("storage cost", "For keeping a cache, where a vendor sells that by time."),
    "tools_usd": ("tools cost", "For server tools that are billed by the call."),
    "low_usd": ("at least", "The least the cost can have been, where some of it is estimated."),
    "high_usd": ("at most", "The most the cost can have been, where some of it is estimated."),
    "unpriced": ("unpriced", "Attempts without a known cost. They are missing from every sum of dollars."),
    "estimated": ("estimated", "Attempts whose cost is an estimate, because a count was not reported."),
}
"""Every field of a `ReportRow`, the most asked for first: what does not fit beside them is scrolled to."""

_VERSUS = "What the same tokens would have cost on that backend: an estimate."
_HIDDEN_ZEROS = ("unpriced", "estimated", "storage_usd", "tools_usd", "reasoning_tokens")
"""Columns that say nothing where they are zero everywhere."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PageTable:
    """A report's lines as text, and what is to be said of them.

    Attributes:
        groups: Titles of the columns that say what a line stands for.
        titles: Titles of the columns of figures.
        lines: Each line's cells, under the former and under the latter.
        total: The total's cells.
        more: How many lines there is no room for.
        is_tail: Whether the lines are the last ones; those without room are earlier.
        command: What prints every line.
        about: What each column of figures is.
    """

    groups: tuple[str, ...]
    titles: tuple[str, ...]
    lines: tuple[tuple[tuple[str, ...], tuple[str, ...]], ...]
    total: tuple[str, ...]
    more: int
    is_tail: bool
    command: str
    about: tuple[tuple[str, str], ...]


def page_table(name: str, report: Report, window: Window) -> PageTable:
    """The table of a report.

    Requests are in the order of sending, and the last ones are shown; of groups, the first ones.

    Args:
        name: The ledger's.
        report: What is shown; it may hold only the last of its requests.
        window: What the report is of.
    """
    kept = report.rows[:MAX_LINES] if report.by else report.rows[-MAX_LINES:]
    flat, total = [_flat(row) for row in kept], _flat(report.total)
    groups = report.by or tuple(name for name in _PER_REQUEST if any(line.get(name) for line in flat))
    columns = [name for name in _columns([*flat, total]) if _says_something(name, [*flat, total])]
    if not report.by:
        columns.remove("requests")  # one in each line
    everything = len(report.rows) if report.by else report.total.requests
    return PageTable(
        groups=tuple(_TITLES.get(name, visible(name)) for name in groups),
        titles=tuple(_title(name) for name in columns),
        lines=tuple((_cells(groups, line), _cells(columns, line)) for line in flat),
        total=_cells(columns, total),
        more=everything - len(kept),
        is_tail=not report.by,
        command=_command(name, report, window),
        about=tuple((_title(name), _about(name)) for name in columns),
    )


def _flat(row: ReportRow) -> dict[str, Any]:
    """A row's fields beside each other, other backends' too."""
    flat: dict[str, Any] = dict(row.group)
    for field in fields(row):
        value = getattr(row, field.name)
        if not isinstance(value, Mapping):
            flat[field.name] = value
    for address, there in row.versus.items():
        flat[f"versus {address}"] = there.cost_usd
        flat[f"unpriced {address}"] = there.unpriced
    return flat


def _columns(flat: Sequence[Mapping[str, Any]]) -> list[str]:
    """The columns of figures: those that are known here in their order, then the other backends."""
    there = dict.fromkeys(name for row in flat for name in row)
    return [name for name in _COLUMNS if name in there] + [name for name in there if _is_versus(name)]


def _is_versus(name: str) -> bool:
    return name.startswith(("versus ", "unpriced "))


def _says_something(name: str, flat: Sequence[Mapping[str, Any]]) -> bool:
    """Whether a column is worth its width."""
    if name == "attempts":
        return any(row["attempts"] != row["requests"] for row in flat)
    values = [row.get(name) for row in flat]
    if name in _HIDDEN_ZEROS or name.startswith("unpriced "):
        return any(values)
    return any(value is not None for value in values)


def _cells(names: Sequence[str], row: Mapping[str, Any]) -> tuple[str, ...]:
    return tuple(cell(name, row.get(name)) for name in names)


def _title(name: str) -> str:
    return _COLUMNS[name][0] if name in _COLUMNS else visible(name)


def _about(name: str) -> str:
    if name in _COLUMNS:
        return _COLUMNS[name][1]
    return _VERSUS if name.startswith("versus ") else "Attempts of which that cannot be said."


def _command(name: str, report: Report, window: Window) -> str:
    """What prints the same report as csv."""
    parts = ["kvsdk", "report", name]
    if report.by:
        parts += ["--by", ",".join(_quoted(column) for column in report.by)]
    for option, moment in (("--since", window.since), ("--until", window.until)):
        if moment is not None:
            parts += [option, moment.astimezone(UTC).isoformat().replace("+00:00", "Z")]
    for address in report.versus:
        parts += ["--versus", address]
    if window.prices != "latest":
        parts += ["--prices", window.prices]
    return printable(shlex.join([*parts, "--format", "csv"]))


def _quoted(column: str) -> str:
    """A column's name as a field of CSV."""
    return '"' + column.replace('"', '""') + '"' if set(column) & {",", '"'} else column
