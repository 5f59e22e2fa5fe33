"""List prices, from genai-prices."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from datetime import datetime
from decimal import Decimal
from functools import cache
from typing import TYPE_CHECKING

from kvsdk.cost.pricing import Rates, price
from kvsdk.reply import Cost
from kvsdk.usage import Usage

if TYPE_CHECKING:
    from genai_prices.types import ModelPrice


def list_price(
    usage: Usage,
    model: str,
    *,
    at: datetime,
    provider: str | None = None,
    api_url: str | None = None,
    context: Mapping[str, str] | None = None,
    default_ttl: str = "5m",
    asked_ttls: Collection[str] = (),
    write_factors: Mapping[str, Decimal] | None = None,
) -> Cost:
    """What a usage costs at the vendor's list price of a day.

    Args:
        usage: The counts.
        model: The model that answered.
        at: When; a price that has changed since is the old one.
        provider: The vendor as genai-prices calls it, such as `"anthropic"`.
        api_url: Or the address of its API, from which genai-prices knows the vendor.
        context: What else the price depends on, such as `{"service_tier": "flex"}`.
        default_ttl: The TTL of the vendor's plain write price.
        asked_ttls: The TTLs of the request's marks.
        write_factors: Write prices that genai-prices lacks, by TTL, as multiples of the input price.

    Returns:
        The cost; an unknown model has no total, and a reason.
    """
    try:
        rates = _rates(model, usage.input_tokens or 0, at, provider, api_url, context, default_ttl)
    except LookupError:
        where = provider or api_url or "any vendor"
        return Cost(reason=f"no list price is known for model {model!r} of {where}")
    extra = {ttl: rates.fresh * factor for ttl, factor in (write_factors or {}).items()}
    rates = replace(rates, write={**extra, **rates.write})
    cost = price(usage, rates, asked_ttls=asked_ttls)
    return cost if cost.price_source else replace(cost, price_source=rates.source)


def _rates(
    model: str,
    input_tokens: int,
    at: datetime,
    provider: str | None,
    api_url: str | None,
    context: Mapping[str, str] | None,
    default_ttl: str,
) -> Rates:
    """The rates for a prompt of this many tokens (a vendor's tier applies to the whole request)."""
    from genai_prices.data_snapshot import get_snapshot

    # Not `calc_price`: it also prices a usage, which is done here and would take twenty times as long.
    vendor, found = get_snapshot().find_provider_model(
        model, None, provider, api_url if provider is None else None
    )
    is_own = any(one is found for one in vendor.models)  # another vendor's variants do not apply
    prices = found.get_prices(at, context if is_own else None)
    fresh = _at(prices, "input_mtok", input_tokens) or Decimal(0)
    read = _at(prices, "cache_read_mtok", input_tokens)
    write = {}
    for ttl, key in ((default_ttl, "cache_write_mtok"), ("1h", "cache_write_1h_mtok")):
        rate = _at(prices, key, input_tokens)
        if rate is not None:
            write[ttl] = rate
    return Rates(
        fresh=fresh,
        read=fresh if read is None else read,
        write=write,
        output=_at(prices, "output_mtok", input_tokens) or Decimal(0),
        default_ttl=default_ttl,
        source=f"genai-prices {_version()}, {vendor.id}/{found.id}",
    )


@cache
def _version() -> str:
    from importlib.metadata import version

    return version("genai-prices")


def _at(prices: ModelPrice, key: str, input_tokens: int) -> Decimal | None:
    """One rate in the tier of a prompt of this size; a tier starts above its `start`."""
    value = getattr(prices, key, None)
    if value is None or isinstance(value, Decimal):
        return value
    rate: Decimal = value.base
    for tier in value.tiers:
        if input_tokens > tier.start:
            rate = tier.price
    return rate
