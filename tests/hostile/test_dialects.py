"""Whatever a caller hands over: messages, or an error of ours."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from kvsdk import InvalidRequest, KvsdkError, Message, backend
from kvsdk.caching import digest
from kvsdk.prompt import Request, read_messages, read_system, read_tools

SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8)
KEYS = st.sampled_from(
    [
        "role",
        "content",
        "type",
        "text",
        "id",
        "name",
        "input",
        "function",
        "arguments",
        "tool_calls",
        "tool_call_id",
        "tool_use_id",
        "cache_control",
        "prompt_cache_breakpoint",
        "ttl",
        "parameters",
        "input_schema",
        "thinking",
    ]
)
WORDS = st.sampled_from(
    [
        "user",
        "assistant",
        "system",
        "developer",
        "tool",
        "text",
        "input_text",
        "tool_use",
        "tool_result",
        "thinking",
        "ephemeral",
        "5m",
        "1h",
        "{}",
        '{"a": 1}',
        "",
    ]
)
JSONISH = st.recursive(
    SCALARS | WORDS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEYS, inner, max_size=6),
    max_leaves=25,
)

PARTS = st.fixed_dictionaries(
    {"type": WORDS},
    optional={
        "text": st.text(max_size=5) | JSONISH,
        "id": JSONISH,
        "name": JSONISH,
        "input": JSONISH,
        "tool_use_id": JSONISH,
        "content": JSONISH,
        "cache_control": JSONISH,
    },
)
TURNS = st.fixed_dictionaries(
    {"role": WORDS},
    optional={
        "content": st.text(max_size=5) | st.lists(PARTS, max_size=3) | JSONISH,
        "tool_calls": st.lists(JSONISH, max_size=2) | JSONISH,
        "tool_call_id": JSONISH,
    },
)


def check(read: Any, value: Any) -> Any:
    """What was read, or None when it was refused as it should be."""
    try:
        return read(value)
    except KvsdkError as error:
        assert isinstance(error, InvalidRequest)  # noqa: PT017
        return None


@settings(max_examples=200)
@given(st.lists(TURNS, min_size=1, max_size=3) | JSONISH)
def test_messages_are_read_or_refused(value: Any) -> None:
    """And what was read can be digested and sent to either vendor as JSON."""
    messages = check(read_messages, value)
    if messages is None:
        return
    assert all(isinstance(message, Message) and message.parts for message in messages)
    request = Request(messages=messages)
    assert digest(request).size_bytes >= 0
    for address in ("anthropic:claude-sonnet-5-5", "openai:gpt-5.6-sol"):
        json.dumps(dict(backend(address).encode(request, stream=False, call_id="c").body))


@settings(max_examples=150)
@given(JSONISH)
def test_systems_are_read_or_refused(value: Any) -> None:
    """The same for instructions."""
    check(read_system, value)


@settings(max_examples=150)
@given(
    JSONISH
    | st.lists(st.fixed_dictionaries({"name": JSONISH}, optional={"input_schema": JSONISH}), max_size=2)
)
def test_tools_are_read_or_refused(value: Any) -> None:
    """And the same for tools."""
    check(read_tools, value)
