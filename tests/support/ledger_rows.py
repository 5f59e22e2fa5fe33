"""Rows for tests of the ledger."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

from kvsdk import Cost, Usage
from kvsdk.backend import Bill, BillLine, EngineTime, Tariff
from kvsdk.cost import LedgerRow
from kvsdk.cost.ledger.row import PrefixMark

AT = datetime(2026, 11, 30, 12, 0, 0, 123456, tzinfo=UTC)


def row(number: int = 1, **changes: Any) -> LedgerRow:
    """A row of its own, with little in it."""
    fields: dict[str, Any] = {
        "id": f"row_{number}",
        "operation_id": f"op_{number}",
        "attempt": 1,
        "at": AT + timedelta(seconds=number),
        "state": "ok",
        "backend": "anthropic",
        "model": "m",
    }
    return LedgerRow(**(fields | changes))


USAGE = Usage(
    input_tokens=100,
    cache_read_tokens=60,
    cache_write_tokens=30,
    fresh_tokens=10,
    output_tokens=5,
    reasoning_tokens=2,
    cache_write_by_ttl={"5m": 10, "1h": 20},
    estimated=frozenset({"output_tokens", "input_tokens"}),
)

#: Everything that the first version had.
FULL_V1 = row(
    session="user-42",
    tenant="acme",
    reply_id="msg_1",
    request_id="req_1",
    error="RateLimited",
    stop_reason="end_turn",
    usage=USAGE,
    cost=Cost(
        input=Decimal("0.000001"),
        cache_read=Decimal("0.000000000001"),
        cache_write=Decimal(0),
        output=Decimal("12345.678901234567"),
        storage=Decimal(0),
        total=Decimal("1.5"),
        without_cache=Decimal(2),
        saved=Decimal("-0.5"),
        price_source="a list",
        estimated=True,
        low=Decimal(1),
        high=Decimal("1.5"),
        reason="a reason",
    ),
    ttft_s=0.25,
    total_s=1.5,
    metadata={"team": "blue", "ü": "é"},
)

TARIFF = Tariff(
    model="m",
    provider="anthropic",
    terms={"service_tier": "flex"},
    default_ttl="30m",
    asked_ttls=("1h", "5m"),
)

BILLS = (
    Bill(lines=(BillLine(usage=USAGE, tariff=TARIFF, calls={"web_search": 2}),)),
    Bill(
        lines=(
            BillLine(usage=Usage(input_tokens=7, estimated=frozenset({"input_tokens"})), tariff=TARIFF),
            BillLine(usage=Usage.of_parts(fresh=1, read=2, write=3, output=4), tariff=Tariff(model="ü")),
        ),
        charged_usd=Decimal("0.0100"),
        charged_by="openrouter usage.cost",
    ),
    Bill(
        engine=EngineTime(
            prefill_s=0.1,
            decode_s=0.25,
            queue_s=0.0,
            cached_tokens=0,
            prefill_s_per_token=1e-05,
            usd_per_hour=Decimal("2.50"),
        )
    ),
    Bill(unpriced="a server of one's own has no list price"),
)
PREFIX = (PrefixMark(60, "00ff", "1h"), PrefixMark(90, "11aa", None), PrefixMark(100, "22bb", ""))
