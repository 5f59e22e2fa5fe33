"""Where breakpoints go: each rule of `kvsdk.caching.plan`."""

from __future__ import annotations

from typing import Any

import pytest
from kvsdk import Breakpoint, Capabilities, InvalidBreakpoints, Message, Text, Thinking, Tool, ToolCall
from kvsdk.caching import plan
from kvsdk.prompt import Request, breakpoint_of

VENDOR = Capabilities(
    breakpoints="honoured",
    ttls=("5m", "1h"),
    default_ttl="5m",
    max_breakpoints=4,
    ttl_must_not_grow=True,
    markable=frozenset({"tools:tool", "system:text", "user:text", "assistant:text", "tool:tool_result"}),
)


def capabilities(**changes: Any) -> Capabilities:
    fields = {name: getattr(VENDOR, name) for name in Capabilities.__slots__}
    return Capabilities(**(fields | changes))


def request(*messages: Message, **fields: Any) -> Request:
    return Request(messages=messages or (Message.user("x"),), **fields)


def tool(name: str = "look", **fields: Any) -> Tool:
    return Tool(name, "", {"type": "object"}, **fields)


def sent(planned: Request) -> dict[str, str | None]:
    """Where the marks are that will be sent, and their TTLs."""
    marks = {block.where: breakpoint_of(block.part) for block in planned.blocks()}
    return {where: mark.ttl for where, mark in marks.items() if mark is not None}


def test_without_breakpoints_there_is_no_plan() -> None:
    """The request is the same object, and nothing is reported."""
    asked = request()
    planned = plan(asked, VENDOR)
    assert planned.request is asked
    assert (planned.breakpoints, planned.last_end, planned.ttl_s) == ((), None, None)


def test_a_breakpoint_is_kept_as_asked() -> None:
    """Honoured, at its place, with its TTL."""
    planned = plan(request(Message.user("a", "b", cache="1h")), VENDOR)
    assert sent(planned.request) == {"messages[0].parts[1]": "1h"}
    (entry,) = planned.breakpoints
    assert (entry.status, entry.reason, entry.requested_ttl, entry.granted_ttl) == (
        "honoured",
        None,
        "1h",
        "1h",
    )
    assert (planned.last_end, planned.ttl_s) == (1, 3600)


def test_the_default_ttl_is_the_vendors() -> None:
    """A mark that names no TTL gets it, and is honoured."""
    planned = plan(request(Message.user("a", cache=True)), VENDOR)
    assert sent(planned.request) == {"messages[0].parts[0]": "5m"}
    assert (planned.breakpoints[0].status, planned.breakpoints[0].requested_ttl) == ("honoured", None)


# ---------------------------------------------------------------------- rule 1: automatic


def test_automatic_breakpoints_end_the_three_sections() -> None:
    """The last tool, the last system text and the last part of the last turn."""
    asked = request(
        Message.user("a"),
        Message.user("b", "c"),
        system=(Text("S"), Text("T")),
        tools=(tool("a"), tool("b")),
        auto_cache=True,
    )
    assert list(sent(plan(asked, VENDOR).request)) == ["tools[1]", "system[1]", "messages[1].parts[1]"]


def test_automatic_breakpoints_keep_those_of_the_caller() -> None:
    """A breakpoint that stands there already, with its TTL, is not doubled."""
    planned = plan(request(Message.user("a", cache="1h"), system=(Text("S"),), auto_cache=True), VENDOR)
    assert sent(planned.request) == {"system[0]": "1h", "messages[0].parts[0]": "1h"}
    assert len(planned.breakpoints) == 2


def test_automatic_breakpoints_avoid_what_cannot_be_marked() -> None:
    """They go to the last piece that can carry one, and are honoured; a section without one has none."""
    asked = request(
        Message.user("a"),
        Message.assistant("b", Thinking("Hm.", "anthropic", {})),
        system=(Text(" "),),
        auto_cache=True,
    )
    planned = plan(asked, VENDOR)
    assert sent(planned.request) == {"messages[1].parts[0]": "5m"}
    assert [entry.status for entry in planned.breakpoints] == ["honoured"]


# ---------------------------------------------------------------------- rule 2: unmarkable pieces


def test_a_mark_on_thinking_moves_back() -> None:
    """To the nearest earlier piece that can carry one: mapped, and the reason names both."""
    asked = request(
        Message.user("a"),
        Message.assistant(Thinking("Hm.", "anthropic", {}, cache="1h"), ToolCall("t", "look")),
    )
    planned = plan(asked, VENDOR)
    assert sent(planned.request) == {"messages[0].parts[0]": "1h"}
    (entry,) = planned.breakpoints
    assert (entry.where, entry.status, entry.granted_ttl) == ("messages[1].parts[0]", "mapped", "1h")
    assert "thinking" in str(entry.reason)
    assert "messages[0].parts[0]" in str(entry.reason)


