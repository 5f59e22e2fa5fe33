"""How a prompt moved: the words of a miss."""

from __future__ import annotations

from typing import Any

import pytest
from kvsdk import Capabilities, Image, Message, Miss, Text, Thinking, Tool, ToolCall, Usage
from kvsdk.caching import Seen, TokenScale, cached_blocks, digest, explain_miss, known_traits, plan, traits
from kvsdk.prompt import Request, ResponseFormat

FREE = Capabilities(breakpoints="advisory")
COLD = Usage.of_parts(fresh=3000, read=0, write=0)
SCHEMA = {"type": "object", "properties": {"z": {"type": "string"}, "a": {"type": "string"}}}
LOOK, TURN, STOP = Tool("look", "Looks.", SCHEMA), Tool("turn", "Turns.", {}), Tool("stop", "Stops.", {})
THINKING = Thinking("Hm.", "anthropic", {"type": "thinking", "thinking": "Hm.", "signature": "s"})
UUID = "f81d4fae-7dec-11d0-a765-00a0c91e6bf6"


def request(**changes: Any) -> Request:
    fields: dict[str, Any] = {
        "messages": turns("Which valve?"),
        "system": (Text("The manual."),),
        "tools": (LOOK, TURN),
    }
    return Request(**(fields | changes))


def turns(*texts: str) -> tuple[Message, ...]:
    """User and assistant in turn."""
    makers = (Message.user, Message.assistant)
    return tuple(makers[index % 2](text) for index, text in enumerate(texts))


def seen(asked: Request, before: Seen | None, model: str = "anthropic:m", at_s: float | None = 0.0) -> Seen:
    prefix, planned = digest(asked), plan(asked, FREE)
    kept = cached_blocks(planned, prefix, FREE)
    return Seen(model, prefix, kept, at_s, None, TokenScale(), traits(asked, prefix, known_traits(before)))


def miss_of(now: Request, before: Request, usage: Usage = COLD, model: str = "anthropic:m") -> Miss:
    earlier = seen(before, None, model)
    miss = explain_miss(seen(now, earlier, model), earlier, usage, FREE, has_session=True)
    assert miss is not None
    return miss


def tool(**changes: Any) -> Tool:
    return Tool(**{"name": "look", "description": "Looks.", "schema": SCHEMA, **changes})


SWAPPED = {"type": "object", "properties": {"a": {"type": "string"}, "z": {"type": "string"}}}


@pytest.mark.parametrize(
    ("tools", "where", "how"),
    [
        ((TURN, LOOK), "tools[0]", "the tools are in another order: 'turn' now comes before 'look'"),
        ((LOOK, TURN, STOP), "tools[2]", "tool 'stop' was added"),
        ((LOOK,), "tools[1]", "tool 'turn' was removed"),
        ((), "tools[0]", "tools 'look', 'turn' were removed"),
        ((LOOK, STOP), "tools[1]", "tool 'turn' was removed and tool 'stop' was added"),
        ((tool(schema={}), TURN), "tools[0]", "the schema of tool 'look' changed"),
        ((tool(description="Sees."), TURN), "tools[0]", "the description of tool 'look' changed"),
        (
            (tool(description="Sees.", schema={}), TURN),
            "tools[0]",
            "the description and the schema of tool 'look' changed",
        ),
        (
            (tool(schema=SWAPPED), TURN),
            "tools[0]",
            "the key order in the schema of tool 'look' changed; nothing else did",
        ),
    ],
)
def test_tools(tools: tuple[Tool, ...], where: str, how: str) -> None:
    """Which tool, and whether it is its place, its words, its schema, or only the order of keys."""
    assert miss_of(request(tools=tools), request()) == Miss("tools", where, f"{where}: {how}")


