"""What the ledger adds up to: per request, or by any of a few columns."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime

from kvsdk._text import did_you_mean
from kvsdk.cost.ledger.ledger import Ledger
from kvsdk.cost.ledger.records import at_us
from kvsdk.cost.reports.reading import RequestLines, read_groups
from kvsdk.cost.reports.rows import Report, ReportRow, Tally, VersusSum, in_order, in_words
from kvsdk.cost.reports.sql import (
    PER_REQUEST,
    Group,
    Prices,
    Window,
    count_requests,
    groups,
    has_nul,
    requests,
    whole,
)
from kvsdk.errors import InvalidRequest, LedgerError

__all__ = ["GROUPS", "Prices", "Report", "ReportRow", "RequestLines", "VersusSum", "report", "request_lines"]

GROUPS = ("backend", "model", "session", "tenant", "day", "tag", "tag:NAME")
_PER_REQUEST = ("operation_id", "at", *PER_REQUEST)


def report(
    ledger: Ledger,
    *,
    by: Sequence[str] = (),
    since: datetime | None = None,
    until: datetime | None = None,
    versus: Sequence[str] = (),
    prices: Prices = "latest",
    latest: int | None = None,
) -> Report:
    """Add up a ledger.

    Args:
        ledger: Where the rows are.
        by: Columns to group by: backend, model, session, tenant, day (UTC), tag (all of a row's labels
            together) and `tag:NAME` (the label of that name). None gives a line per request: for more than
            some ten thousand see `request_lines`.
        since: Only what was sent then or later.
        until: Only what was sent before.
        versus: Addresses of other backends, such as `"anthropic:claude-sonnet-5-5"`: what the same tokens
            would have cost there, an estimate. Every row is read for it.
        prices: `latest`: at prices that were corrected later, where they were; `original`: at those that
            were known when a request was sent.
        latest: Without `by`: only the lines of this many requests, the last ones. The total is of all.

    Raises:
        InvalidRequest: Another column, another word for the prices, or a time without a time zone.
        UnknownScheme: No adapter has the scheme of one of the addresses.
    """
    names = _checked(by)
    window = _window(since, until, prices)
    others = tuple(dict.fromkeys(versus))
    if latest is not None and (by or latest < 0):
        raise InvalidRequest("latest is a number of requests, in a report without groups", field="latest")
    if not names:
        return _per_request(ledger, window, others, latest)
    has_labels = any(name.startswith("tag:") for name in names)
    if others or (has_labels and has_nul(ledger, window)):
        return read_groups(ledger, names, window, others)
    try:
        return _grouped(ledger, names, window)
    except LedgerError:
        if not has_labels:
            raise
        # half of a surrogate pair in a label is no text to the database, and one to Python
        return read_groups(ledger, names, window, ())


def request_lines(
    ledger: Ledger,
    *,
    since: datetime | None = None,
    until: datetime | None = None,
    versus: Sequence[str] = (),
    prices: Prices = "latest",
) -> RequestLines:
    """A line per request, read from the ledger as it is iterated over; `total` when that is done.

    Args:
        ledger: Where the rows are.
        since: As in `report`, like the others.
        until: See there.
        versus: See there.
        prices: See there.

    Raises:
        InvalidRequest: Another word for the prices, or a time without a time zone.
        UnknownScheme: No adapter has the scheme of one of the addresses.
    """
    return RequestLines(ledger, _window(since, until, prices), versus)


def _window(since: datetime | None, until: datetime | None, prices: Prices) -> Window:
    if prices not in ("latest", "original"):
        raise InvalidRequest(f"prices is 'latest' or 'original', not {prices!r}", field="prices")
    for moment in (since, until):
        if moment is not None:
            at_us(moment)
    return Window(since=since, until=until, prices=prices)


def _checked(by: Sequence[str]) -> tuple[str, ...]:
    for name in by:
        if name == "tag:NAME" or name.startswith("tag:"):
            if name in ("tag:", "tag:NAME"):
                raise InvalidRequest(f"{name} names no label; write tag:feature", field="by")
        elif name not in GROUPS:
            raise InvalidRequest(
                f"a report cannot group by {name!r}.{did_you_mean(name, GROUPS)} "
                f"Known are {', '.join(GROUPS)}.",
                field="by",
            )
    return tuple(dict.fromkeys(by))


def _grouped(ledger: Ledger, by: tuple[str, ...], window: Window) -> Report:
    total = Tally()
    lines = in_order(_lines(groups(ledger, by, window), by, total))
    return Report(by, lines, total.line({}, count_requests(ledger, window)))


def _per_request(ledger: Ledger, window: Window, versus: tuple[str, ...], latest: int | None) -> Report:
    if versus:
        reading = RequestLines(ledger, window, versus)
        kept = deque(reading, maxlen=latest)
        return Report((), tuple(kept), reading.total, versus)
    lines = tuple(_lines(requests(ledger, window, latest), _PER_REQUEST))
    everything = whole(ledger, window)
    return Report((), lines, Tally(everything.figures).line({}, everything.requests))


def _lines(found: Iterable[Group], names: Sequence[str], total: Tally | None = None) -> Iterator[ReportRow]:
    for group in found:
        words = {name: in_words(name, value) for name, value in zip(names, group.values, strict=True)}
        if total is not None:
            total.add(group.figures)
        yield Tally(group.figures).line(words, group.requests)
