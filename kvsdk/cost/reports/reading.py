"""A report's sums, added up row by row: where a database cannot, and where a line is wanted at a time."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal
from typing import Any

from kvsdk.cost.ledger.ledger import Ledger
from kvsdk.cost.ledger.records import at_us
from kvsdk.cost.ledger.row import LedgerRow
from kvsdk.cost.ledger.schema import COUNTS, PICO
from kvsdk.cost.reports.elsewhere import Elsewhere
from kvsdk.cost.reports.rows import PRICED, Figures, Report, ReportRow, Tally, in_order, in_words
from kvsdk.cost.reports.sql import DAY_US, PER_REQUEST, Prices, Window, sent_again


class RequestLines:
    """A line per call, in the order of sending, read as it is iterated over: a ledger of any size fits.

    Iterate once. A line waits for its call's last attempt, so that lines between are held meanwhile.

    Attributes:
        versus: The other backends.
    """

    def __init__(self, ledger: Ledger, window: Window, versus: Sequence[str]) -> None:
        self.versus = tuple(dict.fromkeys(versus))
        self._ledger = ledger
        self._window = window
        self._elsewhere = [Elsewhere(address) for address in self.versus]
        self._total = Tally()
        self._requests = 0

    def __iter__(self) -> Iterator[ReportRow]:
        more = sent_again(self._ledger, self._window)
        waiting: dict[str, _Call] = {}
        for row in _rows(self._ledger, self._window):
            figures = figures_of(row, self._window.prices, self._elsewhere)
            call = waiting.get(row.operation_id)
            if call is None:
                call = waiting[row.operation_id] = _Call(row, more.get(row.operation_id, 1))
            call.add(row, figures)
            while waiting and (first := next(iter(waiting.values()))).is_whole:
                yield self._line(waiting.pop(first.operation_id))
        for call in waiting.values():
            yield self._line(call)

    @property
    def total(self) -> ReportRow:
        """What the lines so far add up to."""
        return self._total.line({}, self._requests, versus=self.versus)

    def _line(self, call: _Call) -> ReportRow:
        self._requests += 1
        self._total.add(call.tally.sums)
        return call.tally.line(call.group, 1, versus=self.versus)


class _Call:
    """The attempts of a call so far."""

    __slots__ = ("_left", "group", "operation_id", "tally")

    def __init__(self, row: LedgerRow, attempts: int) -> None:
        self.operation_id = row.operation_id
        self.group = {"operation_id": row.operation_id, "at": in_words("at", at_us(row.at))}
        self.tally = Tally()
        self._left = attempts

    @property
    def is_whole(self) -> bool:
        return self._left <= 0

    def add(self, row: LedgerRow, figures: Figures) -> None:
        for name in PER_REQUEST:
            words = (self.group.get(name), getattr(row, name))
            self.group[name] = max((word for word in words if word is not None), default=None)
        self.tally.add(figures)
        self._left -= 1


def read_groups(ledger: Ledger, by: Sequence[str], window: Window, versus: Sequence[str]) -> Report:
    """The sums by these columns, read in the order of sending."""
    elsewhere = [Elsewhere(address) for address in versus]
    tallies: dict[tuple[Any, ...], Tally] = {}
    calls: dict[tuple[Any, ...], set[str]] = {}
    every: dict[str, str] = {}  # each call's id once, however many groups it is in
    for row in _rows(ledger, window):
        key = tuple(_value(row, name) for name in by)
        if key not in tallies:
            tallies[key], calls[key] = Tally(), set()
        tallies[key].add(figures_of(row, window.prices, elsewhere))
        calls[key].add(every.setdefault(row.operation_id, row.operation_id))
    lines = (
        tally.line(
            {name: in_words(name, value) for name, value in zip(by, key, strict=True)},
            len(calls[key]),
            versus=versus,
        )
        for key, tally in tallies.items()
    )
    total = Tally()
    for tally in tallies.values():
        total.add(tally.sums)
    return Report(tuple(by), in_order(lines), total.line({}, len(every), versus=versus), tuple(versus))


def figures_of(row: LedgerRow, prices: Prices, elsewhere: Sequence[Elsewhere] = ()) -> Mapping[str, Any]:
    """What a row adds to a report."""
    usage, cost = row.usage, row.current_cost if prices == "latest" else row.cost
    figures: dict[str, Any] = {name: getattr(usage, name) for name in COUNTS}
    figures |= {name: _pico(getattr(cost, part)) for name, part in PRICED.items()}
    for name in ("low_usd", "high_usd"):
        if figures[name] is None:
            figures[name] = figures["cost_usd"]
    figures["metered_tokens"] = None if usage.cache_read_tokens is None else usage.input_tokens
    figures["ttft_s"] = row.ttft_s
    figures["timed"] = 0 if row.ttft_s is None else 1
    figures["attempts"] = 1
    figures["unpriced"] = int(cost.total is None)
    figures["estimated"] = int(cost.estimated)
    for each in elsewhere:
        total = each.cost(row).total
        figures[f"versus_usd:{each.address}"] = _pico(total)
        figures[f"versus_unpriced:{each.address}"] = int(total is None)
    return figures


def _pico(dollars: Decimal | None) -> int | None:
    return None if dollars is None else round(dollars * PICO)


def _rows(ledger: Ledger, window: Window) -> Iterator[LedgerRow]:
    return ledger.rows(since=window.since, until=window.until)


def _value(row: LedgerRow, name: str) -> Any:
    """What a row is grouped by, as it lies in the ledger."""
    if name == "day":
        return at_us(row.at) // DAY_US
    if name == "tag":
        return json.dumps(dict(row.metadata), sort_keys=True) if row.metadata else None
    if name.startswith("tag:"):
        return row.metadata.get(name.removeprefix("tag:"))
    return getattr(row, name)
