"""Vendors that speak Chat Completions: how the counts of each read, and what they cost."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from decimal import Decimal
from typing import Any

import pytest
from asking import ask
from kvsdk import Client, Message
from loopback import Loopback, sse
from openai_wire import chunk, completion, details, stream_of

USAGE = {"prompt_tokens": 3000, "completion_tokens": 5}
MIDNIGHT_S = 1_796_083_200.0  # 2026-12-01, UTC: none of DeepSeek's peak hours


# ---------------------------------------------------------------------- what comes back


#: profile, usage beside 3000 tokens of prompt, and read, write and fresh as they should be
COUNTED: list[tuple[str, dict[str, Any], tuple[int | None, int | None, int | None]]] = [
    ("openai", details(cached_tokens=2048, cache_write_tokens=900), (2048, 900, 52)),
    ("openai", details(cached_tokens=2048), (2048, 0, 952)),
    ("azure", details(cached_tokens=2048, cache_write_tokens=900), (2048, 900, 52)),
    ("openrouter", details(cached_tokens=2048, cache_write_tokens=900), (2048, 900, 52)),
    ("openrouter", details(cached_tokens=2048), (2048, 0, 952)),
    ("moonshot", details(cached_tokens=2048, cache_write_tokens=900), (2048, 900, 52)),
    ("moonshot", {"cached_tokens": 2048}, (2048, 0, 952)),
    ("moonshot", {}, (None, None, None)),
    ("qwen", details(cached_tokens=2048, cache_creation_input_tokens=900), (2048, 900, 52)),
    ("qwen", details(cached_tokens=2048), (2048, 0, 952)),
    ("deepseek", {"prompt_cache_hit_tokens": 2048, "prompt_cache_miss_tokens": 952}, (2048, 0, 952)),
    (
        "deepseek",
        {"prompt_cache_hit_tokens": 0, "prompt_cache_miss_tokens": 3000, **details(cached_tokens=0)},
        (0, 0, 3000),
    ),
    ("deepseek", details(cached_tokens=2048), (2048, 0, 952)),
    ("deepseek", {}, (None, 0, None)),
    ("xai", details(cached_tokens=2048), (2048, 0, 952)),
    ("xai", details(text_tokens=3000), (0, 0, 3000)),
    ("groq", details(cached_tokens=2048), (2048, 0, 952)),
    ("groq", {}, (None, 0, None)),
    ("fireworks", details(cached_tokens=2048), (2048, 0, 952)),
    ("mistral", details(cached_tokens=2048), (2048, 0, 952)),
    ("mistral", details(), (None, 0, None)),
    ("mistral", {}, (None, 0, None)),
    ("together", {"cached_tokens": 2048}, (2048, None, None)),
    ("vllm", details(cached_tokens=2048, created_cache_tokens=952), (2048, 952, 0)),
    ("vllm", {"prompt_tokens_details": None}, (None, None, None)),
    ("sglang", {"prompt_tokens_details": None}, (None, None, None)),
    ("sglang", details(cached_tokens=2048), (2048, None, None)),
    ("compatible", details(cached_tokens=2048), (2048, None, None)),
]


@pytest.mark.parametrize(("name", "parts", "meters"), COUNTED)
@pytest.mark.parametrize("streams", [False, True])
def test_counts_have_one_meaning(
    server: Callable[..., Client],
    loopback: Loopback,
    name: str,
    parts: dict[str, Any],
    meters: tuple[int | None, int | None, int | None],
    streams: bool,
) -> None:
    """Total, read, written and fresh of every vendor, whole and streamed; `raw` is the vendor's own."""
    usage = {"prompt_tokens": 3000, "completion_tokens": 5, "total_tokens": 3005, **parts}
    loopback.script(sse(stream_of("m", usage, content="A")) if streams else completion(usage=usage))
    reply = ask(server("m", profile=name, api_key="k"), "x", streams=streams)
    found = reply.usage
    assert (found.input_tokens, found.output_tokens) == (3000, 5)
    assert (found.cache_read_tokens, found.cache_write_tokens, found.fresh_tokens) == meters
    assert reply.raw["usage"] == usage


def test_a_silent_sglang_is_told_how_to_speak(server: Callable[..., Client], loopback: Loopback) -> None:
    """The note names the flag; a server that reports gets none."""
    loopback.script(completion(usage=USAGE), completion(usage=USAGE | details(cached_tokens=64)))
    client = server("m", profile="sglang")
    assert any("--enable-cache-report" in note for note in client.generate("x").cache.notes)
    assert client.generate("x").cache.notes == ()


