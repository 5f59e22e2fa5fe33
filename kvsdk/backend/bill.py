"""What a vendor bills for one answer, before any price is looked up.

An adapter says what was counted and on which tariff; `kvsdk.cost` makes dollars of it. The ledger keeps the
bill beside the cost, so that a correction of a price can be applied to old rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from decimal import Decimal

from kvsdk.usage import Usage


@dataclass(frozen=True, slots=True, kw_only=True)
class Tariff:
    """Which price applies.

    Attributes:
        model: The model that answered.
        provider: The vendor as genai-prices calls it, such as `"anthropic"`.
        api_url: Or the address of its API, from which the vendor is known.
        terms: What else the price depends on, as the **response** says it: `service_tier`, `processing`
            (`batch`), `speed`, `inference_geo`, `region`. A term that is as usual is left out.
        default_ttl: The TTL of a write whose TTL was not reported.
        asked_ttls: The TTLs of the request's marks.
    """

    model: str
    provider: str | None = None
    api_url: str | None = None
    terms: Mapping[str, str] = field(default_factory=dict)
    default_ttl: str = "5m"
    asked_ttls: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class BillLine:
    """Tokens on one tariff. Most answers have one line; a helper model's tokens have one of their own.

    Attributes:
        usage: The counts.
        tariff: Their price.
        calls: Server tools that are billed by the call, such as `{"web_search": 2}`.
    """

    usage: Usage
    tariff: Tariff
    calls: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineTime:
    """What an engine of one's own measured of one request, in seconds of the engine.

    Every step of the engine is divided among the requests in it by the tokens it computed for each, so that
    the seconds of all requests sum to the time that the engine was busy. Waiting costs nothing.

    Attributes:
        prefill_s: Computing the prompt.
        decode_s: Generating.
        load_s: Loading KV from a tier.
        store_s: Storing KV to a tier.
        queue_s: Waiting before the first step; not billed. None where it was not measured.
        cached_tokens: Prompt tokens that were read from the prefix cache instead of computed.
        prefill_s_per_token: What computing one prompt token takes on this engine, as measured so far.
        usd_per_hour: What the machine costs, None where nobody said.
    """

    prefill_s: float
    decode_s: float
    load_s: float = 0.0
    store_s: float = 0.0
    queue_s: float | None = None
    cached_tokens: int | None = None
    prefill_s_per_token: float | None = None
    usd_per_hour: Decimal | None = None

    @property
    def busy_s(self) -> float:
        """Seconds of the engine that this request is billed for."""
        return self.prefill_s + self.decode_s + self.load_s + self.store_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Bill:
    """What one answer is billed for.

    Attributes:
        lines: Tokens at list prices.
        charged_usd: The server's own word on what it charged, which wins over the list.
        charged_by: Where it said so.
        engine: Seconds of an engine of one's own.
        unpriced: Why there is no price at all.
    """

    lines: tuple[BillLine, ...] = ()
    charged_usd: Decimal | None = None
    charged_by: str | None = None
    engine: EngineTime | None = None
    unpriced: str | None = None
