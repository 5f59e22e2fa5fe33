"""What requests cost: prices, the ledger, reports. The ledger and reports load SQLAlchemy when first used."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kvsdk.cost.machine import machine_cost
from kvsdk.cost.pricing import Rates, price, total_cost
from kvsdk.cost.rates import list_price
from kvsdk.cost.row import LedgerRow

if TYPE_CHECKING:
    from kvsdk.cost.ledger import Ledger
    from kvsdk.cost.reports import Report, report

__all__ = [
    "Ledger",
    "LedgerRow",
    "Rates",
    "Report",
    "list_price",
    "machine_cost",
    "price",
    "report",
    "total_cost",
]

_LAZY = {"Ledger": "kvsdk.cost.ledger", "Report": "kvsdk.cost.reports", "report": "kvsdk.cost.reports"}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_LAZY[name]), name)
