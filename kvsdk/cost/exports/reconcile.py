"""A vendor's report held against the ledger, per UTC day and model, and what may explain a difference."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import date, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

from kvsdk.cost.exports.model_names import pair_models
from kvsdk.cost.exports.reading import Export, ExportLine, Vendor, parse_export
from kvsdk.cost.exports.rows import COUNTS, EDGE, ExplainingRow, Tally, tally_rows
from kvsdk.cost.ledger.ledger import Ledger
from kvsdk.errors import InvalidRequest

_HALF_A_CENT = Decimal("0.005")


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """What one side says. Unknown, or not said, is None; a difference may be negative."""

    requests: int | None = None
    input_tokens: int | None = None
    cache_read_tokens: int | None = None
    cache_write_tokens: int | None = None
    fresh_tokens: int | None = None
    output_tokens: int | None = None
    cost_usd: Decimal | None = None


FIGURES = ("requests", *COUNTS, "cost_usd")


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Both sides.

    Attributes:
        vendor: What the report says.
        ledger: What the ledger adds up to. Rows that do not know a figure add nothing to it; None where none
            of them knows it. `requests` are attempts that were answered, whole or in part.
    """

    vendor: Figures
    ledger: Figures

    @property
    def difference(self) -> Figures:
        """Ledger minus vendor, exact; None where either is."""
        return Figures(**{name: _minus(self.ledger, self.vendor, name) for name in FIGURES})

    @property
    def matches(self) -> bool:
        """Whether the dollars differ by less than half a cent, for reports are rounded.

        Without dollars: whether every count that the report has is equal.
        """
        if self.vendor.cost_usd is not None:
            return abs((self.ledger.cost_usd or 0) - self.vendor.cost_usd) < _HALF_A_CENT
        said = [name for name in FIGURES if getattr(self.vendor, name) is not None]
        return bool(said) and all(
            (getattr(self.ledger, name) or 0) == getattr(self.vendor, name) for name in said
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ReconciledLine(Comparison):
    """A day and a model.

    Attributes:
        day: In UTC.
        model: As the report calls it. None for a whole day, where the report is not grouped by model, and for
            costs that belong to no model.
        rows: Rows of the ledger that may explain a difference, at most 20.
        more_rows: How many others there are.
        causes: How many rows there are of each cause, these others included.
        unlogged_requests: Requests that the report has and the ledger does not, not even as one without an
            answer: calls that did not go through this ledger. None where the report counts no requests.
    """

    day: date
    model: str | None
    rows: tuple[ExplainingRow, ...] = ()
    more_rows: int = 0
    causes: Mapping[str, int] = field(default_factory=dict)
    unlogged_requests: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Reconciliation:
    """The comparison.

    Attributes:
        name: The report's file.
        vendor: Whose it is.
        lines: By day and model.
        total: All lines together.
        notes: What the reader of the lines should know.
        is_by_model: Whether the report is grouped by model; if not, a line is a whole day.
        is_complete: Whether the report's last page is there.
    """

    name: str
    vendor: Vendor
    lines: tuple[ReconciledLine, ...]
    total: Comparison
    notes: tuple[str, ...]
    is_by_model: bool
    is_complete: bool

    @property
    def matches(self) -> bool:
        """Whether every line does."""
        return all(line.matches for line in self.lines)


def read_export(path: str | Path) -> Export:
    """Read a vendor's report from a file.

    Raises:
        InvalidRequest: It cannot be read, or is no report that is known.
    """
    try:
        content = Path(path).expanduser().read_text("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InvalidRequest(f"{path} is not in UTF-8; save it as UTF-8", field="export") from error
    except (OSError, ValueError) as error:
        raise InvalidRequest(f"the report {path} cannot be read: {error}", field="export") from error
    return parse_export(content, name=str(path))


def reconcile(ledger: Ledger, export: Export | str | Path) -> Reconciliation:
    """Hold a vendor's usage or cost report against the ledger. Reads both, changes nothing.

    Only days (UTC) that the report covers are compared, and of a day that it covers in part only those hours;
    only rows of the vendor's own backend count. Models are matched by their id, else by their id without its
    date; a note says so.

    Args:
        ledger: Where the rows are; they are streamed.
        export: The report, or its file.

    Raises:
        InvalidRequest: The file is no report that is known.
        LedgerError: The ledger cannot be read.
    """
    if not isinstance(export, Export):
        export = read_export(export)
    since, until = min(export.hours) - EDGE, max(export.hours) + timedelta(hours=1) + EDGE
    rows = ledger.rows(backend=export.vendor, since=since, until=until)
    tallies = tally_rows(rows, export.hours, is_by_model=export.is_by_model)
    notes = _notes(export)
    names: dict[str | None, str] = {}
    if export.is_by_model:
        names, said = pair_models(
            {model for _, model in tallies if model is not None},
            {line.model for line in export.lines if line.model is not None},
        )
        notes += said
    lines = _lines(export, tallies, names)
    total = Comparison(
        vendor=_add_vendor([line.vendor for line in lines], _nothing(export)),
        ledger=_add_ledger([line.ledger for line in lines]),
    )
    return Reconciliation(
        name=export.name,
        vendor=export.vendor,
        lines=lines,
        total=total,
        notes=tuple(notes),
        is_by_model=export.is_by_model,
        is_complete=export.is_complete,
    )


# ---------------------------------------------------------------------- lines


def _lines(
    export: Export, tallies: Mapping[tuple[date, str | None], Tally], names: Mapping[str | None, str]
) -> tuple[ReconciledLine, ...]:
    ours: dict[tuple[date, str | None], Tally] = {}
    for (day, model), tally in tallies.items():
        ours.setdefault((day, names.get(model, model)), Tally()).add(tally)
    theirs: dict[tuple[date, str | None], list[Figures]] = {}
    for line in export.lines:
        theirs.setdefault((line.day, names.get(line.model, line.model)), []).append(_figures(line))
    keys = {key for key, tally in ours.items() if tally.rows} | theirs.keys()
    nothing = _nothing(export)
    return tuple(
        _line(*key, _add_vendor(theirs.get(key, []), nothing), ours.get(key, Tally()))
        for key in sorted(keys, key=lambda key: (key[0], key[1] is None, key[1] or ""))
    )


def _line(day: date, model: str | None, vendor: Figures, tally: Tally) -> ReconciledLine:
    requests = vendor.requests
    rows = tally.explaining
    return ReconciledLine(
        day=day,
        model=model,
        vendor=vendor,
        ledger=Figures(**tally.figures),
        rows=rows,
        more_rows=tally.explained - len(rows),
        causes=dict(tally.causes),
        unlogged_requests=None if requests is None else max(0, requests - tally.answered - tally.unanswered),
    )


def _figures(line: ExportLine) -> Figures:
    usage = line.usage
    counts = {name: getattr(usage, name) for name in COUNTS if usage.meter(name) == "reported"}
    return Figures(requests=line.requests, cost_usd=line.cost_usd, **counts)


def _nothing(export: Export) -> Figures:
    """What a report says of a day and model that it has no result for."""
    dollars: dict[str, Any] = {"cost_usd": Decimal(0)} if export.kind != "usage" else {}
    counts: dict[str, Any] = dict.fromkeys(("requests", *COUNTS), 0) if export.kind != "costs" else {}
    return Figures(**dollars, **counts)


def _add_vendor(parts: Iterable[Figures], nothing: Figures) -> Figures:
    """Unknown in one is unknown in the sum."""
    sums: dict[str, Any] = {}
    found = list(parts) or [nothing]
    for name in FIGURES:
        values = [getattr(figures, name) for figures in found]
        sums[name] = None if None in values else sum(values)
    return Figures(**sums)


def _add_ledger(parts: Iterable[Figures]) -> Figures:
    """What is unknown adds nothing."""
    sums: dict[str, Any] = {}
    found = list(parts)
    for name in FIGURES:
        values = [value for figures in found if (value := getattr(figures, name)) is not None]
        zero = Decimal(0) if name == "cost_usd" else 0
        sums[name] = sum(values, zero) if values or not found else None
    return Figures(**sums)


def _minus(ledger: Figures, vendor: Figures, name: str) -> Any:
    ours, theirs = getattr(ledger, name), getattr(vendor, name)
    return None if ours is None or theirs is None else ours - theirs


# ---------------------------------------------------------------------- notes


def _notes(export: Export) -> list[str]:
    notes = []
    if not export.is_complete:
        notes.append(
            "the report is not complete: its last page has `has_more`; only the days in it are compared"
        )
    by_day: dict[date, int] = {}
    for hour in export.hours:
        by_day[hour.date()] = by_day.get(hour.date(), 0) + 1
    notes += [
        f"{day}: the report covers {hours} of 24 hours; only these are compared"
        for day, hours in sorted(by_day.items())
        if hours < 24
    ]
    if not export.lines:
        notes.append("the report has no result: it says that nothing was used")
    elif not export.is_by_model:
        notes.append("the report is not grouped by model: whole days are compared")
    others = sorted({line.item or "not named" for line in export.lines if line.model is None})
    if export.is_by_model and others:
        notes.append(
            f"the report has results of no model ({', '.join(others)}); the ledger has such costs, where it "
            "knows them, in the rows of models"
        )
    before = [line for line in export.lines if line.list_cost_usd is not None and line.cost_usd is not None]
    discount = sum(((line.list_cost_usd or 0) - (line.cost_usd or 0) for line in before), Decimal(0))
    if discount:
        notes.append(f"the report's costs are after a discount of ${discount:f}")
    return notes
