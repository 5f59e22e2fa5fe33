"""The kit for authors of adapters: views of bodies, the net over conversations, the suite itself."""

from __future__ import annotations

from typing import Any

import kvsdk.testing
import pytest
from kvsdk.testing import BackendConformance, assert_extends, breakpoints, prefix_blocks
from loopback import Loopback

TOOL = {"name": "look", "description": "Looks.", "input_schema": {"properties": {"cache_control": {}}}}
MARK = {"cache_control": {"type": "ephemeral", "ttl": "5m"}}

MESSAGES: dict[str, Any] = {
    "model": "m",
    "tools": [{**TOOL, **MARK}],
    "system": [{"type": "text", "text": "S", **MARK}],
    "messages": [
        {"role": "user", "content": "Hi"},
        {
            "role": "assistant",
            "content": [{"type": "tool_use", "id": "t", "name": "look", "input": {"cachePoint": 1}}],
        },
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": "1", **MARK}]},
    ],
}
RESPONSES: dict[str, Any] = {
    "model": "m",
    "instructions": "S",
    "input": [
        {"role": "user", "content": [{"type": "input_text", "text": "Hi"}]},
        {"type": "function_call", "call_id": "c", "name": "look", "arguments": "{}"},
        {
            "type": "function_call_output",
            "call_id": "c",
            "output": [{"type": "input_text", "text": "1", "prompt_cache_breakpoint": {"mode": "explicit"}}],
        },
    ],
}
CHAT: dict[str, Any] = {
    "model": "m",
    "messages": [
        {"role": "system", "content": "S"},
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": None, "tool_calls": [{"id": "c", "type": "function"}]},
        {"role": "tool", "tool_call_id": "c", "content": "1"},
    ],
}
CONVERSE: dict[str, Any] = {
    "system": [{"text": "S"}, {"cachePoint": {"type": "default"}}],
    "messages": [{"role": "user", "content": [{"text": "Hi"}, {"cachePoint": {"type": "default"}}]}],
}


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (
            MESSAGES,
            {
                "tools[0]": MARK["cache_control"],
                "system[0]": MARK["cache_control"],
                "messages[2].content[0]": MARK["cache_control"],
            },
        ),
        (RESPONSES, {"input[2].output[0]": {"mode": "explicit"}}),
        (CHAT, {}),
        (
            CONVERSE,
            {"system[1]": {"type": "default"}, "messages[0].content[1]": {"type": "default"}},
        ),
        ({"messages": [], **MARK}, {"": MARK["cache_control"]}),
    ],
)
def test_breakpoints_are_found_where_they_stand(body: dict[str, Any], expected: dict[str, Any]) -> None:
    """Marks of every vendor, by path; a name inside a schema or an argument is none."""
    assert breakpoints(body) == expected


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (
            MESSAGES,
            [
                'tool: {"name":"look","description":"Looks.",'
                '"input_schema":{"properties":{"cache_control":{}}}}',
                'system: "S"',
                'user: "Hi"',
                'assistant: {"type":"tool_use","id":"t","name":"look","input":{"cachePoint":1}}',
                'user: {"type":"tool_result","tool_use_id":"t","content":"1"}',
            ],
        ),
        (
            RESPONSES,
            [
                'system: "S"',
                'user: "Hi"',
                'item: {"type":"function_call","call_id":"c","name":"look","arguments":"{}"}',
                'item: {"type":"function_call_output","call_id":"c"}',
                'output: "1"',
            ],
        ),
        (
            CHAT,
            [
                'system: "S"',
                'user: "Hi"',
                'assistant: {"id":"c","type":"function"}',
                'tool {"tool_call_id":"c"}: "1"',
            ],
        ),
        (CONVERSE, ['system: "S"', 'user: "Hi"']),
    ],
)
def test_a_prefix_is_tools_then_system_then_turns(body: dict[str, Any], expected: list[str]) -> None:
    """Whatever the vendor's shape; marks are no part of it."""
    assert prefix_blocks(body) == expected


def test_a_lone_text_is_the_same_however_it_is_written() -> None:
    """A mark makes a list of a plain text, and no other prompt."""
    for piece in ({"type": "text", "text": "Hi"}, {"type": "input_text", "text": "Hi", **MARK}):
        body = {"messages": [{"role": "user", "content": [piece]}]}
        assert prefix_blocks(body) == prefix_blocks({"messages": [{"role": "user", "content": "Hi"}]})


def longer(body: dict[str, Any], name: str) -> dict[str, Any]:
    return {**body, name: [*body[name], {"role": "user", "content": "More"}]}


@pytest.mark.parametrize(("body", "name"), [(MESSAGES, "messages"), (RESPONSES, "input"), (CHAT, "messages")])
def test_more_turns_extend_and_fewer_do_not(body: dict[str, Any], name: str) -> None:
    """The first block that moved is named."""
    assert_extends(body, longer(body, name))
    with pytest.raises(AssertionError, match='was user: "More", and now is nothing'):
        assert_extends(longer(body, name), body)


def test_an_object_with_its_keys_in_another_order_has_moved() -> None:
    """The model reads the keys as they are written."""
    swapped = {**TOOL, "input_schema": TOOL["input_schema"]}
    swapped = dict(reversed(swapped.items()))
    with pytest.raises(AssertionError, match="block 0 of the prefix moved"):
        assert_extends({"tools": [TOOL]}, {"tools": [swapped]})


def test_another_model_has_another_cache() -> None:
    """Equal prompts share nothing there."""
    with pytest.raises(AssertionError, match="another model"):
        assert_extends(MESSAGES, {**MESSAGES, "model": "n"})


def test_the_net_catches_a_conversation_whose_prefix_moves(loopback: Loopback) -> None:
    """What a test sent is checked when it is over, unless it gives a reason."""
    loopback.bodies += [CHAT, {**CHAT, "messages": CHAT["messages"][1:]}]
    with pytest.raises(AssertionError, match="block 0"):
        loopback.check_prefixes()
    loopback.prefix_moves = "the test is about that"
    loopback.check_prefixes()


def test_a_standard_test_cannot_be_overridden() -> None:
    """Neither replaced nor switched off; tests of one's own may stand beside them."""
    with pytest.raises(TypeError, match="Mine overrides standard tests: test_a_reply_is_filled"):
        type("Mine", (BackendConformance,), {"test_a_reply_is_filled": None})
    assert type("Mine", (BackendConformance,), {"test_of_mine": lambda self: None})


def test_every_standard_test_says_what_it_holds() -> None:
    """A sentence for those whose adapter fails it."""
    standard = [name for name in dir(BackendConformance) if name.startswith("test_")]
    assert len(standard) > 20
    assert [name for name in standard if not getattr(BackendConformance, name).__doc__] == []


def test_all_names_are_there() -> None:
    """`__all__` is what the room gives."""
    assert all(hasattr(kvsdk.testing, name) for name in kvsdk.testing.__all__)
