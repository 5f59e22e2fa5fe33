"""From token counts and rates to dollars. Exact where all counts are known, an interval where not."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import NamedTuple

from kvsdk.reply import Cost
from kvsdk.usage import Usage

_MTOK = Decimal(1_000_000)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """Prices of one model for one request, in US dollars per million tokens.

    Attributes:
        fresh: Input that is neither read nor written.
        read: Input read from the cache; equal to `fresh` where the vendor has no cached price.
        write: Input written to the cache, by TTL; a TTL that is not in it has no known price.
        output: Generated tokens.
        default_ttl: The TTL of a write whose TTL was not reported.
        source: Where the prices are from, with version or date.
        calls: Server tools, in dollars per call.
        storage_per_hour: Keeping a million tokens in a cache for an hour, where that is sold.
        estimated: Why these prices may not be what is billed; None where they are.
    """

    fresh: Decimal
    read: Decimal
    write: Mapping[str, Decimal]
    output: Decimal
    default_ttl: str
    source: str
    calls: Mapping[str, Decimal] = field(default_factory=dict)
    storage_per_hour: Decimal | None = None
    estimated: str | None = None


def price(
    usage: Usage,
    rates: Rates,
    *,
    asked_ttls: Collection[str] = (),
    calls: Mapping[str, int] | None = None,
    stored_token_hours: Decimal = Decimal(0),
) -> Cost:
    """What a usage costs at these rates.

    Args:
        usage: The counts.
        rates: The model's prices for a prompt of this size.
        asked_ttls: The TTLs of the request's marks. Where the split of the writes by TTL is absent, they are
            taken as the default TTL's, or as the longest of these if that is longer (an upper bound).
        calls: Server tools that were called, and how often.
        stored_token_hours: Tokens kept in a cache times hours, where a vendor sells that.

    Returns:
        Exact parts when every count that matters is known. Otherwise `total` is the upper bound,
        `estimated` is true, `low` and `high` enclose the cost, and `reason` says what was not reported.
    """
    why_not = _unpriced(usage, rates, calls or {}, stored_token_hours)
    if why_not is not None:
        return Cost(price_source=rates.source, reason=why_not)
    assert usage.input_tokens is not None
    assert usage.output_tokens is not None
    output = usage.output_tokens * rates.output / _MTOK
    tools = sum((count * rates.calls[name] for name, count in (calls or {}).items() if count), Decimal(0))
    storage = stored_token_hours * (rates.storage_per_hour or 0) / _MTOK
    without_cache = usage.input_tokens * rates.fresh / _MTOK + output + tools
    fixed = _Fixed(output, storage, tools, without_cache)
    if not usage.is_consistent:
        return _bounds(usage, rates, fixed, "more tokens cached than sent were reported")
    writes = _price_writes(usage, rates, asked_ttls)
    if usage.fresh_tokens is None or usage.cache_read_tokens is None or writes is None:
        return _bounds(usage, rates, fixed, "the use of the cache was not reported")
    low, high, reason = writes
    if usage.estimated:
        reason = f"estimated: {', '.join(sorted(usage.estimated))}"
    reason = reason or rates.estimated
    fresh = usage.fresh_tokens * rates.fresh / _MTOK
    read = usage.cache_read_tokens * rates.read / _MTOK
    total = fresh + read + high + output + tools + storage
    return Cost(
        input=fresh,
        cache_read=read,
        cache_write=high,
        output=output,
        storage=storage,
        tools=tools,
        total=total,
        without_cache=without_cache,
        saved=without_cache - total,
        price_source=rates.source,
        estimated=reason is not None,
        low=total - high + low if reason else None,
        high=total if reason else None,
        reason=reason,
    )


_SUMMED = (
    "input",
    "cache_read",
    "cache_write",
    "output",
    "storage",
    "tools",
    "total",
    "without_cache",
    "saved",
)


def total_cost(costs: Sequence[Cost]) -> Cost:
    """Several costs of one request together; what is unknown in one is unknown in the sum."""
    sums = {name: _sum([getattr(cost, name) for cost in costs]) for name in _SUMMED}
    estimated = any(cost.estimated for cost in costs)
    ends: dict[str, Decimal | None] = {}
    if estimated:
        for name in ("low", "high"):
            ends[name] = _sum([getattr(cost, name if cost.estimated else "total") for cost in costs])
    reasons = [cost.reason for cost in costs if cost.reason]
    return Cost(
        **sums,
        **ends,
        price_source="; ".join(dict.fromkeys(cost.price_source or "unknown" for cost in costs)),
        estimated=estimated,
        reason="; ".join(dict.fromkeys(reasons)) or None,
    )


def _sum(values: Sequence[Decimal | None]) -> Decimal | None:
    known = [value for value in values if value is not None]
    return sum(known, Decimal(0)) if len(known) == len(values) else None


def _unpriced(
    usage: Usage, rates: Rates, calls: Mapping[str, int], stored_token_hours: Decimal
) -> str | None:
    """Why nothing can be said of the cost, or None."""
    for name, count in (("input", usage.input_tokens), ("output", usage.output_tokens)):
        if count is None:
            return f"the count of {name} tokens was not reported"
    for ttl in usage.cache_write_by_ttl or ():
        if rates.write and ttl not in rates.write:
            return f"no price is known for writes kept {ttl}"
    for name, count in calls.items():
        if count and name not in rates.calls:
            return f"no price is known for a {name.replace('_', ' ')}"
    if stored_token_hours and rates.storage_per_hour is None:
        return "no price is known for keeping a cache"
    return None


def _price_writes(
    usage: Usage, rates: Rates, asked_ttls: Collection[str]
) -> tuple[Decimal, Decimal, str | None] | None:
    """Least and most that the writes cost and what is not known of them; None when their count is unknown."""
    count = usage.cache_write_tokens
    if count is None:
        return None
    split = usage.cache_write_by_ttl
    if split is None:
        longest = {rates.write.get(ttl, rates.fresh) for ttl in asked_ttls}
        usual = rates.write.get(rates.default_ttl, rates.fresh)
        most = max({usual, *longest})
        reason = "the TTL of the writes was not reported" if most != usual and count else None
        return count * usual / _MTOK, count * most / _MTOK, reason
    priced = sum((tokens * rates.write.get(ttl, rates.fresh) for ttl, tokens in split.items()), Decimal(0))
    rest = count - sum(split.values())  # a stream's split may be older than its count
    if rest < 0:
        least = count * min(rates.write.get(ttl, rates.fresh) for ttl in split)
        return least / _MTOK, priced / _MTOK, "more writes by TTL than writes were reported"
    total = priced + rest * rates.write.get(rates.default_ttl, rates.fresh)
    return total / _MTOK, total / _MTOK, None


class _Fixed(NamedTuple):
    """What does not depend on how the cache was used."""

    output: Decimal
    storage: Decimal
    tools: Decimal
    without_cache: Decimal


def _bounds(usage: Usage, rates: Rates, fixed: _Fixed, reason: str) -> Cost:
    """The interval over every split of the input that the reported counts allow; `fixed` has the rest."""
    assert usage.input_tokens is not None
    candidates = {rates.fresh}
    read = write = Decimal(0)
    known = 0
    if usage.is_consistent and usage.cache_read_tokens is not None:
        known += usage.cache_read_tokens
        read = usage.cache_read_tokens * rates.read
    else:
        candidates.add(rates.read)
    if usage.is_consistent and usage.cache_write_tokens is not None:
        known += usage.cache_write_tokens
        write = usage.cache_write_tokens * max(rates.write.values(), default=rates.fresh)
    else:
        candidates.update(rates.write.values())
    unknown = usage.input_tokens - known
    beside = fixed.output + fixed.storage + fixed.tools
    low = (read + write + unknown * min(candidates)) / _MTOK + beside
    high = (read + write + unknown * max(candidates)) / _MTOK + beside
    is_exact = low == high and not usage.estimated
    return Cost(
        output=fixed.output,
        storage=fixed.storage,
        tools=fixed.tools,
        total=high,
        without_cache=fixed.without_cache,
        saved=fixed.without_cache - high,
        price_source=rates.source,
        estimated=not is_exact,
        low=None if is_exact else low,
        high=None if is_exact else high,
        reason=None if is_exact else reason,
    )
