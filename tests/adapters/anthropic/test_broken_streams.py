"""Streams that break off, and streams that are left: what was billed is in the ledger."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from decimal import Decimal

import pytest
from anthropic_wire import start, stream, text_block
from kvsdk import AsyncClient, BackendUnavailable, Client, StreamTruncated
from kvsdk.cost import LedgerRow
from loopback import Loopback, sse, sse_text
from rawserver import RawServer

Rows = Callable[[], list[LedgerRow]]

#: 45 tokens in, then 40 pieces of 12 bytes: at least 40 * 12 / 4 = 120 tokens out.
BEGUN = [
    start(
        {
            "input_tokens": 45,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": 0,
            "output_tokens": 1,
        }
    ),
    *text_block(0, *["valve A or B"] * 40)[:-1],
]


def check_partial(row: LedgerRow, state: str) -> None:
    assert row.state == state
    assert row.reply_id == "msg_1"
    assert row.usage.input_tokens == 45
    assert row.usage.output_tokens == 40 * 12 // 4
    assert row.usage.meter("output_tokens") == "estimated"
    assert row.cost.total == Decimal(2) * 45 / 1_000_000 + Decimal(10) * 120 / 1_000_000
    assert row.cost.estimated is True


def test_a_connection_reset_in_a_chunk_is_a_cut(
    connect: Callable[..., Client], raw_server: RawServer, rows: Rows
) -> None:
    """A reset in the middle of a chunk raises the same, with the same row."""
    raw_server.answer([sse_text(BEGUN).encode()], ending="reset")
    with connect(base_url=raw_server.url).stream("x") as answer, pytest.raises(StreamTruncated) as caught:
        list(answer)
    assert caught.value.__cause__ is not None
    assert caught.value.reply is not None
    assert caught.value.reply.text == "valve A or B" * 40
    (row,) = rows()
    check_partial(row, "partial")


def test_an_error_event_after_text_is_a_cut(client: Client, loopback: Loopback, rows: Rows) -> None:
    """The vendor's own words are in the error."""
    error = {"type": "error", "error": {"type": "overloaded_error", "message": "Too busy"}}
    loopback.script(sse([*BEGUN, error]))
    with client.stream("x") as answer, pytest.raises(StreamTruncated, match="Too busy") as caught:
        list(answer)
    assert caught.value.reply is not None
    (row,) = rows()
    check_partial(row, "partial")


def test_an_error_event_before_any_text_is_retried(
    connect: Callable[..., Client], loopback: Loopback, rows: Rows
) -> None:
    """Nothing had been passed on, so the next attempt may answer; both attempts are rows of one operation."""
    error = {"type": "error", "error": {"type": "overloaded_error", "message": "Too busy"}}
    loopback.script(sse([start(), error], **{"retry-after-ms": "1"}), sse(stream("Valve A.")))
    with connect(retry=2).stream("x") as answer:
        assert "".join(answer.text_stream) == "Valve A."
    assert answer.reply.attempts == 2
    assert [(row.attempt, row.state) for row in rows()] == [(1, "partial"), (2, "ok")]
    assert len({row.operation_id for row in rows()}) == 1


def test_an_error_event_as_the_first_is_the_vendors_error(
    client: Client, loopback: Loopback, rows: Rows
) -> None:
    """A stream that has not begun has nothing to keep: the error itself is raised, with its leaf."""
    error = {"type": "error", "error": {"type": "overloaded_error", "message": "Too busy"}}
    loopback.script(sse([error]))
    with client.stream("x") as answer, pytest.raises(BackendUnavailable, match="Too busy"):
        list(answer)
    (row,) = rows()
    assert (row.state, row.error) == ("failed", "BackendUnavailable")


def test_an_empty_stream_is_a_cut(client: Client, loopback: Loopback, rows: Rows) -> None:
    """Status 200 and no event at all is no answer."""
    loopback.script(sse([]))
    with client.stream("x") as answer, pytest.raises(StreamTruncated):
        list(answer)
    assert [row.state for row in rows()] == ["failed"]


def test_a_cut_inside_a_tool_call_keeps_its_text(client: Client, loopback: Loopback) -> None:
    """Half a JSON object is no arguments, but the call is in the reply."""
    half = [
        {
            "type": "content_block_start",
            "index": 0,
            "content_block": {"type": "tool_use", "id": "t", "name": "look", "input": {}},
        },
        {
            "type": "content_block_delta",
            "index": 0,
            "delta": {"type": "input_json_delta", "partial_json": '{"a": "b'},
        },
    ]
    loopback.script(sse([start(), *half]))
    with client.stream("x") as answer, pytest.raises(StreamTruncated) as caught:
        list(answer)
    assert caught.value.reply is not None
    assert caught.value.reply.tool_calls[0].name == "look"


def test_leaving_early_cancels_and_records(
    connect: Callable[..., Client], raw_server: RawServer, rows: Rows
) -> None:
    """Leaving the block closes the connection and writes a `cancelled` row with what had arrived."""
    raw_server.answer([sse_text(BEGUN).encode()], ending="open")
    with connect(base_url=raw_server.url).stream("x") as answer:
        pieces = answer.text_stream
        for _ in range(40):
            next(pieces)
    assert answer.reply.text == "valve A or B" * 40
    assert raw_server.client_left.wait(5)
    (row,) = rows()
    check_partial(row, "cancelled")


async def test_leaving_an_async_stream_cancels_and_records(
    raw_server: RawServer, ledger_path, rows: Rows
) -> None:
    """The async client does the same."""
    raw_server.answer([sse_text(BEGUN).encode()], ending="open")
    options = {"base_url": raw_server.url, "api_key": "k", "ledger": ledger_path}
    async with AsyncClient("anthropic:claude-sonnet-5-5", **options) as client:
        async with client.stream("x") as answer:
            for _ in range(40):
                await anext(answer)
        assert answer.reply.text == "valve A or B" * 40
        assert await asyncio.to_thread(raw_server.client_left.wait, 5)
    (row,) = rows()
    check_partial(row, "cancelled")


async def test_a_cancelled_task_leaves_a_row(raw_server: RawServer, ledger_path, rows: Rows) -> None:
    """Cancelling the task that reads a stream records what had arrived and stays a cancellation."""
    raw_server.answer([sse_text(BEGUN).encode()], ending="open")
    has_begun = asyncio.Event()

    async def read(client: AsyncClient) -> None:
        async with client.stream("x") as answer:
            async for _ in answer:
                has_begun.set()

    options = {"base_url": raw_server.url, "api_key": "k", "ledger": ledger_path}
    async with AsyncClient("anthropic:claude-sonnet-5-5", **options) as client:
        task = asyncio.create_task(read(client))
        await has_begun.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    (row,) = rows()
    assert (row.state, row.usage.input_tokens) == ("cancelled", 45)
