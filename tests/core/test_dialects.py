"""Messages as callers write them."""

from __future__ import annotations

from typing import Any

import pytest
from kvsdk import Breakpoint, InvalidRequest, Message, Text, Thinking, Tool, ToolCall, ToolResult
from kvsdk.prompt import read_messages, read_system, read_tools


def test_strings_messages_and_lists_are_messages() -> None:
    """The three plain forms."""
    one = (Message.user("x"),)
    assert read_messages("x") == read_messages(Message.user("x")) == read_messages([Message.user("x")]) == one


def test_anthropics_turns() -> None:
    """Results in a user turn become a tool message, and what else the user said follows."""
    turns = [
        {
            "role": "assistant",
            "content": [{"type": "tool_use", "id": "t", "name": "look", "input": {"z": 1}}],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "t", "content": "1 bar", "is_error": True},
                {"type": "text", "text": "Go on"},
            ],
        },
    ]
    assert read_messages(turns) == (
        Message.assistant(ToolCall("t", "look", {"z": 1})),
        Message("tool", (ToolResult("t", "1 bar", is_error=True),)),
        Message.user("Go on"),
    )


def test_openais_turns() -> None:
    """Calls beside the content, results in a turn of their own, `developer` for system."""
    call = {"id": "t", "type": "function", "function": {"name": "look", "arguments": '{"z": 1}'}}
    turns = [
        {"role": "developer", "content": "S"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "t", "content": "1 bar"},
    ]
    assert read_messages(turns) == (
        Message.system("S"),
        Message.assistant(ToolCall("t", "look", {"z": 1}, '{"z": 1}')),
        Message.tool("t", "1 bar"),
    )


@pytest.mark.parametrize(
    ("mark", "expected"),
    [
        ({"cache_control": {"type": "ephemeral"}}, Breakpoint()),
        ({"cache_control": {"type": "ephemeral", "ttl": "1h"}}, Breakpoint("1h")),
        ({"prompt_cache_breakpoint": {"mode": "explicit", "ttl": "12h"}}, Breakpoint("12h")),
        ({"prompt_cache_breakpoint": {"mode": "explicit"}}, Breakpoint()),
        ({"cache_control": None}, None),
        ({}, None),
    ],
)
def test_either_vendors_marks_are_breakpoints(mark: dict[str, Any], expected: Breakpoint | None) -> None:
    """On texts, calls, results, thinking, system texts and tools alike; null is no mark."""
    (message,) = read_messages([{"role": "user", "content": [{"type": "text", "text": "x", **mark}]}])
    assert message.parts[0].cache == expected
    use = {"type": "tool_use", "id": "t", "name": "n", "input": {}, **mark}
    thinking = {"type": "thinking", "thinking": "x", **mark}
    (turn,) = read_messages([{"role": "assistant", "content": [use, thinking]}])
    assert [part.cache for part in turn.parts] == [expected, expected]
    result = {"type": "tool_result", "tool_use_id": "t", "content": "x", **mark}
    (turn,) = read_messages([{"role": "user", "content": [result]}])
    assert turn.parts[0].cache == expected
    assert read_system([{"type": "text", "text": "S", **mark}])[0].cache == expected
    assert read_tools([{"name": "n", "input_schema": {}, **mark}])[0].cache == expected


def test_thinking_is_opaque_and_without_its_mark() -> None:
    """The block goes back as it came, but for a mark that its vendor would refuse."""
    block = {"type": "thinking", "thinking": "Hm.", "signature": "c2ln"}
    (turn,) = read_messages(
        [{"role": "assistant", "content": [block | {"cache_control": {"type": "ephemeral"}}]}]
    )
    assert turn.parts == (Thinking("Hm.", "anthropic", block, Breakpoint()),)


