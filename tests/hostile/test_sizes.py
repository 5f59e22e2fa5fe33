"""Large and odd conversations, through the vendors' SDKs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import anthropic_wire
import openai_wire
import pytest
from kvsdk import Client, Message, Text, ToolCall
from loopback import Loopback

BACKENDS = ("anthropic:claude-sonnet-5-5", "openai:gpt-5.6-sol")


@pytest.fixture(params=BACKENDS)
def client(request: pytest.FixtureRequest, loopback: Loopback) -> Iterator[Client]:
    """A client of each vendor, whose server has one answer."""
    is_openai = request.param.startswith("openai")
    loopback.script(openai_wire.response() if is_openai else anthropic_wire.message())
    base_url = f"{loopback.url}/v1" if is_openai else loopback.url
    with Client(request.param, base_url=base_url, api_key="test", retry=False) as client:
        yield client


def _turns(loopback: Loopback) -> list[dict[str, Any]]:
    turns: list[dict[str, Any]] = loopback.body.get("messages") or loopback.body["input"]
    return turns


def test_ten_thousand_messages_arrive_in_order(client: Client, loopback: Loopback) -> None:
    """A session of 10,000 turns is sent whole, with the breakpoint at its end and at no other place."""
    messages = [
        Message.user(f"Question {number}") if number % 2 == 0 else Message.assistant(f"Answer {number}")
        for number in range(9_999)
    ]
    reply = client.generate([*messages, Message.user("The last", cache=True)], session="long")
    turns = _turns(loopback)
    assert len(turns) in (9_999, 10_000)  # two user turns in a row are one at Anthropic
    assert [entry.status for entry in reply.cache.breakpoints] == ["honoured"]
    assert sum("cache_control" in str(turn) or "prompt_cache_breakpoint" in str(turn) for turn in turns) == 1


ODD = ("✅ 你好🌍", "a\u0085b\u2028c", "\x00\x1f", "e\u0301\u200d\ufeff", "\u202eabc")


@pytest.mark.parametrize("text", ODD)
def test_unicode_arrives_as_it_was_written(text: str, client: Client, loopback: Loopback) -> None:
    """No character is changed, split off or escaped away on its way."""
    client.generate([Message.user(text)], system=[Text(text, cache=True)])
    assert str([text]) in str(_turns(loopback)) or text in _strings(loopback.body)


def _strings(value: Any) -> list[str]:
    if isinstance(value, str):
        return [value]
    items = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return [found for item in items for found in _strings(item)]


def test_an_empty_result_is_still_a_result(client: Client, loopback: Loopback) -> None:
    """A tool that gave back nothing has its result in the conversation."""
    client.generate([Message.user("Look"), Message.assistant(ToolCall("c1", "look")), Message.tool("c1", "")])
    assert "c1" in _strings(_turns(loopback)[-1])


def test_arguments_that_are_no_json_are_sent_back_as_they_came(client: Client, loopback: Loopback) -> None:
    """What a model wrote instead of JSON is not lost, whoever gets it next."""
    call = ToolCall.parse("c1", "look", "at the {blue valve")
    assert dict(call.arguments) == {}
    client.generate([Message.user("Look"), Message.assistant(call), Message.tool("c1", "no")])
    assert "at the {blue valve" in _strings(loopback.body)