@pytest.mark.parametrize(
    ("before", "now", "how"),
    [
        ("Date: 2026-11-30", "Date: 2026-12-01", "a date (line 1)"),
        ("S\nIt is Monday, 30 November 2026.", "S\nIt is Tuesday, 1 December 2026.", "a date (line 2)"),
        ("Nov 30, 2026: S", "Dec 1, 2026: S", "a date (line 1)"),
        ("It is 14:02.", "It is 14:03.", "a time (line 1)"),
        ("now=2026-11-30T14:02:11Z", "now=2026-11-30T14:02:12Z", "a timestamp (line 1)"),
        ("now=1764511331", "now=1764511332", "a timestamp (line 1)"),
        (f"Trace {UUID}", f"Trace {UUID.replace('f8', 'a1')}", "a UUID (line 1)"),
        ("at deadbeefcafe0123", "at deadbeefcafe4567", "a hash (line 1)"),
        ("for req_8f3a99xyz", "for req_1b2c33abc", "an id (line 1)"),
        ("Turn 7 of 9", "Turn 8 of 9", "one of 2 numbers (the first in line 1)"),
        ("2026-11-30 14:02", "2026-12-01 14:03", "a date (line 1) and a time (line 1)"),
    ],
)
def test_a_volatile_value_in_the_system_prompt(before: str, now: str, how: str) -> None:
    """Its kind and line are named when nothing else changed; the value itself is not repeated."""
    miss = miss_of(request(system=(Text(now),)), request(system=(Text(before),)))
    assert miss == Miss("system", "system[0]", f"system[0]: {how} changed; nothing else did")


@pytest.mark.parametrize(
    ("system", "where", "how"),
    [
        (("The handbook.",), "system[0]", "its text changed"),
        (("Date: 2026-12-01, almost.",), "system[0]", "its text changed"),
        (("The manual.", "More."), "system[1]", "a system text was added"),
        ((), "system[0]", "a system text was removed"),
        (("Before.", "The manual."), "system[0]", "a system text was added"),
    ],
)
def test_the_system_prompt(system: tuple[str, ...], where: str, how: str) -> None:
    """Edited, longer or shorter."""
    miss = miss_of(request(system=tuple(map(Text, system))), request())
    assert miss == Miss("system", where, f"{where}: {how}")


def test_system_texts_in_another_order() -> None:
    """No text was edited."""
    one, other = Text("A"), Text("B")
    miss = miss_of(request(system=(other, one)), request(system=(one, other)))
    assert miss.detail == "system[0]: the system texts are in another order"


LONG = turns("a", "b", "c", "d", "e")


@pytest.mark.parametrize(
    ("messages", "where", "how"),
    [
        (turns("a", "B", "c", "d", "e", "f", "g"), 1, "an earlier turn was edited"),
        (LONG[2:], 0, "the history was shortened: 2 pieces removed"),
        (LONG[:3], 3, "the history was shortened: 2 pieces removed"),
        ((LONG[0], *turns("x", "y")[::-1], *LONG[1:]), 1, "2 pieces inserted into the history"),
        (
            turns("In short.", "", "e"),
            0,
            "the history was rewritten and is shorter: 2 pieces where there were 4",
        ),
        ((LONG[1], LONG[0], *LONG[2:]), 0, "the history is in another order"),
        ((Message.system("a"), *LONG[1:]), 0, "a turn of the user became one of the system"),
        (
            (Message.user(Image(url="https://x/y.png")), *LONG[1:]),
            0,
            "an image was added before what was cached",
        ),
    ],
)
def test_the_history(messages: tuple[Message, ...], where: int, how: str) -> None:
    """Edited, shortened, inserted into, compacted: told apart by where the two agree again."""
    miss = miss_of(request(messages=messages), request(messages=LONG))
    place = f"messages[{where}].parts[0]"
    assert miss == Miss("messages", place, f"{place}: {how}")


def test_a_timestamp_in_the_first_message() -> None:
    """Volatile values are found in messages too."""
    one, other = turns("[10:01] hi", "b", "c"), turns("[10:02] hi", "b", "c", "d", "e")
    miss = miss_of(request(messages=other), request(messages=one))
    assert miss.detail == "messages[0].parts[0]: a time (line 1) changed; nothing else did"


def test_an_image_put_before_a_cached_piece() -> None:
    """The conversation was extended in the middle of a turn."""
    one = (Message.user("Look."), Message.assistant("Yes."))
    other = (Message.user(Image(url="https://x/y.png"), "Look."), *one[1:])
    miss = miss_of(request(messages=other), request(messages=one))
    assert "an image was added" in miss.detail


