"""The async client: the same calls, awaited."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import kvsdk
import pytest
from anthropic_wire import message, stream
from kvsdk import AsyncClient
from kvsdk.cost import Ledger
from loopback import Loopback, Scripted, sse


def options(loopback: Loopback, ledger_path: Path | None = None, **more: Any) -> dict[str, Any]:
    return {"base_url": loopback.url, "api_key": "k", "retry": False, "ledger": ledger_path} | more


@pytest.fixture
async def client(loopback: Loopback, ledger_path: Path) -> AsyncIterator[AsyncClient]:
    async with AsyncClient("anthropic:claude-sonnet-5-5", **options(loopback, ledger_path)) as made:
        yield made


async def test_generate(client: AsyncClient, loopback: Loopback, rows: Any) -> None:
    """The reply, its cost and its row are those of the sync client."""
    loopback.script(Scripted(message(), headers={"request-id": "req_7"}))
    reply = await client.generate("x", system="S")
    assert (reply.text, reply.id, reply.request_id) == ("Valve A.", "msg_1", "req_7")
    assert loopback.body["system"] == [{"type": "text", "text": "S"}]
    (row,) = rows()
    assert row.operation_id == reply.operation_id
    assert row.cost == reply.cost


async def test_text_stream(client: AsyncClient, loopback: Loopback) -> None:
    """`text_stream` gives text alone."""
    loopback.script(sse(stream("Valve", " A.")))
    async with client.stream("x") as answer:
        assert [piece async for piece in answer.text_stream] == ["Valve", " A."]


async def test_errors_are_the_same(client: AsyncClient, loopback: Loopback) -> None:
    """A refusal is its leaf, an HTML page a protocol error, a cut stream a truncation."""
    page = Scripted(b"<html>wifi</html>", content_type="text/html")
    loopback.script(Scripted({"error": {"message": "m"}}, status=404), page, page, sse(stream("A")[:-2]))
    with pytest.raises(kvsdk.ModelNotFound):
        await client.generate("x")
    with pytest.raises(kvsdk.BackendProtocolError, match="wifi"):
        await client.generate("x")
    with pytest.raises(kvsdk.BackendProtocolError, match="wifi"):
        async with client.stream("x") as answer:
            [event async for event in answer]
    with pytest.raises(kvsdk.StreamTruncated):
        async with client.stream("x") as answer:
            [event async for event in answer]


async def test_a_retry_waits_without_blocking_the_loop(loopback: Loopback) -> None:
    """While one call waits for its next attempt, others go on."""
    limited = Scripted({"error": {"message": "m"}}, status=429, headers={"retry-after-ms": "40"})
    loopback.script(limited, message(), message())
    async with AsyncClient("anthropic:claude-sonnet-5-5", **options(loopback, retry=2)) as client:
        slow = asyncio.create_task(client.generate("slow"))
        while not loopback.bodies and not slow.done():
            await asyncio.sleep(0.001)
        await client.generate("fast")
        assert not slow.done()
        assert (await slow).attempts == 2


async def test_a_cancelled_call_is_a_row(client: AsyncClient, loopback: Loopback, rows: Any) -> None:
    """A call whose task was cancelled may have been billed: a `cancelled` row of unknown cost."""
    loopback.script(Scripted(message(), held=True))
    task = asyncio.create_task(client.generate("x"))
    while not loopback.bodies and not task.done():
        await asyncio.sleep(0.001)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    (row,) = rows()
    assert (row.state, row.cost.total) == ("cancelled", None)


def test_one_client_serves_one_loop_after_another(loopback: Loopback, ledger_path: Path) -> None:
    """Each running loop gets connections of its own."""
    loopback.script(message(id="msg_1"), message(id="msg_2"))
    client = AsyncClient("anthropic:claude-sonnet-5-5", **options(loopback, ledger_path))

    async def call() -> str | None:
        try:
            return (await client.generate("x")).id
        finally:
            await client.aclose()

    assert asyncio.run(call()) == "msg_1"
    assert asyncio.run(call()) == "msg_2"
    with Ledger(ledger_path) as ledger:
        assert [row.reply_id for row in ledger.rows()] == ["msg_1", "msg_2"]


def test_a_loop_may_end_without_closing_the_client(loopback: Loopback) -> None:
    """The next loop does not touch the connections of the one that is gone."""
    loopback.script(message(id="msg_1"), message(id="msg_2"))
    client = AsyncClient("anthropic:claude-sonnet-5-5", **options(loopback))

    async def call() -> str | None:
        return (await client.generate("x")).id

    assert asyncio.run(call()) == "msg_1"
    assert asyncio.run(call()) == "msg_2"
