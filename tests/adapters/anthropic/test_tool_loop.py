"""A whole tool loop: what came back goes in again, nothing lost."""

from __future__ import annotations

from anthropic_wire import MODEL, message, text, tool_use
from kvsdk import Client, Message, Text, Thinking, Tool, ToolCall
from loopback import Loopback

SIGNED = {"type": "thinking", "thinking": "Look first.", "signature": "c2ln"}
CALL = {"type": "tool_use", "id": "toolu_1", "name": "pressure", "input": {"valve": "B", "at": 1}}


SCHEMA = {
    "type": "object",
    "properties": {"valve": {"type": "string"}, "at": {"type": "integer"}},
    "required": ["valve", "at"],
}
PRESSURE = Tool("pressure", "Pressure at a valve.", SCHEMA)


def pressure(valve: str, at: int) -> str:
    return f"{valve}: {at} bar"


def test_the_second_request_extends_the_first(client: Client, loopback: Loopback) -> None:
    """Thinking, text and call come back unchanged, then the result, in a body that is known to the byte."""
    loopback.script(
        message(SIGNED, text("I look."), CALL, stop_reason="tool_use"),
        message(text("1 bar.")),
    )
    messages = [Message.user("Pressure at B?")]
    first = client.generate(messages, tools=[PRESSURE])
    messages += [
        first.message,
        *(Message.tool(call.id, pressure(**call.arguments)) for call in first.tool_calls),
    ]
    assert client.generate(messages, tools=[PRESSURE]).text == "1 bar."

    two = loopback.bodies[1]
    assert two == {
        "model": MODEL,
        "max_tokens": 4096,
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "Pressure at B?"}]},
            {"role": "assistant", "content": [SIGNED, {"type": "text", "text": "I look."}, CALL]},
            {
                "role": "user",
                "content": [{"type": "tool_result", "tool_use_id": "toolu_1", "content": "B: 1 bar"}],
            },
        ],
        "tools": [
            {
                "name": "pressure",
                "description": "Pressure at a valve.",
                "input_schema": SCHEMA,
            }
        ],
    }
    assert list(two["messages"][1]["content"][2]["input"]) == ["valve", "at"]


def test_parallel_results_and_what_the_user_adds_are_one_turn(client: Client, loopback: Loopback) -> None:
    """Results of parallel calls are one user turn, a text after them belongs to it, and errors are said."""
    loopback.script(message())
    client.generate(
        [
            Message.user("Both?"),
            message_with_calls("t1", "t2"),
            Message.tool("t1", "1 bar"),
            Message.tool("t2", "no such valve", is_error=True),
            Message.user("Be brief."),
        ]
    )
    assert loopback.body["messages"][2] == {
        "role": "user",
        "content": [
            {"type": "tool_result", "tool_use_id": "t1", "content": "1 bar"},
            {"type": "tool_result", "tool_use_id": "t2", "content": "no such valve", "is_error": True},
            {"type": "text", "text": "Be brief."},
        ],
    }


def message_with_calls(*ids: str) -> Message:
    return Message.assistant(*(ToolCall(id, "pressure", {"valve": "B"}) for id in ids))


def test_blocks_of_server_tools_go_back_unchanged(client: Client, loopback: Loopback) -> None:
    """A block that kvsdk does not know is kept as it came and sent back as it came."""
    block = {"type": "server_tool_use", "id": "srv_1", "name": "web_search", "input": {"query": "valve"}}
    loopback.script(message(block, text("Found.")), message())
    first = client.generate("x")
    assert first.text == "Found."
    client.generate([Message.user("x"), first.message, Message.user("More")])
    assert loopback.bodies[1]["messages"][1]["content"] == [block, {"type": "text", "text": "Found."}]


def test_another_vendors_thinking_is_left_out(client: Client, loopback: Loopback) -> None:
    """Opaque reasoning goes back to the vendor it came from only."""
    foreign = Message.assistant(Thinking("Hm.", "openai", {"type": "reasoning", "id": "rs_1"}), "Hello")
    loopback.script(message())
    client.generate([Message.user("x"), foreign, Message.user("y")])
    assert loopback.body["messages"][1]["content"] == [{"type": "text", "text": "Hello"}]


def test_a_call_without_arguments_is_a_call(client: Client, loopback: Loopback) -> None:
    """An empty input is an empty object, also on its way back."""
    loopback.script(message(tool_use("t", "now"), stop_reason="tool_use"), message())
    first = client.generate("x")
    assert first.tool_calls[0].arguments == {}
    client.generate([Message.user("x"), first.message, Message.tool("t", "noon")])
    assert loopback.bodies[1]["messages"][1]["content"] == [tool_use("t", "now")]


def test_dicts_of_the_vendors_shape_give_the_same_body(client: Client, loopback: Loopback) -> None:
    """A conversation written in Anthropic's own dicts is sent as it was written."""
    turns = [
        {"role": "user", "content": [{"type": "text", "text": "Pressure at B?"}]},
        {"role": "assistant", "content": [SIGNED, CALL]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "toolu_1", "content": "1 bar"}]},
    ]
    loopback.script(message())
    client.generate(turns)
    assert loopback.body["messages"] == turns


def test_system_messages_that_lead_become_the_system(client: Client, loopback: Loopback) -> None:
    """A leading system or developer turn joins `system`."""
    loopback.script(message())
    client.generate(
        [{"role": "developer", "content": "B"}, {"role": "user", "content": "x"}], system=[Text("A")]
    )
    assert [block["text"] for block in loopback.body["system"]] == ["A", "B"]
