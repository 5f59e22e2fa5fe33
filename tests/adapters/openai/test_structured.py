"""Answers in a given shape, on both of OpenAI's wires."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import kvsdk
import pytest
from asking import ask
from kvsdk import Client
from loopback import Loopback, sse
from openai_wire import chat_stream, completion, output_text, response, response_stream
from pydantic import BaseModel, ConfigDict

CLOSED: dict[str, Any] = {
    "title": "Valve state!",
    "type": "object",
    "properties": {"valve": {"type": "string"}, "open": {"type": "boolean"}},
    "required": ["open", "valve"],
    "additionalProperties": False,
}


class Step(BaseModel):
    model_config = ConfigDict(extra="forbid")
    valve: str


class Plan(BaseModel):
    model_config = ConfigDict(extra="forbid")
    steps: list[Step]
    first: Step | None


class Loose(BaseModel):
    valve: str
    bar: int = 1


def test_responses_has_the_format_under_text(client: Client, loopback: Loopback) -> None:
    """With a name that the vendor takes, and the caller's other text settings beside it."""
    loopback.script(response(output_text('{"valve": "A", "open": true}')))
    reply = client.generate("x", response_format=CLOSED, extra={"openai": {"text": {"verbosity": "low"}}})
    assert loopback.body["text"] == {
        "format": {"type": "json_schema", "name": "Valve_state_", "schema": CLOSED, "strict": True},
        "verbosity": "low",
    }
    assert reply.parsed == {"valve": "A", "open": True}


def test_chat_has_it_as_response_format(chat: Client, loopback: Loopback) -> None:
    """One level deeper."""
    loopback.script(completion('{"valve": "A", "open": true}'))
    reply = chat.generate("x", response_format=CLOSED)
    assert loopback.body["response_format"] == {
        "type": "json_schema",
        "json_schema": {"name": "Valve_state_", "schema": CLOSED, "strict": True},
    }
    assert reply.parsed == {"valve": "A", "open": True}


@pytest.mark.parametrize("api", ["responses", "chat"])
@pytest.mark.parametrize("streams", [False, True])
def test_a_model_comes_back_as_its_instance(
    connect: Callable[..., Client], loopback: Loopback, api: str, streams: bool
) -> None:
    """Whole and streamed; nested closed models are strict."""
    text = '{"steps":[{"valve":"A"}],"first":null}'
    if streams:
        loopback.script(sse(response_stream(text) if api == "responses" else chat_stream(text)))
    else:
        loopback.script(response(output_text(text)) if api == "responses" else completion(text))
    reply = ask(connect(api=api), "x", streams=streams, response_format=Plan)
    assert reply.parsed == Plan(steps=[Step(valve="A")], first=None)
    body = loopback.body
    sent = body["text"]["format"] if api == "responses" else body["response_format"]["json_schema"]
    assert (sent["name"], sent["strict"]) == ("Plan", True)


@pytest.mark.parametrize(
    ("change", "strict"),
    [
        ({}, True),
        ({"additionalProperties": True}, False),
        ({"required": ["open"]}, False),
        ({"anyOf": [{"type": "object"}]}, False),
        ({"properties": {"valve": {"type": "string", "default": "A"}, "open": {"type": "boolean"}}}, False),
        ({"properties": {"valve": {"type": "object"}, "open": {"type": "boolean"}}}, False),
        ({"properties": {"valve": {"type": "array", "items": Loose.model_json_schema()}, "open": {}}}, False),
        ({"properties": {"valve": {"anyOf": [CLOSED, {"type": "null"}]}, "open": {}}}, True),
        ({"$defs": {"x": {"type": "object", "properties": {"y": {}}}}}, False),
    ],
)
def test_strict_is_asked_for_only_where_it_is_taken(
    client: Client, loopback: Loopback, change: dict[str, Any], strict: bool
) -> None:
    """Every object closed and every property required, at every depth; a strict refusal would be a 400."""
    loopback.script(response(output_text("{}")))
    client.generate("x", response_format=CLOSED | change)
    assert loopback.body["text"]["format"]["strict"] is strict


def test_an_open_model_is_not_strict(client: Client, loopback: Loopback) -> None:
    """A pydantic model as one writes it every day: sent, and read."""
    loopback.script(response(output_text('{"valve": "A"}')))
    reply = client.generate("x", response_format=Loose)
    assert loopback.body["text"]["format"]["strict"] is False
    assert reply.parsed == Loose(valve="A", bar=1)


def test_a_server_without_schemas_refuses_them(server: Callable[..., Client], loopback: Loopback) -> None:
    """DeepSeek's `response_format` knows no schema: refused, or left out and said."""
    client = server(profile="deepseek")
    with pytest.raises(kvsdk.UnsupportedSetting, match="response_format"):
        client.generate("x", response_format=CLOSED)
    loopback.script(completion())
    reply = client.generate("x", response_format=CLOSED, on_unsupported="drop")
    assert "response_format" not in loopback.body
    assert any("response_format" in note for note in reply.cache.notes)
