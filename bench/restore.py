"""A prompt whose beginning is in a local engine's store, beside the device's own cache and computing it.

    python bench/restore.py [--model FOLDER] [--tokens 2061] [--rounds 5]

A vLLM engine of this process on SmolLM2-135M in float32; the prefix of whole blocks was kept on disk by
another process, and every checksum is compared. Seconds from the call to the first token, medians. Then the
CPU time that the connector's own methods and threads take of the process's, for a prompt of which nothing is
kept and one of which all is. A round is each way once, in turn; the device's cache is emptied before all but
its own.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any

from kvsdk.cli.demo_model import ensure_demo_model

from kvsdk_vllm import StoreConfig
from kvsdk_vllm._engine import Job
from kvsdk_vllm._shared import acquire
from kvsdk_vllm.connector import KvsdkConnector
from kvsdk_vllm.store.moving import Mover
from kvsdk_vllm.store.wishes import Keep, Wishes

SETTINGS = {"max_model_len": 4096, "max_num_seqs": 4, "kv_cache_memory_bytes": 256 << 20}
OWN = (
    "on_new_request",
    "get_num_new_matched_tokens",
    "update_state_after_alloc",
    "build_connector_meta",
    "update_connector_output",
    "request_finished_all_groups",
    "start_load_kv",
    "wait_for_save",
    "get_finished",
    "get_block_ids_with_load_errors",
    "build_connector_worker_meta",
)


class Engine:
    """An engine with a store on disk."""

    def __init__(self, model: str, folder: str) -> None:
        self._shared = acquire(model, SETTINGS, StoreConfig(memory=None, disk=folder))
        self._number = 0

    def first_token_s(self, prompt: list[int], wishes: Wishes) -> tuple[float, int]:
        """Seconds to the first token, and how many tokens were read."""
        from vllm import SamplingParams

        self._number += 1
        extra = {"kv_transfer_params": wishes.to_params()}
        params = SamplingParams(temperature=0, max_tokens=2, ignore_eos=True, extra_args=extra)
        came: SimpleQueue[Any] = SimpleQueue()
        began_s = time.perf_counter()
        self._shared.thread.submit(Job(f"r{self._number}", {"prompt_token_ids": prompt}, params, came.put))
        output = came.get()
        took_s = time.perf_counter() - began_s
        while not output.finished:
            output = came.get()
        return took_s, output.num_cached_tokens or 0

    def settle(self, *, is_forgotten: bool = True) -> None:
        """Until nothing is being saved; the device's cache is emptied, not the store."""
        core: Any = self._shared.thread.engine.engine_core
        while core.engine_core.scheduler.has_requests():
            time.sleep(0.005)
        core.engine_core.scheduler.connector._store().flush()
        if is_forgotten:
            self._shared.thread.engine.reset_prefix_cache()


def prompt_of(tokens: int, seed: int = 0) -> list[int]:
    """Token ids that no other prompt begins with."""
    return [((number + seed * 131) * 7919) % 40_000 + 10 for number in range(tokens)]


def keep(model: str, folder: str, tokens: int) -> None:
    """In a process of its own: compute the prompt and keep it."""
    engine = Engine(model, folder)
    engine.first_token_s(prompt_of(tokens), Wishes(keep=(Keep(tokens - 1),)))
    engine.settle()


def times(engine: Engine, tokens: int, rounds: int) -> None:
    """The table of the first token."""
    prompt, found = prompt_of(tokens), {"device": [], "store": [], "computed": []}  # type: dict[str, list[float]]
    read: dict[str, int] = {}
    for _ in range(rounds + 1):
        for way, taken in found.items():
            if way != "device":
                engine.settle()
            took_s, read[way] = engine.first_token_s(prompt, Wishes(load=way != "computed"))
            taken.append(took_s)
    medians = {way: statistics.median(taken[1:]) for way, taken in found.items()}  # the first round warms up
    print(f"\n{tokens:,} tokens, {rounds} rounds\n")
    print(
        "| its beginning is | tokens read | first token, ms | times the device's | computing it takes times |"
    )
    print("|---|---|---|---|---|")
    for way, took_s in medians.items():
        ratio, longer = took_s / medians["device"], medians["computed"] / took_s
        print(f"| {way} | {read[way]:,} | {took_s * 1000:,.0f} | {ratio:.2f} | {longer:.1f} |")


def shares(engine: Engine, tokens: int, rounds: int) -> None:
    """The table of CPU time."""
    print("\n| a prefill of which | connector, CPU ms | of the process's CPU time |\n|---|---|---|")
    for seed, (name, wishes) in enumerate(
        {"nothing is kept": Wishes(), "all is kept": Wishes(keep=(Keep(tokens),))}.items()
    ):
        own, whole = [], []
        for number in range(rounds):
            engine.settle()
            spent_s.clear()
            before_s = time.process_time()
            engine.first_token_s(prompt_of(tokens, 1 + seed * rounds + number), wishes)
            engine.settle(is_forgotten=False)
            whole.append(time.process_time() - before_s)
            own.append(sum(spent_s))
        share = statistics.median(mine / all_s for mine, all_s in zip(own, whole, strict=True))
        print(f"| {name} | {statistics.median(own) * 1000:.1f} | {share:.2%} |")


spent_s: list[float] = []


def timed(method: Callable[..., Any]) -> Callable[..., Any]:
    """The same, with its thread's CPU time noted."""

    def noting(*args: Any, **named: Any) -> Any:
        before_s = time.thread_time()
        try:
            return method(*args, **named)
        finally:
            spent_s.append(time.thread_time() - before_s)

    return noting


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model")
    parser.add_argument("--tokens", type=int, default=2061)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--keep", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    model = arguments.model or str(ensure_demo_model())
    if arguments.keep:
        keep(model, arguments.keep, arguments.tokens)
        return
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, __file__, "--model", model, "--tokens", str(arguments.tokens)]
        subprocess.run([*command, "--keep", folder], check=True)
        for name in OWN:
            setattr(KvsdkConnector, name, timed(getattr(KvsdkConnector, name)))
        for name in ("_save", "_load"):
            setattr(Mover, name, timed(getattr(Mover, name)))
        engine = Engine(model, folder)
        times(engine, arguments.tokens, arguments.rounds)
        shares(engine, arguments.tokens, arguments.rounds)


if __name__ == "__main__":
    main()
