"""An answer as it arrives."""

from __future__ import annotations

import pytest
from anthropic_wire import USAGE, block, end, start, stream, text_block
from kvsdk import (
    Client,
    End,
    InvalidRequest,
    PartEnd,
    Text,
    TextDelta,
    Thinking,
    ThinkingDelta,
    ToolCall,
    ToolCallDelta,
)
from loopback import Loopback, sse
from rawserver import RawServer


def test_events_come_in_order_and_end_with_the_reply(client: Client, loopback: Loopback) -> None:
    """Deltas, the part's end, and the end with the reply; `s.reply` is that reply."""
    loopback.script(sse(stream("Valve", " A."), **{"request-id": "req_7"}))
    with client.stream("x") as answer:
        events = list(answer)
    assert events[:3] == [TextDelta("Valve"), TextDelta(" A."), PartEnd(Text("Valve A."))]
    assert events[3:] == [End(answer.reply)]
    assert loopback.body["stream"] is True
    assert (answer.reply.id, answer.reply.request_id) == ("msg_1", "req_7")
    assert answer.reply.text == "Valve A."
    assert answer.reply.stop_reason == "end_turn"


def test_text_stream_gives_text_alone(client: Client, loopback: Loopback) -> None:
    """`text_stream` passes on the pieces of text and nothing else."""
    loopback.script(sse(stream("Valve", " A.")))
    with client.stream("x") as answer:
        assert list(answer.text_stream) == ["Valve", " A."]
        assert answer.reply.text == "Valve A."


def test_thinking_and_tool_calls_stream(client: Client, loopback: Loopback) -> None:
    """Thinking keeps its signature, and a call's arguments come as text and are decoded at the end."""
    thinking = block(
        0,
        {"type": "thinking", "thinking": "", "signature": ""},
        [{"type": "thinking_delta", "thinking": "Hm."}, {"type": "signature_delta", "signature": "c2ln"}],
    )
    call = block(
        1,
        {"type": "tool_use", "id": "toolu_1", "name": "look", "input": {}},
        [
            {"type": "input_json_delta", "partial_json": '{"at": '},
            {"type": "input_json_delta", "partial_json": '"A"}'},
        ],
    )
    loopback.script(sse([start(), *thinking, *call, *end("tool_use")]))
    with client.stream("x") as answer:
        events = list(answer)
    block_sent = {"type": "thinking", "thinking": "Hm.", "signature": "c2ln"}
    assert events[:-1] == [
        ThinkingDelta("Hm."),
        PartEnd(Thinking("Hm.", "anthropic", block_sent)),
        ToolCallDelta("toolu_1", "look", '{"at": '),
        ToolCallDelta("toolu_1", "look", '"A"}'),
        PartEnd(ToolCall("toolu_1", "look", {"at": "A"})),
    ]
    assert answer.reply.stop_reason == "tool_use"


def test_events_of_unknown_types_change_nothing(client: Client, loopback: Loopback) -> None:
    """A new kind of event is passed over."""
    loopback.script(sse([start(), {"type": "brand_new", "x": 1}, *text_block(0, "A"), *end()]))
    with client.stream("x") as answer:
        assert list(answer.text_stream) == ["A"]


def test_two_hundred_equal_chunks_are_delivered(client: Client, loopback: Loopback) -> None:
    """A text that repeats itself is a text."""
    loopback.script(sse(stream(*["ha "] * 200)))
    with client.stream("x") as answer:
        assert list(answer.text_stream) == ["ha "] * 200
    assert answer.reply.text == "ha " * 200


def test_text_split_at_every_byte_arrives_whole(connect, raw_server: RawServer) -> None:
    """UTF-8 cut by TCP segments, and U+0085 and U+2028 inside a line, change no character."""
    from loopback import sse_text

    words = "✅ 你好🌍 a\u0085b\u2028c"
    raw_server.answer(bytes([byte]) for byte in sse_text([start(), *text_block(0, words), *end()]).encode())
    with connect(base_url=raw_server.url).stream("x") as answer:
        assert "".join(answer.text_stream) == words


def test_the_split_by_ttl_may_come_with_the_last_event_only(client: Client, loopback: Loopback) -> None:
    """Counters are cumulative over all events; the split is taken from whichever event has it."""
    loopback.script(sse([start({"input_tokens": 0, "output_tokens": 0}), *text_block(0, "A"), *end(**USAGE)]))
    with client.stream("x") as answer:
        list(answer)
    usage = answer.reply.usage
    assert usage.input_tokens == 7 + 1500 + 12000
    assert usage.cache_write_by_ttl == {"5m": 500, "1h": 1000}


def test_counters_in_the_last_event_only_are_read(client: Client, loopback: Loopback) -> None:
    """A server that reports nothing at the start still has its totals; the read count stays unknown."""
    last = {"input_tokens": 4522, "cache_creation_input_tokens": 4511, "output_tokens": 5}
    loopback.script(sse([start({"input_tokens": 0, "output_tokens": 0}), *text_block(0, "A"), *end(**last)]))
    with client.stream("x") as answer:
        list(answer)
    usage = answer.reply.usage
    assert (usage.input_tokens, usage.output_tokens) == (4522 + 4511, 5)
    assert usage.cache_read_tokens is None


def test_there_is_no_reply_before_the_end(client: Client, loopback: Loopback) -> None:
    """`s.reply` says so when it is asked for too early."""
    loopback.script(sse(stream("Valve A.")))
    with client.stream("x") as answer:
        next(answer)
        with pytest.raises(InvalidRequest, match="no reply yet"):
            _ = answer.reply


def test_a_stream_that_is_never_read_sends_nothing(client: Client, loopback: Loopback) -> None:
    """The request goes out with the first event that is asked for."""
    with client.stream("x"):
        pass
    assert loopback.bodies == []


def test_a_stream_may_be_left_at_its_end_event(client: Client, loopback: Loopback, rows) -> None:
    """Breaking out of the loop at `End` is no cancellation: the reply is there and its row is `ok`."""
    loopback.script(sse(stream("Valve A.")))
    with client.stream("x") as answer:
        for event in answer:
            if isinstance(event, End):
                break
    assert answer.reply.text == "Valve A."
    assert [row.state for row in rows()] == ["ok"]
