"""The cost of a request on a machine of one's own, by the time the engine was busy with it."""

from __future__ import annotations

from decimal import ROUND_DOWN, Decimal

from kvsdk.backend import EngineTime
from kvsdk.reply import Cost

_PICO = Decimal("1e-12")


def machine_cost(engine: EngineTime) -> Cost:
    """What a request cost on an engine of one's own: its seconds of the engine at `usd_per_hour`.

    Loading KV is the cost of a cache read, storing KV that of a write, computing the prompt that of input.
    Each is rounded down to 1e-12 dollars, so that all requests together never cost more than the machine.
    Without `usd_per_hour` there is no cost, and a reason.

    With `prefill_s_per_token`, `without_cache` and `saved` are given: what computing the cached tokens would
    have cost at the rate measured so far, less what loading and storing them did cost.
    """
    rate = engine.usd_per_hour
    if rate is None:
        return Cost(reason="no usd_per_hour was given for this engine")
    prefill, decode = _dollars(engine.prefill_s, rate), _dollars(engine.decode_s, rate)
    load, store = _dollars(engine.load_s, rate), _dollars(engine.store_s, rate)
    total = prefill + decode + load + store
    without_cache = None
    if engine.prefill_s_per_token is not None and engine.cached_tokens is not None:
        without_cache = prefill + decode + _dollars(engine.prefill_s_per_token * engine.cached_tokens, rate)
    return Cost(
        input=prefill,
        cache_read=load,
        cache_write=store,
        output=decode,
        storage=Decimal(0),
        tools=Decimal(0),
        total=total,
        without_cache=without_cache,
        saved=None if without_cache is None else without_cache - total,
        price_source=f"usd_per_hour={rate}",
        reason=None
        if without_cache is None
        else "saved: cached tokens at this engine's measured prefill rate",
    )


def _dollars(seconds: float, usd_per_hour: Decimal) -> Decimal:
    return (Decimal(repr(seconds)) * usd_per_hour / 3600).quantize(_PICO, ROUND_DOWN)
