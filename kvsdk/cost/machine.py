"""The cost of a request on a machine of one's own, by the time the engine was busy with it."""

from __future__ import annotations

from decimal import ROUND_HALF_UP, Decimal

from kvsdk.reply import Cost
from kvsdk.usage import Usage

_PICO = Decimal("1e-12")


def machine_cost(
    usage: Usage,
    *,
    usd_per_hour: Decimal | None,
    prefill_s: float | None,
    decode_s: float | None,
    prefill_s_per_token: float | None = None,
) -> Cost:
    """What a request cost on an engine that costs `usd_per_hour`.

    The engine divides each of its steps among the requests that run in it; a request's share of the steps
    up to its first token is its prefill, the rest its decode. So the costs of all requests sum to the time
    the engine was busy. Rounded to 1e-12 dollars.

    Args:
        usage: The counts.
        usd_per_hour: What the machine costs, or None: then there is no cost, and a reason.
        prefill_s: Seconds of the engine up to the first token.
        decode_s: Seconds of the engine after it.
        prefill_s_per_token: Seconds that this engine takes to compute one prompt token, as measured so far.
            With it, `without_cache` and `saved` are given: what computing the cached tokens would have cost.
    """
    if usd_per_hour is None:
        return Cost(reason="no usd_per_hour was given for this engine")
    if prefill_s is None or decode_s is None:
        return Cost(reason="the engine did not report the time it took")
    prefill, decode = _dollars(prefill_s, usd_per_hour), _dollars(decode_s, usd_per_hour)
    total = prefill + decode
    saved = None
    if prefill_s_per_token is not None and usage.cache_read_tokens is not None:
        saved = _dollars(prefill_s_per_token * usage.cache_read_tokens, usd_per_hour)
    zero = Decimal(0)
    return Cost(
        input=prefill,
        cache_read=zero,
        cache_write=zero,
        output=decode,
        storage=zero,
        total=total,
        without_cache=None if saved is None else total + saved,
        saved=saved,
        price_source=f"usd_per_hour={usd_per_hour}",
        reason=None if saved is None else "saved: cached tokens at this engine's measured prefill rate",
    )


def _dollars(seconds: float, usd_per_hour: Decimal) -> Decimal:
    return (Decimal(repr(seconds)) * usd_per_hour / 3600).quantize(_PICO, ROUND_HALF_UP)
