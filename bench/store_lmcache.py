"""What LMCache's own disk backend costs on the same folder, beside kvsdk's store and in the same rounds.

    lmc/bin/python bench/store.py --lmcache [--mb 256] [--rounds 5] [--at FOLDER]

`bench/convert_lmcache.py` says how to make the environment `lmc`, of LMCache 0.5.6.

The same KV in chunks of the same size, by LMCache's `LocalDiskBackend` with what it has by default (the page
cache, four threads), its own memory pool (`LocalCPUBackend`, which keeps nothing, so each read is of a file),
and its own transfer from and to the blocks, of the format that it has for this very layout. On a CPU that
transfer is PyTorch's indexing; for a GPU LMCache has kernels.

- What a put does: it writes a file under its last name, and waits for no disk. One row adds an `fdatasync` of
  each file, since the raw form and kvsdk have it.
- What a get checks: nothing. A file with a bit flipped, cut in half or empty is a hit, and what is missing of
  it is whatever was in the memory before. The index is in memory alone: a new backend finds nothing.
- kvsdk's rows check every byte against a checksum, and the header and size of the file. They hash the tokens
  too, to know a prompt again; LMCache's rows are given their keys.
- What is checked here, before anything is timed: that LMCache gives back what was written, in memory and in
  the blocks.

LMCache reports its use over the network; that is switched off here before it is loaded.
"""

from __future__ import annotations

import asyncio
import os
import queue
import threading
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import torch
from convert_lmcache import silence

PUT_TIMEOUT_S = 600

Job = Callable[[], None]


def load() -> SimpleNamespace:
    """LMCache's classes. It is told first to report nothing."""
    silence()
    try:
        from lmcache.lmcache_native import EngineKVFormat, TransferDirection
        from lmcache.utils import CacheEngineKey
        from lmcache.v1.config import LMCacheEngineConfig
        from lmcache.v1.memory_management import MemoryFormat
        from lmcache.v1.metadata import LMCacheMetadata
        from lmcache.v1.platform.ops_types import PageBufferShapeDesc
        from lmcache.v1.platform.torch_ops import mp_mem_kernels
        from lmcache.v1.storage_backend.local_cpu_backend import LocalCPUBackend
        from lmcache.v1.storage_backend.local_disk_backend import LocalDiskBackend
    except ImportError as error:
        raise SystemExit(
            f"--lmcache needs LMCache ({error}); see the beginning of bench/convert_lmcache.py"
        ) from error
    return SimpleNamespace(
        config=LMCacheEngineConfig.from_defaults,
        metadata=LMCacheMetadata,
        key=CacheEngineKey,
        memory=LocalCPUBackend,
        disk=LocalDiskBackend,
        packed=MemoryFormat.KV_2LTD,
        blocks=mp_mem_kernels.multi_layer_block_kv_transfer,
        shape=PageBufferShapeDesc,
        # layer | block head token (kv dim)
        layout=EngineKVFormat.NL_X_NB_NH_BS_CS,
        to_chunks=TransferDirection.D2H,
        to_blocks=TransferDirection.H2D,
    )


