"""Prompts as digests."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
from kvsdk import InvalidRequest, Message, Text, Thinking, Tool, ToolCall
from kvsdk.caching import digest
from kvsdk.prompt import Request

SCHEMA = {"type": "object", "properties": {"z": {}, "a": {}}}


def request(**changes: Any) -> Request:
    fields: dict[str, Any] = {
        "messages": (
            Message.user("What?"),
            Message.assistant(
                Thinking("Hm.", "anthropic", {"signature": "a"}), ToolCall("t", "look", {"z": 1, "a": 2})
            ),
            Message.tool("t", "1 bar"),
        ),
        "system": (Text("S"),),
        "tools": (Tool("look", "Looks.", SCHEMA), Tool("turn", "Turns.", {})),
    }
    return Request(**(fields | changes))


def test_blocks_stand_in_the_order_in_which_a_prefix_grows() -> None:
    """Tools, system, messages; sizes are bytes of UTF-8 and add up."""
    prefix = digest(request())
    assert [block.where for block in prefix.blocks] == [
        "tools[0]",
        "tools[1]",
        "system[0]",
        "messages[0].parts[0]",
        "messages[1].parts[0]",
        "messages[1].parts[1]",
        "messages[2].parts[0]",
    ]
    assert prefix.size_bytes == prefix.ends_bytes[-1] == sum(block.size_bytes for block in prefix.blocks)
    assert digest(request(system=(Text("é"),))).blocks[2].size_bytes == len("é".encode())


def test_breakpoints_are_no_part_of_a_prompt() -> None:
    """Moving a mark moves nothing else."""
    marked = request(
        system=(Text("S", cache="1h"),),
        tools=(Tool("look", "Looks.", SCHEMA, cache=True), Tool("turn", "Turns.", {})),
    )
    assert digest(marked) == digest(request())


@pytest.mark.parametrize(
    ("changes", "first_changed"),
    [
        ({"tools": (Tool("turn", "Turns.", {}), Tool("look", "Looks.", SCHEMA))}, 0),
        ({"tools": (Tool("look", "Looks!", SCHEMA), Tool("turn", "Turns.", {}))}, 0),
        ({"tools": (Tool("look", "Looks.", {"type": "object", "properties": {"a": {}, "z": {}}}),)}, 0),
        ({"tools": (Tool("look", "Looks.", SCHEMA),)}, 1),
        ({"system": (Text("Date: 2026-11-30"),)}, 2),
        ({"messages": (Message.user("What!"),)}, 3),
        ({"messages": (Message.system("What?"),)}, 3),
        (
            {
                "messages": (
                    Message.user("What?"),
                    Message.assistant(Thinking("Hm.", "anthropic", {"signature": "b"})),
                )
            },
            4,
        ),
    ],
)
def test_any_change_ends_the_common_prefix(changes: dict[str, Any], first_changed: int) -> None:
    """Order of tools, order of keys, one character, a role, a signature: the first piece that differs."""
    assert digest(request()).common_blocks(digest(request(**changes))) == first_changed


def test_the_order_of_a_calls_keys_counts() -> None:
    """Vendors see the text, not the object."""
    one = digest(request(messages=(Message.assistant(ToolCall("t", "look", {"z": 1, "a": 2})),)))
    other = digest(request(messages=(Message.assistant(ToolCall("t", "look", {"a": 2, "z": 1})),)))
    assert one.common_blocks(other) == 3


def test_settings_that_enter_the_key_are_kept() -> None:
    """A change of tool choice can be found."""
    assert digest(request(tool_choice="none")).settings != digest(request()).settings


def test_half_a_surrogate_pair_is_refused_at_its_place() -> None:
    """No vendor can be sent it: it is no Unicode."""
    with pytest.raises(InvalidRequest) as caught:
        digest(request(system=(Text("S"), Text("half \ud83d"))))
    assert caught.value.field == "system[1]"


def test_an_empty_prompt_has_no_bytes() -> None:
    """No blocks, no size."""
    assert digest(Request(messages=())).size_bytes == 0


def test_digests_are_the_same_in_every_process() -> None:
    """Whatever the hash seed."""
    code = (
        "from kvsdk import Message; from kvsdk.caching import digest; from kvsdk.prompt import Request;"
        "print(digest(Request(messages=(Message.user('x'),))).blocks[0].digest.hex())"
    )
    mine = digest(Request(messages=(Message.user("x"),))).blocks[0].digest.hex()
    for seed in ("1", "2"):
        run = subprocess.run(
            [sys.executable, "-c", code],
            env={"PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=False,
        )
        assert run.stdout.strip() == mine, run.stderr


def test_a_kept_digest_is_that_of_the_place_it_stands_in() -> None:
    """One part in two places has two digests, however often and in whichever order they are asked for."""
    text = Text("Open the blue valve.")
    there = digest(Request(messages=(Message.user("?"),), system=(text,)))
    here = digest(Request(messages=(Message.user(text),)))
    again = digest(Request(messages=(Message.user("?"),), system=(text,)))
    assert there.blocks[0].digest == again.blocks[0].digest != here.blocks[0].digest
    fresh = digest(Request(messages=(Message.user("Open the blue valve."),)))
    assert fresh.blocks[0].digest == here.blocks[0].digest
    assert text == Text("Open the blue valve.")
    assert "digest" not in repr(text)


def test_a_tool_that_its_owner_changes_is_digested_anew() -> None:
    """A schema is the caller's own dict: nothing is kept of it."""
    schema = {"type": "object", "properties": {}}
    request = Request(messages=(Message.user("?"),), tools=(Tool("look", "", schema),))
    before = digest(request).blocks[0].digest
    schema["properties"] = {"at": {"type": "string"}}
    assert digest(request).blocks[0].digest != before
