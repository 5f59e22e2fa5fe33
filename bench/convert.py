"""What a conversion of KV costs beside `memcpy` of the same bytes, in one thread and the same run.

    python bench/convert.py [--mb 64] [--rounds 9] [--lmcache]

Eight KV heads of 128, blocks of 16, bfloat16, 4 layers; destinations are reused. CPU time of the thread. Each
round copies the source's tensors plainly before each conversion; the table has the median ratio, 1.00 is like
memcpy, for a cast that of its 16-bit side. "fast" is with numba (`pip install 'kvsdk[fast]'`), "without" with
torch and numpy alone.

`--lmcache` compares instead with LMCache's own conversions on the CPU, see `bench/convert_lmcache.py`.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from kvsdk.kv import KVSpec, Layout, convert, reshard
from kvsdk.kv.layouts.planes import allocate
from kvsdk.kv.moving import fast

SPEC = KVSpec(num_layers=4, num_kv_heads=8, head_dim=128, dtype="bfloat16", block_size=16)
NHD, HND, HF = "vllm/<=0.22", "vllm/<=0.22-hnd", "hf/dynamic"
TILED = "layer kv | block head dim/x token x"
TRANSPOSED = "layer kv | block head dim token"


@dataclass(frozen=True)
class Case:
    """What is done, from, to, whose blocks are scattered, and the goal."""

    title: str
    source: str
    target: str
    scattered: str
    goal: float
    block_size: int = 16
    dtypes: tuple[str, str] = ("bfloat16", "bfloat16")


CASES = (
    Case("whole blocks, gathered", NHD, NHD, "src", 0.85),
    Case("whole blocks, scattered", NHD, NHD, "dst", 0.85),
    Case("whole blocks to a chunk", NHD, "lmcache/2ltd", "src", 0.85),
    Case("HF to NHD", HF, NHD, "", 0.75),
    Case("NHD to HF", NHD, HF, "", 0.75),
    Case("NHD paged to HND", NHD, HND, "src", 0.70),
    Case("HND paged to NHD", HND, NHD, "src", 0.70),
    Case("vLLM 0.26+ paged to HF", "vllm/0.26+", HF, "src", 0.70),
    Case("random pages of SGLang's", "sglang/layer-first", "lmcache/2ltd", "src", 0.85),
    Case("random slots of SGLang's", "sglang/layer-first", "lmcache/2ltd", "src", 0.50, block_size=1),
    Case("NHD paged to tiled keys", NHD, TILED, "src", 0.50),
    Case("tiled keys to NHD", TILED, NHD, "src", 0.50),
    Case("NHD paged to transposed values", NHD, TRANSPOSED, "src", 0.40),
    Case("transposed values to NHD", TRANSPOSED, NHD, "src", 0.40),
    Case("HF to tiled keys, transposed values", HF, "vllm/paged-v0", "", 0.40),
    Case("HF to the CPU's", HF, "vllm/0.26+cpu", "", 0.40),
    Case("the CPU's to HF", "vllm/0.26+cpu", HF, "src", 0.40),
    Case("bfloat16 to float16", NHD, NHD, "src", 0.90, dtypes=("bfloat16", "float16")),
    Case("float16 to bfloat16", NHD, NHD, "src", 0.90, dtypes=("float16", "bfloat16")),
    Case("bfloat16 to fp8 with scales", NHD, NHD, "src", 0.50, dtypes=("bfloat16", "float8_e4m3fn")),
    Case("fp8 with scales to bfloat16", NHD, NHD, "src", 0.50, dtypes=("float8_e4m3fn", "bfloat16")),
)

Job = Callable[[], object]


def flat(kv: Any) -> list[torch.Tensor]:
    """All tensors of a structure."""
    return [kv] if isinstance(kv, torch.Tensor) else [tensor for item in kv for tensor in flat(item)]


def filled(name: str, spec: KVSpec, tokens: int) -> Any:
    """KV whose memory is there, with numbers in it that a cast does not make short work of."""
    kv = allocate(Layout.of(name), spec, tokens=tokens)
    for tensor in flat(kv):
        tensor.view(-1)[:4096].copy_(torch.randn(4096))
        some = tensor.view(-1)[:4096].clone()
        tensor.view(-1, 4096).copy_(some)
    return kv


def jobs(mb: int) -> Iterator[tuple[str, Any, Job, float]]:
    """What is measured: its title, what memcpy copies beside it, the job and the goal."""
    tokens = mb * (1 << 20) // SPEC.bytes_per_token // SPEC.block_size * SPEC.block_size
    for case in CASES:
        spec = replace(SPEC, block_size=case.block_size, dtype=case.dtypes[0])
        source = filled(case.source, spec, tokens)
        target = filled(case.target, replace(spec, dtype=case.dtypes[1]), tokens)
        options: dict[str, Any] = {"num_tokens": tokens, "out": target, "dtype": case.dtypes[1]}
        if case.scattered:
            options[f"{case.scattered}_blocks"] = torch.randperm(tokens // spec.block_size).tolist()
        if case.dtypes[0].startswith("float8"):
            options["scales"] = torch.rand(SPEC.num_layers, 2, SPEC.num_kv_heads) + 0.5
        beside = target if case.dtypes[0].startswith("float8") else source
        yield (
            case.title,
            beside,
            partial(convert, source, case.source, case.target, spec, **options),
            case.goal,
        )
    whole = filled(NHD, SPEC, tokens)
    halves = reshard([whole], SPEC, NHD, to=2)
    for title, shards, to, goal in (("TP 1 to 2", [whole], 2, 0.65), ("TP 2 to 1", halves, 1, 0.90)):
        out = reshard(shards, SPEC, NHD, to=to)
        yield title, shards, partial(reshard, shards, SPEC, NHD, to=to, out=out), goal


def cpu_s(job: Job) -> float:
    """CPU seconds of this thread."""
    started_s = time.thread_time()
    job()
    return time.thread_time() - started_s


def without(job: Job) -> None:
    """The job without compiled code."""
    with fast.off():
        job()


def ratios(source: Any, contenders: list[Job], rounds: int) -> list[float]:
    """The median of memcpy's time over each one's."""
    sources = flat(source)
    copies = [torch.empty_like(tensor).fill_(2) for tensor in sources]

    def memcpy() -> None:
        for copy, tensor in zip(copies, sources, strict=True):
            copy.copy_(tensor)

    for contender in contenders:
        contender()
    found = [[cpu_s(memcpy) / cpu_s(contender) for contender in contenders] for _ in range(rounds)]
    return [statistics.median(column) for column in zip(*found, strict=True)]


def against_memcpy(mb: int, rounds: int, only: str) -> None:
    """Print kvsdk's conversions beside memcpy."""
    print(f"| {mb} MB | fast | without | goal |", "|---|---|---|---|", sep="\n")
    for title, beside, job, goal in jobs(mb):
        if only in title:
            both = [job, partial(without, job)] if fast.is_on() else [partial(without, job)]
            found = [f"{ratio:.2f}" for ratio in ratios(beside, both, rounds)]
            print("|", " | ".join((title, *["-"] * (2 - len(found)), *found, f"{goal:.2f}")), "|", flush=True)


