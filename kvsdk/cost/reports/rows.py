"""The lines of a report, and what adds up to one."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

from kvsdk.cost.ledger.records import to_dollars
from kvsdk.cost.ledger.schema import COUNTS

PARTS = ("input", "cache_read", "cache_write", "output", "storage", "tools")
"""The classes of a cost."""

PRICED = {**{f"{part}_usd": part for part in PARTS}, "cost_usd": "total"}
PRICED |= {"low_usd": "low", "high_usd": "high", "without_cache_usd": "without_cache", "saved_usd": "saved"}
"""Fields of a `ReportRow` that are dollars, and the field of a `Cost` that each adds up."""

_BOUNDS = ("low_usd", "high_usd")

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class VersusSum:
    """What the same tokens would have cost on another backend: an estimate.

    `cost_usd` leaves out the attempts of which nothing can be said; `unpriced` counts them.
    """

    cost_usd: Decimal | None
    unpriced: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportRow:
    """One line: a request, or a group of them.

    Sums leave out what is unknown: `unpriced` says how many attempts have no known cost, `estimated` how many
    an estimated one.

    Attributes:
        group: What the line stands for.
        requests: Calls.
        attempts: What was sent for them.
        input_tokens: All prompt tokens; the next three are parts of it.
        cache_read_tokens: Read from a cache.
        cache_write_tokens: Written to one.
        fresh_tokens: Neither.
        output_tokens: Generated, reasoning included.
        reasoning_tokens: The part of them spent on reasoning.
        hit_rate: Share of the input that was read, of the attempts that say what they read.
        ttft_s: The mean of the attempts that have one.
        input_usd: For fresh tokens; this and the next five are parts of the cost.
        cache_read_usd: For reads.
        cache_write_usd: For writes.
        output_usd: For generated tokens.
        storage_usd: For keeping a cache.
        tools_usd: For server tools.
        cost_usd: The sum; an estimated cost counts with its upper bound.
        low_usd: The least it can have been, where some costs are estimated; exact ones count in full.
        high_usd: The most it can have been, likewise.
        without_cache_usd: The same tokens with no cache at all.
        saved_usd: The difference.
        unpriced: Attempts without a known cost.
        estimated: Attempts whose cost is estimated.
        versus: The same tokens elsewhere, by address.
    """

    group: dict[str, str | None]
    requests: int
    attempts: int
    input_tokens: int | None
    cache_read_tokens: int | None
    cache_write_tokens: int | None
    fresh_tokens: int | None
    output_tokens: int | None
    reasoning_tokens: int | None
    hit_rate: float | None
    ttft_s: float | None
    input_usd: Decimal | None
    cache_read_usd: Decimal | None
    cache_write_usd: Decimal | None
    output_usd: Decimal | None
    storage_usd: Decimal | None
    tools_usd: Decimal | None
    cost_usd: Decimal | None
    low_usd: Decimal | None
    high_usd: Decimal | None
    without_cache_usd: Decimal | None
    saved_usd: Decimal | None
    unpriced: int
    estimated: int
    versus: Mapping[str, VersusSum] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Report:
    """Lines and their total."""

    by: tuple[str, ...]
    rows: tuple[ReportRow, ...]
    total: ReportRow
    versus: tuple[str, ...] = ()


Figures = Mapping[str, Any]
"""What adds up: numbers by name, None where one is unknown. Money is in whole 1e-12 dollars, as stored;
PostgreSQL gives sums of whole numbers as Decimal."""


class Tally:
    """Figures added up. What is unknown is left out; what was never known is None."""

    __slots__ = ("sums",)

    def __init__(self, sums: Figures | None = None) -> None:
        self.sums: dict[str, Any] = {} if sums is None else dict(sums)

    def add(self, figures: Figures) -> None:
        """Add to the sums."""
        sums = self.sums
        for name, value in figures.items():
            if value is not None:
                before = sums.get(name)
                sums[name] = value if before is None else before + value

    def line(self, group: dict[str, str | None], requests: int, *, versus: Sequence[str] = ()) -> ReportRow:
        """The line that the sums make."""
        known = self.sums.get
        read, metered, timed = known("cache_read_tokens"), known("metered_tokens"), known("timed")
        is_estimated = bool(known("estimated"))
        counts: dict[str, Any] = {name: _whole(known(name)) for name in COUNTS}
        dollars: dict[str, Any] = {
            name: to_dollars(known(name)) if is_estimated or name not in _BOUNDS else None for name in PRICED
        }
        return ReportRow(
            group=group,
            requests=requests,
            attempts=known("attempts") or 0,
            **counts,
            **dollars,
            hit_rate=int(read) / int(metered) if read is not None and metered else None,
            ttft_s=known("ttft_s", 0.0) / timed if timed else None,
            unpriced=known("unpriced") or 0,
            estimated=known("estimated") or 0,
            versus={
                address: VersusSum(
                    to_dollars(known(f"versus_usd:{address}")), known(f"versus_unpriced:{address}", 0)
                )
                for address in versus
            },
        )


def _whole(count: int | Decimal | None) -> int | None:
    return None if count is None else int(count)


def in_words(name: str, value: Any) -> str | None:
    """What a group stands for, in words: `value` is as it lies in the ledger."""
    if value is None:
        return None
    if name == "day":
        return (_EPOCH + timedelta(days=int(value))).date().isoformat()
    if name == "at":
        moment = _EPOCH + timedelta(microseconds=int(value))
        return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
    if name == "tag":
        return ", ".join(f"{label}={text}" for label, text in json.loads(value).items())
    return str(value)


def in_order(rows: Iterable[ReportRow]) -> tuple[ReportRow, ...]:
    """Groups by what they stand for, those that stand for nothing first; the same on every database."""
    return tuple(
        sorted(rows, key=lambda row: [(word is not None, word or "") for word in row.group.values()])
    )