def test_moonshots_older_place_of_a_streams_usage(server: Callable[..., Client], loopback: Loopback) -> None:
    """Inside the last choice."""
    last = chunk({}, "stop")
    last["choices"][0]["usage"] = {"prompt_tokens": 3000, "completion_tokens": 5, "cached_tokens": 2048}
    loopback.script(sse([chunk({"content": "A"}), last, "[DONE]"]))
    reply = ask(server("kimi-k3", profile="moonshot"), "x", streams=True)
    assert (reply.usage.input_tokens, reply.usage.cache_read_tokens) == (3000, 2048)


# ---------------------------------------------------------------------- what it costs


@pytest.mark.parametrize(
    ("name", "model", "parts", "total"),
    [
        # 2048 read, 952 fresh, 5 out, in dollars per million tokens
        ("xai", "grok-4.7", details(cached_tokens=2048), "0.5 * 2048 + 2 * 952 + 6 * 5"),
        (
            "deepseek",
            "deepseek-v4-pro",
            {"prompt_cache_hit_tokens": 2048, "prompt_cache_miss_tokens": 952},
            "0.022 * 2048 + 0.66 * 952 + 1.98 * 5",
        ),
        ("groq", "openai/gpt-oss-120b", details(cached_tokens=2048), "0.075 * 2048 + 0.15 * 952 + 0.6 * 5"),
        ("moonshot", "kimi-k3", {"cached_tokens": 2048}, "0.3 * 2048 + 3 * 952 + 15 * 5"),
    ],
)
def test_each_vendor_has_its_list_price(
    server: Callable[..., Client],
    loopback: Loopback,
    name: str,
    model: str,
    parts: dict[str, Any],
    total: str,
) -> None:
    """What was read is priced as read."""
    loopback.script(completion(model=model, usage=USAGE | parts))
    client = server(model, profile=name)
    client._runtime = replace(client._runtime, wall_clock_s=lambda: MIDNIGHT_S)
    cost = client.generate("x").cost
    terms = [term.split(" * ") for term in total.split(" + ")]
    assert cost.total == sum(Decimal(rate) * int(tokens) for rate, tokens in terms) / 1_000_000
    assert cost.estimated is False


@pytest.mark.parametrize(("asked", "rate"), [("5m", 3), ("1h", 6)])
def test_kimis_writes_cost_what_their_ttl_does(
    server: Callable[..., Client], loopback: Loopback, asked: str, rate: int
) -> None:
    """The TTL of the whole request: the price of its writes is exact."""
    usage = USAGE | details(cached_tokens=0, cache_write_tokens=3000)
    loopback.script(completion(model="kimi-k3", usage=usage))
    cost = server("kimi-k3", profile="moonshot").generate([Message.user("x", cache=asked)]).cost
    assert cost.cache_write == Decimal(rate) * 3000 / 1_000_000
    assert cost.estimated is False


@pytest.mark.parametrize("streams", [False, True])
def test_openrouter_says_itself_what_it_charged(
    server: Callable[..., Client], loopback: Loopback, streams: bool
) -> None:
    """Its word is the total; parts of a list price that is another sum are not shown."""
    usage = USAGE | details(cached_tokens=2048) | {"cost": 0.00123}
    model = "some/model"
    loopback.script(
        sse(stream_of(model, usage, content="A")) if streams else completion(model=model, usage=usage)
    )
    cost = ask(server(model, profile="openrouter"), "x", streams=streams).cost
    assert cost.total == Decimal("0.00123")
    assert cost.price_source == "openrouter usage.cost"
    assert (cost.input, cost.without_cache, cost.estimated) == (None, None, False)


def test_a_charge_that_is_the_list_price_keeps_its_parts(
    server: Callable[..., Client], loopback: Loopback
) -> None:
    """claude-sonnet-5.5: 2 / 0.1 / 10 dollars per million; 2048 read, 952 fresh, 5 out."""
    total = (Decimal(2) * 952 + Decimal("0.1") * 2048 + Decimal(10) * 5) / 1_000_000
    usage = USAGE | details(cached_tokens=2048) | {"cost": float(total)}
    loopback.script(completion(model="anthropic/claude-sonnet-5.5", usage=usage))
    cost = server("anthropic/claude-sonnet-5.5", profile="openrouter").generate("x").cost
    assert cost.total == total
    assert cost.cache_read == Decimal("0.1") * 2048 / 1_000_000
    assert cost.saved == (Decimal(2) - Decimal("0.1")) * 2048 / 1_000_000
    assert cost.price_source == "openrouter usage.cost"


def test_qwen_has_no_list_price(server: Callable[..., Client], loopback: Loopback) -> None:
    """genai-prices does not know it: no total, and the reason."""
    loopback.script(completion(model="qwen3-max"))
    cost = server("qwen3-max", profile="qwen").generate("x").cost
    assert cost.total is None
    assert "no list price" in str(cost.reason)
