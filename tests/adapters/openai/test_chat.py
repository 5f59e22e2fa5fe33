"""A call of Chat Completions and its answer, through the vendor's SDK."""

from __future__ import annotations

import pytest
from kvsdk import Client, Message, Text, ToolCall
from loopback import Loopback, Scripted
from openai_wire import CHAT_USAGE, MODEL, completion, tool_call


def test_the_smallest_call_sends_model_limit_and_one_message(chat: Client, loopback: Loopback) -> None:
    """A plain string becomes one user message with plain content; nothing else is sent."""
    loopback.script(completion())
    chat.generate("Which valve?", max_tokens=300)
    assert loopback.body == {
        "model": MODEL,
        "messages": [{"role": "user", "content": "Which valve?"}],
        "max_completion_tokens": 300,
    }
    assert loopback.request.path == "/v1/chat/completions"


def test_every_setting_has_its_place_in_the_body(chat: Client, loopback: Loopback) -> None:
    """System, tools, tool choice, stop and temperature go where Chat Completions has them."""
    loopback.script(completion())
    chat.generate(
        [Message.user("a", "b"), Message.assistant("c"), Message.user("d")],
        system=[Text("S"), Text("T")],
        tools=[{"name": "look", "description": "Looks.", "input_schema": {"type": "object"}}],
        tool_choice="look",
        stop="END",
        temperature=0.0,
    )
    assert loopback.body == {
        "model": MODEL,
        "messages": [
            {"role": "system", "content": [{"type": "text", "text": "S"}, {"type": "text", "text": "T"}]},
            {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
            {"role": "assistant", "content": "c"},
            {"role": "user", "content": "d"},
        ],
        "max_completion_tokens": 4096,
        "tools": [
            {
                "type": "function",
                "function": {"name": "look", "description": "Looks.", "parameters": {"type": "object"}},
            }
        ],
        "tool_choice": {"type": "function", "function": {"name": "look"}},
        "stop": ["END"],
        "temperature": 0.0,
    }


def test_the_reply_has_ids_parts_and_raw(chat: Client, loopback: Loopback) -> None:
    """`id` is the completion's, `request_id` the header's; text and calls come in order."""
    body = completion("Look: ", tool_call("call_1", "look", '{"at": "A"}'))
    loopback.script(Scripted(body, headers={"x-request-id": "req_7"}))
    reply = chat.generate("x")
    assert (reply.id, reply.request_id) == ("chatcmpl-1", "req_7")
    assert reply.parts == (Text("Look: "), ToolCall("call_1", "look", {"at": "A"}, '{"at": "A"}'))
    assert reply.stop_reason == "tool_use"
    assert reply.raw == body


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        ("stop", "end_turn"),
        ("length", "max_tokens"),
        ("content_filter", "refusal"),
        ("function_call", "tool_use"),
        ("tool_calls", "tool_use"),
        ("model_length", "max_tokens"),
        ("eos", "end_turn"),
        ("brand_new", "other"),
        (None, "other"),
    ],
)
def test_stop_reasons_are_translated(chat: Client, loopback: Loopback, theirs: str | None, ours: str) -> None:
    """Every documented reason has one of ours; an unknown one is `other`."""
    body = completion()
    body["choices"][0]["finish_reason"] = theirs
    loopback.script(body)
    assert chat.generate("x").stop_reason == ours


def test_a_forced_tool_that_ends_with_stop_is_tool_use(chat: Client, loopback: Loopback) -> None:
    """Chat says `stop` after a forced call."""
    body = completion(None, tool_call("call_1", "look", "{}"))
    body["choices"][0]["finish_reason"] = "stop"
    loopback.script(body)
    assert chat.generate("x").stop_reason == "tool_use"


def test_a_refusal_is_text_and_a_reason(chat: Client, loopback: Loopback) -> None:
    """Chat says `stop` after a refusal too; its words are the reply's text."""
    body = completion(None)
    body["choices"][0]["message"]["refusal"] = "I will not."
    loopback.script(body)
    reply = chat.generate("x")
    assert (reply.text, reply.stop_reason) == ("I will not.", "refusal")


def test_arguments_that_are_no_json_are_kept_as_text(chat: Client, loopback: Loopback) -> None:
    """A model may write broken JSON: no arguments, and its text unchanged."""
    loopback.script(completion(None, tool_call("call_1", "look", '{"at": ')))
    (call,) = chat.generate("x").tool_calls
    assert (call.arguments, call.arguments_json) == ({}, '{"at": ')


def test_usage_is_the_total_and_its_parts(chat: Client, loopback: Loopback) -> None:
    """What was read and written is inside the total."""
    loopback.script(completion(usage=CHAT_USAGE))
    usage = chat.generate("x").usage
    assert (usage.input_tokens, usage.cache_read_tokens, usage.cache_write_tokens) == (3000, 2048, 900)
    assert usage.fresh_tokens == 3000 - 2048 - 900
    assert usage.cache_write_by_ttl is None
    assert (usage.output_tokens, usage.reasoning_tokens) == (5, 2)


@pytest.mark.parametrize(
    "usage", [CHAT_USAGE | {"prompt_tokens_details": None}, {"prompt_tokens": 3000, "completion_tokens": 5}]
)
def test_absent_details_are_unknown(chat: Client, loopback: Loopback, usage: dict) -> None:
    """A details object that is null or missing is unknown and never 0."""
    loopback.script(completion(usage=usage))
    reply = chat.generate("x")
    assert reply.usage.cache_read_tokens is None
    assert reply.usage.cache_write_tokens is None
    assert reply.cache.hit_rate is None
    assert reply.cost.estimated is True


def test_more_cached_than_sent_is_kept_and_flagged(chat: Client, loopback: Loopback) -> None:
    """Counts that cannot be lose no answer: the cost is an interval and the hit rate unknown."""
    usage = {
        "prompt_tokens": 10,
        "completion_tokens": 5,
        "prompt_tokens_details": {"cached_tokens": 5000},
    }
    loopback.script(completion(usage=usage))
    reply = chat.generate("x")
    assert reply.text == "Valve A."
    assert reply.usage.cache_read_tokens == 5000
    assert reply.usage.is_consistent is False
    assert reply.cache.hit_rate is None
    assert reply.cost.estimated is True
    assert "more tokens cached than sent" in str(reply.cost.reason)
