"""A server that answers something else."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from anthropic_wire import MODEL, USAGE, message, start, text_block
from kvsdk import BackendProtocolError, Client, StreamTruncated
from kvsdk.cost import LedgerRow
from loopback import Loopback, Scripted, sse

HTML = Scripted(
    b"<html><body>Welcome to the hotel wifi</body></html>",
    content_type="text/html",
    headers={"request-id": "r1"},
)


def test_html_with_status_200_is_no_answer(
    client: Client, loopback: Loopback, rows: Callable[[], list[LedgerRow]]
) -> None:
    """The error has the body's start, and the attempt is in the ledger."""
    loopback.script(HTML)
    with pytest.raises(BackendProtocolError, match="hotel wifi") as caught:
        client.generate("x")
    assert (caught.value.backend, caught.value.model, caught.value.request_id) == ("anthropic", MODEL, "r1")
    (row,) = rows()
    assert (row.state, row.error, row.cost.total) == ("failed", "BackendProtocolError", None)


def test_html_with_status_200_is_no_stream(
    client: Client, loopback: Loopback, rows: Callable[[], list[LedgerRow]]
) -> None:
    """The same for a stream: not an empty answer."""
    loopback.script(HTML)
    with client.stream("x") as answer, pytest.raises(BackendProtocolError, match="hotel wifi"):
        list(answer)
    assert [row.state for row in rows()] == ["failed"]


def test_only_the_bodys_start_is_shown(client: Client, loopback: Loopback) -> None:
    """A long body is cut."""
    loopback.script(Scripted(b"<p>" + b"z" * 5000, content_type="text/html"))
    with pytest.raises(BackendProtocolError) as caught:
        client.generate("x")
    assert len(str(caught.value)) < 500


@pytest.mark.parametrize(
    "body",
    [
        {},
        [],
        None,
        "hello",
        7,
        {"content": None},
        {"content": "hello"},
        {"content": ["hello"]},
        {"content": [{"type": "tool_use"}]},
        {"content": [{"type": "tool_use", "id": "t", "name": "n", "input": [1]}]},
        {"content": [{"type": "text", "text": 7}]},
        message(usage={"input_tokens": "many"}),
        message(usage=[1]),
        message(usage=USAGE | {"output_tokens": -1}),
    ],
)
def test_json_that_is_no_message_is_a_protocol_error(client: Client, loopback: Loopback, body: Any) -> None:
    """Whatever does not fit is the backend's fault and never a bare Python error."""
    loopback.script(body)
    with pytest.raises(BackendProtocolError) as caught:
        client.generate("x")
    assert caught.value.model == MODEL


@pytest.mark.parametrize(
    "event",
    [
        {"type": "content_block_delta", "index": 9, "delta": {"type": "text_delta", "text": "x"}},
        {"type": "content_block_delta", "index": 0},
        {"type": "content_block_start", "index": 0, "content_block": 5},
        {"type": "message_start", "message": None},
        {"type": "message_delta", "delta": [], "usage": 3},
    ],
)
def test_an_event_that_does_not_fit_breaks_the_stream_off(
    client: Client, loopback: Loopback, event: dict[str, Any], rows: Callable[[], list[LedgerRow]]
) -> None:
    """What had arrived is kept, and billed."""
    loopback.script(sse([start(), *text_block(0, "Valve")[:-1], event]))
    with client.stream("x") as answer, pytest.raises(StreamTruncated) as caught:
        list(answer)
    assert caught.value.reply is not None
    assert [row.state for row in rows()] == ["partial"]


def test_data_that_is_no_json_breaks_the_stream_off(client: Client, loopback: Loopback) -> None:
    """A line of nonsense in the middle of a stream."""
    answer_bytes = sse([start(), *text_block(0, "Valve")]).body + b"event: message_delta\ndata: {nonsense\n\n"
    loopback.script(Scripted(answer_bytes, content_type="text/event-stream"))
    with client.stream("x") as answer, pytest.raises(StreamTruncated) as caught:
        list(answer)
    assert caught.value.reply is not None
    assert caught.value.reply.text == "Valve"
