"""What a vLLM engine of this process computes, and where it keeps the KV of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count
from queue import SimpleQueue
from typing import Any

import torch

from kvsdk_vllm._engine import EngineThread, Job

TIMEOUT_S = 120
_numbers = count()


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """What the engine did with a prompt.

    Attributes:
        tokens: The continuation.
        blocks: The prompt's blocks in logical order. The last one may hold tokens of the continuation too.
        cached_tokens: Tokens of the prompt that were read from the prefix cache.
    """

    tokens: list[int]
    blocks: list[int]
    cached_tokens: int


def run(thread: EngineThread, prompt: Sequence[int], max_tokens: int) -> Run:
    """Continue a prompt greedily. Its blocks are free afterwards, and hold their KV until they are reused.

    The block table is read on the engine's own thread, between two steps. A request that has ended has none,
    so `max_tokens` is at least 2.
    """
    from vllm import SamplingParams

    assert max_tokens >= 2
    params = SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True)
    came: SimpleQueue[tuple[Any, list[int]]] = SimpleQueue()

    def deliver(output: Any) -> None:
        came.put((output, [] if isinstance(output, Exception) else _block_table(thread, job)))

    job = Job(f"engine-kv-{next(_numbers)}", {"prompt_token_ids": list(prompt)}, params, deliver)
    thread.submit(job)
    output, blocks = came.get(timeout=TIMEOUT_S)
    while not isinstance(output, Exception) and not output.finished:
        output, _ = came.get(timeout=TIMEOUT_S)
    if isinstance(output, Exception):
        raise output
    return Run(
        tokens=list(output.outputs[0].token_ids),
        blocks=blocks[: -(-len(prompt) // block_size(thread))],
        cached_tokens=output.num_cached_tokens,
    )


def layers_of(thread: EngineThread) -> list[torch.Tensor]:
    """The engine's own KV, a tensor per layer; what is written there, the engine reads.

    To be touched only while the engine has no request.
    """
    workers: list[list[torch.Tensor]] = thread.engine.collective_rpc(
        lambda worker: worker.model_runner.kv_caches
    )
    (layers,) = workers
    return layers


def block_size(thread: EngineThread) -> int:
    """Tokens of a block."""
    return int(thread.engine.vllm_config.cache_config.block_size)


def _block_table(thread: EngineThread, job: Job) -> list[int]:
    core: Any = thread.engine.engine_core
    (blocks,) = core.engine_core.scheduler.kv_cache_manager.get_block_ids(job.engine_id)
    return list(blocks)
