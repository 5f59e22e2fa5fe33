"""Making a client of OpenAI, using it from async code, and what its answers cost."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from decimal import Decimal
from importlib.util import find_spec

import kvsdk
import pytest
from kvsdk import AsyncClient, Client, Message
from loopback import Loopback, Scripted, sse
from openai_wire import MODEL, RESPONSES_USAGE, chat_stream, completion, response, response_stream


def test_a_missing_key_is_named() -> None:
    """Without `api_key` and without its variable."""
    with pytest.raises(kvsdk.MissingCredentials, match="OPENAI_API_KEY"):
        Client(f"openai:{MODEL}")


def test_the_key_may_come_from_the_environment(monkeypatch: pytest.MonkeyPatch, loopback: Loopback) -> None:
    """The vendor's own variables are enough."""
    monkeypatch.setenv("OPENAI_API_KEY", "sk-env")
    monkeypatch.setenv("OPENAI_BASE_URL", f"{loopback.url}/v1")
    loopback.script(response())
    with Client(f"openai:{MODEL}") as client:
        client.generate("x")
    assert loopback.request.headers["authorization"] == "Bearer sk-env"


def test_a_missing_extra_names_the_pip_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the vendor's SDK the error says how to install it."""
    discovery = importlib.import_module("kvsdk.backend.discovery")
    monkeypatch.setattr(discovery, "find_spec", lambda name: None if name == "openai" else find_spec(name))
    with pytest.raises(kvsdk.BackendNotInstalled, match=r"pip install 'kvsdk\[openai\]'"):
        Client(f"openai:{MODEL}", api_key="k")


def test_an_unknown_api_or_option_is_refused() -> None:
    """Both are named, with what is known."""
    with pytest.raises(kvsdk.ConfigurationError, match="'responses' or 'chat'"):
        Client(f"openai:{MODEL}", api_key="k", api="completions")
    with pytest.raises(kvsdk.ConfigurationError, match=r"'apii'.*'api'"):
        Client(f"openai:{MODEL}", api_key="k", apii="chat")


@pytest.mark.parametrize("api", ["responses", "chat"])
async def test_async_errors_are_the_same(loopback: Loopback, api: str) -> None:
    """A cut stream is a truncation, an HTML page a protocol error."""
    pieces = {"responses": response_stream, "chat": chat_stream}[api]("Valve", " A.")
    page = Scripted(b"<html>wifi</html>", content_type="text/html")
    loopback.script(sse(pieces[:-3]), page, page)
    options = {"base_url": f"{loopback.url}/v1", "api_key": "k", "retry": False, "api": api}
    async with AsyncClient(f"openai:{MODEL}", **options) as client:
        with pytest.raises(kvsdk.StreamTruncated):
            async with client.stream("x") as answer:
                [event async for event in answer]
        with pytest.raises(kvsdk.BackendProtocolError, match="wifi"):
            await client.generate("x")
        with pytest.raises(kvsdk.BackendProtocolError, match="wifi"):
            async with client.stream("x") as answer:
                [event async for event in answer]


def test_a_cost_has_all_its_parts(client: Client, loopback: Loopback) -> None:
    """gpt-5.6-sol costs 4 / 0.4 / 5 (30m) / 20 dollars per million tokens."""
    details = {"cached_tokens": 2048, "cache_write_tokens": 900}
    loopback.script(response(usage=RESPONSES_USAGE | {"input_tokens_details": details}))
    cost = client.generate([Message.user("x", cache="30m")]).cost
    mtok = 1_000_000
    assert cost.input == Decimal(4) * (3000 - 2048 - 900) / mtok
    assert cost.cache_read == Decimal("0.4") * 2048 / mtok
    assert cost.cache_write == Decimal(5) * 900 / mtok
    assert cost.output == Decimal(20) * 5 / mtok
    assert cost.total == (4 * 52 + Decimal("0.4") * 2048 + 5 * 900 + 20 * 5) / mtok
    assert cost.estimated is False


def test_a_write_of_twelve_hours_costs_two_and_a_half_inputs(client: Client, loopback: Loopback) -> None:
    """400 tokens for 30 minutes at 5 and 500 for 12 hours at 4 x 2.5 dollars per million."""
    loopback.script(response(usage=RESPONSES_USAGE))
    cost = client.generate([Message.user("x", cache="12h")]).cost
    assert cost.cache_write == (Decimal(5) * 400 + Decimal(4) * Decimal("2.5") * 500) / 1_000_000
    assert cost.estimated is False


def test_an_absent_split_after_a_mark_of_twelve_hours_is_an_interval(
    client: Client, loopback: Loopback
) -> None:
    """All 900 for 30 minutes at least, all for 12 hours at most."""
    details = {"cached_tokens": 2048, "cache_write_tokens": 900}
    loopback.script(response(usage=RESPONSES_USAGE | {"input_tokens_details": details}))
    cost = client.generate([Message.user("x", cache="12h")]).cost
    assert cost.low is not None
    assert cost.total is not None
    assert cost.total - cost.low == (Decimal(10) - Decimal(5)) * 900 / 1_000_000


def test_the_tier_that_was_billed_decides(connect: Callable[..., Client], loopback: Loopback) -> None:
    """Flex is half price, whatever was asked for."""
    loopback.script(response(service_tier="default"), response(service_tier="flex"))
    client = connect()
    whole, half = client.generate("x").cost, client.generate("x").cost
    assert whole.total is not None
    assert half.total == whole.total / 2


def test_cached_tokens_are_not_billed_twice(connect: Callable[..., Client], loopback: Loopback) -> None:
    """gpt-4o, 2048 in of which 1920 cached, 300 out, at 2.5 / 1.25 / 10 dollars per million tokens."""
    usage = {
        "prompt_tokens": 2048,
        "completion_tokens": 300,
        "prompt_tokens_details": {"cached_tokens": 1920},
    }
    loopback.script(completion(model="gpt-4o", usage=usage))
    cost = connect("gpt-4o", api="chat").generate("x").cost
    expected = Decimal("2.5") * (2048 - 1920) + Decimal("1.25") * 1920 + Decimal(10) * 300
    assert cost.total == expected / 1_000_000 == Decimal("0.00572")
