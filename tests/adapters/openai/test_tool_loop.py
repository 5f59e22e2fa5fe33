"""Whole tool loops of both APIs: what came back goes in again, nothing lost."""

from __future__ import annotations

from kvsdk import Client, Message, Tool
from loopback import Loopback
from openai_wire import completion, function_call, output_text, response, tool_call

REASONING = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "b3BhcXVl"}
ARGUMENTS = '{ "valve": "B",  "at": 1 }'


SCHEMA = {
    "type": "object",
    "properties": {"valve": {"type": "string"}, "at": {"type": "integer"}},
    "required": ["valve", "at"],
}
PRESSURE = Tool("pressure", "Pressure at a valve.", SCHEMA)


def pressure(valve: str, at: int) -> str:
    return f"{valve}: {at} bar"


def test_responses_second_input_extends_the_first(client: Client, loopback: Loopback) -> None:
    """Reasoning, text and call come back unchanged, spaces in the arguments included, then the result."""
    loopback.script(
        response(REASONING, output_text("I look."), function_call("call_1", "pressure", ARGUMENTS)),
        response(output_text("1 bar.")),
    )
    messages = [Message.user("Pressure at B?")]
    first = client.generate(messages, tools=[PRESSURE])
    (call,) = first.tool_calls
    messages += [first.message, Message.tool(call.id, pressure(**call.arguments))]
    assert client.generate(messages, tools=[PRESSURE]).text == "1 bar."

    one, two = loopback.bodies
    assert two["input"] == [
        {"role": "user", "content": [{"type": "input_text", "text": "Pressure at B?"}]},
        REASONING,
        {"role": "assistant", "content": [{"type": "output_text", "text": "I look."}]},
        {"type": "function_call", "call_id": "call_1", "name": "pressure", "arguments": ARGUMENTS},
        {"type": "function_call_output", "call_id": "call_1", "output": "B: 1 bar"},
    ]
    assert (
        two["tools"]
        == one["tools"]
        == [
            {
                "type": "function",
                "name": "pressure",
                "description": "Pressure at a valve.",
                "parameters": SCHEMA,
                "strict": False,
            }
        ]
    )


def test_chat_second_messages_extend_the_first(chat: Client, loopback: Loopback) -> None:
    """The assistant's turn with its call comes back unchanged, then the tool's message."""
    loopback.script(
        completion("I look.", tool_call("call_1", "pressure", ARGUMENTS)),
        completion("1 bar."),
    )
    messages = [Message.user("Pressure at B?")]
    first = chat.generate(messages, tools=[PRESSURE])
    (call,) = first.tool_calls
    messages += [first.message, Message.tool(call.id, pressure(**call.arguments))]
    assert chat.generate(messages, tools=[PRESSURE]).text == "1 bar."

    two = loopback.bodies[1]
    assert two["messages"] == [
        {"role": "user", "content": "Pressure at B?"},
        {
            "role": "assistant",
            "content": "I look.",
            "tool_calls": [tool_call("call_1", "pressure", ARGUMENTS)],
        },
        {"role": "tool", "tool_call_id": "call_1", "content": "B: 1 bar"},
    ]


def test_chat_results_of_parallel_calls_are_messages_of_their_own(chat: Client, loopback: Loopback) -> None:
    """An Anthropic user turn with two results and a text becomes two tool messages and a user message."""
    loopback.script(completion())
    chat.generate(
        [
            {"role": "user", "content": "Both?"},
            {
                "role": "assistant",
                "content": [
                    {"type": "tool_use", "id": "t1", "name": "p", "input": {"z": 1, "a": 2}},
                    {"type": "tool_use", "id": "t2", "name": "p", "input": {}},
                ],
            },
            {
                "role": "user",
                "content": [
                    {"type": "tool_result", "tool_use_id": "t1", "content": "1 bar"},
                    {"type": "tool_result", "tool_use_id": "t2", "content": "2 bar"},
                    {"type": "text", "text": "Be brief."},
                ],
            },
        ]
    )
    assert loopback.body["messages"] == [
        {"role": "user", "content": "Both?"},
        {
            "role": "assistant",
            "tool_calls": [tool_call("t1", "p", '{"z":1,"a":2}'), tool_call("t2", "p", "{}")],
        },
        {"role": "tool", "tool_call_id": "t1", "content": "1 bar"},
        {"role": "tool", "tool_call_id": "t2", "content": "2 bar"},
        {"role": "user", "content": "Be brief."},
    ]


def test_dicts_of_the_vendors_shape_give_the_same_body(chat: Client, loopback: Loopback) -> None:
    """A conversation written in OpenAI's own dicts is sent as it was written."""
    turns = [
        {"role": "system", "content": "S"},
        {"role": "user", "content": "Pressure at B?"},
        {
            "role": "assistant",
            "content": "I look.",
            "tool_calls": [tool_call("call_1", "pressure", ARGUMENTS)],
        },
        {"role": "tool", "tool_call_id": "call_1", "content": "1 bar"},
    ]
    loopback.script(completion())
    chat.generate(turns)
    assert loopback.body["messages"] == turns


def test_a_turn_of_the_other_vendors_thinking_alone_is_left_out(chat: Client, loopback: Loopback) -> None:
    """An assistant turn of which nothing remains is no empty message."""
    thinking = {"type": "thinking", "thinking": "Hm.", "signature": "c2ln"}
    loopback.script(completion())
    chat.generate(
        [
            {"role": "user", "content": "x"},
            {"role": "assistant", "content": [thinking]},
            {"role": "user", "content": "y"},
        ]
    )
    assert loopback.body["messages"] == [{"role": "user", "content": "x"}, {"role": "user", "content": "y"}]
