"""What requests cost: prices, the ledger, reports, budgets, and the bill of an engine of one's own.

What loads a library (SQLAlchemy, pydantic, genai-prices) is loaded when first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from kvsdk.cost.ledger.row import LedgerRow, PrefixMark
from kvsdk.cost.prices.pricing import Rates, price, total_cost
from kvsdk.cost.prices.rating import rate

if TYPE_CHECKING:
    from kvsdk.cost.engine.allocation import Allocation, allocate
    from kvsdk.cost.engine.price import EngineBill
    from kvsdk.cost.engine.use import EngineUse, engine_uses
    from kvsdk.cost.exports.reconcile import Reconciliation, reconcile
    from kvsdk.cost.ledger.ledger import Ledger
    from kvsdk.cost.ledger.rerate import Rerating, rerate
    from kvsdk.cost.prices.book import NoPrice, PriceBook
    from kvsdk.cost.prices.rules import PriceRule
    from kvsdk.cost.reports.elsewhere import Elsewhere
    from kvsdk.cost.reports.page import report_page
    from kvsdk.cost.reports.report import report, request_lines
    from kvsdk.cost.reports.rows import Report, ReportRow

__all__ = [
    # prices
    "NoPrice",
    "PriceBook",
    "PriceRule",
    "Rates",
    "price",
    "rate",
    "total_cost",
    # the ledger
    "Ledger",
    "LedgerRow",
    "PrefixMark",
    "Rerating",
    "rerate",
    # reports
    "Elsewhere",
    "Report",
    "ReportRow",
    "report",
    "report_page",
    "request_lines",
    # exports
    "Reconciliation",
    "reconcile",
    # an engine of one's own
    "Allocation",
    "EngineBill",
    "EngineUse",
    "allocate",
    "engine_uses",
]

_ROOMS = {
    "engine.allocation": ("Allocation", "allocate"),
    "engine.price": ("EngineBill",),
    "engine.use": ("EngineUse", "engine_uses"),
    "exports.reconcile": ("Reconciliation", "reconcile"),
    "ledger.ledger": ("Ledger",),
    "ledger.rerate": ("Rerating", "rerate"),
    "prices.book": ("NoPrice", "PriceBook"),
    "prices.rules": ("PriceRule",),
    "reports.elsewhere": ("Elsewhere",),
    "reports.page": ("report_page",),
    "reports.report": ("report", "request_lines"),
    "reports.rows": ("Report", "ReportRow"),
}
_LAZY = {name: f"kvsdk.cost.{module}" for module, names in _ROOMS.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_LAZY[name]), name)
