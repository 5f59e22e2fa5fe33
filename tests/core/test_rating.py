"""From bills to dollars: known cases of what others got wrong, with the arithmetic."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest
from kvsdk import Cost, Usage
from kvsdk.backend import Bill, BillLine, Tariff
from kvsdk.cost import rate

AT = datetime(2026, 11, 30, tzinfo=UTC)
MTOK = 1_000_000


def cost_of(usage: Usage, **tariff: Any) -> Cost:
    return rate(Bill(lines=(BillLine(usage=usage, tariff=Tariff(**tariff)),)), at=AT)


def anthropic(usage: Usage, model: str = "claude-sonnet-4-5", **terms: str) -> Cost:
    return cost_of(usage, model=model, provider="anthropic", terms=terms)


def openai(usage: Usage, model: str = "gpt-5.6-sol", **terms: str) -> Cost:
    return cost_of(usage, model=model, provider="openai", default_ttl="30m", terms=terms)


SPLIT = Usage.of_parts(fresh=7, read=12000, write=1500, output=200, write_by_ttl={"5m": 500, "1h": 1000})


def test_writes_are_billed_once() -> None:
    """4 fresh and 12000 written: the write rate replaces the input rate, it is not added to it."""
    cost = anthropic(Usage.of_parts(fresh=4, read=0, write=12000, output=500))
    assert cost.total == (Decimal(3) * 4 + Decimal("3.75") * 12000 + Decimal(15) * 500) / MTOK
    assert cost.total == Decimal("0.052512")


def test_parts_of_a_total_are_billed_once() -> None:
    """2000 in all, 500 of them read and 300 written."""
    cost = anthropic(Usage.of_total(2000, read=500, write=300, output=0))
    assert cost.total == (Decimal(3) * 1200 + Decimal("0.30") * 500 + Decimal("3.75") * 300) / MTOK
    assert cost.total == Decimal("0.004875")


def test_cached_tokens_are_not_billed_on_top() -> None:
    """gpt-4o: 2048 in, 1920 of them cached, 300 out."""
    cost = openai(Usage.of_total(2048, read=1920, write=0, output=300), "gpt-4o")
    assert cost.total == (Decimal("2.5") * 128 + Decimal("1.25") * 1920 + Decimal(10) * 300) / MTOK
    assert cost.total == Decimal("0.00572")


def test_writes_of_an_hour_have_their_own_rate() -> None:
    """500 tokens for 5 minutes and 1000 for an hour."""
    cost = anthropic(SPLIT)
    parts = Decimal(3) * 7 + Decimal("0.30") * 12000 + Decimal("3.75") * 500 + Decimal(6) * 1000 + 15 * 200
    assert cost.total == parts / MTOK == Decimal("0.014496")


@pytest.mark.parametrize(("tokens", "rate", "total"), [(272_000, 4, "1.088"), (272_001, 8, "2.176008")])
def test_a_long_prompt_is_dearer_as_a_whole(tokens: int, rate: int, total: str) -> None:
    """Above 272000 tokens all of the input costs double, not the part above."""
    cost = openai(Usage.of_total(tokens, read=0, write=0, output=0))
    assert cost.total == Decimal(rate) * tokens / MTOK == Decimal(total)


def test_a_long_prompts_cache_and_output_are_dearer_too() -> None:
    """Reads and writes double, output costs half as much again."""
    cost = openai(Usage.of_total(300_000, read=200_000, write=50_000, output=1000))
    parts = Decimal(8) * 50_000 + Decimal("0.8") * 200_000 + Decimal(10) * 50_000 + Decimal(30) * 1000
    assert cost.total == parts / MTOK


def test_a_batch_is_half_price_throughout() -> None:
    """Reads and both kinds of writes too."""
    cost = anthropic(SPLIT, processing="batch")
    assert cost.total == Decimal("0.014496") / 2 == Decimal("0.007248")


def test_fast_mode_doubles_writes() -> None:
    """44667 tokens written for 5 minutes by Opus 4.8 in fast mode: 2 x 6.25."""
    usage = Usage.of_parts(fresh=0, read=0, write=44667, output=0)
    cost = anthropic(usage, "claude-opus-4-8", speed="fast")
    assert cost.total == Decimal("6.25") * 2 * 44667 / MTOK == Decimal("0.5583375")


def test_a_model_without_a_cached_price_is_billed_at_its_input_rate() -> None:
    """gpt-4 has no cached rate: nothing is free."""
    cost = openai(Usage.of_total(1000, read=800, write=0, output=0), "gpt-4")
    assert cost.total == cost.without_cache == Decimal(30) * 1000 / MTOK
    assert cost.saved == 0


def test_an_unknown_model_has_no_price_and_a_reason() -> None:
    """Not 0, and not another model's."""
    cost = openai(SPLIT, "gpt-unheard-of")
    assert cost.total is None
    assert "gpt-unheard-of" in str(cost.reason)


def test_an_unknown_address_has_no_price() -> None:
    """A server of one's own that serves a model of a vendor's name is not priced from the vendor's list."""
    cost = cost_of(SPLIT, model="gpt-4o", api_url="http://127.0.0.1:8000/v1")
    assert cost.total is None


def test_a_vendors_address_has_its_price() -> None:
    """A compatible server that the price library knows."""
    usage = Usage.of_total(1000, read=0, write=0, output=0)
    cost = cost_of(usage, model="deepseek-v4-pro", api_url="https://api.deepseek.com")
    assert cost.total is not None
    assert "deepseek" in str(cost.price_source)


def test_the_source_names_library_version_and_model() -> None:
    """So that a number can be looked up."""
    assert str(anthropic(SPLIT).price_source).startswith("genai-prices ")
    assert "anthropic/claude-sonnet-4-5" in str(anthropic(SPLIT).price_source)