def test_a_mark_inside_a_result_is_the_results() -> None:
    """From the last inner part."""
    inner = [
        {"type": "text", "text": "a"},
        {"type": "text", "text": "b", "cache_control": {"type": "ephemeral"}},
    ]
    (turn,) = read_messages([{"role": "tool", "tool_call_id": "t", "content": inner}])
    assert turn.parts == (ToolResult("t", "ab", cache=True),)


def test_system_may_be_a_text_or_several() -> None:
    """A string, a `Text`, a dict, or a list of them."""
    assert read_system(None) == ()
    assert (
        read_system("S")
        == read_system(Text("S"))
        == read_system({"type": "text", "text": "S"})
        == (Text("S"),)
    )
    assert read_system(["S", Text("T", cache=True)]) == (Text("S"), Text("T", cache=True))


def test_tools_of_three_apis() -> None:
    """Anthropic's, Chat's and Responses' dicts are the same tool."""
    schema = {"type": "object"}
    chat = {"type": "function", "function": {"name": "look", "description": "L.", "parameters": schema}}
    flat = {"type": "function", "name": "look", "description": "L.", "parameters": schema}
    ours = {"name": "look", "description": "L.", "input_schema": schema}
    assert read_tools([chat]) == read_tools([flat]) == read_tools([ours]) == (Tool("look", "L.", schema),)


WRONG: list[tuple[Any, str]] = [
    ("", "messages"),
    ([], "messages"),
    (5, "messages"),
    (None, "messages"),
    ({"role": "user", "content": "x"}, "messages"),
    ([5], "messages[0]"),
    ([Message("user", ())], "messages"),
    ([Message.user("x"), Message("user", ())], "messages[1]"),
    ([{"content": "x"}], "messages[0].role"),
    ([{"role": "robot", "content": "x"}], "messages[0].role"),
    ([{"role": "user"}], "messages[0].content"),
    ([{"role": "user", "content": 5}], "messages[0].content"),
    ([{"role": "user", "content": [5]}], "messages[0].content[0]"),
    ([{"role": "user", "content": [{"type": "text"}]}], "messages[0].content[0].text"),
    ([{"role": "user", "content": [{"type": "video"}]}], "messages[0].content[0].type"),
    ([{"role": "tool", "content": "x"}], "messages[0].tool_call_id"),
    ([{"role": "assistant", "tool_calls": [5]}], "messages[0].tool_calls[0]"),
    ([{"role": "assistant", "tool_calls": 5}], "messages[0].tool_calls"),
    (
        [{"role": "assistant", "tool_calls": [{"id": "t", "function": 5}]}],
        "messages[0].tool_calls[0].function",
    ),
    (
        [{"role": "assistant", "tool_calls": [{"id": "t", "function": {"name": "n", "arguments": 5}}]}],
        "messages[0].tool_calls[0].function.arguments",
    ),
]


@pytest.mark.parametrize(("messages", "field"), WRONG)
def test_what_is_no_message_is_refused_with_its_place(messages: Any, field: str) -> None:
    """The error's `field` says where."""
    with pytest.raises(InvalidRequest) as caught:
        read_messages(messages)
    assert caught.value.field == field


@pytest.mark.parametrize("wrong", [5, [5], [None], {"type": "tool_use"}, [ToolCall("t", "n")]])
def test_what_is_no_system_is_refused(wrong: Any) -> None:
    """Texts only."""
    with pytest.raises(InvalidRequest, match="system"):
        read_system(wrong)


@pytest.mark.parametrize("wrong", [5, [5], "look", [{}], [{"function": 5}], [{"name": "n", "parameters": 5}]])
def test_what_is_no_tool_is_refused(wrong: Any) -> None:
    """Tools, dicts and functions only."""
    with pytest.raises(InvalidRequest, match="tool"):
        read_tools(wrong)


def test_two_tools_of_one_name_are_refused() -> None:
    """A model could not tell them apart."""
    with pytest.raises(InvalidRequest, match="look"):
        read_tools([Tool("look", "", {}), Tool("look", "", {})])
