"""What requests cost: prices, the ledger, reports.

What loads a library (SQLAlchemy, pydantic, genai-prices) is loaded when first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kvsdk.cost.pricing import Rates, price, total_cost
from kvsdk.cost.rating import rate
from kvsdk.cost.row import LedgerRow

if TYPE_CHECKING:
    from kvsdk.cost.ledger import Ledger
    from kvsdk.cost.rates import NoPrice, PriceBook
    from kvsdk.cost.reports import Report, report
    from kvsdk.cost.rules import PriceRule

__all__ = [
    "Ledger",
    "LedgerRow",
    "NoPrice",
    "PriceBook",
    "PriceRule",
    "Rates",
    "Report",
    "price",
    "rate",
    "report",
    "total_cost",
]

_LAZY = {
    "Ledger": "kvsdk.cost.ledger",
    "NoPrice": "kvsdk.cost.rates",
    "PriceBook": "kvsdk.cost.rates",
    "PriceRule": "kvsdk.cost.rules",
    "Report": "kvsdk.cost.reports",
    "report": "kvsdk.cost.reports",
}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_LAZY[name]), name)