@pytest.mark.parametrize("blank", ["", " ", "\n\t"])
def test_a_mark_on_blank_text_moves_back(blank: str) -> None:
    """Vendors refuse a mark on an empty text."""
    planned = plan(request(Message.user("a", blank, cache=True)), VENDOR)
    assert sent(planned.request) == {"messages[0].parts[0]": "5m"}
    assert "empty text" in str(planned.breakpoints[0].reason)


def test_a_mark_with_nothing_before_it_is_dropped() -> None:
    """There is no piece left to carry it."""
    planned = plan(request(Message.user("", cache=True)), VENDOR)
    assert sent(planned.request) == {}
    (entry,) = planned.breakpoints
    assert (entry.status, entry.granted_ttl, planned.ends) == ("dropped", None, (None,))


def test_two_marks_on_one_piece_are_one() -> None:
    """A mark that moved onto another's piece shares it: one is sent, with the longer TTL."""
    planned = plan(request(Message.user(Text("a", cache="5m"), Text("", cache="1h"))), VENDOR)
    assert sent(planned.request) == {"messages[0].parts[0]": "1h"}
    assert [entry.granted_ttl for entry in planned.breakpoints] == ["1h", "1h"]
    assert [entry.status for entry in planned.breakpoints] == ["mapped", "mapped"]
    assert planned.ends == (0, 0)


def test_three_marks_on_one_piece_all_report_what_was_sent() -> None:
    """The last one to come may be the longest."""
    parts = [Text("a", cache="5m"), Text("", cache="5m"), Text("", cache="1h")]
    planned = plan(request(Message.user(*parts)), VENDOR)
    assert sent(planned.request) == {"messages[0].parts[0]": "1h"}
    assert [entry.granted_ttl for entry in planned.breakpoints] == ["1h", "1h", "1h"]


# ---------------------------------------------------------------------- rule 3: TTLs


@pytest.mark.parametrize(
    ("ttls", "asked", "down", "up"),
    [
        (("5m", "1h"), "30m", "5m", "1h"),
        (("5m", "1h"), "12h", "1h", "1h"),
        (("30m", "12h"), "1h", "30m", "12h"),
        (("30m", "12h"), "5m", "30m", "30m"),
        (("30m",), "12h", "30m", "30m"),
    ],
)
def test_a_ttl_that_is_missing_is_rounded(ttls: tuple[str, ...], asked: Any, down: str, up: str) -> None:
    """Down, to the shortest at least; up when asked to, to the longest at most; always mapped."""
    vendor = capabilities(ttls=ttls, default_ttl=ttls[0])
    for rounding, granted in (("down", down), ("up", up)):
        mark = Breakpoint(asked, round=rounding)  # type: ignore[arg-type]
        planned = plan(request(Message.user(Text("a", cache=mark))), vendor)
        (entry,) = planned.breakpoints
        assert (entry.status, entry.requested_ttl, entry.granted_ttl) == ("mapped", asked, granted)
        assert sent(planned.request) == {"messages[0].parts[0]": granted}


def test_marks_without_ttls_have_none() -> None:
    """A vendor whose marks have no TTL gets a mark without one."""
    planned = plan(request(Message.user("a", cache="1h")), capabilities(ttls=(), default_ttl=None))
    assert sent(planned.request) == {"messages[0].parts[0]": None}
    assert planned.breakpoints[0].status == "mapped"


# ---------------------------------------------------------------------- rule 4: too many


def test_the_ends_of_the_sections_stay_and_then_the_deepest() -> None:
    """Six marked texts, a marked system and a marked tool: 4 on the wire."""
    asked = request(
        Message.user(*(Text(str(number), cache=True) for number in range(6))),
        system=(Text("S", cache=True),),
        tools=(tool(cache=True),),
    )
    planned = plan(asked, VENDOR)
    assert list(sent(planned.request)) == [
        "tools[0]",
        "system[0]",
        "messages[0].parts[4]",
        "messages[0].parts[5]",
    ]
    dropped = [entry.where for entry in planned.breakpoints if entry.status == "dropped"]
    assert dropped == [f"messages[0].parts[{number}]" for number in range(4)]
    assert all("at most 4" in str(entry.reason) for entry in planned.breakpoints if entry.status == "dropped")


def test_of_the_last_places_system_goes_before_messages_and_tools() -> None:
    """With room for one, it is the system's; the tools before it are part of its prefix."""
    asked = request(Message.user("a", cache=True), system=(Text("S", cache=True),), tools=(tool(cache=True),))
    assert list(sent(plan(asked, capabilities(max_breakpoints=1)).request)) == ["system[0]"]
    assert list(sent(plan(asked, capabilities(max_breakpoints=2)).request)) == [
        "system[0]",
        "messages[0].parts[0]",
    ]


