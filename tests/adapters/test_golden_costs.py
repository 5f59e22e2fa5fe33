"""What forty answers cost, from the vendor's own body to dollars, with the arithmetic.

Each case has the usage as the vendor sends it, and its price as rates (dollars per million tokens) times
tokens. Rates are of 30 November 2026. Of every border between tiers both sides are here.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import kvsdk
import pytest
from kvsdk import Message
from kvsdk.backend import Answer, Call
from kvsdk.cost import rate
from kvsdk.prompt import Request

MTOK = 1_000_000
MONDAY = datetime(2026, 11, 30, 12, tzinfo=UTC)
Terms = list[tuple[str, int]]


def cost_of(
    address: str, usage: Mapping[str, Any], *, at: datetime = MONDAY, ttl: str | None = None, **members: Any
) -> kvsdk.Cost:
    """What an answer with this usage costs, after a request with a mark of this TTL or without one."""
    options = {key: members.pop(key) for key in ("api", "base_url", "model_behind") if key in members}
    if "model_behind" in options:
        options["model"] = options.pop("model_behind")
    backend = kvsdk.backend(address, **options)
    model = members.pop("model", backend.model)
    body = {"id": "x", "model": model, "usage": dict(usage), **members}
    if backend.scheme == "anthropic":
        body |= {"content": [], "stop_reason": "end_turn"}
    elif "prompt_tokens" in usage:
        body["choices"] = [{"message": {"role": "assistant", "content": ""}, "finish_reason": "stop"}]
    else:
        body.setdefault("output", [])
    request = Request(messages=(Message.user("x", cache=ttl),))
    outcome = backend.decode(Call(body={}, stream=False, request=request), Answer(body))
    return rate(backend.bill(outcome, request), at=at)


def dollars(terms: Terms) -> Decimal:
    return sum((Decimal(rate) * tokens for rate, tokens in terms), Decimal(0)) / MTOK


# ---------------------------------------------------------------------- Anthropic: the parts, exclusive


def claude(fresh: int, read: int = 0, written: int = 0, out: int = 0, **more: Any) -> dict[str, Any]:
    return {
        "input_tokens": fresh,
        "cache_read_input_tokens": read,
        "cache_creation_input_tokens": written,
        "output_tokens": out,
        **more,
    }


def split(five_minutes: int, hour: int) -> dict[str, Any]:
    return {"cache_creation": {"ephemeral_5m_input_tokens": five_minutes, "ephemeral_1h_input_tokens": hour}}


ANTHROPIC = [
    ("sonnet, nothing cached", "claude-sonnet-5-5", claude(1000, out=200), [("2", 1000), ("10", 200)]),
    ("sonnet, read", "claude-sonnet-5-5", claude(7, 12000, out=1), [("2", 7), ("0.1", 12000), ("10", 1)]),
    (
        "sonnet, written 5m",
        "claude-sonnet-5-5",
        claude(4, 0, 12000, 5),
        [("2", 4), ("2.5", 12000), ("10", 5)],
    ),
    (
        "sonnet, both TTLs",
        "claude-sonnet-5-5",
        claude(7, 12000, 1500, 200, **split(500, 1000)),
        [("2", 7), ("0.1", 12000), ("2.5", 500), ("4", 1000), ("10", 200)],
    ),
    (
        "sonnet 4.5, both TTLs",
        "claude-sonnet-4-5",
        claude(7, 12000, 1500, 200, **split(500, 1000)),
        [("3", 7), ("0.3", 12000), ("3.75", 500), ("6", 1000), ("15", 200)],
    ),
    (
        "a batch",
        "claude-sonnet-4-5",
        claude(7, 12000, 1500, 200, **split(500, 1000), service_tier="batch"),
        [("1.5", 7), ("0.15", 12000), ("1.875", 500), ("3", 1000), ("7.5", 200)],
    ),
    ("opus", "claude-opus-5-5", claude(10, 90, 0, 10), [("4", 10), ("0.2", 90), ("20", 10)]),
    (
        "opus, fast",
        "claude-opus-5-5",
        claude(10, 90, 0, 10, speed="fast"),
        [("8", 10), ("0.4", 90), ("40", 10)],
    ),
    (
        "opus, fast in the US",
        "claude-opus-5-5",
        claude(10, 90, 0, 10, speed="fast", inference_geo="us"),
        [("8.8", 10), ("0.44", 90), ("44", 10)],
    ),
    (
        "opus, anywhere",
        "claude-opus-5-5",
        claude(10, 90, 0, 10, speed="standard", inference_geo="global", service_tier="standard"),
        [("4", 10), ("0.2", 90), ("20", 10)],
    ),
    ("haiku, 100,000 tokens", "claude-haiku-5-5", claude(100_000, out=10), [("0.1", 100_000), ("0.5", 10)]),
    ("haiku, 100,001 tokens", "claude-haiku-5-5", claude(100_001, out=10), [("0.5", 100_001), ("2.5", 10)]),
    (
        "haiku, 100,001 tokens, most of them read",
        "claude-haiku-5-5",
        claude(1, 100_000, out=10),
        [("0.5", 1), ("0.05", 100_000), ("2.5", 10)],
    ),
    ("fable", "claude-fable-5-2", claude(1, 1000, 0, 1), [("8", 1), ("0.2", 1000), ("40", 1)]),
    (
        "web searches",
        "claude-sonnet-5-5",
        claude(100, out=1, server_tool_use={"web_search_requests": 3, "web_fetch_requests": 2}),
        [("2", 100), ("10", 1), ("10000", 3)],
    ),
    (
        "a compaction",
        "claude-sonnet-4-5",
        claude(
            100,
            9000,
            0,
            50,
            iterations=[
                {"type": "compaction", **claude(400, 150_000, 0, 300)},
                {"type": "message", **claude(100, 9000, 0, 50)},
            ],
        ),
        [("3", 100 + 400), ("0.3", 9000 + 150_000), ("15", 50 + 300)],
    ),
]


@pytest.mark.parametrize(
    ("model", "usage", "terms"), [case[1:] for case in ANTHROPIC], ids=[c[0] for c in ANTHROPIC]
)
def test_anthropic(model: str, usage: dict[str, Any], terms: Terms) -> None:
    """The model's rates times the parts."""
    cost = cost_of(f"anthropic:{model}", usage)
    assert cost.total == dollars(terms)
    assert cost.estimated is False


