"""What a model thought and labelled comes back as it was; several calls stay apart."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from asking import ask
from kvsdk import Client, Message, Text, Thinking, Tool, ToolCall
from loopback import Loopback, sse
from openai_wire import begun, chunk, completion, function_call, output_text, response, tool_call

THOUGHT: dict[str, Any] = {
    "type": "reasoning",
    "id": "rs_1",
    "summary": [{"type": "summary_text", "text": "Hm."}],
    "encrypted_content": "b3BhcXVl",
    "status": "completed",
}
LOOK = Tool("look", "Looks.", {"type": "object"})


def stream_of_items(*items: dict[str, Any]) -> list[dict[str, Any]]:
    """A stream in which each item arrives at once."""
    return [
        begun()[0],
        *(
            {"type": "response.output_item.done", "output_index": n, "item": one}
            for n, one in enumerate(items)
        ),
        {"type": "response.completed", "response": response(*items)},
    ]


@pytest.mark.parametrize("streams", [False, True])
def test_a_turn_of_everything_comes_back_in_order(client: Client, loopback: Loopback, streams: bool) -> None:
    """Reasoning unchanged, a commentary with its phase, two calls side by side, and their results."""
    items = (
        THOUGHT,
        output_text("I look.") | {"phase": "commentary"},
        function_call("call_1", "look", '{"at": 1}'),
        function_call("call_2", "look", '{"at": 2}'),
    )
    loopback.script(sse(stream_of_items(*items)) if streams else response(*items), response())
    messages = [Message.user("x")]
    first = ask(client, messages, streams=streams, tools=[LOOK])
    assert [call.id for call in first.tool_calls] == ["call_1", "call_2"]
    assert (first.text, first.stop_reason) == ("I look.", "tool_use")
    assert first.parts[0] == Thinking("Hm.", "openai", THOUGHT)
    messages += [first.message, Message.tool("call_1", "1 bar"), Message.tool("call_2", "2 bar")]
    client.generate(messages, tools=[LOOK])
    assert loopback.bodies[1]["input"] == [
        {"role": "user", "content": [{"type": "input_text", "text": "x"}]},
        THOUGHT,
        {
            "role": "assistant",
            "content": [{"type": "output_text", "text": "I look."}],
            "phase": "commentary",
        },
        {"type": "function_call", "call_id": "call_1", "name": "look", "arguments": '{"at": 1}'},
        {"type": "function_call", "call_id": "call_2", "name": "look", "arguments": '{"at": 2}'},
        {"type": "function_call_output", "call_id": "call_1", "output": "1 bar"},
        {"type": "function_call_output", "call_id": "call_2", "output": "2 bar"},
    ]


def test_phases_stay_with_their_texts(client: Client, loopback: Loopback) -> None:
    """Two texts of one turn are two items."""
    one, two = (
        output_text("First.") | {"phase": "commentary"},
        output_text("Last.") | {"phase": "final_answer"},
    )
    loopback.script(response(one, two), response())
    messages = [Message.user("x")]
    first = client.generate(messages)
    assert first.text == "First.Last."
    client.generate([*messages, first.message, Message.user("y")])
    turns = [item for item in loopback.bodies[1]["input"] if item["role"] == "assistant"]
    assert [(turn["content"][0]["text"], turn["phase"]) for turn in turns] == [
        ("First.", "commentary"),
        ("Last.", "final_answer"),
    ]


def test_one_deployments_reasoning_is_not_sent_elsewhere(client: Client, loopback: Loopback) -> None:
    """Azure's encrypted reasoning means nothing to OpenAI."""
    loopback.script(response())
    turn = Message.assistant(Thinking("Hm.", "azure", THOUGHT), Text("A"))
    client.generate([Message.user("x"), turn, Message.user("y")])
    assert "reasoning" not in loopback.request.get_data(as_text=True)


# ---------------------------------------------------------------------- Chat


@pytest.mark.parametrize("thought", ["I look first.", ""])
@pytest.mark.parametrize("streams", [False, True])
def test_deepseeks_reasoning_comes_back_with_its_calls(
    server: Callable[..., Client], loopback: Loopback, thought: str, streams: bool
) -> None:
    """Even an empty one: without it the next request of the tool loop is a 400."""
    call = tool_call("c1", "look", "{}")
    if streams:
        pieces = [{"reasoning_content": thought}, {"tool_calls": [{"index": 0, **call}]}]
        loopback.script(sse([*(chunk(piece) for piece in pieces), chunk({}, "tool_calls"), "[DONE]"]))
    else:
        body = completion(None, call)
        body["choices"][0]["message"]["reasoning_content"] = thought
        loopback.script(body)
    loopback.script(completion())
    client = server("deepseek-v4-pro", profile="deepseek")
    messages = [Message.user("x")]
    first = ask(client, messages, streams=streams, tools=[LOOK])
    assert first.parts[0] == Thinking(thought, "deepseek", {"reasoning_content": thought})
    messages += [first.message, Message.tool("c1", "1 bar")]
    client.generate(messages, tools=[LOOK])
    turn = {"role": "assistant", "reasoning_content": thought, "tool_calls": [call]}
    assert loopback.bodies[1]["messages"][1] == turn


def test_one_vendors_reasoning_is_not_sent_to_another(
    server: Callable[..., Client], loopback: Loopback
) -> None:
    """It stays out of the body."""
    loopback.script(completion())
    thought = Thinking("Hm.", "deepseek", {"reasoning_content": "Hm."})
    turn = Message.assistant(thought, ToolCall("c1", "look"))
    server("kimi-k3", profile="moonshot").generate([Message.user("x"), turn, Message.tool("c1", "1")])
    assert "reasoning" not in loopback.request.get_data(as_text=True)


def test_mistrals_pieces_are_text(server: Callable[..., Client], loopback: Loopback) -> None:
    """A reasoning model's content is a list: its texts are the answer."""
    pieces = [
        {"type": "thinking", "thinking": [{"type": "text", "text": "Hm."}]},
        {"type": "text", "text": "Valve A."},
    ]
    body = completion()
    body["choices"][0]["message"]["content"] = pieces
    loopback.script(body)
    assert server("magistral-medium", profile="mistral").generate("x").text == "Valve A."
