"""Answers of both APIs as they arrive."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from kvsdk import (
    Client,
    End,
    PartEnd,
    StreamTruncated,
    Text,
    TextDelta,
    Thinking,
    ThinkingDelta,
    ToolCall,
    ToolCallDelta,
)
from kvsdk.cost import LedgerRow
from loopback import Loopback, sse, sse_text
from openai_wire import (
    CHAT_USAGE,
    begun,
    chat_stream,
    chunk,
    function_call,
    response,
    response_stream,
    tool_call,
)
from rawserver import RawServer

STREAMS = {"responses": response_stream, "chat": chat_stream}


@pytest.mark.parametrize("api", ["responses", "chat"])
def test_events_come_in_order_and_end_with_the_reply(
    connect: Callable[..., Client], loopback: Loopback, api: str
) -> None:
    """Deltas, the part's end, and the end with the reply; `s.reply` is that reply."""
    loopback.script(sse(STREAMS[api]("Valve", " A."), **{"x-request-id": "req_7"}))
    with connect(api=api).stream("x") as answer:
        events = list(answer)
    assert events == [TextDelta("Valve"), TextDelta(" A."), PartEnd(Text("Valve A.")), End(answer.reply)]
    assert loopback.body["stream"] is True
    assert answer.reply.request_id == "req_7"
    assert answer.reply.id in ("resp_1", "chatcmpl-1")
    assert answer.reply.usage.input_tokens == 3000
    assert answer.reply.usage.cache_read_tokens == 2048
    assert answer.reply.stop_reason == "end_turn"
    assert answer.reply.latency.ttft_s is not None


def test_a_chat_stream_asks_for_its_usage(chat: Client, loopback: Loopback) -> None:
    """Chat reports counts only when asked to."""
    loopback.script(sse(chat_stream("A")))
    with chat.stream("x") as answer:
        list(answer)
    assert loopback.body["stream_options"] == {"include_usage": True}


def test_a_stream_that_ends_without_counts_is_estimated(
    chat: Client, loopback: Loopback, rows: Callable[[], list[LedgerRow]]
) -> None:
    """A server that never sends its counts still leaves a row, with estimates that say so."""
    loopback.script(sse([chunk({"content": "four"}), chunk({}, "stop"), "[DONE]"]))
    with chat.stream("x" * 400) as answer:
        list(answer)
    usage = answer.reply.usage
    assert (usage.input_tokens, usage.output_tokens) == (400 // 4, 4 // 4)
    assert usage.estimated == {"input_tokens", "output_tokens"}
    assert usage.cache_read_tokens is None
    (row,) = rows()
    assert (row.state, row.usage) == ("ok", usage)
    assert row.cost.estimated is True
    assert row.cost.total is not None


def test_a_responses_tool_call_streams(client: Client, loopback: Loopback) -> None:
    """Arguments come as text and are decoded at the end; reasoning is opaque and kept."""
    reasoning = {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "Hm."}]}
    call = function_call("call_1", "look", '{"at": "A"}')
    place = {"item_id": "rs_1", "output_index": 0, "summary_index": 0}
    pieces = {"item_id": "fc_call_1", "output_index": 1}
    events = [
        begun()[0],
        {"type": "response.output_item.added", "output_index": 0, "item": reasoning | {"summary": []}},
        {"type": "response.reasoning_summary_text.delta", **place, "delta": "Hm."},
        {"type": "response.output_item.done", "output_index": 0, "item": reasoning},
        {"type": "response.output_item.added", "output_index": 1, "item": call | {"arguments": ""}},
        {"type": "response.function_call_arguments.delta", **pieces, "delta": '{"at": '},
        {"type": "response.function_call_arguments.delta", **pieces, "delta": '"A"}'},
        {"type": "response.output_item.done", "output_index": 1, "item": call},
        {"type": "response.completed", "response": response(reasoning, call)},
    ]
    loopback.script(sse(events))
    with client.stream("x") as answer:
        got = list(answer)
    whole = ToolCall("call_1", "look", {"at": "A"}, '{"at": "A"}')
    assert got[:-1] == [
        ThinkingDelta("Hm."),
        PartEnd(Thinking("Hm.", "openai", reasoning)),
        ToolCallDelta("call_1", "look", '{"at": '),
        ToolCallDelta("call_1", "look", '"A"}'),
        PartEnd(whole),
    ]
    assert answer.reply.tool_calls == (whole,)


