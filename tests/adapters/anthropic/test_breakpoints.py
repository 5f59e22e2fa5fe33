"""Breakpoints on the wire."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from anthropic_wire import message, text
from kvsdk import Breakpoint, Client, InvalidBreakpoints, Message, Text, Tool, ToolCall
from kvsdk.testing import breakpoints
from loopback import Loopback

LOOK = Tool("look", "Looks.", {"type": "object"})


def marks(body: dict) -> list[str]:
    return list(breakpoints(body))


def test_a_breakpoint_becomes_cache_control_at_its_piece(client: Client, loopback: Loopback) -> None:
    """Marks on a tool, a system text and a message's last part are sent where they were set."""
    loopback.script(message())
    reply = client.generate(
        [Message.user("a", "b", cache=True)],
        system=[Text("S", cache="1h"), Text("T")],
        tools=[Tool("look", "Looks.", {"type": "object"}, cache="1h")],
    )
    assert marks(loopback.body) == ["messages[0].content[1]", "system[0]", "tools[0]"]
    assert loopback.body["tools"][0]["cache_control"] == {"type": "ephemeral", "ttl": "1h"}
    assert loopback.body["system"][0]["cache_control"] == {"type": "ephemeral", "ttl": "1h"}
    assert loopback.body["messages"][0]["content"][1]["cache_control"] == {"type": "ephemeral", "ttl": "5m"}
    assert [(entry.where, entry.status, entry.granted_ttl) for entry in reply.cache.breakpoints] == [
        ("tools[0]", "honoured", "1h"),
        ("system[0]", "honoured", "1h"),
        ("messages[0].parts[1]", "honoured", "5m"),
    ]


def test_without_a_breakpoint_nothing_is_marked(client: Client, loopback: Loopback) -> None:
    """No mark, and no null in a mark's place."""
    loopback.script(message())
    client.generate("x", system="S", tools=[LOOK])
    assert "cache_control" not in loopback.request.get_data(as_text=True)


def test_automatic_breakpoints_end_tools_system_and_last_turn(client: Client, loopback: Loopback) -> None:
    """`cache="auto"` marks the three places that pay."""
    loopback.script(message())
    client.generate(
        [Message.user("a"), Message.assistant("b"), Message.user("c", "d")],
        system=[Text("S"), Text("T")],
        tools=[LOOK],
        cache="auto",
    )
    assert marks(loopback.body) == ["messages[2].content[1]", "system[1]", "tools[0]"]


def test_at_most_four_marks_are_sent(client: Client, loopback: Loopback) -> None:
    """Of eight marks the ends of tools, system and messages stay, then the deepest of the others."""
    loopback.script(message())
    reply = client.generate(
        [Message.user(*(Text(f"{number}", cache=True) for number in range(6)))],
        system=[Text("S", cache=True)],
        tools=[Tool("look", "Looks.", {"type": "object"}, cache=True)],
    )
    assert marks(loopback.body) == [
        "messages[0].content[4]",
        "messages[0].content[5]",
        "system[0]",
        "tools[0]",
    ]
    assert [entry.status for entry in reply.cache.breakpoints].count("dropped") == 4


def test_a_longer_ttl_after_a_shorter_one_lengthens_the_earlier(client: Client, loopback: Loopback) -> None:
    """Tools at 5m before a system at 1h are sent as 1h: the vendor refuses a TTL that grows."""
    loopback.script(message())
    client.generate("x", system=[Text("S", cache="1h")], tools=[Tool("look", "", {}, cache="5m")])
    assert loopback.body["tools"][0]["cache_control"]["ttl"] == "1h"


@pytest.mark.parametrize(
    ("asked", "granted"),
    [
        (Breakpoint("5m"), "5m"),
        (Breakpoint("30m"), "5m"),
        (Breakpoint("30m", round="up"), "1h"),
        (Breakpoint("1h"), "1h"),
        (Breakpoint("12h"), "1h"),
        (Breakpoint("12h", round="up"), "1h"),
    ],
)
def test_ttls_are_rounded_to_those_of_the_vendor(
    client: Client, loopback: Loopback, asked: Breakpoint, granted: str
) -> None:
    """Down unless asked otherwise; never a TTL that the API refuses."""
    loopback.script(message())
    reply = client.generate([Message.user("x", cache=asked)])
    assert loopback.body["messages"][0]["content"][0]["cache_control"]["ttl"] == granted
    (entry,) = reply.cache.breakpoints
    assert (entry.requested_ttl, entry.granted_ttl) == (asked.ttl, granted)
    assert entry.status == ("honoured" if asked.ttl == granted else "mapped")