def test_marks_that_share_a_piece_count_once() -> None:
    """The limit is of marks on the wire."""
    parts = [Text("a", cache=True), Text("", cache=True), Text("b", cache=True), Text("", cache=True)]
    planned = plan(request(Message.user(*parts)), capabilities(max_breakpoints=2))
    assert [entry.status for entry in planned.breakpoints] == ["honoured", "mapped", "honoured", "mapped"]


def test_without_a_limit_all_are_sent() -> None:
    """`max_breakpoints=None`."""
    asked = request(Message.user(*(Text(str(number), cache=True) for number in range(9))))
    assert len(sent(plan(asked, capabilities(max_breakpoints=None)).request)) == 9


# ---------------------------------------------------------------------- rule 5: TTL order


def test_an_earlier_shorter_ttl_is_lengthened() -> None:
    """Tools 5m, system 1h: both 1h; what follows may stay shorter."""
    asked = request(Message.user("a", cache="5m"), system=(Text("S", cache="1h"),), tools=(tool(cache="5m"),))
    planned = plan(asked, VENDOR)
    assert sent(planned.request) == {"tools[0]": "1h", "system[0]": "1h", "messages[0].parts[0]": "5m"}
    first, second, third = planned.breakpoints
    assert (first.status, second.status, third.status) == ("mapped", "honoured", "honoured")
    assert "lengthened" in str(first.reason)


def test_a_dropped_mark_lengthens_nothing() -> None:
    """Only what is sent has to be in order."""
    asked = request(
        Message.user(Text("a", cache="1h"), Text("b", cache="5m")), system=(Text("S", cache="5m"),)
    )
    assert sent(plan(asked, capabilities(max_breakpoints=2)).request) == {
        "system[0]": "5m",
        "messages[0].parts[1]": "5m",
    }


def test_where_order_does_not_matter_ttls_stay() -> None:
    """OpenAI publishes no rule of order."""
    asked = request(Message.user("a", cache="1h"), system=(Text("S", cache="5m"),))
    planned = plan(asked, capabilities(ttl_must_not_grow=False))
    assert sent(planned.request) == {"system[0]": "5m", "messages[0].parts[0]": "1h"}


# ---------------------------------------------------------------------- backends without marks, and strict


@pytest.mark.parametrize(("kind", "status"), [("advisory", "advisory"), ("none", "dropped")])
def test_a_backend_without_marks_is_sent_none(kind: Any, status: str) -> None:
    """The report says what becomes of them instead."""
    planned = plan(request(Message.user("a", cache="1h")), capabilities(breakpoints=kind))
    assert sent(planned.request) == {}
    (entry,) = planned.breakpoints
    assert (entry.status, entry.granted_ttl) == (status, None)
    assert entry.reason


@pytest.mark.parametrize(
    "asked",
    [
        request(Message.user("a", cache="30m")),
        request(Message.user("", cache=True)),
        request(Message.user("a", "", cache=True)),
        request(Message.user(*(Text(str(number), cache=True) for number in range(5)))),
        request(Message.user("a", cache="1h"), system=(Text("S", cache="5m"),)),
    ],
)
def test_strict_refuses_every_change(asked: Request) -> None:
    """Whatever would be mapped or dropped is an error that names the place."""
    with pytest.raises(InvalidBreakpoints, match=r"messages\[0\]|system\[0\]") as caught:
        plan(asked, VENDOR, strict=True)
    assert caught.value.field == "cache"


def test_strict_lets_pass_what_is_kept() -> None:
    """And what a backend takes as advice."""
    assert (
        plan(request(Message.user("a", cache="1h")), VENDOR, strict=True).breakpoints[0].status == "honoured"
    )
    advisory = capabilities(breakpoints="advisory")
    assert (
        plan(request(Message.user("a", cache="1h")), advisory, strict=True).breakpoints[0].status
        == "advisory"
    )


def test_pieces_that_do_not_change_are_the_same_objects() -> None:
    """A plan copies only what it must."""
    kept, moved = Text("S", cache="1h"), Text("a", cache="30m")
    planned = plan(request(Message.user(moved, "b"), system=(kept,)), VENDOR).request
    assert planned.system[0] is kept
    assert planned.messages[0].parts[0] is not moved


def test_a_ttl_that_is_sent_for_the_whole_request_stays_in_it() -> None:
    """Advisory as the others, with what is sent as its reason; marks that ask for less are taken out."""
    advisory = capabilities(breakpoints="advisory", advice={"1h": "a retention is sent"})
    planned = plan(request(Message.user("a", cache="1h"), Message.user("b", cache="5m")), advisory)
    assert sent(planned.request) == {"messages[0].parts[0]": "1h"}
    assert [(entry.status, entry.granted_ttl, entry.reason) for entry in planned.breakpoints] == [
        ("advisory", None, "the backend caches on its own, but a retention is sent"),
        ("advisory", None, "the backend caches on its own; no mark is sent"),
    ]
