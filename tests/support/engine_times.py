"""Uses of an engine at chosen times, and a bill to divide among them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from kvsdk import Usage
from kvsdk.backend import EngineTime
from kvsdk.cost.engine.allocation import Allocation, EngineBill, EngineUse, SkippedUse, allocate

AT = datetime(2026, 11, 30, tzinfo=UTC)
A_TENTH_OF_A_CENT_A_SECOND = EngineBill(usd_per_hour="3.6")


def after(seconds: float) -> datetime:
    return AT + timedelta(seconds=seconds)


def measured(start: float = 0, total_s: float | None = 10, **changes: Any) -> EngineUse:
    engine = EngineTime(prefill_s=changes.pop("prefill_s", 1.0), decode_s=changes.pop("decode_s", 2.0))
    own = {name: changes.pop(name) for name in ("load_s", "store_s", "queue_s") if name in changes}
    return EngineUse(
        **{"id": "m", "at": after(start), "total_s": total_s, "engine": replace(engine, **own), **changes}
    )


def by_tokens(
    start: float, total_s: float, fresh: int | None, output: int | None, **changes: Any
) -> EngineUse:
    usage = Usage(input_tokens=fresh, output_tokens=output)
    return EngineUse(**{"id": "t", "at": after(start), "total_s": total_s, "usage": usage, **changes})


def divide(
    uses: Sequence[EngineUse | SkippedUse],
    end: float,
    start: float = 0,
    bill: EngineBill = A_TENTH_OF_A_CENT_A_SECOND,
) -> Allocation:
    found = allocate(uses, bill, start=after(start), end=after(end))
    assert sum((share.total_usd for share in found.shares), found.idle_usd) == found.total_usd
    return found