def test_a_mark_on_empty_text_moves_back(client: Client, loopback: Loopback) -> None:
    """The vendor refuses a mark on an empty text; it goes to the text before."""
    loopback.script(message())
    reply = client.generate([Message.user("a", "", cache=True)])
    assert marks(loopback.body) == ["messages[0].content[0]"]
    (entry,) = reply.cache.breakpoints
    assert entry.status == "mapped"
    assert "empty text" in str(entry.reason)


def test_a_mark_on_thinking_moves_to_the_text_before(client: Client, loopback: Loopback) -> None:
    """The vendor refuses `cache_control` on thinking."""
    thinking = {
        "type": "thinking",
        "thinking": "Hm.",
        "signature": "c2ln",
        "cache_control": {"type": "ephemeral"},
    }
    loopback.script(message())
    client.generate(
        [
            {"role": "user", "content": "a"},
            {"role": "assistant", "content": [text("b"), thinking]},
            {"role": "user", "content": "c"},
        ]
    )
    assert marks(loopback.body) == ["messages[1].content[0]"]


def test_a_mark_inside_a_tool_result_stands_on_the_result(client: Client, loopback: Loopback) -> None:
    """A nested mark is hoisted, and one message's mark does not multiply over parallel results."""
    inner = [
        {"type": "text", "text": "1"},
        {"type": "text", "text": " bar", "cache_control": {"type": "ephemeral"}},
    ]
    loopback.script(message())
    client.generate(
        [
            Message.user("x"),
            Message.assistant(ToolCall("t1", "look"), ToolCall("t2", "look")),
            {
                "role": "user",
                "content": [
                    {"type": "tool_result", "tool_use_id": "t1", "content": "2 bar"},
                    {"type": "tool_result", "tool_use_id": "t2", "content": inner},
                ],
            },
        ]
    )
    assert marks(loopback.body) == ["messages[2].content[1]"]
    assert loopback.body["messages"][2]["content"][1]["content"] == "1 bar"


def test_openais_marks_become_anthropics(client: Client, loopback: Loopback) -> None:
    """A mark in the other vendor's dialect is a breakpoint all the same, and its own name is not sent."""
    part = {"type": "text", "text": "x", "prompt_cache_breakpoint": {"mode": "explicit", "ttl": "30m"}}
    loopback.script(message())
    client.generate([{"role": "user", "content": [part]}])
    assert loopback.body["messages"][0]["content"] == [
        {"type": "text", "text": "x", "cache_control": {"type": "ephemeral", "ttl": "5m"}}
    ]


def test_strict_refuses_before_anything_is_sent(connect: Callable[..., Client], loopback: Loopback) -> None:
    """With `strict` a TTL that would be rounded is an error, on the client or on the call."""
    marked = [Message.user("x", cache="30m")]
    with pytest.raises(InvalidBreakpoints, match="30m"):
        connect(strict=True).generate(marked)
    with pytest.raises(InvalidBreakpoints, match="messages"):
        connect().generate(marked, strict=True)
    assert loopback.bodies == []


def test_token_counts_of_breakpoints_are_scaled_to_the_reported_total(
    client: Client, loopback: Loopback
) -> None:
    """A mark at the prompt's end has the reported total, one in the middle its share by bytes."""
    usage = {
        "input_tokens": 0,
        "cache_read_input_tokens": 0,
        "cache_creation_input_tokens": 3000,
        "output_tokens": 1,
    }
    loopback.script(message(usage=usage))
    reply = client.generate([Message.user("b" * 100, cache=True)], system=[Text("a" * 200, cache=True)])
    first, last = reply.cache.breakpoints
    assert (first.tokens, first.tokens_estimated) == (3000 * 200 // 300, True)
    assert (last.tokens, last.tokens_estimated) == (3000, False)
