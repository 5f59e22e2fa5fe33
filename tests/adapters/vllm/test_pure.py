"""What of the vLLM adapter needs no engine."""

from __future__ import annotations

from typing import Any

import kvsdk
import pytest
from kvsdk import Message, Text, Thinking, Tool, ToolCall
from kvsdk.backend import BackendSpec
from kvsdk.prompt import Request

from kvsdk_vllm import backend
from kvsdk_vllm._reply import EngineReader
from kvsdk_vllm._salt import tenant_salt
from kvsdk_vllm._tools import ForcedCall, ParsedText
from kvsdk_vllm._translate import to_call_schema, to_template

TOOL = Tool("look", "Look.", {"type": "object", "properties": {"at": {"type": "string"}}})


def test_templates_get_no_marks_and_no_reasoning() -> None:
    """A chat template sees texts and calls only."""
    thought = Thinking("hm", "anthropic", {"type": "thinking"})
    request = Request(
        system=(Text("Be brief.", cache="1h"),),
        messages=(
            Message.user("Hi", cache=True),
            Message("assistant", (thought, Text("Let me see."), ToolCall("c1", "look", {"at": "it"}))),
            Message.tool("c1", "a heron"),
        ),
    )
    assert to_template(request) == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Hi"},
        {
            "role": "assistant",
            "content": "Let me see.",
            "tool_calls": [
                {"id": "c1", "type": "function", "function": {"name": "look", "arguments": {"at": "it"}}}
            ],
        },
        {"role": "tool", "tool_call_id": "c1", "content": "a heron"},
    ]


@pytest.mark.parametrize(
    ("choice", "forced"), [(None, False), ("auto", False), ("required", True), ("look", True)]
)
def test_only_a_forced_call_has_a_schema(choice: str | None, forced: bool) -> None:
    """The engine is held to a schema when a tool must be called, and only then."""
    request = Request(messages=(Message.user("Hi"),), tools=(TOOL,), tool_choice=choice)
    assert (to_call_schema(request) is not None) is forced


def test_a_forced_call_that_was_cut_off_is_text() -> None:
    """JSON that `max_tokens` cut off is passed on as text, not as a call."""
    sieve = ForcedCall()
    assert list(sieve.feed('{"name": "look", "argu')) == []
    assert list(sieve.finish()) == [{"type": "text", "text": '{"name": "look", "argu'}]


class _Tagged:
    """Stands where vLLM's parser does, with its tag."""

    tool_call_start_token = "<tool_call>"


def test_text_is_held_back_only_where_a_call_may_begin() -> None:
    """Text before a tag streams at once; a possible start of the tag waits for the next piece."""
    sieve = ParsedText(_Tagged(), [])
    sent = [
        [event["text"] for event in sieve.feed(piece)]
        for piece in ("Let me ", "see <", "b> <tool", "_call>{")
    ]
    assert sent == [["Let me "], ["see "], ["<b> "], []]


def test_a_stream_without_its_end_is_not_complete() -> None:
    """What arrived before a break has its meters, and is not complete."""
    reader = EngineReader("m")
    meters = {"id": "r1", "prompt_tokens": 40, "cached_tokens": 32, "created_tokens": 0, "output_tokens": 1}
    assert list(reader.feed({"type": "text", "text": "Hi", "meters": meters}))
    outcome = reader.outcome()
    assert not outcome.complete
    assert outcome.usage.input_tokens == 40
    assert outcome.usage.fresh_tokens == 40 - 32 - 0


def test_a_salt_never_shows_the_tenant() -> None:
    """A salt is stable, differs by tenant and generation, and does not hold the name."""
    salt = tenant_salt("acme")
    assert salt == tenant_salt("acme")
    assert salt is not None
    assert "acme" not in salt
    assert len({salt, tenant_salt("acme", 1), tenant_salt("other")}) == 3
    assert tenant_salt(None) is None


@pytest.mark.parametrize("target", ["//host:1", "host#m", "//host:1#"])
def test_a_servers_address_needs_host_and_model(target: str) -> None:
    """An address that lacks a part is refused with the form it should have."""
    with pytest.raises(kvsdk.ConfigurationError, match="HOST:PORT#MODEL"):
        backend(BackendSpec("vllm+http", target))


def test_the_server_gets_session_salt_and_request_id() -> None:
    """Session and salt go into the body beside the call's own, our request id into its header."""
    server = backend(BackendSpec("vllm+http", "//127.0.0.1:9#m"))
    extra: dict[str, dict[str, Any]] = {"vllm": {"priority": 1}, "openai": {"x": 1}}
    request = Request(messages=(Message.user("Hi"),), session="s", tenant="acme", extra=extra)
    call = server.encode(request, stream=False, call_id="op_1-1")
    assert call.headers == {"X-Request-Id": "op_1-1"}
    assert call.extra == {"session_id": "s", "cache_salt": tenant_salt("acme"), "priority": 1}
    assert "prompt_cache_key" not in call.body