CALL = ToolCall("t1", "look", {"z": 1, "a": 2})


@pytest.mark.parametrize(
    ("parts", "where", "how"),
    [
        ((CALL,), "parts[0]", "the thinking of an earlier turn was dropped"),
        (
            (Thinking("Hm.", "anthropic", {"signature": "other"}), CALL),
            "parts[0]",
            "the thinking of an earlier turn was changed",
        ),
        ((Text("Hm."), CALL), "parts[0]", "the thinking of an earlier turn was dropped"),
        (
            (THINKING, ToolCall("t1", "look", {"a": 2, "z": 1})),
            "parts[1]",
            "the key order of the arguments in a call of 'look' changed; nothing else did",
        ),
        (
            (THINKING, ToolCall("t2", "look", {"z": 1, "a": 2})),
            "parts[1]",
            "the id of a call of 'look' changed; nothing else did",
        ),
        ((THINKING, ToolCall("t1", "look", {"z": 3})), "parts[1]", "an earlier tool call was edited"),
    ],
)
def test_the_assistants_turn(parts: tuple[Any, ...], where: str, how: str) -> None:
    """Thinking that was left out, and calls that were written anew."""
    end = Message.tool("t1", "3 bar")

    def of(*said: Any) -> Request:
        return request(messages=(Message.user("q"), Message.assistant(*said), end))

    miss = miss_of(of(*parts), of(THINKING, CALL))
    assert miss.kind == "messages"
    assert miss.detail == f"messages[1].{where}: {how}"


@pytest.mark.parametrize(
    ("result", "how"),
    [
        (Message.tool("t1", "4 bar"), "in a tool result, a number (line 1) changed; nothing else did"),
        (Message.tool("t1", "low"), "an earlier tool result was edited"),
        (Message.tool("t9", "3 bar"), "the call id of a tool result changed; nothing else did"),
    ],
)
def test_a_tools_result(result: Message, how: str) -> None:
    """Another value, another text, another id."""
    start = (Message.user("q"), Message.assistant(CALL))
    miss = miss_of(
        request(messages=(*start, result)), request(messages=(*start, Message.tool("t1", "3 bar")))
    )
    assert miss.detail == f"messages[2].parts[0]: {how}"


def _extra(scheme: str, **members: Any) -> dict[str, Any]:
    return {"extra": {scheme: members}}


@pytest.mark.parametrize(
    ("before", "now", "where", "how"),
    [
        ({}, {"tool_choice": "none"}, "tool_choice", "tool_choice was unset, is none"),
        (
            _extra("anthropic", thinking={"type": "enabled", "budget_tokens": 1024}),
            _extra("anthropic", thinking={"type": "disabled"}),
            "extra.anthropic.thinking.type",
            "extra.anthropic.thinking.type was enabled, is disabled",
        ),
        (
            _extra("anthropic", output_config={"effort": "low"}),
            _extra("anthropic", output_config={"effort": "high"}),
            "extra.anthropic.output_config.effort",
            "extra.anthropic.output_config.effort was low, is high",
        ),
    ],
)
def test_settings_of_anthropic(before: Any, now: Any, where: str, how: str) -> None:
    """Which one, from what to what."""
    assert miss_of(request(**now), request(**before)) == Miss("settings", where, how)


@pytest.mark.parametrize(
    ("members", "where", "value"),
    [
        ({"reasoning": {"effort": "high"}}, "reasoning.effort", "high"),
        ({"text": {"verbosity": "low"}}, "text.verbosity", "low"),
        ({"parallel_tool_calls": False}, "parallel_tool_calls", "off"),
        ({"service_tier": "flex"}, "service_tier", "flex"),
    ],
)
def test_settings_of_openai(members: dict[str, Any], where: str, value: str) -> None:
    """A server that speaks OpenAI's API reads its part of `extra`, Anthropic does not."""
    now = request(extra={"openai": members})
    for model in ("openai:m", "openai+http://host/v1#m"):
        miss = miss_of(now, request(), model=model)
        assert miss == Miss(
            "settings", f"extra.openai.{where}", f"extra.openai.{where} was unset, is {value}"
        )
    assert miss_of(now, request()).kind == "evicted_or_unknown"


