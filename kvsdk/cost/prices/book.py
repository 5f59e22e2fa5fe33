"""Which rates apply to a tariff: genai-prices' list, corrected by rules."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from decimal import Decimal
from functools import cache, lru_cache
from importlib.metadata import entry_points, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvsdk.backend import Tariff
from kvsdk.cost.prices.pricing import Rates
from kvsdk.cost.prices.rules import PriceRule, parse_rules, read_rules

if TYPE_CHECKING:
    from genai_prices.types import ModelInfo, ModelPrice

GROUP = "kvsdk.prices"
"""Entry points of adapters: callables that give the `[[prices]]` entries of what the list lacks."""

_LISTED = ("input_mtok", "cache_read_mtok", "cache_write_mtok", "cache_write_1h_mtok", "output_mtok")
_CALLS = {"web_search": "web_searches_kcount", "file_search": "storage_searches_kcount"}
_KILO = Decimal(1000)


class NoPrice(LookupError):
    """No price is known; the text says of what."""


class PriceBook:
    """Everything that is known of prices. Thread-safe; a price that was looked up is remembered.

    genai-prices is the base. What it lacks or has wrong are the adapters' rules, and a file of one's own wins
    over both: its rates replace the list's, its factors multiply what they find. A term that the response
    names (`service_tier`, `speed`, ...) must have a price: one that nothing knows gives no price, never the
    usual one.

    Args:
        file: A TOML file with prices of one's own; `kvsdk.cost.prices.rules` says what stands in it.

    Raises:
        ConfigurationError: The file is wrong.
    """

    def __init__(self, file: str | Path | None = None) -> None:
        self._rules = (*_adapters_rules(), *(read_rules(file) if file is not None else ()))
        self._cards = lru_cache(maxsize=512)(self._make_card)
        self._snapshot: object = None

    @staticmethod
    def default() -> PriceBook:
        """The book without a file of one's own; all share one."""
        return _default()

    @property
    def rules(self) -> tuple[PriceRule, ...]:
        """The rules, in the order in which they apply."""
        return self._rules

    def rates(self, tariff: Tariff, input_tokens: int, at: datetime) -> Rates:
        """The rates of a prompt of this many tokens, sent at this time.

        Raises:
            NoPrice: Nothing is known of the model, or of one of the terms.
        """
        return next(rates for above, rates in reversed(self.card(tariff, at)) if input_tokens > above)

    def card(self, tariff: Tariff, at: datetime) -> tuple[tuple[int, Rates], ...]:
        """The rates by size of prompt, smallest first: for prompts of more than so many tokens, these.

        Raises:
            NoPrice: As `rates`.
        """
        from genai_prices.data_snapshot import get_snapshot

        snapshot = get_snapshot()
        if snapshot is not self._snapshot:  # the library has fetched newer prices
            self._cards.cache_clear()
            self._snapshot = snapshot
        minute = (at if at.tzinfo is UTC else at.astimezone(UTC)).replace(second=0, microsecond=0)
        terms = tuple(sorted(tariff.terms.items())) if tariff.terms else ()
        return self._cards(tariff.model, tariff.provider, tariff.api_url, terms, tariff.default_ttl, minute)

    def _make_card(
        self,
        model: str,
        provider: str | None,
        api_url: str | None,
        terms: tuple[tuple[str, str], ...],
        default_ttl: str,
        at: datetime,
    ) -> tuple[tuple[int, Rates], ...]:
        """The rates by size of prompt: above so many tokens, these."""
        tariff = Tariff(
            model=model, provider=provider, api_url=api_url, terms=dict(terms), default_ttl=default_ttl
        )
        rules = [rule for rule in self._rules if rule.applies(tariff, at)]
        for rule in rules:
            if rule.price_at is not None:
                at = at.replace(hour=rule.price_at.hour, minute=rule.price_at.minute)
        listed = _Listed.find(tariff, at)
        starts = {-1} | (listed.starts() if listed else set())
        starts |= {rule.above_input_tokens for rule in rules if rule.above_input_tokens is not None}
        return tuple((start, _rates(tariff, rules, listed, start + 1)) for start in sorted(starts))


@cache
def _default() -> PriceBook:
    return PriceBook()


@cache
def _adapters_rules() -> tuple[PriceRule, ...]:
    rules: list[PriceRule] = []
    for point in sorted(entry_points(group=GROUP), key=lambda point: point.name):
        entries: Callable[[], list[Mapping[str, Any]]] = point.load()
        rules += parse_rules(entries(), f"kvsdk {version('kvsdk')}", f"the prices of {point.name}")
    return tuple(rules)


# ---------------------------------------------------------------------- from rules and the list to rates


def _rates(tariff: Tariff, rules: Iterable[PriceRule], listed: _Listed | None, tokens: int) -> Rates:
    """The rates of a prompt of this size."""
    fitting = [rule for rule in rules if tokens > (rule.above_input_tokens or -1)]
    rates = None if listed is None else listed.rates(tariff, tokens)
    for rule in fitting:
        if not rule.terms:
            rates = _apply(rule, rates, tariff)
    if rates is None:
        where = tariff.provider or tariff.api_url or "any vendor"
        raise NoPrice(f"no list price is known for model {tariff.model!r} of {where}")
    left = dict(tariff.terms)
    for rule in reversed(fitting):  # the last that speaks of a term decides
        if rule.terms and rule.meets(left):
            left = {name: value for name, value in left.items() if name not in rule.terms}
            rates = _apply(rule, rates, tariff)
            assert rates is not None
    for name, value in left.items():
        factored = None if listed is None else listed.on_term(rates, name, value, tokens)
        if factored is None:
            raise NoPrice(f"no price is known for {name}={value} of model {tariff.model!r}")
        rates = factored
    return rates


