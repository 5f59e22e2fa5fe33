"""Many callers, one engine."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import kvsdk
import pytest
from kvsdk.cost import Ledger

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


def test_shares_of_a_batch_sum_to_the_time_it_took(local: kvsdk.Client) -> None:
    """The costs of requests that ran together add up to no more than the engine's bill for that time."""
    started_s = time.perf_counter()
    with ThreadPoolExecutor(4) as pool:
        replies = list(pool.map(lambda n: local.generate(f"Say {n}", max_tokens=16), range(4)))
    elapsed_s = time.perf_counter() - started_s
    busy_s = sum(reply.raw["prefill_s"] + reply.raw["decode_s"] for reply in replies)
    assert 0 < busy_s <= elapsed_s


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
