"""Rows for tests of reports."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

from kvsdk import Cost, Usage
from kvsdk.cost import LedgerRow

AT = datetime(2026, 11, 30, 23, 59, 59, tzinfo=UTC)


def row(id: str, dollars: str | None, **changes: Any) -> LedgerRow:
    """A row of a call of its own that cost so much, of 2 dollars without a cache."""
    cost = (
        Cost()
        if dollars is None
        else Cost(total=Decimal(dollars), without_cache=Decimal(2), saved=2 - Decimal(dollars))
    )
    fields: dict[str, Any] = {
        "id": id,
        "operation_id": id,
        "attempt": 1,
        "at": AT,
        "state": "ok",
        "backend": "anthropic",
        "model": "m",
        "cost": cost,
        "usage": Usage.of_parts(fresh=10, read=60, write=30, output=5),
    }
    return LedgerRow(**(fields | changes))