def _apply(rule: PriceRule, rates: Rates | None, tariff: Tariff) -> Rates | None:
    """What a rule makes of the rates so far."""
    if rule.input_usd_per_mtok is not None and rule.output_usd_per_mtok is not None:
        fresh, read = rule.input_usd_per_mtok, rule.cache_read_usd_per_mtok
        rates = Rates(
            fresh=fresh,
            read=fresh if read is None else read,
            write=rule.cache_write_usd_per_mtok,
            output=rule.output_usd_per_mtok,
            default_ttl=tariff.default_ttl,
            source="",
            calls={} if rates is None else rates.calls,
        )
    if rates is None:
        return None
    factor = rule.factor
    if factor is not None:
        rates = _times(rates, lambda rate, _: rate * factor)
    added = {ttl: rates.fresh * times for ttl, times in rule.write_factors.items()}
    return replace(
        rates,
        write={**added, **rates.write},
        calls={**rates.calls, **rule.usd_per_call},
        storage_per_hour=rates.storage_per_hour
        if rule.storage_usd_per_mtok_hour is None
        else rule.storage_usd_per_mtok_hour,
        estimated=rule.estimated or rates.estimated,
        source=f"{rates.source}; {rule.said}" if rates.source else rule.said,
    )


def _times(rates: Rates, change: Callable[[Decimal, str], Decimal]) -> Rates:
    """Rates with each changed; `change` gets a rate and the name that the list has for it."""
    writes = {ttl: change(rate, _write_key(ttl)) for ttl, rate in rates.write.items()}
    return replace(
        rates,
        fresh=change(rates.fresh, "input_mtok"),
        read=change(rates.read, "cache_read_mtok"),
        write=writes,
        output=change(rates.output, "output_mtok"),
    )


def _write_key(ttl: str) -> str:
    return "cache_write_1h_mtok" if ttl == "1h" else "cache_write_mtok"


# ---------------------------------------------------------------------- the list


@dataclass(frozen=True, slots=True)
class _Listed:
    """A model in genai-prices at one time."""

    model: ModelInfo
    at: datetime
    prices: ModelPrice
    source: str
    has_variants: bool

    @classmethod
    def find(cls, tariff: Tariff, at: datetime) -> _Listed | None:
        from genai_prices.data_snapshot import get_snapshot

        url = tariff.api_url if tariff.provider is None else None
        snapshot = get_snapshot()
        try:
            vendor, model = snapshot.find_provider_model(tariff.model, None, tariff.provider, url)
        except LookupError:
            return None
        fetched = f" of {snapshot.timestamp:%Y-%m-%d}" if snapshot.from_auto_update else ""
        source = f"genai-prices {_version()}{fetched}, {vendor.id}/{model.id}"
        is_own = any(one is model for one in vendor.models)  # another vendor's variants do not apply
        return cls(model, at, model.get_prices(at), source, is_own)

    def starts(self) -> set[int]:
        """Where its tiers start: each is for prompts of more tokens than that, the whole prompt."""
        values = [getattr(self.prices, key, None) for key in _LISTED]
        return {tier.start for value in values for tier in getattr(value, "tiers", ())}

    def rates(self, tariff: Tariff, tokens: int) -> Rates:
        """The usual rates. A class of tokens that has none is billed as input (as the list has it)."""
        fresh = _at(self.prices, "input_mtok", tokens) or Decimal(0)
        read = _at(self.prices, "cache_read_mtok", tokens)
        writes = {
            ttl: rate
            for ttl, key in ((tariff.default_ttl, "cache_write_mtok"), ("1h", "cache_write_1h_mtok"))
            if (rate := _at(self.prices, key, tokens)) is not None
        }
        calls = {
            name: rate / _KILO
            for name, key in _CALLS.items()
            if (rate := _at(self.prices, key, tokens)) is not None
        }
        return Rates(
            fresh=fresh,
            read=fresh if read is None else read,
            write=writes,
            output=_at(self.prices, "output_mtok", tokens) or Decimal(0),
            default_ttl=tariff.default_ttl,
            source=self.source,
            calls=calls,
        )

    def on_term(self, rates: Rates, name: str, value: str, tokens: int) -> Rates | None:
        """Rates on a term that the list has a variant for: times what the variant is to the usual.

        So variants combine, and apply to rates of one's own. None where the list has no such variant.
        """
        if not self.has_variants or not self._has_variant(name, value):
            return None
        special = self.model.get_prices(self.at, {name: value})

        def change(rate: Decimal, key: str) -> Decimal:
            usual, changed = _at(self.prices, key, tokens), _at(special, key, tokens)
            return rate * changed / usual if usual and changed is not None else rate

        return _times(rates, change)

    def _has_variant(self, name: str, value: str) -> bool:
        return any(
            variant.when == {name: value}
            and (variant.constraint is None or variant.constraint.active(self.at))
            for variant in self.model.price_variants or ()
        )


@cache
def _version() -> str:
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
