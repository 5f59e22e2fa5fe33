"""Many callers, one engine."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import kvsdk
import pytest
from kvsdk.cost import Ledger

from kvsdk_vllm._engine import EngineThread
from kvsdk_vllm._shared import acquire, release

pytestmark = [pytest.mark.engine, pytest.mark.timeout(600)]


def test_calls_from_threads_run_in_one_batch(local: kvsdk.Client) -> None:
    """Six long answers from six threads are in the engine at the same time, and each gets its own."""
    prompts = [f"Write about the number {number}." for number in range(6)]
    alone = [local.generate(prompt, max_tokens=24, temperature=0).text for prompt in prompts]
    together = threading.Barrier(len(prompts))
    open_at_once: list[int] = []
    running: set[int] = set()
    lock = threading.Lock()

    def ask(number: int) -> str:
        together.wait()
        with local.stream(prompts[number], max_tokens=24, temperature=0) as stream:
            for _ in stream.text_stream:
                with lock:
                    running.add(number)
                    open_at_once.append(len(running))
        with lock:
            running.discard(number)
        return stream.reply.text

    with ThreadPoolExecutor(len(prompts)) as pool:
        assert list(pool.map(ask, range(len(prompts)))) == alone
    assert max(open_at_once) == len(prompts)


@pytest.fixture
def engine(model: Path, engine_options: dict[str, Any], local: kvsdk.Client) -> Iterator[EngineThread]:
    """The thread of the engine that `local` uses."""
    local.generate("Hi", max_tokens=1)
    shared = acquire(str(model), engine_options)
    yield shared.thread
    release(shared)


def used_s(reply: kvsdk.Reply) -> float:
    return float(reply.raw["prefill_s"] + reply.raw["decode_s"])


def test_a_request_alone_pays_from_the_queue_to_its_first_token(local: kvsdk.Client) -> None:
    """With nobody beside it, computing the prompt is all the time between waiting and the first token."""
    meters = local.generate("Name a bridge.", max_tokens=4).raw
    assert abs(meters["prefill_s"] - (meters["ttft_s"] - meters["queue_s"])) < 1e-6
    assert meters["decode_s"] > 0


def test_shares_of_a_batch_sum_to_the_time_it_took(local: kvsdk.Client, engine: EngineThread) -> None:
    """The seconds of requests that ran together are the time the engine was busy, and no more than passed."""
    before_s, started_s = engine.busy_s, time.perf_counter()
    with ThreadPoolExecutor(4) as pool:
        replies = list(pool.map(lambda n: local.generate(f"Say {n}", max_tokens=8 + 4 * n), range(4)))
    elapsed_s = time.perf_counter() - started_s
    busy_s = engine.busy_s - before_s
    assert abs(sum(map(used_s, replies)) - busy_s) < 1e-6
    assert 0 < busy_s <= elapsed_s
    assert all(reply.raw["queue_s"] >= 0 for reply in replies)


def test_requests_that_wait_pay_for_nothing_but_their_own(local: kvsdk.Client, engine: EngineThread) -> None:
    """Ten at once where eight have room: two wait until others are done, and that is in nobody's seconds."""
    together = threading.Barrier(10)

    def ask(number: int) -> kvsdk.Reply:
        together.wait()
        return local.generate(f"Count {number}", max_tokens=24, extra={"vllm": {"ignore_eos": True}})

    before_s = engine.busy_s
    with ThreadPoolExecutor(10) as pool:
        replies = sorted(pool.map(ask, range(10)), key=lambda reply: float(reply.raw["queue_s"]))
    first, waited = replies[:8], replies[8:]
    for reply in waited:
        assert reply.raw["queue_s"] > max(other.raw["queue_s"] + used_s(other) for other in first)
        assert reply.raw["prefill_s"] <= reply.raw["ttft_s"] - reply.raw["queue_s"] + 1e-6
    assert abs(sum(map(used_s, replies)) - (engine.busy_s - before_s)) < 1e-6


def test_tokens_that_are_read_from_the_cache_cost_nothing(local: kvsdk.Client, engine: EngineThread) -> None:
    """The prefill rate counts computed tokens only; a prompt that is there already takes a fraction."""
    system = "The miller grinds the corn at the mill by the river. " * 40
    cold, warm = (local.generate("Who?", system=system, max_tokens=1) for _ in range(2))
    fresh = [(reply.usage.input_tokens or 0) - (reply.usage.cache_read_tokens or 0) for reply in (cold, warm)]
    assert fresh[0] > 10 * fresh[1]
    assert warm.raw["prefill_s"] < cold.raw["prefill_s"]


