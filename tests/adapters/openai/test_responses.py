"""A call of the Responses API and its answer, through the vendor's SDK."""

from __future__ import annotations

import kvsdk
import pytest
from kvsdk import Client, Message, Text, ToolCall
from loopback import Loopback, Scripted
from openai_wire import MODEL, RESPONSES_USAGE, function_call, output_text, response


def test_the_smallest_call_sends_model_limit_and_one_item(client: Client, loopback: Loopback) -> None:
    """A plain string becomes one item of input; nothing else is sent."""
    loopback.script(response())
    client.generate("Which valve?", max_tokens=300)
    assert loopback.body == {
        "model": MODEL,
        "input": [{"role": "user", "content": [{"type": "input_text", "text": "Which valve?"}]}],
        "max_output_tokens": 300,
    }
    assert loopback.request.path == "/v1/responses"
    assert loopback.request.headers["authorization"] == "Bearer sk-test-key"


def test_every_setting_has_its_place_in_the_body(client: Client, loopback: Loopback) -> None:
    """System texts lead the input, where they can carry marks; tools keep their keys' order."""
    schema = {"type": "object", "properties": {"z": {"type": "string"}, "a": {"type": "string"}}}
    loopback.script(response())
    client.generate(
        [Message.user("Hello"), Message.assistant("Hi"), Message.system("Be kind"), Message.user("Valve?")],
        system="You know valves.",
        tools=[{"name": "look", "description": "Looks.", "input_schema": schema}],
        tool_choice="look",
        temperature=0.5,
        extra={"openai": {"store": False}, "anthropic": {"x": 1}},
    )
    assert loopback.body == {
        "model": MODEL,
        "input": [
            {"role": "developer", "content": [{"type": "input_text", "text": "You know valves."}]},
            {"role": "user", "content": [{"type": "input_text", "text": "Hello"}]},
            {"role": "assistant", "content": [{"type": "output_text", "text": "Hi"}]},
            {"role": "developer", "content": [{"type": "input_text", "text": "Be kind"}]},
            {"role": "user", "content": [{"type": "input_text", "text": "Valve?"}]},
        ],
        "max_output_tokens": 4096,
        "tools": [
            {
                "type": "function",
                "name": "look",
                "description": "Looks.",
                "parameters": schema,
                "strict": False,
            }
        ],
        "tool_choice": {"type": "function", "name": "look"},
        "temperature": 0.5,
        "store": False,
    }
    assert list(loopback.body["tools"][0]["parameters"]["properties"]) == ["z", "a"]


@pytest.mark.parametrize("choice", ["auto", "none", "required"])
def test_plain_tool_choices_are_sent_as_they_are(client: Client, loopback: Loopback, choice: str) -> None:
    """OpenAI has the same three words."""
    loopback.script(response())
    client.generate("x", tools=[{"name": "look", "parameters": {"type": "object"}}], tool_choice=choice)
    assert loopback.body["tool_choice"] == choice


def test_stop_is_not_taken(client: Client, loopback: Loopback) -> None:
    """Responses has no stop sequences: refused, or left out and said."""
    with pytest.raises(kvsdk.UnsupportedSetting, match="stop"):
        client.generate("x", stop="END")
    loopback.script(response())
    reply = client.generate("x", stop="END", on_unsupported="drop")
    assert "stop" not in loopback.body
    assert any("stop" in note for note in reply.cache.notes)