def test_chat_tool_calls_stream_side_by_side(chat: Client, loopback: Loopback) -> None:
    """Pieces of several calls are told apart by their index."""

    def piece(index: int, **fields: object) -> dict:
        return chunk({"tool_calls": [{"index": index, **fields}]})

    events = [
        piece(0, id="c0", type="function", function={"name": "look", "arguments": ""}),
        piece(0, function={"arguments": '{"at": 1}'}),
        piece(1, id="c1", type="function", function={"name": "turn", "arguments": '{"by"'}),
        piece(1, function={"arguments": ": 2}"}),
        chunk({}, "tool_calls"),
        chunk(None, usage=CHAT_USAGE),
        "[DONE]",
    ]
    loopback.script(sse(events))
    with chat.stream("x") as answer:
        got = list(answer)
    calls = (ToolCall("c0", "look", {"at": 1}, '{"at": 1}'), ToolCall("c1", "turn", {"by": 2}, '{"by": 2}'))
    assert answer.reply.tool_calls == calls
    assert [event.part for event in got if isinstance(event, PartEnd)] == list(calls)
    assert ToolCallDelta("c1", "turn", ": 2}") in got
    assert answer.reply.raw["choices"][0]["message"]["tool_calls"] == [
        tool_call("c0", "look", '{"at": 1}'),
        tool_call("c1", "turn", '{"by": 2}'),
    ]


def test_a_responses_refusal_streams(client: Client, loopback: Loopback) -> None:
    """Its words arrive as text."""
    place = {"item_id": "m_1", "output_index": 0, "content_index": 0}
    refusal = {"type": "refusal", "refusal": "I will not."}
    whole = begun()[2]["item"] | {"status": "completed", "content": [refusal]}
    events = [
        *begun(),
        {"type": "response.refusal.delta", **place, "delta": "I will"},
        {"type": "response.refusal.delta", **place, "delta": " not."},
        {"type": "response.output_item.done", "output_index": 0, "item": whole},
        {"type": "response.completed", "response": response(whole)},
    ]
    loopback.script(sse(events), sse(events[:-2]))
    with client.stream("x") as answer:
        assert list(answer.text_stream) == ["I will", " not."]
    assert (answer.reply.text, answer.reply.stop_reason) == ("I will not.", "refusal")
    with pytest.raises(StreamTruncated) as caught, client.stream("x") as answer:
        list(answer)
    assert caught.value.reply is not None
    assert caught.value.reply.text == "I will not."


def test_a_chat_refusal_streams(chat: Client, loopback: Loopback) -> None:
    """As text, with its reason, and in `raw` where the vendor has it."""
    loopback.script(
        sse([chunk({"refusal": "I will"}), chunk({"refusal": " not."}), chunk({}, "stop"), "[DONE]"])
    )
    with chat.stream("x") as answer:
        assert list(answer.text_stream) == ["I will", " not."]
    assert (answer.reply.text, answer.reply.stop_reason) == ("I will not.", "refusal")
    assert answer.reply.raw["choices"][0]["message"]["refusal"] == "I will not."


def test_events_of_unknown_types_change_nothing(client: Client, loopback: Loopback) -> None:
    """A new kind of event is passed over."""
    events = response_stream("A")
    loopback.script(sse([*events[:3], {"type": "response.brand_new", "x": 1}, *events[3:]]))
    with client.stream("x") as answer:
        assert list(answer.text_stream) == ["A"]


@pytest.mark.parametrize("api", ["responses", "chat"])
def test_two_hundred_equal_chunks_are_delivered(
    connect: Callable[..., Client], loopback: Loopback, api: str
) -> None:
    """A text that repeats itself is a text."""
    loopback.script(sse(STREAMS[api](*["ha "] * 200)))
    with connect(api=api).stream("x") as answer:
        assert list(answer.text_stream) == ["ha "] * 200


@pytest.mark.parametrize("api", ["responses", "chat"])
def test_text_split_at_every_byte_arrives_whole(
    connect: Callable[..., Client], raw_server: RawServer, api: str
) -> None:
    """UTF-8 cut by TCP segments, and U+0085 and U+2028 inside a line, change no character."""
    words = "✅ 你好🌍 a\u0085b\u2028c"
    raw_server.answer(bytes([byte]) for byte in sse_text(STREAMS[api](words)).encode())
    with connect(api=api, base_url=f"{raw_server.url}/v1").stream("x") as answer:
        assert "".join(answer.text_stream) == words
