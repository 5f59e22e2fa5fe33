"""Tools on the real engine, in process and over HTTP."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import kvsdk
import pytest
from kvsdk import Message, Tool, ToolCallDelta
from pydantic import BaseModel

pytestmark = [
    pytest.mark.engine,
    pytest.mark.timeout(600),
    pytest.mark.filterwarnings("ignore:max_rollback_tokens is deprecated"),  # vLLM's use of xgrammar
]


def get_weather(city: str) -> str:
    """Weather in a city."""
    return f"Sunny in {city}"


@pytest.fixture(params=["in process", "server"])
def client(request: pytest.FixtureRequest) -> Iterator[kvsdk.Client]:
    """Both ways to the engine."""
    if request.param == "in process":
        yield request.getfixturevalue("local")
    else:
        with kvsdk.Client(f"vllm+http://{request.getfixturevalue('server')}#smol") as client:
            yield client


def test_a_whole_tool_loop(client: kvsdk.Client) -> None:
    """A forced call has arguments that fit the schema; its result goes back and the model answers."""
    tool = Tool.from_function(get_weather)
    messages = [Message.user("What is the weather in Paris?")]
    asked = client.generate(messages, tools=[tool], tool_choice="get_weather", max_tokens=100, temperature=0)
    assert asked.stop_reason == "tool_use"
    (call,) = asked.tool_calls
    assert call.name == "get_weather"
    result = tool(**call.arguments)
    messages += [asked.message, Message.tool(call.id, result)]
    answered = client.generate(messages, tools=[tool], max_tokens=40, temperature=0)
    assert "Paris" in answered.text
    assert answered.usage.cache_read_tokens  # the loop's second request reads the first one's blocks


class Valve(BaseModel):
    """A valve."""

    colour: Literal["blue", "red"]
    is_open: bool


def test_an_answer_fits_its_schema(client: kvsdk.Client) -> None:
    """The engine is held to the schema of `response_format`, so the answer can be read as its model."""
    question = "Describe a valve as JSON."
    reply = client.generate(question, response_format=Valve, max_tokens=60, temperature=0)
    assert isinstance(reply.parsed, Valve)
    assert reply.parsed.colour in ("blue", "red")


def test_a_streamed_call_ends_with_whole_arguments(client: kvsdk.Client) -> None:
    """The deltas of a streamed call join to its arguments."""
    question = "What is the weather in Rome?"
    settings = {"tools": [get_weather], "tool_choice": "required", "max_tokens": 100, "temperature": 0}
    with client.stream(question, **settings) as stream:
        deltas = [event for event in stream if isinstance(event, ToolCallDelta)]
    (call,) = stream.reply.tool_calls
    assert "".join(delta.arguments_json for delta in deltas) == call.arguments_json
    assert set(call.arguments) == {"city"}
