"""Messages, parts and tools."""

from __future__ import annotations

from typing import Any

import pytest
from kvsdk import Breakpoint, InvalidRequest, Message, Text, Thinking, Tool, ToolCall, ToolResult
from pydantic import BaseModel


def test_cache_on_a_message_marks_its_last_part() -> None:
    """The others stay as they are."""
    message = Message.user("a", Text("b"), cache="1h")
    assert message.parts == (Text("a"), Text("b", cache=Breakpoint("1h")))


def test_cache_may_be_written_in_four_ways() -> None:
    """True, a TTL, a `Breakpoint`, or nothing."""
    marks = [
        Text("x", cache=value).cache for value in (True, "12h", Breakpoint("5m", round="up"), False, None)
    ]
    assert marks == [Breakpoint(), Breakpoint("12h"), Breakpoint("5m", "up"), None, None]


@pytest.mark.parametrize("ttl", ["2h", "", 300, 1.5, ["5m"]])
def test_an_unknown_ttl_is_refused(ttl: Any) -> None:
    """The error names the four that there are."""
    with pytest.raises(InvalidRequest, match="5m, 30m, 1h, 12h") as caught:
        Text("x", cache=ttl)
    assert caught.value.field == "cache"


def test_an_unknown_rounding_is_refused() -> None:
    """Up or down."""
    with pytest.raises(InvalidRequest, match="'down' or 'up'"):
        Breakpoint("1h", round="sideways")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("role", "part"),
    [
        ("user", ToolCall("t", "look")),
        ("user", ToolResult("t", "x")),
        ("assistant", ToolResult("t", "x")),
        ("system", Thinking("x", "anthropic", {})),
        ("tool", Text("x")),
        ("nobody", Text("x")),
    ],
)
def test_a_role_holds_only_what_it_can(role: Any, part: Any) -> None:
    """A part in the wrong turn is an error at once."""
    with pytest.raises(InvalidRequest):
        Message(role, (part,))


@pytest.mark.parametrize("wrong", [5, None, b"bytes", object()])
def test_what_is_no_part_is_refused(wrong: Any) -> None:
    """Also inside a list."""
    with pytest.raises(InvalidRequest):
        Message.user(wrong)
    with pytest.raises(InvalidRequest):
        Message.user(["fine", wrong])


def test_text_and_tool_results_are_text() -> None:
    """Anything else is refused where it is made."""
    with pytest.raises(InvalidRequest, match="str"):
        Text(5)  # type: ignore[arg-type]
    with pytest.raises(InvalidRequest, match=r"json\.dumps"):
        ToolResult("t", {"a": 1})  # type: ignore[arg-type]


def test_arguments_keep_the_order_of_their_keys() -> None:
    """As the caller, or the model, wrote them."""
    assert ToolCall("t", "look", {"z": 1, "a": "é"}).arguments_json == '{"z":1,"a":"é"}'
    parsed = ToolCall.parse("t", "look", '{ "z": 1 }')
    assert (parsed.arguments, parsed.arguments_json) == ({"z": 1}, '{ "z": 1 }')


@pytest.mark.parametrize("text", ["{", "[1]", "5", "null"])
def test_arguments_that_are_no_object_are_kept_as_text(text: str) -> None:
    """The caller can look at what the model wrote."""
    call = ToolCall.parse("t", "look", text)
    assert (call.arguments, call.arguments_json) == ({}, text)


def test_a_tool_may_have_a_pydantic_model() -> None:
    """Its JSON schema is what is sent."""

    class Arguments(BaseModel):
        valve: str

    assert Tool("look", "Looks.", Arguments).json_schema["properties"]["valve"]["type"] == "string"


def test_a_tool_may_be_a_typed_function() -> None:
    """Name, docstring, annotations and defaults; it can still be called."""

    def look(valve: str, at: int = 1) -> str:
        """Looks at a valve."""
        return f"{valve}{at}"

    tool = Tool.from_function(look, cache="1h")
    assert (tool.name, tool.description, tool.cache) == ("look", "Looks at a valve.", Breakpoint("1h"))
    assert list(tool.json_schema["properties"]) == ["valve", "at"]
    assert tool.json_schema["required"] == ["valve"]
    assert tool(valve="B", at=2) == "B2"


def untyped(valve):  # type: ignore[no-untyped-def]
    return valve


def variadic(*valves: str) -> None: ...


@pytest.mark.parametrize("function", [untyped, variadic])
def test_a_function_that_cannot_be_described_is_refused(function: Any) -> None:
    """A parameter without a type, or without a name of its own."""
    with pytest.raises(InvalidRequest, match="valve"):
        Tool.from_function(function)


@pytest.mark.parametrize(
    "arguments", [("", "x", {}), ("look", "x", int), ("look", "x", "schema"), ("look", "x", None)]
)
def test_a_tool_needs_a_name_and_a_schema(arguments: Any) -> None:
    """Both are checked where the tool is made."""
    with pytest.raises(InvalidRequest):
        Tool(*arguments)
    with pytest.raises(InvalidRequest, match="from_function"):
        Tool("look", "x", {})()


def test_a_mark_inside_a_result_belongs_to_the_result() -> None:
    """No vendor reads a mark inside a tool's result: it is the result's own."""
    result = ToolResult("c1", [Text("a"), Text("b", cache="1h")])
    assert result.cache == Breakpoint("1h")
    assert [piece.cache for piece in result.pieces] == [None, None]