def against_lmcache(rounds: int, only: str) -> None:
    """Print them beside LMCache's."""
    import convert_lmcache

    print(
        "| 32 MiB, times memcpy | LMCache | fast | without | fast over LMCache | goal |",
        "|---" * 6 + "|",
        sep="\n",
    )
    for pair in convert_lmcache.pairs():
        if only in pair.title:
            convert_lmcache.check(pair)
            contenders = [pair.theirs, *([pair.ours] if fast.is_on() else []), partial(without, pair.ours)]
            found = ratios(pair.beside, contenders, rounds)
            cells = [f"{ratio:.2f}" for ratio in (*found, found[1] / found[0])]
            print(
                "|",
                " | ".join((pair.title, *cells[:1], *["-"] * (4 - len(cells)), *cells[1:], "1.50")),
                "|",
                flush=True,
            )


def main() -> None:
    """Measure and print a table."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    options.add_argument("--mb", type=int, default=64)
    options.add_argument("--rounds", type=int, default=9)
    options.add_argument("--only", default="", help="part of a title")
    options.add_argument("--lmcache", action="store_true", help="beside LMCache, 32 MiB")
    arguments = options.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(1)
    if arguments.lmcache:
        against_lmcache(arguments.rounds, arguments.only)
    else:
        against_memcpy(arguments.mb, arguments.rounds, arguments.only)


if __name__ == "__main__":
    main()
