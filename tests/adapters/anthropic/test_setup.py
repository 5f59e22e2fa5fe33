"""Making a client: what is missing or wrong is said before anything is sent."""

from __future__ import annotations

import importlib
from importlib.util import find_spec

import kvsdk
import pytest
from anthropic_wire import message
from kvsdk import Client
from loopback import Loopback


def test_a_missing_key_is_named() -> None:
    """Without `api_key` and without its variable."""
    with pytest.raises(kvsdk.MissingCredentials, match="ANTHROPIC_API_KEY") as caught:
        Client("anthropic:claude-sonnet-5-5")
    assert caught.value.backend == "anthropic"


@pytest.mark.parametrize("name", ["ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN"])
def test_the_key_may_come_from_the_environment(
    monkeypatch: pytest.MonkeyPatch, loopback: Loopback, name: str
) -> None:
    """The vendor's own variables are enough."""
    monkeypatch.setenv(name, "sk-env")
    monkeypatch.setenv("ANTHROPIC_BASE_URL", loopback.url)
    loopback.script(message())
    with Client("anthropic:claude-sonnet-5-5") as client:
        client.generate("x")
    assert loopback.request.headers["authorization"] == "Bearer sk-env"


def test_a_missing_extra_names_the_pip_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the vendor's SDK the error says how to install it."""
    discovery = importlib.import_module("kvsdk.backend.discovery")
    monkeypatch.setattr(discovery, "find_spec", lambda name: None if name == "anthropic" else find_spec(name))
    with pytest.raises(kvsdk.BackendNotInstalled, match=r"pip install 'kvsdk\[anthropic\]'"):
        Client("anthropic:claude-sonnet-5-5", api_key="k")


def test_an_unknown_option_is_named_with_the_nearest_known() -> None:
    """A misspelt option is an error, not ignored."""
    with pytest.raises(kvsdk.ConfigurationError, match=r"'base_ur'.*'base_url'"):
        Client("anthropic:claude-sonnet-5-5", api_key="k", base_ur="http://127.0.0.1")


def test_an_address_needs_a_model() -> None:
    """`anthropic:` alone is no address."""
    with pytest.raises(kvsdk.ConfigurationError, match="anthropic:MODEL"):
        Client("anthropic:", api_key="k")


def test_a_setting_that_the_vendor_dropped_is_refused(client: Client, loopback: Loopback) -> None:
    """Anthropic takes no `temperature`: an error that says how to go on, and nothing is sent."""
    with pytest.raises(kvsdk.UnsupportedSetting, match="on_unsupported='drop'") as caught:
        client.generate("x", temperature=0.0)
    assert caught.value.field == "temperature"
    assert loopback.bodies == []


def test_or_is_left_out_and_said(client: Client, loopback: Loopback) -> None:
    """With `on_unsupported="drop"` the call goes out without it, and the reply's notes say so."""
    loopback.script(message())
    reply = client.generate("x", temperature=0.5, on_unsupported="drop")
    assert "temperature" not in loopback.body
    assert any("temperature" in note for note in reply.cache.notes)


def test_the_client_may_be_closed_twice_and_used_as_a_context(loopback: Loopback) -> None:
    """Closing again changes nothing."""
    loopback.script(message())
    with Client("anthropic:claude-sonnet-5-5", api_key="k", base_url=loopback.url) as client:
        client.generate("x")
    client.close()


@pytest.mark.parametrize(
    ("model", "tokens"),
    [
        ("claude-sonnet-5-5", 512),
        ("claude-sonnet-4-5-20250929", 1024),
        ("claude-opus-4-7", 2048),
        ("claude-haiku-4-5", 4096),
        ("claude-opus-4-5", 4096),
        ("claude-unheard-of", None),
    ],
)
def test_the_shortest_cached_prefix_is_the_models(model: str, tokens: int | None) -> None:
    """The minimum is looked up by model, dated names included; an unlisted model has none."""
    assert kvsdk.backend(f"anthropic:{model}", api_key="k").capabilities.min_tokens == tokens


def test_explain_sends_nothing(client: Client, loopback: Loopback) -> None:
    """What a call would become, without a request."""
    told = client.explain([kvsdk.Message.user("x" * 400, cache="30m")], system="S" * 400)
    assert loopback.bodies == []
    assert (told.backend, told.model, told.min_tokens) == ("anthropic", "claude-sonnet-5-5", 512)
    assert (told.input_tokens, told.input_tokens.is_estimated) == (200, True)
    (entry,) = told.breakpoints
    assert (entry.status, entry.granted_ttl, entry.tokens_estimated) == ("mapped", "5m", True)
