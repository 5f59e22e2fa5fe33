"""What a store's disk tier costs beside plain files of the same bytes, in the same run.

    python bench/store.py [--mb 256] [--rounds 5] [--at FOLDER] [--lmcache]

KV like that of an 8-billion-parameter model: 32 layers, 8 KV heads of 128, float16, 128 KiB per token, chunks
of 256 tokens (32 MiB), in blocks of 16 that lie scattered in vLLM's layout. Wall time; every row once
per round, in turns. The tables have the median ratio to the raw form, 1.00 is as fast.

- Writing, raw: one file per chunk, `write` and `fdatasync`.
- Reading, raw: one file per chunk, `preadv` into memory that is used again. Cold: after
  `POSIX_FADV_DONTNEED`.

`--lmcache` has LMCache's disk backend take its turn in each round, see `bench/store_lmcache.py`.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from kvsdk.kv import Fingerprint, KVSpec
from kvsdk.kv.files.file import check_file
from kvsdk.store import Disk, Hit, KVStore, Memory
from kvsdk.store.entries.chunks import CHUNK_TOKENS
from kvsdk.store.tiers.buffers import BufferPool

if TYPE_CHECKING:
    from store_lmcache import LMCache

SPEC = KVSpec(num_layers=32, num_kv_heads=8, head_dim=128, dtype="float16", block_size=16)
LAYOUT = "vllm/0.26+"
BLOCKS_PER_CHUNK = CHUNK_TOKENS // SPEC.block_size


def engine_cache(blocks: int, value: float) -> list[torch.Tensor]:
    """An engine's KV, faulted in."""
    shape = (blocks, SPEC.num_kv_heads, SPEC.block_size, 2 * SPEC.head_dim)
    return [torch.full(shape, value, dtype=torch.float16) for _ in range(SPEC.num_layers)]


class Bench:
    """One folder, one prompt, and each form of keeping its KV.

    Args:
        folder: Where the files go.
        megabytes: How much KV.
    """

    def __init__(self, folder: Path, megabytes: int) -> None:
        self.folder = folder
        self.chunks = megabytes * (1 << 20) // (SPEC.bytes_per_token * CHUNK_TOKENS)
        blocks = self.chunks * BLOCKS_PER_CHUNK
        self.blocks = random.Random(1).sample(range(blocks), blocks)
        self.kv = engine_cache(blocks, 1.0)
        for layer in self.kv:
            layer.normal_()
        self.out = engine_cache(blocks, 2.0)
        self.bytes = SPEC.bytes_per_token * CHUNK_TOKENS
        self.tokens = list(range(self.chunks * CHUNK_TOKENS))
        self.image = memoryview(bytearray(os.urandom(1 << 20) * (self.bytes >> 20)))
        self.pool = BufferPool()
        self.files = [folder / "raw" / str(number) for number in range(self.chunks)]
        (folder / "raw").mkdir()
        self.opened = self.store(Disk(folder / "store"))

    def store(self, *tiers: Any) -> KVStore:
        return KVStore(list(tiers), fingerprint=Fingerprint.for_testing(SPEC))

    # ------------------------------------------------------------------ writing

    def write_raw(self) -> None:
        for file in self.files:
            with file.open("wb", buffering=0) as opened:
                opened.write(self.image)
                os.fdatasync(opened.fileno())

    def write_store(self) -> None:
        self.opened.put(self.tokens, self.kv, layout=LAYOUT, blocks=self.blocks)
        self.opened.flush()

    def write_safetensors(self) -> None:
        from safetensors.torch import save_file

        for number in range(self.chunks):
            save_file(self.chunk(number), self.folder / f"{number}.st")

    def write_torch(self) -> None:
        for number in range(self.chunks):
            torch.save(self.chunk(number), self.folder / f"{number}.pt")

    def chunk(self, number: int) -> dict[str, torch.Tensor]:
        """A chunk's KV, gathered."""
        ids = self.blocks[number * BLOCKS_PER_CHUNK : (number + 1) * BLOCKS_PER_CHUNK]
        return {f"layer.{at}": layer[ids] for at, layer in enumerate(self.kv)}

    def clean(self) -> None:
        """Nothing of what was written is left."""
        self.opened.remove(self.tokens)
        self.opened.flush()
        for file in (*self.files, *self.folder.glob("*.st"), *self.folder.glob("*.pt")):
            file.unlink(missing_ok=True)

    # ------------------------------------------------------------------ reading

    def read_raw(self) -> None:
        for file in self.files:
            descriptor = os.open(file, os.O_RDONLY)
            got = 0
            while got < self.bytes:
                got += os.preadv(descriptor, [self.image[got:]], got)
            os.close(descriptor)

    def read_tier(self) -> None:
        """A chunk's file into memory that is used again, every byte checked."""
        for name in self.disk.list("kv/"):
            data = self.disk.get(name, self.pool)
            assert data is not None
            check_file(data.view)
            data.release()

    def read_store(self) -> None:
        """Checked and laid out into the engine's blocks."""
        hit = self.opened.get(self.tokens, layout=LAYOUT, blocks=self.blocks, out=self.out)
        assert isinstance(hit, Hit)
        assert hit.tokens == len(self.tokens)

    def read_memory(self) -> None:
        """The same from the memory tier."""
        hit = self.in_memory.get(self.tokens, layout=LAYOUT, blocks=self.blocks, out=self.out)
        assert isinstance(hit, Hit)
        assert hit.tokens_by_tier == {"memory": len(self.tokens)}

    def read_safetensors(self) -> None:
        from safetensors.torch import load_file

        for number in range(self.chunks):
            self.lay(number, load_file(self.folder / f"{number}.st"))

    def read_torch(self) -> None:
        for number in range(self.chunks):
            self.lay(number, torch.load(self.folder / f"{number}.pt", weights_only=True))

    def lay(self, number: int, chunk: dict[str, torch.Tensor]) -> None:
        """Into the engine's blocks, as whoever loads it must."""
        ids = self.blocks[number * BLOCKS_PER_CHUNK : (number + 1) * BLOCKS_PER_CHUNK]
        for at, layer in enumerate(self.out):
            layer[ids] = chunk[f"layer.{at}"]

    def prepare_reading(self) -> None:
        """Open what is read from, and see that it is what was written."""
        self.disk = Disk(self.folder / "store")
        self.disk.open()
        self.in_memory = self.store(Memory(2 * self.bytes * self.chunks))
        self.in_memory.put(self.tokens, self.kv, layout=LAYOUT, blocks=self.blocks)
        self.read_store()
        assert all(torch.equal(ours, theirs) for ours, theirs in zip(self.out, self.kv, strict=True))

    def close(self) -> None:
        """Let go of the folder."""
        for each in (self.opened, self.in_memory, self.disk):
            each.close()

    def cool(self) -> None:
        """None of it is in the page cache."""
        for file in self.folder.rglob("*"):
            if file.is_file():
                descriptor = os.open(file, os.O_RDONLY)
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
                os.close(descriptor)


