"""A call and its answer, through the vendor's SDK."""

from __future__ import annotations

import time
from decimal import Decimal

import pytest
from anthropic_wire import MODEL, USAGE, message, text, tool_use
from kvsdk import Client, Message, Text, ToolCall
from loopback import Loopback, Scripted


def test_the_smallest_call_sends_model_limit_and_one_turn(client: Client, loopback: Loopback) -> None:
    """A plain string becomes one user turn; nothing else is sent."""
    loopback.script(message())
    client.generate("Which valve?", max_tokens=300)
    assert loopback.body == {
        "model": MODEL,
        "max_tokens": 300,
        "messages": [{"role": "user", "content": [{"type": "text", "text": "Which valve?"}]}],
    }
    assert loopback.request.path == "/v1/messages"
    assert loopback.request.headers["authorization"] == "Bearer sk-ant-test"


def test_every_setting_has_its_place_in_the_body(client: Client, loopback: Loopback) -> None:
    """System, tools, tool choice and stop go where the Messages API has them."""
    loopback.script(message())
    schema = {"type": "object", "properties": {"z": {"type": "string"}, "a": {"type": "string"}}}
    client.generate(
        [Message.user("Hello"), Message.assistant("Hi"), Message.user("Which valve?")],
        system="You know valves.",
        tools=[{"name": "look", "description": "Looks.", "input_schema": schema}],
        tool_choice="required",
        stop=["END", "STOP"],
    )
    assert loopback.body == {
        "model": MODEL,
        "max_tokens": 4096,
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "Hello"}]},
            {"role": "assistant", "content": [{"type": "text", "text": "Hi"}]},
            {"role": "user", "content": [{"type": "text", "text": "Which valve?"}]},
        ],
        "system": [{"type": "text", "text": "You know valves."}],
        "tools": [{"name": "look", "description": "Looks.", "input_schema": schema}],
        "tool_choice": {"type": "any"},
        "stop_sequences": ["END", "STOP"],
    }
    assert list(loopback.body["tools"][0]["input_schema"]["properties"]) == ["z", "a"]


@pytest.mark.parametrize(
    ("choice", "sent"),
    [
        ("auto", {"type": "auto"}),
        ("none", {"type": "none"}),
        ("required", {"type": "any"}),
        ("look", {"type": "tool", "name": "look"}),
    ],
)
def test_tool_choice_is_translated(
    client: Client, loopback: Loopback, choice: str, sent: dict[str, str]
) -> None:
    """Each tool choice has its own object in the Messages API."""
    loopback.script(message())
    client.generate("x", tools=[{"name": "look", "input_schema": {"type": "object"}}], tool_choice=choice)
    assert loopback.body["tool_choice"] == sent


def test_extra_is_per_scheme(client: Client, loopback: Loopback) -> None:
    """The part of `extra` for this backend is sent, another vendor's part is not."""
    loopback.script(message())
    client.generate("x", extra={"anthropic": {"thinking": {"type": "disabled"}}, "openai": {"seed": 1}})
    assert loopback.body["thinking"] == {"type": "disabled"}
    assert "seed" not in loopback.body


def test_the_reply_has_the_vendors_ids(client: Client, loopback: Loopback) -> None:
    """`id` is the response's, `request_id` the header's, and `operation_id` is ours."""
    loopback.script(Scripted(message(), headers={"request-id": "req_7"}))
    reply = client.generate("x")
    assert (reply.id, reply.request_id) == ("msg_1", "req_7")
    assert reply.operation_id.startswith("op_")
    assert (reply.backend, reply.model, reply.attempts) == ("anthropic", MODEL, 1)


def test_the_reply_has_parts_text_and_the_raw_body(client: Client, loopback: Loopback) -> None:
    """Text and tool calls come in order, and the body is kept as it came."""
    body = message(text("Look: "), tool_use("toolu_1", "look", at="A"), stop_reason="tool_use")
    loopback.script(body)
    reply = client.generate("x")
    assert reply.parts == (Text("Look: "), ToolCall("toolu_1", "look", {"at": "A"}))
    assert reply.text == "Look: "
    assert reply.tool_calls[0].arguments_json == '{"at":"A"}'
    assert reply.raw == body


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        ("end_turn", "end_turn"),
        ("max_tokens", "max_tokens"),
        ("tool_use", "tool_use"),
        ("stop_sequence", "stop_sequence"),
        ("refusal", "refusal"),
        ("pause_turn", "paused"),
        ("something_new", "other"),
    ],
)
def test_stop_reasons_are_translated(client: Client, loopback: Loopback, theirs: str, ours: str) -> None:
    """Every documented stop reason has one of ours; an unknown one is `other`."""
    loopback.script(message(stop_reason=theirs))
    assert client.generate("x").stop_reason == ours


def test_latency_is_the_whole_time_and_no_first_token(client: Client, loopback: Loopback) -> None:
    """Without a stream the time to the first token cannot be known."""
    loopback.script(message())
    started_s = time.monotonic()
    latency = client.generate("x").latency
    assert latency.ttft_s is None
    assert 0 < latency.total_s <= time.monotonic() - started_s


def test_the_reply_is_priced_at_the_vendors_list(client: Client, loopback: Loopback) -> None:
    """Sonnet 5.5 costs 2 / 0.1 / 2.5 (5m) / 4 (1h) / 10 dollars per million tokens."""
    loopback.script(message(usage=USAGE))
    cost = client.generate("x").cost
    mtok = 1_000_000
    assert cost.input == Decimal(2) * 7 / mtok
    assert cost.cache_read == Decimal("0.1") * 12000 / mtok
    assert cost.cache_write == (Decimal("2.5") * 500 + Decimal(4) * 1000) / mtok
    assert cost.output == Decimal(10) * 200 / mtok
    assert cost.total == (14 + 1200 + 1250 + 4000 + 2000) / Decimal(mtok)
    assert cost.without_cache == (Decimal(2) * 13507 + Decimal(10) * 200) / mtok
    assert cost.saved == cost.without_cache - cost.total
    assert cost.estimated is False
    assert cost.price_source is not None
    assert "genai-prices" in cost.price_source


def test_a_batch_is_half_price(client: Client, loopback: Loopback) -> None:
    """An answer of the batch tier costs half, cached tokens and 1h writes included."""
    loopback.script(message(model="claude-sonnet-4-5", usage=USAGE | {"service_tier": "batch"}))
    cost = client.generate("x").cost
    parts = Decimal(3) * 7 + Decimal("0.30") * 12000 + Decimal("3.75") * 500 + Decimal(6) * 1000 + 15 * 200
    assert cost.total == parts / 2 / 1_000_000 == Decimal("0.007248")
