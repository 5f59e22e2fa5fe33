"""What LMCache's own conversions on the CPU cost beside kvsdk's, in one thread and the same run.

    python bench/convert.py --lmcache [--rounds 15]

32 MiB of 8 layers, blocks of 16 in any order, 4 chunks of 256 tokens; both fill the same kind of chunk, and
what they wrote is compared before it is timed. Only for fp8 the bytes differ: LMCache casts without a scale,
kvsdk finds one for each layer, part and head.

Both are called as often. Where it says "each" that is once for each chunk, which the slots' and the fp8's
functions of LMCache ask for; otherwise once for all, which kvsdk can if the chunks lie in one tensor, one
behind the other, and LMCache wherever they lie.

LMCache brings CUDA packages that a CPU has no use for, and an older numpy. Give it an environment of its own:

    python3.11 -m venv lmc
    lmc/bin/pip install torch==2.13.0 'kvsdk[fast]'      # or -e '.[fast]'
    lmc/bin/pip install --no-deps lmcache==0.5.6
    lmc/bin/pip install aiofile aiofiles blake3 aiohttp awscrt cryptography fastapi httpx \\
        'huggingface_hub>=1.5' msgspec nvtx 'opentelemetry-sdk<=1.40' \\
        'opentelemetry-exporter-otlp<=1.40' 'opentelemetry-exporter-prometheus<=0.61b0' \\
        'prometheus_client<=0.24.1' psutil py-cpuinfo pyyaml pyzmq grpcio 'protobuf<7' redis safetensors \\
        'setuptools<81' sortedcontainers 'transformers>=5.4' uvicorn httptools cachetools google-api-core
    lmc/bin/python bench/convert.py --lmcache

It leaves out, of what LMCache declares, cupy-cuda13x, cuda-python, cufile-python, google-cloud-bigtable,
grpcio-observability, pytest, setuptools_scm and a numpy of at most 2.2.6: pip says so, and both work.
LMCache reports its use over the network; that is switched off here before it is loaded.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import torch
from kvsdk.kv import KVSpec, Layout, convert
from kvsdk.kv.layouts.planes import allocate

SPEC = KVSpec(num_layers=8, num_kv_heads=8, head_dim=128, dtype="bfloat16", block_size=16)
TOKENS, CHUNK_TOKENS = 1024, 256
NHD, HND, SGLANG, CHUNK = "vllm/<=0.22", "trtllm", "sglang/layer-first", "lmcache/2ltd"
SLOTS = "layer | kv slot head dim"
CHUNKS = "| block kv layer token (head dim)"
"""Several of `CHUNK`: each is a block."""

Job = Callable[[], object]


@dataclass(frozen=True)
class Pair:
    """One conversion by both.

    Attributes:
        title: What is done.
        beside: What memcpy copies.
        theirs: LMCache's.
        ours: kvsdk's.
        written: What both wrote, to be compared; None where it is not the same.
    """

    title: str
    beside: list[torch.Tensor]
    theirs: Job
    ours: Job
    written: Callable[[], tuple[list[torch.Tensor], list[torch.Tensor]]] | None


def flat(kv: Any) -> list[torch.Tensor]:
    """All tensors of a structure."""
    return [kv] if isinstance(kv, torch.Tensor) else [tensor for item in kv for tensor in flat(item)]


def filled(name: str, spec: KVSpec = SPEC, tokens: int = TOKENS) -> Any:
    """KV with random bits in it."""
    kv = allocate(Layout.of(name), spec, tokens=tokens)
    for tensor in flat(kv):
        tensor.copy_(torch.randn(tensor.shape).to(tensor.dtype))
    return kv


def chunks() -> torch.Tensor:
    """Chunks in LMCache's layout, `(chunk, 2, layer, token, head * dim)`."""
    width = SPEC.num_kv_heads * SPEC.head_dim
    shape = (TOKENS // CHUNK_TOKENS, 2, SPEC.num_layers, CHUNK_TOKENS, width)
    return torch.randn(shape).to(torch.bfloat16)


def silence() -> None:
    """Tell LMCache to report nothing, before it is loaded."""
    os.environ["LMCACHE_TRACK_USAGE"] = "false"
    os.environ["DO_NOT_TRACK"] = "1"
    os.environ.setdefault("LMCACHE_LOG_LEVEL", "ERROR")


def load() -> SimpleNamespace:
    """LMCache's functions. It is told first to report nothing."""
    silence()
    try:
        from lmcache.lmcache_native import EngineKVFormat, TransferDirection
        from lmcache.v1.distributed.serde import fp8
        from lmcache.v1.platform.ops_types import PageBufferShapeDesc
        from lmcache.v1.platform.torch_ops import mem_kernels, mp_mem_kernels
    except ImportError as error:
        raise SystemExit(
            f"--lmcache needs LMCache ({error}); this says how to install it:\n{__doc__}"
        ) from error
    return SimpleNamespace(
        formats=EngineKVFormat,
        direction=TransferDirection,
        shape=PageBufferShapeDesc,
        slots=mem_kernels.multi_layer_kv_transfer,
        blocks=mp_mem_kernels.multi_layer_block_kv_transfer,
        store=fp8.Fp8QuantizationSerializer().serialize,
        load=fp8.Fp8QuantizationDeserializer().deserialize,
    )


def pairs() -> Iterator[Pair]:
    """Every conversion that both have."""
    lmcache = load()
    ids = torch.randperm(TOKENS // SPEC.block_size).tolist()
    for title, layout, format_ in (
        ("vLLM NHD", NHD, lmcache.formats.NL_X_TWO_NB_BS_NH_HS),
        ("FlashInfer HND", HND, lmcache.formats.NL_X_NB_TWO_NH_BS_HS),
        ("SGLang", SGLANG, lmcache.formats.TWO_X_NL_X_NBBS_NH_HS),
    ):
        for is_each in (False, True):
            ends = (layout, format_, ids, is_each)
            suffix = ", each" if is_each else ""
            yield _store(lmcache, f"{title} to chunks{suffix}", *ends)
            yield _load(lmcache, f"chunks to {title}{suffix}", *ends)
    yield from _slots(lmcache, ids)
    yield from _fp8(lmcache)


def _transfer(
    lmcache: Any,
    paged: Any,
    made: torch.Tensor,
    ids: list[int],
    format_: Any,
    way: Any,
    is_each: bool,
) -> None:
    shape = lmcache.shape()
    shape.kv_size, shape.nl, shape.nb = 2, SPEC.num_layers, TOKENS // SPEC.block_size
    shape.bs, shape.nh, shape.hs = SPEC.block_size, SPEC.num_kv_heads, SPEC.head_dim
    shape.element_size = 2
    parts = zip(made.split(1), _of_each(ids, SPEC), strict=True) if is_each else [(made, ids)]
    for some, blocks in parts:
        tensors = list(some.unbind())
        lmcache.blocks(paged, tensors, blocks, "cpu", way, shape, CHUNK_TOKENS, format_, 0)


def _of_each(ids: list[int], spec: KVSpec) -> Iterator[list[int]]:
    """The blocks of each chunk."""
    step = CHUNK_TOKENS // spec.block_size
    return (ids[start : start + step] for start in range(0, len(ids), step))


def _ours_to(paged: Any, layout: str, made: torch.Tensor, ids: list[int], spec: KVSpec = SPEC) -> None:
    """Blocks to chunks, chunk by chunk."""
    for chunk, blocks in zip(made, _of_each(ids, spec), strict=True):
        convert(paged, layout, CHUNK, spec, num_tokens=CHUNK_TOKENS, src_blocks=blocks, out=chunk)


def _ours_from(made: torch.Tensor, paged: Any, layout: str, ids: list[int], spec: KVSpec = SPEC) -> None:
    """Chunks to blocks, chunk by chunk."""
    for chunk, blocks in zip(made, _of_each(ids, spec), strict=True):
        convert(chunk, CHUNK, layout, spec, num_tokens=CHUNK_TOKENS, dst_blocks=blocks, out=paged)


def _all_to(paged: Any, layout: str, made: torch.Tensor, ids: list[int]) -> None:
    """Blocks to chunks, all in one call."""
    convert(paged, layout, CHUNKS, SPEC, src_blocks=ids, dst_block_size=CHUNK_TOKENS, out=made)


def _all_from(made: torch.Tensor, paged: Any, layout: str, ids: list[int]) -> None:
    """Chunks to blocks, all in one call."""
    spec = replace(SPEC, block_size=CHUNK_TOKENS)
    convert(made, CHUNKS, layout, spec, dst_blocks=ids, dst_block_size=SPEC.block_size, out=paged)


def _store(lmcache: Any, title: str, layout: str, format_: Any, ids: list[int], is_each: bool) -> Pair:
    paged, theirs, ours = filled(layout), chunks(), chunks()
    way, store = lmcache.direction.D2H, _ours_to if is_each else _all_to
    return Pair(
        title,
        flat(paged),
        lambda: _transfer(lmcache, paged, theirs, ids, format_, way, is_each),
        lambda: store(paged, layout, ours, ids),
        lambda: ([theirs], [ours]),
    )


def _load(lmcache: Any, title: str, layout: str, format_: Any, ids: list[int], is_each: bool) -> Pair:
    made, theirs, ours = chunks(), filled(layout), filled(layout)
    way, load = lmcache.direction.H2D, _ours_from if is_each else _all_from
    return Pair(
        title,
        list(made),
        lambda: _transfer(lmcache, theirs, made, ids, format_, way, is_each),
        lambda: load(made, ours, layout, ids),
        lambda: (flat(theirs), flat(ours)),
    )


def _slots(lmcache: Any, ids: list[int]) -> Iterator[Pair]:
    """Token by token: a slot for each."""
    spec = replace(SPEC, block_size=1)
    slots = [block * SPEC.block_size + at for block in ids for at in range(SPEC.block_size)]
    mapping = torch.tensor(slots)
    format_, cpu = lmcache.formats.NL_X_TWO_NB_BS_NH_HS, torch.device("cpu")

    def transfer(paged: list[torch.Tensor], made: torch.Tensor, way: Any) -> None:
        layers = [layer.view(2, TOKENS, -1) for layer in paged]
        for at, chunk in enumerate(made):
            own = mapping[at * CHUNK_TOKENS : (at + 1) * CHUNK_TOKENS]
            lmcache.slots(chunk, layers, own, cpu, TOKENS, way, format_, SPEC.block_size)

    paged, theirs, ours = filled(SLOTS, spec), chunks(), chunks()
    yield Pair(
        "slots of vLLM to chunks, each",
        flat(paged),
        lambda: transfer(paged, theirs, lmcache.direction.D2H),
        lambda: _ours_to(paged, SLOTS, ours, slots, spec),
        lambda: ([theirs], [ours]),
    )
    made, their_paged, our_paged = chunks(), filled(SLOTS, spec), filled(SLOTS, spec)
    yield Pair(
        "chunks to slots of vLLM, each",
        list(made),
        lambda: transfer(their_paged, made, lmcache.direction.H2D),
        lambda: _ours_from(made, our_paged, SLOTS, slots, spec),
        lambda: (their_paged, our_paged),
    )


def _fp8(lmcache: Any) -> Iterator[Pair]:
    """Chunks at half their size, and back."""
    wide = list(chunks())
    small = [torch.zeros(chunk.numel(), dtype=torch.uint8) for chunk in wide]
    ours = [chunk.to(torch.float8_e4m3fn) for chunk in wide]
    spec = replace(SPEC, dtype="float8_e4m3fn")
    scales = torch.rand(SPEC.num_layers, 2, SPEC.num_kv_heads) + 0.5

    def store() -> None:
        for source, target in zip(wide, small, strict=True):
            lmcache.store(SimpleNamespace(tensor=source), SimpleNamespace(tensor=target), None)

    def load() -> None:
        for source, target in zip(small, wide, strict=True):
            lmcache.load(SimpleNamespace(tensor=source), SimpleNamespace(tensor=target), None)

    def quantise() -> None:
        for source, target in zip(wide, ours, strict=True):
            convert(source, CHUNK, CHUNK, SPEC, num_tokens=CHUNK_TOKENS, dtype="fp8_e4m3", out=target)

    def restore() -> None:
        options = {"num_tokens": CHUNK_TOKENS, "dtype": "bfloat16", "scales": scales}
        for source, target in zip(ours, wide, strict=True):
            convert(source, CHUNK, CHUNK, spec, out=target, **options)

    yield Pair("chunks to fp8, each", wide, store, quantise, None)
    yield Pair("fp8 to chunks, each", wide, load, restore, None)


def check(pair: Pair) -> None:
    """Raise unless both wrote the same."""
    pair.theirs()
    pair.ours()
    if pair.written is None:
        return
    for one, other in zip(*pair.written(), strict=True):
        if not torch.equal(one.view(torch.int16).reshape(-1), other.view(torch.int16).reshape(-1)):
            raise SystemExit(f"{pair.title}: LMCache and kvsdk differ")
