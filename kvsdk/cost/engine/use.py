"""What a request had of an engine of one's own, and where in time: what `allocation` divides the bill by."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from fractions import Fraction
from typing import TYPE_CHECKING, Literal, NamedTuple

from kvsdk.backend import EngineTime
from kvsdk.cost.ledger.row import LedgerRow
from kvsdk.errors import InvalidRequest
from kvsdk.usage import Usage

if TYPE_CHECKING:
    from kvsdk.cost.ledger.ledger import Ledger

Kind = Literal["queue", "load", "prefill", "decode", "store"]
TICKS_PER_S = 10**12
"""Times are whole picoseconds since 1970, so that adding and comparing them is exact."""

_SECONDS = ("queue_s", "load_s", "prefill_s", "decode_s", "store_s")
_LONGEST_S = 1e9


class Phase(NamedTuple):
    """A part of a request: from when to when, in ticks, and how much of it there is.

    `amount` is seconds of the engine where they were measured, otherwise tokens. It is spread evenly.
    """

    kind: Kind
    start: int
    end: int
    amount: Fraction

    def part_in(self, start: int, end: int) -> Fraction:
        """How much of it lies in a period: 0 to 1. One without length is wholly where it starts."""
        if self.start == self.end:
            return Fraction(start <= self.start < end)
        inside = min(self.end, end) - max(self.start, start)
        return Fraction(max(inside, 0), self.end - self.start)


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineUse:
    """One attempt that used the engine.

    Attributes:
        id: Of the attempt.
        at: When it was sent; with a time zone.
        total_s: Seconds to its end. None: as long as it waited and was computed.
        ttft_s: Seconds to its first token, None where that is not known.
        engine: What the engine measured of it; None where its share goes by tokens.
        usage: Its tokens.
        operation_id: The call; its attempts share it.
        backend: The scheme.
        model: The model.
        session: The session's name.
        tenant: The tenant.

    Raises:
        InvalidRequest: A time is negative or no number, or the end is not known.
    """

    id: str
    at: datetime
    total_s: float | None
    ttft_s: float | None = None
    engine: EngineTime | None = None
    usage: Usage = field(default_factory=Usage)
    operation_id: str = ""
    backend: str = "vllm"
    model: str = ""
    session: str | None = None
    tenant: str | None = None

    def __post_init__(self) -> None:
        ticks(self.at, "at")
        if self.total_s is not None and self.total_s < 0:
            raise InvalidRequest(f"it ends {-self.total_s} s before it starts", field="total_s")
        seconds = {"total_s": self.total_s, "ttft_s": self.ttft_s}
        if self.engine is not None:
            seconds |= {name: getattr(self.engine, name) for name in _SECONDS}
        elif self.total_s is None:
            raise InvalidRequest("it is not known when it ended", field="total_s")
        for name, value in seconds.items():
            if value is not None and not 0 <= value <= _LONGEST_S:
                raise InvalidRequest(f"{name} is {value}, which is no time", field=name)

    @property
    def start(self) -> int:
        """When it was sent, in ticks."""
        return ticks(self.at, "at")

    @property
    def end(self) -> int:
        """When it ended, in ticks."""
        if self.total_s is not None:
            return self.start + _to_ticks(self.total_s)
        assert self.engine is not None
        return self.start + _to_ticks(max((self.engine.queue_s or 0) + self.engine.busy_s, self.ttft_s or 0))

    def is_in(self, start: int, end: int) -> bool:
        """Whether any of it lies in a period; one without length lies where it starts."""
        return self.start < end and (self.end > start or self.start >= start)

    def phases(self) -> tuple[Phase, ...]:
        """Its parts that have something in them; see `kvsdk.cost.engine.allocation` for where they lie."""
        return tuple(_measured(self) if self.engine is not None else _by_tokens(self))


@dataclass(frozen=True, slots=True)
class SkippedUse:
    """An attempt of which nothing can be said, and why."""

    id: str
    reason: str


def ticks(moment: datetime, name: str) -> int:
    """A time in ticks, exactly.

    Raises:
        InvalidRequest: It has no time zone.
    """
    if moment.tzinfo is None:
        raise InvalidRequest(f"{name} is {moment} without a time zone; write datetime(..., UTC)", field=name)
    return (moment - _EPOCH) // timedelta(microseconds=1) * 1_000_000


_EPOCH = datetime.fromisoformat("1970-01-01T00:00:00Z")


def span(uses: Iterable[EngineUse | SkippedUse]) -> tuple[datetime, datetime] | None:
    """When the first of them was sent and when the last of them to end had ended; None without any."""
    counted = [use for use in uses if isinstance(use, EngineUse)]
    if not counted:
        return None
    end_us = -(-max(use.end for use in counted) // 1_000_000)
    return min(use.at for use in counted), _EPOCH + timedelta(microseconds=end_us)


def _to_ticks(seconds: float) -> int:
    return round(seconds * TICKS_PER_S)


# ---------------------------------------------------------------------- where the phases lie


def _measured(use: EngineUse) -> Iterator[Phase]:
    engine, start, end = use.engine, use.start, use.end
    assert engine is not None
    queued = min(start + _to_ticks(engine.queue_s or 0), end)
    loaded = min(queued + _to_ticks(engine.load_s), end)
    storing = max(loaded, end - _to_ticks(engine.store_s))
    if use.ttft_s is not None:
        first = start + _to_ticks(use.ttft_s)
    else:  # the room is shared in proportion
        both_s = engine.prefill_s + engine.decode_s
        first = loaded + round((storing - loaded) * (engine.prefill_s / both_s if both_s else 0))
    first = min(max(first, loaded), storing)
    edges: dict[Kind, tuple[int, int]] = {
        "queue": (start, queued),
        "load": (queued, loaded),
        "prefill": (loaded, first),
        "decode": (first, storing),
        "store": (storing, end),
    }
    for kind, (begins, ends) in edges.items():
        seconds = getattr(engine, f"{kind}_s")
        if seconds:
            has_room = begins < ends
            amount = Fraction(repr(seconds))  # as it is written, like `machine_cost`
            yield Phase(kind, begins if has_room else start, ends if has_room else end, amount)


def _by_tokens(use: EngineUse) -> Iterator[Phase]:
    usage, start, end = use.usage, use.start, use.end
    fresh = (usage.input_tokens or 0) - (usage.cache_read_tokens or 0)
    first = None if use.ttft_s is None else min(start + _to_ticks(use.ttft_s), end)
    edges: dict[Kind, tuple[int, int, int]] = {
        "prefill": (start, end if first is None else first, fresh),
        "decode": (start if first is None else first, end, usage.output_tokens or 0),
    }
    for kind, (begins, ends, tokens) in edges.items():
        if begins < ends:
            yield Phase(kind, begins, ends, Fraction(max(tokens, 1)))


# ---------------------------------------------------------------------- from the ledger


def engine_uses(
    ledger: Ledger,
    *,
    backends: Sequence[str] = ("vllm",),
    since: datetime | None = None,
    until: datetime | None = None,
) -> Iterator[EngineUse | SkippedUse]:
    """What the ledger's rows used of the engine in a period, as they are read.

    A row that began before `since` is there when it reaches into the period. A row whose times are none
    (a clock went back), or of which neither seconds nor tokens are known (no answer came), is a
    `SkippedUse`; whatever the engine did for it is idle time to the books.

    Args:
        ledger: Where the rows are.
        backends: The schemes of the engine, such as `vllm` or `vllm+http`.
        since: The period's start; the first row without one.
        until: Its end; the last row's without one.
    """
    for backend in backends:
        first = since if since is None else _earliest(ledger, backend, since)
        for row in ledger.rows(since=first, until=until, backend=backend):
            use = _use(row)
            if since is None or (row.at >= since if isinstance(use, SkippedUse) else _reaches(use, since)):
                yield use


def _reaches(use: EngineUse, since: datetime) -> bool:
    return use.at >= since or use.end > ticks(since, "since")


def _earliest(ledger: Ledger, backend: str, since: datetime) -> datetime:
    """When the first of the rows was sent that reach into the time after `since`."""
    import sqlalchemy as sa

    from kvsdk.cost.ledger.schema import rows

    since_us = ticks(since, "since") // 1_000_000
    reaches = rows.c.at_us + rows.c.total_s * 1e6 >= since_us - 1
    query = sa.select(sa.func.min(rows.c.at_us).label("at_us")).where(
        rows.c.backend == backend, rows.c.at_us < since_us, reaches
    )
    (found,) = ledger.select(query)
    return since if found["at_us"] is None else _EPOCH + timedelta(microseconds=int(found["at_us"]))


def _use(row: LedgerRow) -> EngineUse | SkippedUse:
    engine = row.bill.engine if row.bill is not None else None
    if engine is None and row.usage.input_tokens is None and row.usage.output_tokens is None:
        return SkippedUse(row.id, "no answer: neither its seconds nor its tokens are known")
    try:
        return EngineUse(
            id=row.id,
            at=row.at,
            total_s=row.total_s,
            ttft_s=row.ttft_s,
            engine=engine,
            usage=row.usage,
            operation_id=row.operation_id,
            backend=row.backend,
            model=row.model,
            session=row.session,
            tenant=row.tenant,
        )
    except InvalidRequest as error:
        return SkippedUse(row.id, str(error))
