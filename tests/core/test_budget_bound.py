"""The most that an attempt could cost, before it is sent."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kvsdk import File, Image, Message, Text, Usage
from kvsdk.backend import Call, Outcome, backend
from kvsdk.caching import digest
from kvsdk.client.bound import Bound, upper_bound
from kvsdk.cost import PriceBook, rate
from kvsdk.prompt import Request, ResponseFormat

AT = datetime(2026, 11, 30, 12, tzinfo=UTC)
SONNET = (
    "anthropic:claude-sonnet-5-5"  # fresh 2, read 0.10, written 2.50 (5m) or 4 (1h), output 10 per million
)
MTOK = Decimal(1_000_000)


def ask(*parts: Any, max_tokens: int = 100, **changes: Any) -> Request:
    message = Message.user(list(parts) or "x" * 4001)
    return Request(**({"messages": (message,), "max_tokens": max_tokens} | changes))


def bound(
    request: Request,
    address: str = SONNET,
    *,
    extra: Mapping[str, Any] | None = None,
    timeout_s: float | None = None,
    prices: PriceBook | None = None,
    **options: Any,
) -> Bound:
    return upper_bound(
        backend(address, **options),
        request,
        Call({}, False, extra=extra or {}),
        digest(request).size_bytes,
        at=AT,
        timeout_s=timeout_s,
        prices=prices,
    )


def test_input_is_bytes_by_two_and_output_its_limit() -> None:
    """4,001 bytes are 2,001 tokens, at the rate of a write; 100 tokens of output."""
    assert bound(ask()) == Bound((2001 * Decimal("2.50") + 100 * 10) / MTOK)


def test_the_dearest_ttl_asked_counts() -> None:
    """One mark of an hour, and all of the prompt might be written for that long: 4 per million."""
    marked = ask(Text("x" * 2000, cache="1h"), Text("y" * 2000, cache="5m"))
    assert bound(marked).usd == (2000 * 4 + 100 * 10) / MTOK


def test_a_ttl_that_is_asked_in_extra_counts() -> None:
    """Wherever in it the mark is; the 48 bytes of extra count as input."""
    extra = {"cache_control": {"type": "ephemeral", "ttl": "1h"}}
    size = 4001 + len('{"cache_control": {"type": "ephemeral", "ttl": "1h"}}')
    assert bound(ask(), extra=extra).usd == (-(-size // 2) * 4 + 100 * 10) / MTOK


def test_where_nothing_is_cached_at_a_price_input_is_fresh() -> None:
    """gpt-5: 1.25 in, writes at no price of their own, 10 out."""
    assert bound(ask(), "openai:gpt-5").usd == (2001 * Decimal("1.25") + 100 * 10) / MTOK


def test_an_image_weighs_as_a_long_page() -> None:
    """6,000 bytes, so 3,000 tokens."""
    image = Image(data="aGk=", media_type="image/png")
    assert bound(ask(Text("ab"), image)).usd == (3001 * Decimal("2.50") + 100 * 10) / MTOK


def test_the_shape_of_an_answer_counts_as_input() -> None:
    """Vendors put it into the prompt."""
    schema = {"title": "valve", "type": "object", "properties": {"open": {"type": "boolean"}}}
    shape = ResponseFormat.of(schema)
    assert shape is not None
    tokens = -(-(4001 + len(json.dumps(dict(shape.schema)))) // 2)
    assert bound(ask(response_format=shape)).usd == (tokens * Decimal("2.50") + 100 * 10) / MTOK


def test_prewarming_has_no_answer_to_pay() -> None:
    """One token at most."""
    assert bound(ask(is_prewarm=True)).usd == (2001 * Decimal("2.50") + 1 * 10) / MTOK


@pytest.mark.parametrize(
    ("extra", "output_tokens"),
    [
        ({"max_tokens": 500}, 500),
        ({"max_output_tokens": 500}, 500),
        ({"max_completion_tokens": 500}, 500),
        ({"max_tokens": 5}, 100),
        ({"n": 3}, 300),
        ({"n": 3, "max_tokens": 500}, 1500),
        ({"n": 0}, 100),
        ({"n": "3"}, 100),
    ],
)
def test_a_limit_in_extra_wins_where_it_is_higher(extra: dict[str, Any], output_tokens: int) -> None:
    """And so does the number of answers."""
    tokens = -(-(4001 + len(json.dumps(extra))) // 2)
    assert bound(ask(), extra=extra).usd == (tokens * Decimal("2.50") + output_tokens * 10) / MTOK


def test_terms_asked_for_count_where_they_are_dearer() -> None:
    """gpt-5's priority is twice the price, its flex half of it, which the answer need not be on."""
    for tier, times in (("priority", 2), ("flex", 1), ("auto", 1)):
        extra = {"service_tier": tier}
        tokens = -(-(4001 + len(json.dumps(extra))) // 2)
        usual = (tokens * Decimal("1.25") + 100 * 10) / MTOK
        assert bound(ask(), "openai:gpt-5", extra=extra).usd == times * usual


def test_terms_are_taken_together(tmp_path: Path) -> None:
    """Two terms that each cost more cost more still: 2 x 3 times."""
    file = tmp_path / "prices.toml"
    file.write_text(
        "".join(
            f'[[prices]]\nprovider = "anthropic"\nmodels = ["claude-sonnet-5-5"]\nterms = {{ {term} }}\n'
            f'factor = "{factor}"\nsource = "a test"\ndate = 2026-11-01\n'
            for term, factor in (('speed = "fast"', 2), ('service_tier = "rapid"', 3))
        )
    )
    extra = {"speed": "fast", "service_tier": "rapid"}
    size = 4001 + len('{"speed": "fast", "service_tier": "rapid"}')
    usual = (-(-size // 2) * Decimal("2.50") + 100 * 10) / MTOK
    assert bound(ask(), extra=extra, prices=PriceBook(file)).usd == 6 * usual


UNBOUNDED: list[tuple[str, dict[str, Any], str]] = [
    ("anthropic:no-such-model", {}, r"no list price.*no-such-model.*prices=\.\.\."),
    (SONNET, {"extra": {"speed": "fast"}}, r"no price is known for speed=fast.*prices=\.\.\."),
    ("openai+http://127.0.0.1:9/v1#m", {}, r"no list price.*prices=\.\.\."),
    ("vllm+http://127.0.0.1:9#m", {}, "how long it was busy.*without budget="),
    ("vllm:m", {"usd_per_hour": 2}, "pass timeout_s="),
    ("vllm:m", {"timeout_s": 5}, "pass usd_per_hour="),
    (
        SONNET,
        {"extra": {"tools": [{"type": "web_search_20260101"}]}},
        "web_search_20.*at the vendor",
    ),
    (SONNET, {"extra": {"mcp_servers": [{"url": "u"}]}}, "mcp_servers"),
    ("openai:gpt-5", {"extra": {"previous_response_id": "r"}}, "a conversation that it keeps"),
    ("openai:gpt-5", {"extra": {"models": ["a", "b"]}}, "another model may answer"),
]


@pytest.mark.parametrize(("address", "options", "why"), UNBOUNDED)
def test_where_nobody_can_know_it_says_why_and_what_to_do(
    address: str, options: dict[str, Any], why: str
) -> None:
    """Never a number that might be too low."""
    found = bound(ask(), address, **options)
    assert found.usd is None
    assert re.search(why, found.why), found.why


def test_a_file_that_is_not_here_cannot_be_weighed() -> None:
    """By its address or its id; one whose data is sent can be."""
    for file in (File("f", url="https://example.com/a.pdf"), File("f", file_id="f_1")):
        found = bound(ask(Text("x"), file))
        assert found.usd is None
        assert "messages[0].parts[1] is a file" in found.why
    assert bound(ask(File("f", data="aGk=", media_type="application/pdf"))).usd is not None


def test_the_callers_own_tools_are_bounded() -> None:
    """Functions, and the vendor's tools that run at the caller."""
    tools = [{"type": "function", "name": "f"}, {"type": "bash_20250124"}, {"name": "g"}]
    assert bound(ask(), extra={"tools": tools}).usd is not None


def test_an_engine_costs_at_most_its_time() -> None:
    """36 s at 2 dollars an hour: 2 x 36 / 3600 = 0.02, whatever the tokens."""
    assert bound(ask(), "vllm:m", timeout_s=36, usd_per_hour="2").usd == Decimal("0.02")


def test_a_prompt_that_may_be_large_has_the_price_of_a_large_one() -> None:
    """500,000 bytes may be 250,000 tokens; above 200,000, Sonnet 4.5 costs 7.50 to write and 22.50 out."""
    large = ask(Text("x" * 500_000))
    found = bound(large, "anthropic:claude-sonnet-4-5").usd
    assert found == (250_000 * Decimal("7.50") + 100 * Decimal("22.50")) / MTOK


@settings(max_examples=200, deadline=None)
@given(
    st.integers(0, 2001),
    st.integers(0, 2001),
    st.integers(0, 100),
    st.sampled_from(["5m", "1h"]),
    st.booleans(),
)
def test_no_answer_within_the_bound_costs_more(
    one: int, other: int, output: int, ttl: str, says_ttl: bool
) -> None:
    """However its tokens are split into fresh, read and written, and whether or not the TTL is reported."""
    read, write = min(one, other), abs(one - other)
    request = ask(Text("x" * 4001, cache=ttl))
    usage = Usage.of_total(
        2001, read=read, write=write, output=output, write_by_ttl={ttl: write} if says_ttl else None
    )
    made = backend(SONNET)
    outcome = replace(Outcome.of_usage(made.model, usage))
    cost = rate(made.bill(outcome, request), at=AT)
    most = bound(request).usd
    assert cost.total is not None
    assert most is not None
    assert cost.total <= most
