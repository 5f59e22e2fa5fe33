"""Azure's deployments, through OpenAI's SDK and its `v1` endpoint."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from decimal import Decimal
from typing import Any

import kvsdk
import pytest
from asking import ask
from kvsdk import AsyncClient, Client, Message, Text
from kvsdk.testing import breakpoints
from loopback import Loopback, sse
from openai_wire import MODEL, OLD_MODEL, RESPONSES_USAGE, completion, response, response_stream

MARK = "prompt_cache_breakpoint"
SPLITLESS = RESPONSES_USAGE | {"input_tokens_details": {"cached_tokens": 2048, "cache_write_tokens": 900}}


@pytest.fixture
def azure(loopback: Loopback) -> Iterator[Callable[..., Client]]:
    """Makes clients of a deployment."""
    made: list[Client] = []

    def make(deployment: str = "valves", **options: Any) -> Client:
        settings = {"base_url": f"{loopback.url}/openai/v1/", "api_key": "az-test-key", "retry": False}
        made.append(Client(f"azure:{deployment}", **(settings | options)))
        return made[-1]

    yield make
    for client in made:
        client.close()


@pytest.mark.parametrize("streams", [False, True])
def test_a_deployment_is_sent_as_the_model(
    azure: Callable[..., Client], loopback: Loopback, streams: bool
) -> None:
    """With the marks of the model behind it, which know 30 minutes only, and the tenant as the key."""
    body = response(usage=SPLITLESS)
    events = [*response_stream("Valve A.")[:-1], {"type": "response.completed", "response": body}]
    loopback.script(sse(events) if streams else body)
    reply = ask(
        azure(model=MODEL),
        [Message.user("x")],
        streams=streams,
        system=[Text("S", cache="12h")],
        tenant="acme",
        max_tokens=50,
    )
    assert loopback.body == {
        "model": "valves",
        "input": [
            {
                "role": "developer",
                "content": [{"type": "input_text", "text": "S", MARK: {"mode": "explicit", "ttl": "30m"}}],
            },
            {"role": "user", "content": [{"type": "input_text", "text": "x"}]},
        ],
        "max_output_tokens": 50,
        "prompt_cache_options": {"mode": "explicit"},
        "prompt_cache_key": "acme",
        **({"stream": True} if streams else {}),
    }
    assert loopback.request.path == "/openai/v1/responses"
    assert loopback.request.headers["authorization"] == "Bearer az-test-key"
    (entry,) = reply.cache.breakpoints
    assert (entry.status, entry.granted_ttl) == ("mapped", "30m")
    assert reply.backend == "azure"
    assert reply.usage.fresh_tokens == 3000 - 2048 - 900


def test_it_is_priced_as_azures(azure: Callable[..., Client], loopback: Loopback) -> None:
    """gpt-5.6-sol costs 4 / 0.4 / 5 (30m) / 20 dollars per million tokens there too."""
    loopback.script(response(usage=SPLITLESS, model="gpt-5.6-sol-2026-09-01"))
    cost = azure(model=MODEL).generate([Message.user("x", cache=True)]).cost
    assert cost.total == (4 * 52 + Decimal("0.4") * 2048 + 5 * 900 + 20 * 5) / 1_000_000
    assert cost.estimated is False
    assert "azure/gpt-5.6-sol" in str(cost.price_source)


@pytest.mark.parametrize("api", ["responses", "chat"])
def test_a_deployment_that_does_not_say_its_model(
    azure: Callable[..., Client], loopback: Loopback, api: str
) -> None:
    """No marks, which an older model would answer with 400, no price, and both are said."""
    loopback.script(response() if api == "responses" else completion())
    client = azure(api=api)
    reply = client.generate([Message.user("x", cache="12h")], session="user-1", tenant="acme")
    assert not breakpoints(loopback.body)
    assert "prompt_cache_options" not in loopback.body
    assert loopback.body["prompt_cache_key"] == "acme"
    assert reply.cost.total is None
    assert "model=" in str(reply.cost.reason)
    assert any("model=" in note for note in reply.cache.notes)
    assert client.explain("x").notes == reply.cache.notes


def test_an_older_model_has_its_session_as_a_hint(azure: Callable[..., Client], loopback: Loopback) -> None:
    """And neither marks nor a retention."""
    loopback.script(response())
    azure(model=OLD_MODEL).generate([Message.user("x", cache="12h")], session="user-1", tenant="acme")
    sent = {name: value for name, value in loopback.body.items() if name.startswith("prompt_cache")}
    assert sent == {"prompt_cache_key": "user-1"}


def test_openais_own_are_not_azures(azure: Callable[..., Client], loopback: Loopback) -> None:
    """No prewarm, and no comparison with the last response."""
    client = azure(model=MODEL)
    with pytest.raises(kvsdk.Unsupported):
        client.prewarm("x")
    loopback.script(response(), response())
    chat = client.session("user-1")
    chat.generate("x")
    chat.generate("x")
    assert "comparison" not in loopback.requests[1].get_data(as_text=True)


def test_extra_is_by_scheme(azure: Callable[..., Client], loopback: Loopback) -> None:
    """What is meant for OpenAI is not sent to Azure."""
    loopback.script(response())
    azure(model=MODEL).generate("x", extra={"azure": {"store": False}, "openai": {"truncation": "auto"}})
    assert loopback.body["store"] is False
    assert "truncation" not in loopback.body


@pytest.mark.parametrize("ending", ["", "/", "/openai/v1", "/openai/v1/"])
async def test_all_may_come_from_the_environment(
    loopback: Loopback, monkeypatch: pytest.MonkeyPatch, ending: str
) -> None:
    """The resource's address, with or without the path, and the key; OpenAI's own key stays out of it."""
    monkeypatch.setenv("AZURE_OPENAI_ENDPOINT", f"{loopback.url}{ending}")
    monkeypatch.setenv("AZURE_OPENAI_API_KEY", "az-env")
    monkeypatch.setenv("OPENAI_API_KEY", "sk-env")
    monkeypatch.setenv("OPENAI_BASE_URL", "https://api.deepseek.com")
    loopback.script(response())
    async with AsyncClient("azure:valves") as client:
        assert (await client.generate("x")).text == "Valve A."
    assert loopback.request.path == "/openai/v1/responses"
    assert loopback.request.headers["authorization"] == "Bearer az-env"


def test_what_is_missing_is_named() -> None:
    """First the address, then the key."""
    with pytest.raises(kvsdk.ConfigurationError, match="AZURE_OPENAI_ENDPOINT"):
        Client("azure:valves")
    with pytest.raises(kvsdk.ConfigurationError, match="AZURE_OPENAI_ENDPOINT"):
        kvsdk.backend("azure:valves", api_key="k").open()
    with pytest.raises(kvsdk.MissingCredentials, match="AZURE_OPENAI_API_KEY"):
        Client("azure:valves", base_url="https://unit.openai.azure.com/openai/v1/")


def test_a_compatible_address_may_be_azures() -> None:
    """Found by its host, with the same option; elsewhere the address names the model itself."""
    address = "openai+https://unit.openai.azure.com/openai/v1#valves"
    assert kvsdk.backend(address).capabilities.breakpoints == "advisory"
    assert kvsdk.backend(address, model=MODEL).capabilities.breakpoints == "honoured"
    with pytest.raises(kvsdk.ConfigurationError, match="Azure"):
        kvsdk.backend("openai+https://api.deepseek.com#deepseek-chat", model=MODEL)