def measure(
    jobs: dict[str, Callable[[], None]], rounds: int, before: Callable[[], None] | None = None
) -> dict[str, list[float]]:
    """Seconds of each job in each round, in turns."""
    times: dict[str, list[float]] = {name: [] for name in jobs}
    for number in range(rounds + 1):
        for name, job in jobs.items():
            if before is not None:
                before()
            started_s = time.perf_counter()
            job()
            if number:  # the first round faults memory in
                times[name].append(time.perf_counter() - started_s)
    return times


def show(title: str, times: dict[str, list[float]], megabytes: int) -> None:
    """One table: the ratio to the first row."""
    raw = next(iter(times.values()))
    print(f"\n| {title} | times raw | GB/s |", "|---|---|---|", sep="\n")
    for name, own in times.items():
        ratio = statistics.median(one / other for one, other in zip(raw, own, strict=True))
        print(f"| {name} | {ratio:.2f} | {megabytes / 1024 / statistics.median(own):.2f} |", flush=True)


def run_all(jobs: Iterable[Callable[[], None]]) -> None:
    """One after another."""
    for job in jobs:
        job()


def lmcache(bench: Bench) -> LMCache:
    """LMCache, on the same folder."""
    from store_lmcache import LMCache

    return LMCache(bench, SPEC, CHUNK_TOKENS)


def main() -> None:
    """Measure and print the tables."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    options.add_argument("--mb", type=int, default=256)
    options.add_argument("--rounds", type=int, default=5)
    options.add_argument("--at", type=Path)
    options.add_argument("--lmcache", action="store_true", help="and LMCache's disk backend")
    arguments = options.parse_args()
    torch.set_num_threads(1)
    folder = Path(tempfile.mkdtemp(dir=arguments.at))
    try:
        bench = Bench(folder, arguments.mb)
        writing = {
            "raw: write, fdatasync": bench.write_raw,
            "kvsdk: put, flush": bench.write_store,
            "safetensors save_file (no fsync)": bench.write_safetensors,
            "torch.save (no fsync)": bench.write_torch,
        }
        beside = lmcache(bench) if arguments.lmcache else None
        jobs = {**writing, **beside.writing()} if beside else writing
        cleaners = [bench.clean, beside.clean] if beside else [bench.clean]
        show("writing", measure(jobs, arguments.rounds, partial(run_all, cleaners)), arguments.mb)
        run_all([*cleaners, *writing.values()])
        bench.prepare_reading()
        reading = {
            "raw: preadv": bench.read_raw,
            "kvsdk: a chunk's file, checked": bench.read_tier,
            "kvsdk: get, into scattered blocks": bench.read_store,
            "safetensors load_file, into blocks": bench.read_safetensors,
            "torch.load, into blocks": bench.read_torch,
        }
        if beside:
            beside.prepare_reading()
            reading |= beside.reading()
        show("reading, cold", measure(reading, arguments.rounds, bench.cool), arguments.mb)
        reading["kvsdk: get from memory"] = bench.read_memory
        show("reading, warm", measure(reading, arguments.rounds), arguments.mb)
        bench.close()
        if beside:
            beside.close()
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    sys.exit(main())