def test_a_changed_answer_format_and_pictures() -> None:
    """Formats are told by name and digest; a first picture is a setting where all before it is the same."""
    one, other = (ResponseFormat("Answer", {"type": "object", "title": title}) for title in "ab")
    assert miss_of(request(response_format=other), request(response_format=one)).where == "response_format"
    looked = request(messages=(*turns("Which valve?", "?"), Message.user(Image(url="https://x/y.png"))))
    assert miss_of(looked, request()) == Miss("settings", "images", "images was unset, is in the prompt")


def test_a_cache_key_is_compared_and_not_shown() -> None:
    """It may be made of a user's name."""
    miss = miss_of(
        request(extra={"openai": {"prompt_cache_key": "ben@acme"}}),
        request(extra={"openai": {"prompt_cache_key": "ann@acme"}}),
        model="openai:m",
    )
    assert miss.where == "extra.openai.prompt_cache_key"
    assert "acme" not in miss.detail


def test_a_setting_that_spoils_a_part_of_the_prefix() -> None:
    """Tools and system were read, the messages were not: far less than the last request left."""
    long = request(messages=turns("q" * 8000, "a", "more"), system=(Text("S" * 2000),))
    usage = Usage.of_parts(fresh=2000, read=500, write=0)
    miss = miss_of(Request(**{**_fields(long), "tool_choice": "none"}), long, usage)
    assert miss.kind == "settings"
    assert "only 500 of about" in miss.detail
    whole = Usage.of_parts(fresh=10, read=2500, write=0)
    earlier = seen(long, None)
    now = seen(Request(**{**_fields(long), "tool_choice": "none"}), earlier)
    assert explain_miss(now, earlier, whole, FREE, has_session=True) is None


def _fields(asked: Request) -> dict[str, Any]:
    return {"messages": asked.messages, "system": asked.system, "tools": asked.tools}


def test_no_text_of_a_prompt_is_kept() -> None:
    """What a session remembers holds digests and the names of tools."""
    asked = request(system=(Text("secret 2026-11-30"),), messages=turns("hidden 7"))
    kept = repr(seen(asked, None))
    assert "look" in kept
    assert not [word for word in ("secret", "2026", "hidden", "Looks") if word in kept]


def test_what_is_known_of_a_piece_is_not_made_again() -> None:
    """The session's next request shares the traits of what it repeats."""
    first = seen(request(), None)
    second = seen(request(messages=turns("Which valve?", "The first.", "And then?")), first)
    assert all(one is other for one, other in zip(first.traits, second.traits, strict=False))


def test_without_traits_the_place_is_still_found() -> None:
    """Remembered by an earlier version, say."""
    earlier, now = seen(request(), None), seen(request(tools=(TURN, LOOK)), None)
    bare = [Seen(one.model, one.prefix, one.cached_blocks, 0, None, TokenScale()) for one in (now, earlier)]
    miss = explain_miss(*bare, COLD, FREE, has_session=True)
    assert miss == Miss("tools", "tools[0]", "tools[0]: the tools changed")


def test_a_time_that_is_not_known_expires_nothing() -> None:
    """A log without times has no ages."""
    earlier = seen(request(), None, at_s=None)
    miss = explain_miss(seen(request(), earlier, at_s=None), earlier, COLD, FREE, has_session=True)
    assert miss == Miss("evicted_or_unknown", None, "the prefix is unchanged; the backend no longer has it")


def test_a_table_of_numbers_has_no_shape() -> None:
    """A tool result full of values is just another text."""
    rows = [Message.tool("t", "\n".join(f"{n} bar" for n in range(start, start + 200))) for start in (0, 1)]
    one, other = (request(messages=(Message.user("q"), Message.assistant(CALL), row)) for row in rows)
    assert miss_of(other, one).detail.endswith("an earlier tool result was edited")