class LMCache:
    """LMCache's disk and memory, and each form of keeping a bench's KV in them.

    Args:
        bench: Whose KV, blocks and folder.
        spec: The model.
        chunk_tokens: Tokens of a chunk.
    """

    def __init__(self, bench: Any, spec: Any, chunk_tokens: int) -> None:
        self.bench, self.spec, self.chunk_tokens = bench, spec, chunk_tokens
        self.lmcache = load()
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self.thread.start()
        self._open()
        self.keys = [
            self.lmcache.key("bench", 1, 0, number + 1, torch.float16) for number in range(bench.chunks)
        ]
        self.filled = self._gather()

    def _open(self) -> None:
        spec, bench = self.spec, self.bench
        config = self.lmcache.config(
            chunk_size=self.chunk_tokens,
            local_cpu=False,
            max_local_cpu_size=(2 * bench.chunks + 1) * bench.bytes / (1 << 30),
            local_disk=str(bench.folder / "lmcache"),
            # A limit. What is removed is not taken off what it is compared with.
            max_local_disk_size=1 << 20,
        )
        shape = (spec.num_layers, 1, self.chunk_tokens, spec.num_kv_heads, 2 * spec.head_dim)
        metadata = self.lmcache.metadata("bench", 1, 1, 0, 0, torch.float16, shape)
        self.memory = self.lmcache.memory(config, metadata, "cpu")
        self.disk = self.lmcache.disk(config, self.loop, self.memory, "cpu", None, metadata)

    def writing(self) -> dict[str, Job]:
        """Rows of the table of writing."""
        return {
            "LMCache: chunks' files (no fsync)": self.write_files,
            "LMCache: put, out of scattered blocks (no fsync)": self.write_blocks,
            "LMCache: the same, then fdatasync": self.write_durably,
        }

    def reading(self) -> dict[str, Job]:
        """Rows of the tables of reading."""
        return {
            "LMCache: a chunk's file, unchecked": self.read_files,
            "LMCache: all chunks' files, 4 threads, unchecked": self.read_files_together,
            "LMCache: get, into scattered blocks, unchecked": self.read_blocks,
        }

    # ------------------------------------------------------------------ writing

    def write_files(self) -> None:
        """What lies in LMCache's memory already."""
        self._put(self.filled)

    def write_blocks(self) -> None:
        """Gathered by LMCache, and written."""
        made = self._gather()
        self._put(made)
        _release(made)

    def write_durably(self) -> None:
        """And on the disk when it is over."""
        self.write_blocks()
        for file in self._files():
            descriptor = os.open(file, os.O_RDONLY)
            os.fdatasync(descriptor)
            os.close(descriptor)

    def _put(self, objects: Sequence[Any]) -> None:
        """Into files, until the last one is written."""
        written: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.disk.batched_submit_put_task(self.keys, objects, on_complete_callback=written.put)
        for _ in self.keys:
            written.get(timeout=PUT_TIMEOUT_S)

    def _gather(self) -> list[Any]:
        """Chunks in LMCache's memory, out of the blocks."""
        spec = self.spec
        shape = torch.Size((1, spec.num_layers, self.chunk_tokens, 2 * spec.num_kv_heads * spec.head_dim))
        made = [self.memory.allocate(shape, torch.float16, self.lmcache.packed) for _ in self.keys]
        self._transfer(self.bench.kv, made, self.lmcache.to_chunks)
        return made

    def _transfer(self, kv: list[torch.Tensor], objects: Sequence[Any], way: Any) -> None:
        """Between blocks and chunks, all in one call."""
        spec, shape = self.spec, self.lmcache.shape()
        shape.kv_size, shape.nl, shape.nb = 1, spec.num_layers, len(self.bench.blocks)
        shape.bs, shape.nh, shape.hs = spec.block_size, spec.num_kv_heads, 2 * spec.head_dim
        shape.element_size = 2
        tensors = [each.tensor for each in objects]
        ends = (kv, tensors, self.bench.blocks, "cpu", way)
        self.lmcache.blocks(*ends, shape, self.chunk_tokens, self.lmcache.layout, 0)

    def _files(self) -> list[Any]:
        found = sorted((self.bench.folder / "lmcache").glob("*.pt"))
        if len(found) != len(self.keys):
            raise SystemExit(f"LMCache wrote {len(found)} of {len(self.keys)} files")
        return found

    def clean(self) -> None:
        """Nothing of what was written is left."""
        for key in self.keys:
            self.disk.remove(key)

    # ------------------------------------------------------------------ reading

    def read_files(self) -> None:
        """One after another, into LMCache's memory."""
        for key in self.keys:
            _release([self.disk.get_blocking(key)])

    def read_files_together(self) -> None:
        """All in one call."""
        _release(self.disk.batched_get_blocking(self.keys))

    def read_blocks(self) -> None:
        """All in one call, then laid into the engine's blocks."""
        found = self.disk.batched_get_blocking(self.keys)
        self._transfer(self.bench.out, found, self.lmcache.to_blocks)
        _release(found)

    def prepare_reading(self) -> None:
        """Write what is read from, and see that it comes back, whichever way."""
        self.clean()
        self.write_durably()
        one_by_one = [self.disk.get_blocking(key) for key in self.keys]
        self._check(one_by_one)
        _release(one_by_one)
        together = self.disk.batched_get_blocking(self.keys)
        self._check(together)
        _release(together)
        for layer in self.bench.out:
            layer.zero_()
        self.read_blocks()
        if not all(map(_is_same, self.bench.out, self.bench.kv)):
            raise SystemExit("LMCache laid something else into the blocks than was put")

    def _check(self, found: Sequence[Any]) -> None:
        for got, put in zip(found, self.filled, strict=True):
            if got is None or not _is_same(got.tensor, put.tensor):
                raise SystemExit("LMCache read something else than was written")

    def close(self) -> None:
        """Let go of the folder and the memory."""
        self.disk.close()
        self.memory.close()
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join()


def _release(objects: Sequence[Any]) -> None:
    """Give the memory back to LMCache."""
    for each in objects:
        each.ref_count_down()


def _is_same(one: torch.Tensor, other: torch.Tensor) -> bool:
    return torch.equal(one.view(torch.int16), other.view(torch.int16))