def test_the_reply_has_ids_parts_and_raw(client: Client, loopback: Loopback) -> None:
    """`id` is the response's, `request_id` the header's; text and calls come in order."""
    body = response(output_text("Look: "), function_call("call_1", "look", '{"at": "A"}'))
    loopback.script(Scripted(body, headers={"x-request-id": "req_7"}))
    reply = client.generate("x")
    assert (reply.id, reply.request_id, reply.backend, reply.model) == ("resp_1", "req_7", "openai", MODEL)
    assert reply.parts == (Text("Look: "), ToolCall("call_1", "look", {"at": "A"}, '{"at": "A"}'))
    assert reply.stop_reason == "tool_use"
    assert reply.raw == body


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({}, "end_turn"),
        ({"status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"}}, "max_tokens"),
        ({"status": "incomplete", "incomplete_details": {"reason": "content_filter"}}, "refusal"),
        ({"status": "incomplete", "incomplete_details": {"reason": "steered"}}, "paused"),
        ({"status": "incomplete", "incomplete_details": {"reason": "max_messages"}}, "other"),
        ({"status": "incomplete", "incomplete_details": {"reason": "brand_new"}}, "other"),
        ({"status": "cancelled"}, "other"),
        ({"status": "incomplete", "incomplete_details": None}, "other"),
    ],
)
def test_stop_reasons_are_translated(client: Client, loopback: Loopback, changes: dict, reason: str) -> None:
    """From the response's status and details."""
    loopback.script(response(**changes))
    assert client.generate("x").stop_reason == reason


def test_a_refusal_is_text_and_a_reason(client: Client, loopback: Loopback) -> None:
    """The refusal's words are the reply's text."""
    refusal = output_text("") | {"content": [{"type": "refusal", "refusal": "I will not."}]}
    loopback.script(response(refusal))
    reply = client.generate("x")
    assert (reply.text, reply.stop_reason) == ("I will not.", "refusal")


def test_a_failed_response_is_an_error(client: Client, loopback: Loopback) -> None:
    """Status 200 with `failed` inside: the error is the one that its code means, with the request's id."""
    failed = response(status="failed", output=[], error={"code": "rate_limit_exceeded", "message": "Slow"})
    loopback.script(Scripted(failed, headers={"x-request-id": "req_7"}))
    with pytest.raises(kvsdk.RateLimited, match="Slow") as caught:
        client.generate("x")
    assert (caught.value.backend, caught.value.model, caught.value.request_id) == ("openai", MODEL, "req_7")


def test_usage_is_the_total_and_its_parts(client: Client, loopback: Loopback) -> None:
    """What was read and written is inside the total; writes are split by TTL."""
    loopback.script(response(usage=RESPONSES_USAGE))
    reply = client.generate("x")
    usage = reply.usage
    assert (usage.input_tokens, usage.cache_read_tokens, usage.cache_write_tokens) == (3000, 2048, 900)
    assert usage.fresh_tokens == 3000 - 2048 - 900
    assert usage.cache_write_by_ttl == {"30m": 400, "12h": 500}
    assert (usage.output_tokens, usage.reasoning_tokens) == (5, 2)
    assert reply.cache.hit_rate == 2048 / 3000


def test_absent_details_are_unknown(client: Client, loopback: Loopback) -> None:
    """Without the details object nothing is known of the cache: None, a note, and a cost interval."""
    loopback.script(response(usage={"input_tokens": 3000, "output_tokens": 5, "total_tokens": 3005}))
    reply = client.generate("x")
    usage = reply.usage
    assert (usage.input_tokens, usage.output_tokens) == (3000, 5)
    assert (usage.cache_read_tokens, usage.cache_write_tokens, usage.fresh_tokens) == (None, None, None)
    assert reply.cache.hit_rate is None
    assert any("did not report" in note for note in reply.cache.notes)
    assert reply.cost.estimated is True
    assert reply.cost.low is not None
    assert reply.cost.high is not None
    assert reply.cost.low < reply.cost.high == reply.cost.total


def test_details_without_a_write_count_mean_no_write(client: Client, loopback: Loopback) -> None:
    """Models that charge no writes leave the count out: 0, and an exact cost."""
    details = {"input_tokens_details": {"cached_tokens": 2048}}
    loopback.script(response(usage=RESPONSES_USAGE | details))
    reply = client.generate("x")
    assert (reply.usage.cache_write_tokens, reply.usage.fresh_tokens) == (0, 3000 - 2048)
    assert reply.cost.estimated is False
