"""What the ledger's rows add up to per day and model, and which of them may explain a difference."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Set
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any, Literal

from kvsdk.cost.ledger.row import LedgerRow, RowState

COUNTS = ("input_tokens", "cache_read_tokens", "cache_write_tokens", "fresh_tokens", "output_tokens")
KEPT_ROWS = 20
EDGE = timedelta(minutes=2)

Cause = Literal["unpriced", "estimated", "unanswered", "partial", "cancelled", "near_edge"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ExplainingRow:
    """A row that may explain a difference.

    Attributes:
        id: The row's.
        operation_id: The call's.
        at: When it was sent.
        model: As the ledger has it.
        state: What became of it.
        cost_usd: What the ledger says it cost, at the latest prices.
        causes: `unpriced`, `estimated`: its cost or counts; `unanswered`: whether it was billed is unknown;
            `partial`, `cancelled`; `near_edge`: sent within two minutes of an end of the day.
        why: The same in words.
    """

    id: str
    operation_id: str
    at: datetime
    model: str
    state: RowState
    cost_usd: Decimal | None
    causes: tuple[Cause, ...]
    why: str


@dataclass(slots=True)
class Tally:
    """Rows added up. Holds at most 20 rows of each kind, whatever their number.

    Attributes:
        rows: How many there were.
        answered: Attempts that were answered, whole or in part.
        unanswered: Attempts without an answer that may have been billed.
        sums: Of each figure that any row knows.
        explained: How many rows may explain a difference; `causes` says of what kind.
        causes: How many rows have each cause.
    """

    rows: int = 0
    answered: int = 0
    unanswered: int = 0
    sums: dict[str, Any] = field(default_factory=dict)
    explained: int = 0
    causes: Counter[str] = field(default_factory=Counter)
    _known: list[ExplainingRow] = field(default_factory=list)
    _edge: list[ExplainingRow] = field(default_factory=list)

    def count(self, row: LedgerRow) -> None:
        """Add up a row of this day."""
        self.rows += 1
        if not is_unanswered(row):
            self.answered += 1
        elif row.current_cost.total is None:
            self.unanswered += 1
        for name, value in (
            *((name, getattr(row.usage, name)) for name in COUNTS),
            ("cost_usd", row.current_cost.total),
        ):
            if value is not None:
                self.sums[name] = self.sums.get(name, 0) + value

    def explain(self, row: ExplainingRow) -> None:
        """Take in a row that may explain a difference."""
        self.explained += 1
        self.causes.update(row.causes)
        kept = self._edge if row.causes == ("near_edge",) else self._known
        if len(kept) < KEPT_ROWS:
            kept.append(row)

    def add(self, other: Tally) -> None:
        """Take in all of another."""
        self.rows += other.rows
        self.answered += other.answered
        self.unanswered += other.unanswered
        for name, value in other.sums.items():
            self.sums[name] = self.sums.get(name, 0) + value
        self.explained += other.explained
        self.causes.update(other.causes)
        self._known = _earliest([*self._known, *other._known])
        self._edge = _earliest([*self._edge, *other._edge])

    @property
    def figures(self) -> dict[str, Any]:
        """Every figure; None where there are rows and none of them knows it."""
        names = (*COUNTS, "cost_usd")
        if not self.rows:
            return {"requests": 0, **dict.fromkeys(COUNTS, 0), "cost_usd": Decimal(0)}
        return {"requests": self.answered, **{name: self.sums.get(name) for name in names}}

    @property
    def explaining(self) -> tuple[ExplainingRow, ...]:
        """At most 20 rows by time; those that only lie near an edge come last to the selection."""
        return tuple(_earliest([*self._known, *self._edge[: KEPT_ROWS - len(self._known)]]))


def tally_rows(
    rows: Iterable[LedgerRow], hours: Set[datetime], *, is_by_model: bool
) -> dict[tuple[date, str | None], Tally]:
    """Add up rows per day and model (None for all).

    Args:
        rows: By time. They are not kept.
        hours: The start of each hour that is compared.
        is_by_model: Whether models are told apart.
    """
    tallies: dict[tuple[date, str | None], Tally] = {}
    for row in rows:
        home = _day(row.at, hours)
        days = {home, _day(row.at - EDGE, hours), _day(row.at + EDGE, hours)}
        for day in days - {None}:
            assert day is not None
            tally = tallies.setdefault((day, row.model if is_by_model else None), Tally())
            if day == home:
                tally.count(row)
            reasons = _reasons(row) if day == home else {}
            if len(days) > 1 and not _is_refused(row):
                reasons["near_edge"] = _edge_words(day, home)
            if reasons:
                tally.explain(_explaining(row, reasons))
    return tallies


def is_unanswered(row: LedgerRow) -> bool:
    """Whether no answer came: it failed, or its reader left before the first piece."""
    has_answer = row.reply_id is not None or row.usage.input_tokens is not None
    return row.state == "failed" or (row.state == "cancelled" and not has_answer)


def _is_refused(row: LedgerRow) -> bool:
    """Whether certainly nothing was billed."""
    return is_unanswered(row) and row.current_cost.total == 0


def _day(at: datetime, hours: Set[datetime]) -> date | None:
    """The day that a time is compared in; None outside of the report."""
    at = at.astimezone(UTC)
    return at.date() if at.replace(minute=0, second=0, microsecond=0) in hours else None


def _reasons(row: LedgerRow) -> dict[Cause, str]:
    """Why a row may be seen otherwise by the vendor."""
    if _is_refused(row):
        return {}
    reasons: dict[Cause, str] = {}
    cost = row.current_cost
    if is_unanswered(row):
        error = f" ({row.error})" if row.error else ""
        reasons["unanswered"] = f"no answer{error}: whether it was billed is unknown"
    elif cost.total is None:
        reasons["unpriced"] = f"cost unknown: {cost.reason or 'no reason was kept'}"
    elif cost.estimated or row.usage.estimated:
        reasons["estimated"] = _estimate_words(row)
    if row.state == "partial":
        reasons["partial"] = f"the stream broke off ({row.error})" if row.error else "the stream broke off"
    if row.state == "cancelled":
        reasons["cancelled"] = "left by its reader"
    return reasons


def _estimate_words(row: LedgerRow) -> str:
    cost = row.current_cost
    reason = cost.reason or f"of {', '.join(sorted(row.usage.estimated)) or 'the cost'}"
    if cost.low is None or cost.high is None:
        return f"estimated: {reason}"
    return f"estimated, ${_plain(cost.low)} to ${_plain(cost.high)}: {reason}"


def _plain(dollars: Decimal) -> str:
    return format(dollars.normalize(), "f")


def _edge_words(day: date, home: date | None) -> str:
    if day == home:
        return "sent within 2 minutes of the day's edge"
    return (
        f"sent within 2 minutes of the day's edge, counted {f'on {home}' if home else 'on no day compared'}"
    )


def _explaining(row: LedgerRow, reasons: dict[Cause, str]) -> ExplainingRow:
    return ExplainingRow(
        id=row.id,
        operation_id=row.operation_id,
        at=row.at,
        model=row.model,
        state=row.state,
        cost_usd=row.current_cost.total,
        causes=tuple(reasons),
        why="; ".join(reasons.values()),
    )


def _earliest(rows: list[ExplainingRow]) -> list[ExplainingRow]:
    return sorted(rows, key=lambda row: (row.at, row.id))[:KEPT_ROWS]
