"""Plans of any request for any backend keep their promises."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from kvsdk import (
    Breakpoint,
    Capabilities,
    InvalidBreakpoints,
    Message,
    Text,
    Thinking,
    Tool,
    ToolCall,
    ToolResult,
)
from kvsdk.caching import plan
from kvsdk.prompt import TTL_SECONDS, Request, breakpoint_of

TTLS = ("5m", "30m", "1h", "12h")
PLACES = (
    "tools:tool",
    "system:text",
    "user:text",
    "assistant:text",
    "assistant:tool_call",
    "assistant:thinking",
    "tool:tool_result",
)

marks = st.none() | st.builds(Breakpoint, st.sampled_from([None, *TTLS]), st.sampled_from(["down", "up"]))
texts = st.builds(Text, st.sampled_from(["", " ", "a", "b"]), marks)
calls = st.builds(ToolCall, st.just("t"), st.just("look"), st.just({}), st.just("{}"), marks)
thoughts = st.builds(Thinking, st.just("Hm."), st.just("anthropic"), st.just({"type": "thinking"}), marks)
results = st.builds(ToolResult, st.just("t"), st.just("1 bar"), st.booleans(), marks)


def turns(role: str, parts: Any) -> Any:
    return st.builds(Message, st.just(role), st.lists(parts, min_size=1, max_size=3).map(tuple))


requests = st.builds(
    Request,
    messages=st.lists(
        turns("user", texts) | turns("assistant", texts | calls | thoughts) | turns("tool", results),
        min_size=1,
        max_size=4,
    ).map(tuple),
    system=st.lists(texts, max_size=3).map(tuple),
    tools=st.integers(0, 3).flatmap(
        lambda count: st.tuples(
            *(
                st.builds(Tool, st.just(f"t{number}"), st.just(""), st.just({}), marks)
                for number in range(count)
            )
        )
    ),
    auto_cache=st.booleans(),
)


@st.composite
def capabilities(draw: st.DrawFn) -> Capabilities:
    ttls = tuple(ttl for ttl in TTLS if draw(st.booleans()))
    return Capabilities(
        breakpoints=draw(st.sampled_from(["honoured", "honoured", "advisory", "none"])),
        ttls=ttls,
        default_ttl=draw(st.sampled_from(ttls)) if ttls else None,
        max_breakpoints=draw(st.none() | st.integers(1, 5)),
        ttl_must_not_grow=draw(st.booleans()),
        markable=frozenset(draw(st.sets(st.sampled_from(PLACES)))),
    )


@settings(max_examples=200)
@given(requests, capabilities())
def test_a_plan_keeps_its_promises(request: Request, vendor: Capabilities) -> None:
    """Few enough marks, on pieces that can carry them, of TTLs that there are, in an order that is taken."""
    planned = plan(request, vendor)
    blocks = list(planned.request.blocks())
    sent = [(block, mark) for block in blocks if (mark := breakpoint_of(block.part)) is not None]

    assert len(sent) <= (len(blocks) if vendor.max_breakpoints is None else vendor.max_breakpoints)
    assert all(f"{block.place}:{block.kind}" in vendor.markable for block, _ in sent)
    assert all(block.part.text.strip() for block, _ in sent if isinstance(block.part, Text))
    assert all((mark.ttl in vendor.ttls) if vendor.ttls else mark.ttl is None for _, mark in sent)
    if vendor.breakpoints != "honoured":
        assert sent == []
    if vendor.ttl_must_not_grow and vendor.ttls:
        seconds = [TTL_SECONDS[str(mark.ttl)] for _, mark in sent]
        assert seconds == sorted(seconds, reverse=True)


@settings(max_examples=200)
@given(requests, capabilities())
def test_a_plan_reports_every_breakpoint_once(request: Request, vendor: Capabilities) -> None:
    """One entry for each that was asked for, in order, each with what was sent for it or why not."""
    planned = plan(request, vendor)
    asked = [block.where for block in request.blocks() if breakpoint_of(block.part) is not None]
    reported = [entry.where for entry in planned.breakpoints]
    assert len(reported) == len(set(reported)) == len(planned.ends)
    assert [where for where in reported if where in asked] == asked
    assert request.auto_cache or reported == asked

    sent = {block.where: breakpoint_of(block.part) for block in planned.request.blocks()}
    blocks = list(request.blocks())
    for entry, end in zip(planned.breakpoints, planned.ends, strict=True):
        assert (entry.status == "honoured") == (entry.reason is None)
        if entry.status == "honoured":
            assert entry.granted_ttl == (entry.requested_ttl or vendor.default_ttl)
        assert (entry.status == "dropped") == (end is None)
        if entry.status in ("honoured", "mapped"):
            assert end is not None
            mark = sent[blocks[end].where]
            assert mark is not None
            assert mark.ttl == entry.granted_ttl


@settings(max_examples=150)
@given(requests, capabilities())
def test_strict_is_all_or_an_error(request: Request, vendor: Capabilities) -> None:
    """A strict plan is the lenient one, or it is refused because that one changes something."""
    lenient = plan(request, vendor)
    changed = any(entry.status in ("mapped", "dropped") for entry in lenient.breakpoints)
    try:
        strict = plan(request, vendor, strict=True)
    except InvalidBreakpoints:
        assert changed
    else:
        assert not changed
        assert strict == lenient


@settings(max_examples=100)
@given(requests, capabilities())
def test_a_plan_changes_nothing_but_marks(request: Request, vendor: Capabilities) -> None:
    """Texts, tools and turns are what they were."""

    def bare(asked: Request) -> list[Any]:
        return [(block.where, repr(block.part).split(", cache=")[0]) for block in asked.blocks()]

    assert bare(plan(request, vendor).request) == bare(request)
