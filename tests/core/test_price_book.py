"""Which rates apply: the list, what it lacks, and prices of one's own."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from genai_prices import Usage as ListUsage
from genai_prices import calc_price
from genai_prices.data_snapshot import get_snapshot
from kvsdk import ConfigurationError, Usage
from kvsdk.backend import Bill, BillLine, Tariff
from kvsdk.cost import NoPrice, PriceBook, Rates, rate

AT = datetime(2026, 11, 30, 12, 0, tzinfo=UTC)  # a Monday
MTOK = 1_000_000
BOOK = PriceBook.default()


def rates(
    model: str, provider: str, tokens: int = 1000, at: datetime = AT, book: PriceBook = BOOK, **terms: str
) -> Rates:
    return book.rates(Tariff(model=model, provider=provider, terms=terms), tokens, at)


# ---------------------------------------------------------------------- the list

COVERED = ("anthropic", "azure", "deepseek", "google", "groq", "mistral", "moonshotai", "openai")
COVERED += ("openrouter", "together", "x-ai")


def _tiers(provider: str) -> list[tuple[str, int]]:
    found = []
    for vendor in get_snapshot().providers:
        for model in vendor.models if vendor.id == provider else ():
            prices = model.get_prices(AT)
            starts = {0} | {
                tier.start for value in vars(prices).values() for tier in getattr(value, "tiers", ())
            }
            found += [(model.id, start) for start in starts]
    return found


@pytest.mark.parametrize("provider", COVERED)
def test_the_list_is_read_as_its_own_library_reads_it(provider: str) -> None:
    """Every model of a vendor, on both sides of every border: the library's own total is the oracle."""
    checked = 0
    for model, start in _tiers(provider):
        for tokens in (start, start + 1, start + 4321):
            counts = {"read": tokens // 2, "write": tokens // 4, "output": 321}
            usage = Usage.of_total(tokens, **counts)
            listed = ListUsage(
                input_tokens=tokens,
                cache_read_tokens=counts["read"],
                cache_write_tokens=counts["write"],
                output_tokens=counts["output"],
            )
            try:
                oracle = calc_price(listed, model, provider_id=provider, genai_request_timestamp=AT)
            except (LookupError, ValueError):
                continue
            ours = rate(
                Bill(lines=(BillLine(usage=usage, tariff=Tariff(model=model, provider=provider)),)), at=AT
            )
            if oracle.model_price.__dict__.get("requests_kcount") is None:
                assert ours.total == oracle.total_price, (model, tokens)
                checked += 1
    assert checked > 2


def test_a_historic_request_keeps_the_price_of_its_day() -> None:
    """deepseek-v4-flash was repriced on 10 September 2026."""
    days = [datetime(2026, 9, day, 12, tzinfo=UTC) for day in (9, 10)]
    assert [rates("deepseek-v4-flash", "deepseek", at=day).fresh for day in days] == [
        Decimal("0.22"),
        Decimal("0.15"),
    ]


def test_a_price_names_its_source_and_version() -> None:
    """The library's version and entry, then each rule that had a say, with its day."""
    source = rates("claude-opus-5-5", "anthropic", inference_geo="us").source
    assert source.startswith("genai-prices ")
    assert "anthropic/claude-opus-5-5; kvsdk " in source
    assert source.endswith("of 2026-11-30")


# ---------------------------------------------------------------------- what the list lacks


@pytest.mark.parametrize(
    ("model", "provider", "terms", "factor"),
    [
        ("claude-opus-5-5", "anthropic", {"speed": "fast"}, "2"),
        ("claude-opus-5-5", "anthropic", {"processing": "batch"}, "0.5"),
        ("claude-opus-5-5", "anthropic", {"inference_geo": "us"}, "1.1"),
        ("claude-opus-4-6", "anthropic", {"inference_geo": "us"}, "1.1"),
        ("claude-opus-5-5", "anthropic", {"speed": "fast", "inference_geo": "us"}, "2.2"),
        ("claude-opus-5-5", "anthropic", {"processing": "batch", "speed": "fast"}, "1"),
        ("gpt-6.1-sol", "openai", {"service_tier": "flex"}, "0.5"),
        ("gpt-6.1-sol", "openai", {"service_tier": "priority"}, "2"),
        ("gpt-6.1-sol", "openai", {"service_tier": "ultrafast"}, "6"),
        ("gpt-6-astra", "openai", {"service_tier": "ultrafast", "region": "us"}, "6.6"),
        ("gpt-5.4", "openai", {"region": "eu"}, "1.1"),
        ("gpt-4.1", "openai", {"region": "eu"}, "1"),
        ("gpt-5.6-terra", "azure", {"region": "eu"}, "1.1"),
        ("gpt-6.1-sol", "azure", {"region": "us"}, "1.1"),
        ("gpt-6.1-sol", "azure", {"region": "eu"}, "1.2"),
    ],
)
def test_a_term_of_the_response_multiplies(
    model: str, provider: str, terms: dict[str, str], factor: str
) -> None:
    """Every rate, and several terms together."""
    usual, special = rates(model, provider), rates(model, provider, **terms)
    for name in ("fresh", "read", "output"):
        assert getattr(special, name) == getattr(usual, name) * Decimal(factor)
    assert special.write == {ttl: price * Decimal(factor) for ttl, price in usual.write.items()}


@pytest.mark.parametrize(
    ("model", "provider", "terms"),
    [
        ("claude-sonnet-5-5", "anthropic", {"speed": "fast"}),
        ("claude-opus-4-5", "anthropic", {"inference_geo": "us"}),
        ("gpt-6.1-terra", "openai", {"service_tier": "ultrafast"}),
        ("gpt-6.1-sol", "openai", {"service_tier": "scale"}),
        ("gpt-6.1-sol", "openai", {"region": "mars"}),
    ],
)
def test_a_term_that_nothing_knows_has_no_price(model: str, provider: str, terms: dict[str, str]) -> None:
    """The usual price would be a guess, and a silent one."""
    ((name, value),) = terms.items()
    with pytest.raises(NoPrice, match=f"{name}={value}"):
        rates(model, provider, **terms)
    usage = Usage.of_total(1000, read=0, write=0, output=1)
    tariff = Tariff(model=model, provider=provider, terms=terms)
    cost = rate(Bill(lines=(BillLine(usage=usage, tariff=tariff),)), at=AT)
    assert (cost.total, value in str(cost.reason)) == (None, True)


def test_priority_at_anthropic_is_an_estimate() -> None:
    """Its commitment is billed by what was committed, so a request's own cost is only what it would be."""
    usage = Usage.of_parts(fresh=1000, read=0, write=0, output=0)
    tariff = Tariff(model="claude-opus-5-5", provider="anthropic", terms={"service_tier": "priority"})
    cost = rate(Bill(lines=(BillLine(usage=usage, tariff=tariff),)), at=AT)
    assert cost.estimated
    assert cost.total == Decimal(4) * 1000 / MTOK
    assert "commit" in str(cost.reason)


@pytest.mark.parametrize(
    ("moment", "expected"),
    [
        (datetime(2026, 11, 30, 0, 59, tzinfo=UTC), "0.66"),  # Monday, before the peak
        (datetime(2026, 11, 30, 1, 0, tzinfo=UTC), "1.32"),
        (datetime(2026, 11, 30, 3, 59, tzinfo=UTC), "1.32"),
        (datetime(2026, 11, 30, 4, 0, tzinfo=UTC), "0.66"),
        (datetime(2026, 11, 30, 9, 59, tzinfo=UTC), "1.32"),
        (datetime(2026, 11, 30, 10, 0, tzinfo=UTC), "0.66"),
        (datetime(2026, 11, 27, 8, 0, tzinfo=UTC), "1.32"),  # Friday
        (datetime(2026, 11, 28, 8, 0, tzinfo=UTC), "0.66"),  # Saturday
        (datetime(2026, 11, 29, 8, 0, tzinfo=UTC), "0.66"),  # Sunday
        (datetime(2026, 8, 14, 8, 0, tzinfo=UTC), "0.435"),  # a Friday before there was a peak
    ],
)
def test_deepseeks_peak_is_on_weekdays_only(moment: datetime, expected: str) -> None:
    """01 to 04 and 06 to 10 UTC, Monday to Friday, from 17 August 2026 on."""
    assert rates("deepseek-v4-pro", "deepseek", at=moment).fresh == Decimal(expected)


def test_time_zones_are_the_same_moment() -> None:
    """A Saturday in Tokyo that is a Friday in UTC is billed as a Friday."""
    from datetime import timezone

    tokyo = timezone(timedelta(hours=9))
    moment = datetime(2026, 11, 28, 1, 30, tzinfo=tokyo)  # 27 November, 16:30 UTC
    assert rates("deepseek-v4-pro", "deepseek", at=moment) == rates(
        "deepseek-v4-pro", "deepseek", at=moment.astimezone(UTC)
    )


@pytest.mark.parametrize(
    ("model", "day", "usd"),
    [
        ("gemini-3.6-flash", datetime(2026, 12, 31, tzinfo=UTC), "0.50"),
        ("gemini-3.6-flash", datetime(2027, 1, 1, tzinfo=UTC), "1.00"),
        ("gemini-2.5-pro", AT, "4.50"),
    ],
)
def test_keeping_a_cache_at_google_costs_by_the_hour(model: str, day: datetime, usd: str) -> None:
    """Dollars per million tokens and hour; two hours of 500,000 tokens are one of those."""
    from kvsdk.cost import price

    found = rates(model, "google", at=day)
    assert found.storage_per_hour == Decimal(usd)
    usage = Usage.of_total(0, read=0, write=0, output=0)
    cost = price(usage, found, stored_token_hours=Decimal(2 * 500_000))
    assert cost.storage == cost.total == Decimal(usd)


def test_server_tools_are_billed_by_the_call() -> None:
    """Ten dollars for a thousand web searches, with and without a cache."""
    usage = Usage.of_parts(fresh=0, read=0, write=0, output=0)
    tariff = Tariff(model="claude-opus-5-5", provider="anthropic")
    cost = rate(Bill(lines=(BillLine(usage=usage, tariff=tariff, calls={"web_search": 3}),)), at=AT)
    assert cost.tools == cost.total == cost.without_cache == Decimal(10) * 3 / 1000
    line = BillLine(usage=usage, tariff=tariff, calls={"teleport": 1})
    unknown = rate(Bill(lines=(line,)), at=AT)
    assert unknown.total is None
    assert "teleport" in str(unknown.reason)


# ---------------------------------------------------------------------- prices of one's own


def book(folder: Path, text: str) -> PriceBook:
    path = folder / "prices.toml"
    path.write_text(text, encoding="utf-8")
    return PriceBook(path)


CONTRACT = """
version = "v3"
[[prices]]
provider = "openai"
models = ["gpt-6\\\\.1-.*"]
since = 2026-11-01
until = 2026-12-01
input_usd_per_mtok = "1.60"
cache_read_usd_per_mtok = 0.08
cache_write_usd_per_mtok = { 30m = "2.00", 12h = "4.00" }
output_usd_per_mtok = 8
source = "contract 4711"
date = 2026-10-20

[[prices]]
host = "gateway.example.com"
models = [".*"]
input_usd_per_mtok = "1"
output_usd_per_mtok = "2"
source = "our gateway"
date = 2026-10-20

[[prices]]
provider = "anthropic"
models = [".*"]
factor = "0.8"
source = "contract 12"
date = 2026-10-20

[[prices]]
provider = "anthropic"
models = ["claude-opus-5-5"]
terms = { speed = "fast" }
factor = "1.5"
source = "contract 12"
date = 2026-10-20
"""


def test_own_rates_win_while_they_hold(tmp_path: Path) -> None:
    """From the first day to before the last; before and after, the list's."""
    own = book(tmp_path, CONTRACT)
    found = rates("gpt-6.1-sol", "openai", book=own)
    assert (found.fresh, found.read, found.output) == (Decimal("1.60"), Decimal("0.08"), Decimal(8))
    assert found.write == {"30m": Decimal("2.00"), "12h": Decimal("4.00")}
    assert found.source.endswith("prices.toml v3 of 2026-10-20")
    for day, fresh in (
        (datetime(2026, 10, 31, 23, 59, tzinfo=UTC), 2),
        (datetime(2026, 12, 1, tzinfo=UTC), 2),
    ):
        assert rates("gpt-6.1-sol", "openai", at=day, book=own).fresh == fresh
    assert rates("gpt-6-sol", "openai", book=own) == rates("gpt-6-sol", "openai")


def test_own_rates_take_part_in_terms(tmp_path: Path) -> None:
    """Flex is half of the contract's price, and a region a tenth more, as they are of the list's."""
    found = rates("gpt-6.1-sol", "openai", book=book(tmp_path, CONTRACT), service_tier="flex", region="eu")
    assert found.fresh == Decimal("1.60") / 2 * Decimal("1.1")
    assert found.write["12h"] == Decimal("4.00") / 2 * Decimal("1.1")


def test_own_rates_price_what_no_list_has(tmp_path: Path) -> None:
    """A gateway by its host; a read without a rate costs as much as input."""
    usage = Usage.of_total(1000, read=400, write=0, output=10)
    tariff = Tariff(model="house-model", api_url="https://gateway.example.com/v1")
    bill = Bill(lines=(BillLine(usage=usage, tariff=tariff),))
    assert rate(bill, at=AT).total is None
    cost = rate(bill, at=AT, prices=book(tmp_path, CONTRACT))
    assert cost.total == (Decimal(1) * 1000 + Decimal(2) * 10) / MTOK
    assert cost.saved == 0


def test_own_factors_multiply_and_the_last_that_speaks_of_a_term_decides(tmp_path: Path) -> None:
    """Opus at 4 dollars: a fifth off, and fast at one and a half times that instead of twice."""
    own = book(tmp_path, CONTRACT)
    assert rates("claude-opus-5-5", "anthropic", book=own).fresh == Decimal(4) * Decimal("0.8")
    fast = rates("claude-opus-5-5", "anthropic", book=own, speed="fast")
    assert fast.fresh == Decimal(4) * Decimal("0.8") * Decimal("1.5")
    other = rates("claude-opus-4-8", "anthropic", book=own, speed="fast")
    assert other.fresh == Decimal(5) * Decimal("0.8") * 2


def test_a_prompts_size_may_be_a_condition(tmp_path: Path) -> None:
    """Above 50,000 tokens the whole prompt is dearer, and at 50,000 it is not."""
    entry = """
    [[prices]]
    host = "h"
    models = ["m"]
    {size}
    input_usd_per_mtok = "{usd}"
    output_usd_per_mtok = "0"
    source = "a test"
    date = 2026-11-30
    """
    text = entry.format(size="", usd=1) + entry.format(size="above_input_tokens = 50_000", usd=3)
    own = book(tmp_path, text)
    tariff = Tariff(model="m", api_url="http://h/v1")
    assert [own.rates(tariff, tokens, AT).fresh for tokens in (0, 50_000, 50_001)] == [1, 1, 3]


def test_a_file_without_a_version_is_named_by_its_digest(tmp_path: Path) -> None:
    """So that a row's price can be traced to the very text."""
    own = book(tmp_path, CONTRACT.replace('version = "v3"', ""))
    assert "prices.toml sha256 " in rates("gpt-6.1-sol", "openai", book=own).source


ENTRY = """
[[prices]]
provider = "openai"
models = ["x"]
factor = "0.5"
source = "a test"
date = 2026-11-30
"""


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("prices = 3", r"\[\[prices\]\]"),
        ("[[price]]", "'price'"),
        ('currency = "EUR"' + ENTRY, "EUR"),
        ("[[prices", "cannot be read"),
        (ENTRY.replace('factor = "0.5"', 'factor = "-1"'), r"prices\[0\]\.factor"),
        (ENTRY.replace('factor = "0.5"', 'factor = "nan"'), r"prices\[0\]\.factor"),
        (ENTRY.replace('factor = "0.5"', "factro = 1"), r"prices\[0\]\.factro"),
        (ENTRY.replace('factor = "0.5"', ""), "a factor"),
        (ENTRY.replace('factor = "0.5"', 'input_usd_per_mtok = "1"'), "output_usd_per_mtok"),
        (ENTRY.replace('models = ["x"]', "models = []"), r"prices\[0\]\.models"),
        (ENTRY.replace('models = ["x"]', 'models = ["("]'), r"prices\[0\]\.models"),
        (ENTRY.replace('provider = "openai"', ""), "either provider or host"),
        (ENTRY.replace("date = 2026-11-30", ""), r"prices\[0\]\.date"),
        (ENTRY.replace("date = 2026-11-30", 'date = "soon"'), r"prices\[0\]\.date"),
        (ENTRY.replace('source = "a test"', 'weekdays = ["day"]\nsource = "a test"'), "weekdays"),
    ],
)
def test_a_file_that_is_wrong_is_refused(tmp_path: Path, text: str, words: str) -> None:
    """With its path, the entry and the key."""
    with pytest.raises(ConfigurationError, match=words) as caught:
        book(tmp_path, text)
    assert "prices.toml" in str(caught.value)


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    """By its name."""
    with pytest.raises(ConfigurationError, match=r"none\.toml"):
        PriceBook(tmp_path / "none.toml")


def test_every_entry_of_the_adapters_has_its_source_and_day() -> None:
    """And none is of the future of the day it was read."""
    assert len(BOOK.rules) > 5
    assert all(rule.source and rule.name.startswith("kvsdk ") for rule in BOOK.rules)


def test_newer_prices_of_the_library_are_taken_at_once() -> None:
    """Its updater replaces the snapshot; what was remembered of the old one is forgotten."""
    from copy import deepcopy

    from genai_prices import data_snapshot

    before = rates("gpt-6.1-terra", "openai").fresh
    fetched: Any = deepcopy(get_snapshot())
    fetched.from_auto_update = True
    for vendor in fetched.providers:
        for model in vendor.models:
            if (vendor.id, model.id) == ("openai", "gpt-6.1-terra"):
                model.prices.input_mtok = Decimal(7)
                model.price_variants = None
    try:
        data_snapshot.set_custom_snapshot(fetched)
        found = rates("gpt-6.1-terra", "openai")
        assert found.fresh == 7
        assert f" of {fetched.timestamp:%Y-%m-%d}" in found.source
    finally:
        data_snapshot.set_custom_snapshot(None)
    assert rates("gpt-6.1-terra", "openai").fresh == before