# ---------------------------------------------------------------------- OpenAI: the total, inclusive


def responses(
    total: int, read: int = 0, written: int | None = None, out: int = 0, **by_ttl: int
) -> dict[str, Any]:
    details: dict[str, Any] = {"cached_tokens": read}
    if written is not None:
        details["cache_write_tokens"] = written
    if by_ttl:
        details["cache_write_tokens_details"] = {f"ttl_{key[1:]}_tokens": n for key, n in by_ttl.items()}
    return {"input_tokens": total, "input_tokens_details": details, "output_tokens": out}


def chat(total: int, read: int = 0, out: int = 0, **details: int) -> dict[str, Any]:
    details = {"cached_tokens": read, **details}
    return {"prompt_tokens": total, "prompt_tokens_details": details, "completion_tokens": out}


LONG = 272_000
OPENAI: list[tuple[str, str, dict[str, Any], dict[str, Any], Terms]] = [
    (
        "gpt-4o, read",
        "gpt-4o",
        {"api": "chat"},
        chat(2048, 1920, 300),
        [("2.5", 128), ("1.25", 1920), ("10", 300)],
    ),
    ("gpt-4.1, read", "gpt-4.1", {}, responses(1000, 600, out=1), [("2", 400), ("0.5", 600), ("8", 1)]),
    (
        "5.5, nothing is charged for a write",
        "gpt-5.5",
        {},
        responses(1000, 0, out=1),
        [("5", 1000), ("30", 1)],
    ),
    (
        "read and written",
        "gpt-5.6-sol",
        {},
        responses(3000, 2048, 900, 5),
        [("4", 52), ("0.4", 2048), ("5", 900), ("20", 5)],
    ),
    (
        "written for twelve hours",
        "gpt-5.6-sol",
        {"ttl": "12h"},
        responses(3000, 2048, 900, 5, t30m=400, t12h=500),
        [("4", 52), ("0.4", 2048), ("5", 400), ("10", 500), ("20", 5)],
    ),
    ("272,000 tokens", "gpt-5.6-sol", {}, responses(LONG, out=1), [("4", LONG), ("20", 1)]),
    ("272,001 tokens", "gpt-5.6-sol", {}, responses(LONG + 1, out=1), [("8", LONG + 1), ("30", 1)]),
    (
        "272,001 tokens, most of them read",
        "gpt-6.1-sol",
        {},
        responses(LONG + 1, LONG, out=1),
        [("4", 1), ("0.2", LONG), ("15", 1)],
    ),
    (
        "272,001 tokens, written for twelve hours",
        "gpt-6.1-sol",
        {"ttl": "12h"},
        responses(LONG + 1, 0, LONG, 1, t30m=0, t12h=LONG),
        [("4", 1), ("10", LONG), ("15", 1)],
    ),
    (
        "flex",
        "gpt-6.1-sol",
        {"service_tier": "flex"},
        responses(1000, 500, 100, 1),
        [("1", 400), ("0.05", 500), ("1.25", 100), ("5", 1)],
    ),
    (
        "priority, 272,001 tokens",
        "gpt-6.1-sol",
        {"service_tier": "priority"},
        responses(LONG + 1, out=1),
        [("8", LONG + 1), ("30", 1)],
    ),
    (
        "ultrafast",
        "gpt-6-astra",
        {"service_tier": "ultrafast"},
        responses(1000, 500, 100, 1),
        [("60", 400), ("6", 500), ("75", 100), ("300", 1)],
    ),
    (
        "in Europe",
        "gpt-6.1-terra",
        {"base_url": "https://eu.api.openai.com/v1"},
        responses(1000, 500, 0, 1),
        [("1.1", 500), ("0.055", 500), ("5.5", 1)],
    ),
    (
        "an older model in Europe",
        "gpt-4.1",
        {"base_url": "https://eu.api.openai.com/v1"},
        responses(1000, 0, out=1),
        [("2", 1000), ("8", 1)],
    ),
    (
        "a web search",
        "gpt-6.1-terra",
        {"output": [{"type": "web_search_call", "id": "ws_1", "status": "completed"}]},
        responses(1000, 0, 0, 1),
        [("1", 1000), ("5", 1), ("10000", 1)],
    ),
]


