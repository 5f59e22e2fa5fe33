"""From token counts and rates to dollars. Exact where all counts are known, an interval where not."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal

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
        source: Where the prices are from.
    """

    fresh: Decimal
    read: Decimal
    write: Mapping[str, Decimal]
    output: Decimal
    default_ttl: str
    source: str


def price(usage: Usage, rates: Rates, *, asked_ttls: Collection[str] = ()) -> Cost:
    """What a usage costs at these rates.

    Args:
        usage: The counts.
        rates: The model's prices for a prompt of this size.
        asked_ttls: The TTLs of the request's marks. Where the split of the writes by TTL is absent, they are
            taken as the default TTL's, or as the longest of these if that is longer (an upper bound).

    Returns:
        Exact parts when every count that matters is known. Otherwise `total` is the upper bound,
        `estimated` is true, `low` and `high` enclose the cost, and `reason` says what was not reported.
    """
    if usage.input_tokens is None or usage.output_tokens is None:
        missing = "input" if usage.input_tokens is None else "output"
        return Cost(price_source=rates.source, reason=f"the count of {missing} tokens was not reported")
    unpriced = [ttl for ttl in usage.cache_write_by_ttl or () if rates.write and ttl not in rates.write]
    if unpriced:
        return Cost(price_source=rates.source, reason=f"no price is known for writes kept {unpriced[0]}")
    output = usage.output_tokens * rates.output / _MTOK
    without_cache = usage.input_tokens * rates.fresh / _MTOK + output
    if not usage.is_consistent:
        return _bounds(usage, rates, output, without_cache, "more tokens cached than sent were reported")
    writes = _price_writes(usage, rates, asked_ttls)
    if usage.fresh_tokens is None or usage.cache_read_tokens is None or writes is None:
        return _bounds(usage, rates, output, without_cache, "the use of the cache was not reported")
    low, high, reason = writes
    if usage.estimated:
        reason = f"estimated: {', '.join(sorted(usage.estimated))}"
    fresh = usage.fresh_tokens * rates.fresh / _MTOK
    read = usage.cache_read_tokens * rates.read / _MTOK
    total = fresh + read + high + output
    return Cost(
        input=fresh,
        cache_read=read,
        cache_write=high,
        output=output,
        storage=Decimal(0),
        total=total,
        without_cache=without_cache,
        saved=without_cache - total,
        price_source=rates.source,
        estimated=reason is not None,
        low=fresh + read + low + output if reason else None,
        high=total if reason else None,
        reason=reason,
    )


_SUMMED = ("input", "cache_read", "cache_write", "output", "storage", "total", "without_cache", "saved")


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
    rest = count - sum(split.values())  # a stream's split may be older than its count
    total = rest * rates.write.get(rates.default_ttl, rates.fresh)
    total += sum((tokens * rates.write.get(ttl, rates.fresh) for ttl, tokens in split.items()), Decimal(0))
    return total / _MTOK, total / _MTOK, None


def _bounds(usage: Usage, rates: Rates, output: Decimal, without_cache: Decimal, reason: str) -> Cost:
    """The interval over every split of the input that the reported counts allow."""
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
    low = (read + write + unknown * min(candidates)) / _MTOK + output
    high = (read + write + unknown * max(candidates)) / _MTOK + output
    is_exact = low == high and not usage.estimated
    return Cost(
        output=output,
        total=high,
        without_cache=without_cache,
        saved=without_cache - high,
        price_source=rates.source,
        estimated=not is_exact,
        low=None if is_exact else low,
        high=None if is_exact else high,
        reason=None if is_exact else reason,
    )