def test_what_an_aborted_request_used_is_kept(
    address: str, engine_options: dict[str, Any], engine: EngineThread, tmp_path: Path
) -> None:
    """A stream that is left after one text pays for all that was generated until then, read or not."""
    path = tmp_path / "costs.db"
    with kvsdk.Client(address, ledger=path, usd_per_hour=1, **engine_options) as client:
        before_s = engine.busy_s
        with client.stream("Tell a very long story.", max_tokens=900, temperature=0) as stream:
            next(iter(stream.text_stream))
            client.generate("Hi", max_tokens=32, temperature=0, extra={"vllm": {"ignore_eos": True}})
        busy_s = engine.busy_s - before_s
    with Ledger(path) as ledger:
        rows = list(ledger.rows())
    left = next(row for row in rows if row.state == "cancelled")
    assert left.usage.output_tokens is not None
    assert left.usage.output_tokens >= 32  # it was in each of the other's batches
    engines = [row.bill.engine for row in rows if row.bill is not None]
    used = [engine.busy_s for engine in engines if engine is not None]
    assert len(used) == 2
    assert min(used) > 0
    assert sum(used) <= busy_s + 1e-6


def test_leaving_a_stream_frees_the_engine_and_is_recorded(
    address: str, engine_options: dict[str, Any], tmp_path: Path
) -> None:
    """A stream that is left stops being computed; its row has the prompt's exact counts."""
    path = tmp_path / "costs.db"
    with kvsdk.Client(address, ledger=path, usd_per_hour=1, **engine_options) as client:
        with client.stream("Tell a very long story.", max_tokens=900, temperature=0) as stream:
            for number, _ in enumerate(stream.text_stream):
                if number == 3:
                    break
        later = client.generate("Hi", max_tokens=2, temperature=0)
    with Ledger(path) as ledger:
        left, after = ledger.rows()
    assert left.state == "cancelled"
    assert left.usage.input_tokens == stream.reply.usage.input_tokens
    assert left.usage.meter("input_tokens") == "reported"
    assert left.cost.total is not None
    assert left.cost.total > 0
    assert after.reply_id == later.id


def test_async_calls_share_the_engine(
    address: str, engine_options: dict[str, Any], local: kvsdk.Client
) -> None:
    """`AsyncClient` gives the same answers from two event loops, one after the other."""
    expected = local.generate("Name a fish.", max_tokens=8, temperature=0).text

    async def ask(client: kvsdk.AsyncClient) -> list[str]:
        calls = (client.generate("Name a fish.", max_tokens=8, temperature=0) for _ in range(3))
        texts = [reply.text for reply in await asyncio.gather(*calls)]
        async with client.stream("Name a fish.", max_tokens=8, temperature=0) as stream:
            texts.append("".join([text async for text in stream.text_stream]))
        await client.aclose()
        return texts

    client = kvsdk.AsyncClient(address, **engine_options)
    for _ in range(2):
        assert asyncio.run(ask(client)) == [expected] * 4


def test_a_call_gives_up_at_its_deadline(local: kvsdk.Client) -> None:
    """`timeout_s` ends a long answer with the timeout as its cause, and the engine goes on."""
    with pytest.raises(kvsdk.DeadlineExceeded) as caught:
        local.generate("Tell a very long story.", max_tokens=900, timeout_s=0.2)
    assert isinstance(caught.value.__cause__, kvsdk.BackendTimeout)
    assert local.generate("Hi", max_tokens=2).text


@pytest.mark.parametrize(
    "options", [{"block_size": 16}, {"dtype": "float77"}, {"max_model_len": -5}], ids=str
)
def test_an_engine_that_cannot_start_says_why(address: str, options: dict[str, Any]) -> None:
    """Wrong engine settings are a configuration error that names the engine's own reason."""
    with kvsdk.Client(address, **options) as client, pytest.raises(kvsdk.ConfigurationError):
        client.generate("Hi")


def test_wrong_options_never_reach_the_engine(address: str) -> None:
    """An unknown option and a price that is none are refused when the client is made."""
    refused: list[Callable[[], kvsdk.Client]] = [
        lambda: kvsdk.Client(address, max_modle_len=5),
        lambda: kvsdk.Client(address, usd_per_hour="cheap"),
        lambda: kvsdk.Client(address, usd_per_hour=-1),
    ]
    for make in refused:
        with pytest.raises(kvsdk.ConfigurationError):
            make()


def test_a_folder_without_a_checkpoint_is_told_at_once(tmp_path: Path) -> None:
    """A wrong path is a configuration error when the client is made, not after an engine's start."""
    for wrong in (str(tmp_path / "nowhere"), str(tmp_path)):
        with pytest.raises(kvsdk.ConfigurationError, match="holds no checkpoint"):
            kvsdk.Client(f"vllm:{wrong}")
