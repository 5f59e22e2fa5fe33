"""A small engine in a process of its own that publishes its KV events, told what to do line by line.

    python kv_events_engine.py MODEL ENDPOINT REPLAY_ENDPOINT

A line is a JSON object, and so is the answer to it:

- `{"run": [token ids], "session": ..., "salt": ..., "report": ...}` continues a prompt by two tokens and
  answers how many tokens of it were cached;
- `{"resident": true}` answers the hashes of the blocks that the engine's own pool holds;
- `{"reset": true}` clears the cache;
- `{"publish": ENDPOINT}` sends one batch by vLLM's own publisher, made with that endpoint at the first time;
- `{"metrics": true}` answers what `EngineMetrics.of_process` says.

An empty line ends it.
"""

from __future__ import annotations

import dataclasses
import json
import sys
import time
from itertools import count
from queue import SimpleQueue
from typing import Any

from kvsdk_vllm._engine import EngineThread, Job
from kvsdk_vllm._shared import acquire, release
from kvsdk_vllm.observe import EngineMetrics

BLOCK_BYTES = 30 * 3 * 64 * 2 * 4 * 32  # layers, heads, head size, K and V, float32, tokens
BLOCKS = 20  # one of them is the engine's own
_numbers = count()
_publishers: dict[str, Any] = {}


def main(model: str, endpoint: str, replay_endpoint: str) -> None:
    answers = sys.stdout
    sys.stdout = sys.stderr  # the engine's own words go elsewhere
    from vllm.config.kv_events import KVEventsConfig

    events = KVEventsConfig(
        enable_kv_cache_events=True,
        publisher="zmq",
        endpoint=endpoint,
        replay_endpoint=replay_endpoint,
        topic="kv",
    )
    shared = acquire(
        model,
        {
            "max_model_len": 512,
            "max_num_seqs": 2,
            "kv_cache_memory_bytes": BLOCKS * BLOCK_BYTES,
            "kv_events_config": events,
            "disable_log_stats": False,
        },
    )
    print(json.dumps({"block_size": shared.block_size}), file=answers, flush=True)
    for line in sys.stdin:
        if not line.strip():
            break
        print(json.dumps(_do(shared.thread, json.loads(line))), file=answers, flush=True)
    release(shared)


def _do(thread: EngineThread, wish: dict[str, Any]) -> Any:
    if "run" in wish:
        return _run(thread, wish)
    if "resident" in wish:
        return _resident(thread)
    if "reset" in wish:
        return thread.engine.reset_prefix_cache()
    if "publish" in wish:
        return _publish(wish["publish"])
    return dataclasses.asdict(EngineMetrics.of_process())


def _run(thread: EngineThread, wish: dict[str, Any]) -> int:
    """Continue a prompt by two tokens; how many tokens of it were cached."""
    from vllm import SamplingParams

    extra = {"kv_cache_report_mode": wish["report"]} if wish.get("report") else None
    params = SamplingParams(temperature=0, max_tokens=2, ignore_eos=True, extra_args=extra)
    prompt: Any = {"prompt_token_ids": wish["run"]}
    if wish.get("salt"):
        prompt["cache_salt"] = wish["salt"]
    came: SimpleQueue[Any] = SimpleQueue()
    thread.submit(Job(f"events-{next(_numbers)}", prompt, params, came.put, session=wish.get("session")))
    while True:
        output = came.get(timeout=120)
        if isinstance(output, Exception):
            raise output
        if output.finished:
            return int(output.num_cached_tokens)


def _resident(thread: EngineThread) -> list[int]:
    """What the engine's own index of blocks has, as events name it: 8 bytes before the group's 4."""
    core: Any = thread.engine.engine_core
    pool = core.engine_core.scheduler.kv_cache_manager.block_pool
    return sorted(int.from_bytes(key[-12:-4], "big") for key in pool.cached_block_hash_to_block._cache)


def _publish(endpoint: str) -> str:
    from vllm.distributed.kv_events import AllBlocksCleared, KVEventBatch, ZmqEventPublisher

    if endpoint not in _publishers:
        _publishers[endpoint] = ZmqEventPublisher(0, endpoint=endpoint, topic="kv")
    _publishers[endpoint].publish(KVEventBatch(ts=time.time(), events=[AllBlocksCleared()]))
    return "sent"


if __name__ == "__main__":
    main(*sys.argv[1:])
