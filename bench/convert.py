"""What a conversion of KV costs beside `memcpy` of the same bytes, in one thread and the same run.

    python bench/convert.py [--mb 64] [--rounds 5]

Eight KV heads of 128, blocks of 16, bfloat16, 4 layers; destinations are reused. CPU time of the thread. Each
round copies the source's tensors plainly, and converts; the table has the median ratio, 1.00 is like memcpy.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from kvsdk.kv import KVSpec, Layout, convert, reshard
from kvsdk.kv.planes import allocate

SPEC = KVSpec(num_layers=4, num_kv_heads=8, head_dim=128, dtype="bfloat16", block_size=16)
#: What is done, from, to, whose blocks are scattered, and the goal.
CASES = (
    ("whole blocks, gathered", "vllm/<=0.22", "vllm/<=0.22", "src", 0.85),
    ("whole blocks, scattered", "vllm/<=0.22", "vllm/<=0.22", "dst", 0.85),
    ("whole blocks to a chunk", "vllm/<=0.22", "lmcache/2ltd", "src", 0.85),
    ("HF to NHD", "hf/dynamic", "vllm/<=0.22", "", 0.75),
    ("NHD to HF", "vllm/<=0.22", "hf/dynamic", "", 0.75),
    ("NHD paged to HND", "vllm/<=0.22", "vllm/<=0.22-hnd", "src", 0.70),
    ("HND paged to NHD", "vllm/<=0.22-hnd", "vllm/<=0.22", "src", 0.70),
    ("vLLM 0.26+ paged to HF", "vllm/0.26+", "hf/dynamic", "src", 0.70),
    ("random slots of SGLang's", "sglang/layer-first", "lmcache/2ltd", "src", 0.50),
    ("HF to tiled keys, transposed values", "hf/dynamic", "vllm/paged-v0", "", 0.40),
    ("HF to the CPU's", "hf/dynamic", "vllm/0.26+cpu", "", 0.40),
    ("the CPU's to HF", "vllm/0.26+cpu", "hf/dynamic", "src", 0.40),
)


def flat(kv: Any) -> list[torch.Tensor]:
    """All tensors of a structure."""
    return [kv] if isinstance(kv, torch.Tensor) else [tensor for item in kv for tensor in flat(item)]


def filled(name: str, spec: KVSpec, tokens: int) -> Any:
    """KV whose memory is there."""
    kv = allocate(Layout.of(name), spec, tokens=tokens)
    for tensor in flat(kv):
        tensor.fill_(1)
    return kv


def cpu_s(job: Callable[[], object]) -> float:
    started_s = time.thread_time()
    job()
    return time.thread_time() - started_s


def ratio(source: Any, job: Callable[[], object], rounds: int) -> float:
    """The median of memcpy's time over the job's."""
    sources = flat(source)
    copies = [torch.empty_like(tensor).fill_(2) for tensor in sources]

    def memcpy() -> None:
        for copy, tensor in zip(copies, sources, strict=True):
            copy.copy_(tensor)

    job()
    return statistics.median(cpu_s(memcpy) / cpu_s(job) for _ in range(rounds))


def main() -> None:
    """Measure and print the table."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    options.add_argument("--mb", type=int, default=64)
    options.add_argument("--rounds", type=int, default=5)
    arguments = options.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(1)
    tokens = arguments.mb * (1 << 20) // SPEC.bytes_per_token // SPEC.block_size * SPEC.block_size
    ids = torch.randperm(tokens // SPEC.block_size).tolist()
    print(f"| {arguments.mb} MB | times memcpy | goal |", "|---|---|---|", sep="\n")
    for title, src_layout, dst_layout, scattered, goal in CASES:
        source, target = filled(src_layout, SPEC, tokens), filled(dst_layout, SPEC, tokens)
        blocks = {f"{side}_blocks": ids for side in (scattered,) if side}
        places = {"num_tokens": tokens, "out": target, **blocks}
        job = partial(convert, source, src_layout, dst_layout, SPEC, **places)
        print(f"| {title} | {ratio(source, job, arguments.rounds):.2f} | {goal:.2f} |", flush=True)
    whole = filled("vllm/<=0.22", SPEC, tokens)
    halves = reshard([whole], SPEC, "vllm/<=0.22", to=2)
    for title, shards, to, goal in (("TP 1 to 2", [whole], 2, 0.65), ("TP 2 to 1", halves, 1, 0.90)):
        out = reshard(shards, SPEC, "vllm/<=0.22", to=to)
        job = partial(reshard, shards, SPEC, "vllm/<=0.22", to=to, out=out)
        print(f"| {title} | {ratio(shards, job, arguments.rounds):.2f} | {goal:.2f} |", flush=True)


if __name__ == "__main__":
    main()
