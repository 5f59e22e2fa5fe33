"""From a bill to dollars."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from decimal import Decimal
from typing import TYPE_CHECKING

from kvsdk.backend import Bill, BillLine
from kvsdk.cost.prices.machine import machine_cost
from kvsdk.cost.prices.pricing import price, total_cost
from kvsdk.reply import Cost

if TYPE_CHECKING:
    from kvsdk.cost.prices.book import PriceBook

_ROUNDING = Decimal("1e-6")
"""How far a charge may be from the list's total and still be the same: it arrives as a float."""


def rate(bill: Bill, *, at: datetime, prices: PriceBook | None = None) -> Cost:
    """What a bill costs at the prices of a day.

    Args:
        bill: What was counted, and on which tariff.
        at: When the request was sent; a price that has changed since is the old one.
        prices: Where prices are looked up; the list and the adapters' facts by default.

    Returns:
        The cost; without a known price it has no total, and a reason.
    """
    if bill.unpriced is not None:
        return Cost(reason=bill.unpriced)
    if bill.engine is not None:
        return machine_cost(bill.engine)
    costs = [_line(line, at, prices) for line in bill.lines]
    listed = costs[0] if len(costs) == 1 else total_cost(costs)
    return listed if bill.charged_usd is None else _corrected(listed, bill.charged_usd, bill.charged_by)


def _line(line: BillLine, at: datetime, prices: PriceBook | None) -> Cost:
    from kvsdk.cost.prices.book import NoPrice, PriceBook

    book = prices or PriceBook.default()
    usage, tariff = line.usage, line.tariff
    try:
        rates = book.rates(tariff, usage.input_tokens or 0, at)
    except NoPrice as error:
        return Cost(reason=str(error))
    return price(usage, rates, asked_ttls=tariff.asked_ttls, calls=line.calls)


def _corrected(listed: Cost, charged: Decimal, source: str | None) -> Cost:
    """A cost whose total is what was charged; the list's parts stay where they add up to that."""
    if listed.total is None or listed.without_cache is None or listed.estimated:
        return Cost(total=charged, price_source=source)
    if abs(listed.total - charged) > charged * _ROUNDING:
        return Cost(total=charged, price_source=source)
    return replace(listed, total=charged, saved=listed.without_cache - charged, price_source=source)
