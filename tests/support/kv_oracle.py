"""Where an element lies in each layout, written out by hand: the oracle for conversions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from kvsdk.kv import KVSpec
from kvsdk.kv.layouts.planes import TILE_BYTES

Place = Callable[..., float]


def _cpu(kv: Any, spec: KVSpec, lay: int, part: int, blk: int, tok: int, head: int, dim: int) -> float:
    flat = kv[lay][blk, head].reshape(-1)
    size = spec.block_size
    return flat[dim * size + tok] if part == 0 else flat[spec.head_dim * size + tok * spec.dim_v + dim]


def _paged_v0(kv: Any, spec: KVSpec, lay: int, part: int, blk: int, tok: int, head: int, dim: int) -> float:
    if part:
        return kv[lay][1][blk, head, dim, tok]
    tile = TILE_BYTES // kv[lay][0].element_size()
    return kv[lay][0][blk, head, dim // tile, tok, dim % tile]


def _2ltd(kv: Any, spec: KVSpec, lay: int, part: int, blk: int, tok: int, head: int, dim: int) -> float:
    return kv[part, lay, blk * spec.block_size + tok, head * spec.head_dim + dim]


#: One line per layout: the element of a layer, keys or values, block, token in it, head and dim.
PLACES: dict[str, Place] = {
    "vllm/<=0.22": lambda kv, s, lay, p, b, t, h, d: kv[lay][p, b, t, h, d],
    "vllm/<=0.22-hnd": lambda kv, s, lay, p, b, t, h, d: kv[lay][p, b, h, t, d],
    "vllm/0.23-0.25": lambda kv, s, lay, p, b, t, h, d: kv[lay][b, p, t, h, d],
    "vllm/0.26+": lambda kv, s, lay, p, b, t, h, d: kv[lay][b, h, t, p * s.head_dim + d],
    "vllm/0.26+nhd": lambda kv, s, lay, p, b, t, h, d: kv[lay][b, t, h, p * s.head_dim + d],
    "vllm/0.26+cpu": _cpu,
    "vllm/paged-v0": _paged_v0,
    "sglang/layer-first": lambda kv, s, lay, p, b, t, h, d: kv[p][lay][b * s.block_size + t, h, d],
    "sglang/page-first": lambda kv, s, lay, p, b, t, h, d: kv[p][b * s.block_size + t, lay, h, d],
    "hf/dynamic": lambda kv, s, lay, p, b, t, h, d: kv[lay][p][0, h, b * s.block_size + t, d],
    "lmcache/2ltd": _2ltd,
    "trtllm": lambda kv, s, lay, p, b, t, h, d: kv[lay][b, p, h, t, d],
}
#: Layouts whose tensors have one axis for keys and values take both of one size.
ONE_SIZE = ("vllm/<=0.22", "vllm/<=0.22-hnd", "vllm/0.23-0.25", "lmcache/2ltd", "trtllm")


def read(kv: Any, name: str, spec: KVSpec, tokens: int, ids: Sequence[int] | None) -> list[Any]:
    """Every element in logical order: layer, keys and values, token, head, dim."""
    found = []
    for layer in range(spec.num_layers):
        for part, size in enumerate(spec.parts):
            for token in range(tokens):
                block, inside = divmod(token, spec.block_size)
                at = block if ids is None else ids[block]
                for head in range(spec.num_kv_heads):
                    for dim in range(size):
                        place = PLACES[name]
                        found.append(place(kv, spec, layer, part, at, inside, head, dim))
    return [float(element) for element in found]


def tensors(kv: Any) -> list[torch.Tensor]:
    """All tensors of a structure."""
    if isinstance(kv, torch.Tensor):
        return [kv]
    return [tensor for item in kv for tensor in tensors(item)]


def number(kv: Any) -> Any:
    """Fill a structure with numbers that tell elements apart; exact in every dtype of 16 bits or more."""
    start = 0
    for tensor in tensors(kv):
        count = tensor.numel()
        values = (torch.arange(start, start + count) % 1021).to(torch.float32) / 8
        tensor.copy_(values.reshape(tensor.shape).to(tensor.dtype))
        start += count + 7
    return kv
