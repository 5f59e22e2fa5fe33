"""A call's keywords: what is wrong is said by name, and nothing is sent."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import kvsdk
import pytest
from anthropic_wire import message
from kvsdk import Client, InvalidRequest, Message, Tool, UnknownKeyword
from loopback import Loopback


@pytest.fixture
def client(loopback: Loopback) -> Iterator[Client]:
    with Client("anthropic:claude-sonnet-5-5", base_url=loopback.url, api_key="k", retry=False) as made:
        yield made


METHODS = pytest.mark.parametrize("method", ["generate", "stream", "explain", "count_tokens"])


@METHODS
def test_an_unknown_keyword_is_refused(client: Client, loopback: Loopback, method: str) -> None:
    """By every method, with the nearest known."""
    with pytest.raises(UnknownKeyword, match="max_tokens") as caught:
        getattr(client, method)("x", max_token=5)
    assert caught.value.field == "max_token"
    assert loopback.bodies == []


LOOK = Tool("look", "", {})
WRONG: list[tuple[dict[str, Any], str]] = [
    ({"max_tokens": 0}, "max_tokens"),
    ({"max_tokens": -5}, "max_tokens"),
    ({"max_tokens": 1.5}, "max_tokens"),
    ({"max_tokens": "5"}, "max_tokens"),
    ({"max_tokens": True}, "max_tokens"),
    ({"max_tokens": None}, "max_tokens"),
    ({"timeout_s": 0}, "timeout_s"),
    ({"timeout_s": -1}, "timeout_s"),
    ({"timeout_s": "5"}, "timeout_s"),
    ({"temperature": "hot"}, "temperature"),
    ({"temperature": float("nan")}, "temperature"),
    ({"stop": 5}, "stop"),
    ({"stop": [5]}, "stop"),
    ({"tool_choice": "auto"}, "tool_choice"),
    ({"tools": [LOOK], "tool_choice": "lok"}, "tool_choice"),
    ({"tools": [LOOK], "tool_choice": 5}, "tool_choice"),
    ({"tools": 5}, "tools"),
    ({"system": 5}, "system"),
    ({"cache": "always"}, "cache"),
    ({"cache": True}, "cache"),
    ({"on_unsupported": "ignore"}, "on_unsupported"),
    ({"session": 5}, "session"),
    ({"session": ""}, "session"),
    ({"tenant": 5}, "tenant"),
    ({"metadata": {"a": 1}}, "metadata"),
    ({"metadata": {1: "a"}}, "metadata"),
    ({"metadata": ["a"]}, "metadata"),
    ({"metadata": "a"}, "metadata"),
    ({"extra": {"anthropic": 5}}, "extra"),
    ({"extra": ["a"]}, "extra"),
    ({"extra": "a"}, "extra"),
]


@pytest.mark.parametrize(("options", "field"), WRONG, ids=[str(options) for options, _ in WRONG])
def test_a_wrong_value_is_refused_with_its_field(
    client: Client, loopback: Loopback, options: dict[str, Any], field: str
) -> None:
    """Before anything is sent."""
    with pytest.raises(InvalidRequest) as caught:
        client.generate("x", **options)
    assert caught.value.field == field
    assert loopback.bodies == []


@pytest.mark.parametrize("messages", ["", [], [Message.system("S")], [{"role": "system", "content": "S"}]])
@METHODS
def test_a_call_needs_something_to_answer(
    client: Client, loopback: Loopback, method: str, messages: Any
) -> None:
    """No messages, or only instructions."""
    with pytest.raises(InvalidRequest) as caught:
        getattr(client, method)(messages)
    assert caught.value.field == "messages"
    assert loopback.bodies == []


def test_a_misspelt_tool_choice_gets_a_hint(client: Client) -> None:
    """The nearest tool."""
    with pytest.raises(InvalidRequest, match="Did you mean 'look'"):
        client.generate("x", tools=[LOOK], tool_choice="lok")


def test_a_calls_choices_go_before_the_clients(loopback: Loopback) -> None:
    """`strict`, `cache`, `on_unsupported` and `tenant` of a call win over those of the client."""
    loopback.script(message(), message())
    options: dict[str, Any] = {"strict": True, "on_unsupported": "drop", "cache": "auto", "tenant": "ours"}
    with Client("anthropic:claude-sonnet-5-5", base_url=loopback.url, api_key="k", **options) as client:
        reply = client.generate([Message.user("x", cache="30m")], strict=False, temperature=1.0)
        assert reply.cache.breakpoints[0].status == "mapped"
        with pytest.raises(kvsdk.UnsupportedSetting):
            client.generate("x", temperature=1.0, on_unsupported="raise")
        with pytest.raises(kvsdk.InvalidBreakpoints):
            client.generate([Message.user("x", cache="30m")])


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"cache": "always"}, InvalidRequest),
        ({"on_unsupported": "ignore"}, InvalidRequest),
        ({"retry": 0}, InvalidRequest),
        ({"retry": "3"}, InvalidRequest),
        ({"ledger": 5}, kvsdk.ConfigurationError),
        ({"tenant": 5}, kvsdk.KvsdkError),
        ({"ledger": ""}, kvsdk.LedgerError),
        ({"strickt": True}, kvsdk.ConfigurationError),
    ],
)
def test_a_client_checks_what_it_is_made_of(options: dict[str, Any], error: type[Exception]) -> None:
    """A mistake in the set-up does not wait for the first call."""
    with pytest.raises(error):
        Client("anthropic:claude-sonnet-5-5", api_key="k", **options)
