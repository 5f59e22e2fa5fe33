"""A real vLLM server through `vllm+http:`."""

from __future__ import annotations

import asyncio
from pathlib import Path

import kvsdk
import pytest
from kvsdk import Text
from kvsdk.cost import Ledger

pytestmark = [pytest.mark.engine, pytest.mark.timeout(600)]

LORE = "A lock lifts a barge by letting water in from above. " * 30


def test_cache_counts_ids_and_streams(server: str, tmp_path: Path) -> None:
    """The second question reads the text's blocks; our request ids reach the server; rows are written."""
    path = tmp_path / "costs.db"
    with kvsdk.Client(f"vllm+http://{server}#smol", ledger=path) as client:
        session = client.session("lock")
        system = [Text(LORE, cache=True)]
        first = session.generate("What lifts?", system=system, max_tokens=8, temperature=0)
        with session.stream("What is lifted?", system=system, max_tokens=8, temperature=0) as stream:
            text = "".join(stream.text_stream)
    second = stream.reply
    assert text == second.text
    assert first.usage.cache_read_tokens == 0
    assert second.usage.hit_rate is not None
    assert second.usage.hit_rate > 0.9
    assert first.request_id == f"{first.operation_id}-1"
    assert first.id == f"chatcmpl-{first.request_id}"
    assert second.request_id == f"{second.operation_id}-1"
    assert first.cost.total is None
    with Ledger(path) as ledger:
        assert [row.state for row in ledger.rows(session="lock")] == ["ok", "ok"]


def test_tenants_never_share_blocks(server: str) -> None:
    """Another tenant's equal prompt reads nothing; the same tenant's reads it."""
    with kvsdk.Client(f"vllm+http://{server}#smol") as client:
        for tenant, expected in (("north", False), ("south", False), ("north", True)):
            reply = client.generate("What?", system=f"Tenants. {LORE}", tenant=tenant, max_tokens=2)
            assert bool(reply.usage.cache_read_tokens) is expected


def test_tokens_are_counted_by_the_server(server: str) -> None:
    """`count_tokens` is exact: it is the prompt's size in the answer, sync and async."""
    with kvsdk.Client(f"vllm+http://{server}#smol") as client:
        count = client.count_tokens("How many locks?", system="Be brief.")
        reply = client.generate("How many locks?", system="Be brief.", max_tokens=2)
    assert count == reply.usage.input_tokens
    assert not count.is_estimated

    async def counted() -> int:
        async with kvsdk.AsyncClient(f"vllm+http://{server}#smol") as other:
            return await other.count_tokens("How many locks?", system="Be brief.")

    assert asyncio.run(counted()) == count


def test_prewarming_writes_what_the_next_call_reads(server: str) -> None:
    """A pre-warmed text is read by the first question about it; the reply to the pre-warming is empty."""
    system = [Text(f"Pre-warmed. {LORE}", cache=True)]
    with kvsdk.Client(f"vllm+http://{server}#smol") as client:
        assert client.prewarm("-", system=system).text == ""
        asked = client.generate("What lifts?", system=system, max_tokens=4)
    assert asked.usage.hit_rate is not None
    assert asked.usage.hit_rate > 0.9


def test_its_errors_are_ours(server: str) -> None:
    """A wrong model and a prompt that does not fit are leaves of our tree with our request's id."""
    with kvsdk.Client(f"vllm+http://{server}#nope") as other, pytest.raises(kvsdk.ModelNotFound) as unknown:
        other.generate("Hi", max_tokens=2)
    assert unknown.value.request_id is not None
    with (
        kvsdk.Client(f"vllm+http://{server}#smol") as client,
        pytest.raises(kvsdk.RequestRejected) as too_long,
    ):
        client.generate("word " * 2000, max_tokens=2)
    assert too_long.value.backend == "vllm+http"