@pytest.mark.parametrize(
    ("model", "options", "usage", "terms"), [case[1:] for case in OPENAI], ids=[case[0] for case in OPENAI]
)
def test_openai(model: str, options: dict[str, Any], usage: dict[str, Any], terms: Terms) -> None:
    """The model's rates times what is left of the total, and its parts."""
    cost = cost_of(f"openai:{model}", usage, **options)
    assert cost.total == dollars(terms)
    assert cost.estimated is False


# ---------------------------------------------------------------------- servers that speak OpenAI's APIs

GROK = 200_000
PEAK = datetime(2026, 11, 30, 8, tzinfo=UTC)
SUNDAY = datetime(2026, 11, 29, 8, tzinfo=UTC)
DEEPSEEK = {"prompt_tokens": 1000, "prompt_cache_hit_tokens": 600, "prompt_cache_miss_tokens": 400}
COMPATIBLE: list[tuple[str, str, dict[str, Any], dict[str, Any], Terms]] = [
    (
        "DeepSeek, hits outside the details",
        "api.deepseek.com#deepseek-v4-pro",
        {},
        {**DEEPSEEK, "completion_tokens": 1},
        [("0.66", 400), ("0.022", 600), ("1.98", 1)],
    ),
    (
        "DeepSeek at its peak",
        "api.deepseek.com#deepseek-v4-pro",
        {"at": PEAK},
        {**DEEPSEEK, "completion_tokens": 1},
        [("1.32", 400), ("0.044", 600), ("3.96", 1)],
    ),
    (
        "DeepSeek at that hour on a Sunday",
        "api.deepseek.com#deepseek-v4-pro",
        {"at": SUNDAY},
        {**DEEPSEEK, "completion_tokens": 1},
        [("0.66", 400), ("0.022", 600), ("1.98", 1)],
    ),
    (
        "Kimi, the older place of its count",
        "api.moonshot.ai/v1#kimi-k3",
        {},
        {"prompt_tokens": 1000, "cached_tokens": 600, "completion_tokens": 1},
        [("3", 400), ("0.3", 600), ("15", 1)],
    ),
    ("Grok, 199,999 tokens", "api.x.ai/v1#grok-4.7", {}, chat(GROK - 1, 0, 1), [("2", GROK - 1), ("6", 1)]),
    ("Grok, 200,000 tokens", "api.x.ai/v1#grok-4.7", {}, chat(GROK, 0, 1), [("4", GROK), ("12", 1)]),
    (
        "Groq",
        "api.groq.com/openai/v1#openai/gpt-oss-120b",
        {},
        chat(1000, 400, 1),
        [("0.15", 600), ("0.075", 400), ("0.6", 1)],
    ),
    (
        "Azure in a European zone",
        "azure:my-deployment",
        {"model_behind": "gpt-6.1-sol", "base_url": "https://r.openai.azure.com/openai/v1/"},
        responses(1000, 400, 0, 1),
        [("2", 600), ("0.1", 400), ("10", 1)],
    ),
    (
        "OpenRouter says itself what it charged",
        "openrouter.ai/api/v1#some/model",
        {},
        {**chat(1000, 0, 1), "cost": 0.0123},
        [("12300", 1)],
    ),
]


@pytest.mark.parametrize(
    ("address", "options", "usage", "terms"),
    [case[1:] for case in COMPATIBLE],
    ids=[case[0] for case in COMPATIBLE],
)
def test_compatible(address: str, options: dict[str, Any], usage: dict[str, Any], terms: Terms) -> None:
    """Each vendor's rates, from the places where it puts its counts."""
    whole = address if address.startswith("azure:") else f"openai+https://{address}"
    assert cost_of(whole, usage, **options).total == dollars(terms)


def test_there_are_forty() -> None:
    """As the file says."""
    assert len(ANTHROPIC) + len(OPENAI) + len(COMPATIBLE) == 40
