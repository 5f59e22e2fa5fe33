"""Streams of both APIs that break off or are left: what was billed is in the ledger."""

from __future__ import annotations

from collections.abc import Callable

import kvsdk
import pytest
from kvsdk import Client, StreamTruncated
from kvsdk.cost import LedgerRow
from loopback import Loopback, sse, sse_text
from openai_wire import begun, chat_stream, chunk, response, response_stream, text_delta
from rawserver import RawServer

Rows = Callable[[], list[LedgerRow]]
PIECE = "valve A or B"
BEGUN = {
    "responses": [*begun(), *[text_delta(PIECE)] * 40],
    "chat": [chunk({"content": PIECE}) for _ in range(40)],
}
BOTH = pytest.mark.parametrize("api", ["responses", "chat"])


def check_partial(row: LedgerRow, state: str) -> None:
    """400 bytes in and 480 bytes out, none of them counted by the server: estimates, and they say so."""
    assert row.state == state
    assert row.usage.input_tokens == 400 // 4
    assert row.usage.output_tokens == 40 * len(PIECE) // 4
    assert row.usage.estimated == {"input_tokens", "output_tokens"}
    assert row.cost.estimated is True
    assert row.cost.total is not None
    assert row.reply_id in ("resp_1", "chatcmpl-1")


@BOTH
def test_a_connection_reset_in_a_chunk_is_a_cut(
    connect: Callable[..., Client], raw_server: RawServer, rows: Rows, api: str
) -> None:
    """A reset in the middle of a chunk raises the same, with the same row."""
    raw_server.answer([sse_text(BEGUN[api]).encode()], ending="reset")
    client = connect(api=api, base_url=f"{raw_server.url}/v1")
    with client.stream("x" * 400) as answer, pytest.raises(StreamTruncated) as caught:
        list(answer)
    assert caught.value.__cause__ is not None
    assert caught.value.reply is not None
    assert caught.value.reply.text == PIECE * 40
    (row,) = rows()
    check_partial(row, "partial")


ERRORS = {
    "responses": {"type": "error", "code": "server_error", "message": "Too busy", "param": None},
    "chat": {"error": {"message": "Too busy", "type": "server_error", "code": "server_error", "param": None}},
}


@BOTH
def test_an_error_event_after_text_is_a_cut(
    connect: Callable[..., Client], loopback: Loopback, rows: Rows, api: str
) -> None:
    """The vendor's own words are in the error, and what had arrived is in its reply."""
    loopback.script(sse([*BEGUN[api], ERRORS[api]]))
    with (
        connect(api=api).stream("x" * 400) as answer,
        pytest.raises(StreamTruncated, match="Too busy") as caught,
    ):
        list(answer)
    assert caught.value.reply is not None
    (row,) = rows()
    check_partial(row, "partial")


@BOTH
def test_an_error_event_as_the_first_is_retried(
    connect: Callable[..., Client], loopback: Loopback, api: str
) -> None:
    """Nothing had been passed on, so the next attempt may answer."""
    good = {"responses": response_stream, "chat": chat_stream}[api]("Valve A.")
    loopback.script(sse([ERRORS[api]]), sse(good))
    policy = kvsdk.RetryPolicy(attempts=2, first_wait_s=0.001)
    with connect(api=api, retry=policy).stream("x") as answer:
        assert "".join(answer.text_stream) == "Valve A."
    assert answer.reply.attempts == 2


@BOTH
def test_an_error_event_alone_says_who_failed(
    connect: Callable[..., Client], loopback: Loopback, api: str
) -> None:
    """Without another attempt the vendor's error is raised, with backend, model and request id."""
    loopback.script(sse([ERRORS[api]], **{"x-request-id": "req_7"}))
    with connect(api=api).stream("x") as answer, pytest.raises(kvsdk.BackendUnavailable) as caught:
        list(answer)
    error = caught.value
    assert (error.backend, error.model, error.request_id) == ("openai", "gpt-5.6-sol", "req_7")


def test_a_response_that_fails_in_its_stream_is_a_cut(client: Client, loopback: Loopback, rows: Rows) -> None:
    """`response.failed` after text: the code's words, and a partial row."""
    failed = response(status="failed", output=[], error={"code": "server_error", "message": "Too busy"})
    loopback.script(sse([*BEGUN["responses"], {"type": "response.failed", "response": failed}]))
    with client.stream("x") as answer, pytest.raises(StreamTruncated, match="Too busy") as caught:
        list(answer)
    assert caught.value.reply is not None
    assert caught.value.reply.text == PIECE * 40
    (row,) = rows()
    assert (row.state, row.usage.input_tokens) == ("partial", 3000)


def test_an_incomplete_response_is_whole(client: Client, loopback: Loopback, rows: Rows) -> None:
    """`response.incomplete` is an end: the limit was reached."""
    details = {"reason": "max_output_tokens"}
    body = response(status="incomplete", incomplete_details=details)
    loopback.script(sse([*begun(), {"type": "response.incomplete", "response": body}]))
    with client.stream("x") as answer:
        list(answer)
    assert answer.reply.stop_reason == "max_tokens"
    assert [row.state for row in rows()] == ["ok"]


@BOTH
def test_leaving_early_cancels_and_records(
    connect: Callable[..., Client], raw_server: RawServer, rows: Rows, api: str
) -> None:
    """Leaving the block closes the connection and writes a `cancelled` row with what had arrived."""
    raw_server.answer([sse_text(BEGUN[api]).encode()], ending="open")
    with connect(api=api, base_url=f"{raw_server.url}/v1").stream("x" * 400) as answer:
        pieces = answer.text_stream
        for _ in range(40):
            next(pieces)
    assert answer.reply.text == PIECE * 40
    assert raw_server.client_left.wait(5)
    (row,) = rows()
    check_partial(row, "cancelled")
