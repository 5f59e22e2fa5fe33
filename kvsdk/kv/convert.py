"""KV of one layout into another: each byte is moved once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Any

from kvsdk.errors import InvalidRequest
from kvsdk.kv.layout import Layout
from kvsdk.kv.planes import allocate
from kvsdk.kv.rows import move_blocks
from kvsdk.kv.sides import Side, common_block_size, pieces
from kvsdk.kv.spec import ITEM_BYTES, KVSpec

if TYPE_CHECKING:
    import torch

QUANTISED = ("float8_e4m3fn",)
"""Dtypes that come with scales, one for each layer, part and head."""

_ALIASES = {"fp8_e4m3": "float8_e4m3fn", "fp16": "float16", "bf16": "bfloat16", "fp32": "float32"}


def convert(
    src: Any,
    src_layout: Layout | str,
    dst_layout: Layout | str,
    spec: KVSpec,
    *,
    dst_block_size: int | None = None,
    num_tokens: int | None = None,
    src_blocks: Sequence[int] | None = None,
    dst_blocks: Sequence[int] | None = None,
    dtype: str | None = None,
    scales: torch.Tensor | None = None,
    out: Any = None,
) -> Any:
    """Lay KV out anew. The source is left as it is.

    Args:
        src: The KV, in the Python sequences and tensors that its layout says.
        src_layout: A name of the registry, axes, or a `Layout`.
        dst_layout: Likewise.
        spec: The model; its dtype and block size are the source's.
        dst_block_size: Tokens of a block of the destination; the source's by default.
        num_tokens: How many tokens to take; all there are by default. What is left of the last block of a
            paged destination is zero.
        src_blocks: The source's blocks in logical order; 0, 1, ... by default.
        dst_blocks: Where they go, with `out`.
        dtype: Of the destination; the source's by default. A quantised one gives scales too.
        scales: Of a quantised source, float32, `(layers, parts, heads)`: element = stored * scale.
        out: Where to write, in the destination's layout; new tensors by default. Reuse it: new memory costs
            more than any layout.

    Returns:
        The destination; of a quantised dtype `(destination, scales)`.

    Raises:
        UnknownLayout: A name that the registry does not have.
        InvalidRequest: The tensors do not fit the layouts and the spec, there is no room, or a dtype cannot
            be made of the source's.
        Unsupported: The model has layers whose state is no KV per token; the text names them.
    """
    spec.require_movable()
    source = Side(src, Layout.of(src_layout), spec, src_blocks)
    count = source.tokens() if num_tokens is None else num_tokens
    _check_count(count)
    wanted = _dtype(dtype, spec)
    layout = Layout.of(dst_layout)
    if layout.is_mla != source.layout.is_mla or layout.is_mla != (spec.kind == "mla"):
        raise InvalidRequest("a latent (MLA) becomes no keys and values, nor they a latent", field="spec")
    target_spec = replace(spec, block_size=dst_block_size or spec.block_size, dtype=wanted)
    made = allocate(layout, target_spec, tokens=count) if out is None else out
    target = Side(made, layout, target_spec, dst_blocks)
    source.check(count, "src")
    target.check(count, "dst")
    new_scales = given = _scales(scales, spec)
    if wanted == spec.dtype:
        _move_all(source, target, count)
    else:
        new_scales = _cast_all(source, target, count, given)
    _zero_rest(target, count)
    return (made, new_scales) if wanted in QUANTISED else made


def _check_count(count: int) -> None:
    if not isinstance(count, int) or isinstance(count, bool) or count < 0:
        raise InvalidRequest(f"num_tokens is a number of at least 0, not {count!r}", field="num_tokens")


def _dtype(dtype: str | None, spec: KVSpec) -> str:
    wanted = _ALIASES.get(dtype, dtype) if dtype else spec.dtype
    if wanted not in ITEM_BYTES:
        raise InvalidRequest(f"dtype is one of {', '.join(ITEM_BYTES)}, not {dtype!r}", field="dtype")
    return wanted


def _scales(scales: torch.Tensor | None, spec: KVSpec) -> torch.Tensor | None:
    if spec.dtype not in QUANTISED:
        if scales is not None:
            raise InvalidRequest(f"{spec.dtype} has no scales", field="scales")
        return None
    shape = (spec.num_layers, len(spec.parts), spec.num_kv_heads)
    if scales is None or tuple(scales.shape) != shape:
        raise InvalidRequest(f"{spec.dtype} needs scales of shape {shape}", field="scales")
    return scales


def _move_all(source: Side, target: Side, count: int) -> None:
    """Move every layer's parts, byte for byte: scattered blocks as rows, what is left as strided copies."""
    size = common_block_size(source, target)
    is_scattered = source.is_scattered or target.is_scattered
    whole = count // size if size and is_scattered else 0

    @cache
    def stretches(done: int) -> list[tuple[int, int, int]]:
        return list(pieces(source, target, count, done))

    for reader, writer, _, _ in _planes(source, target):
        done = 0
        if whole and size:
            there = target.as_blocks(writer, whole, size)
            here = source.as_blocks(reader, whole, size)
            if move_blocks(there, here, target.ids, source.ids, whole):
                done = whole * size
        for token, blocks, length in stretches(done):
            place = target.piece(writer, token, blocks, length)
            move(place, source.piece(reader, token, blocks, length))


def _cast_all(source: Side, target: Side, count: int, scales: torch.Tensor | None) -> torch.Tensor | None:
    """Every layer's parts in another dtype; gives the scales of a quantised one."""
    import torch

    shape = (source.spec.num_layers, len(source.spec.parts), source.spec.num_kv_heads)
    made = torch.empty(shape) if target.spec.dtype in QUANTISED else None
    stretches = list(pieces(source, target, count))
    for reader, writer, layer, part in _planes(source, target):
        scale = None if scales is None else scales[layer, part]
        if made is not None:
            made[layer, part] = _largest(source, reader, stretches, scale) / torch.finfo(writer.dtype).max
        new_scale = None if made is None else made[layer, part]
        for token, blocks, length in stretches:
            place = target.piece(writer, token, blocks, length)
            _cast(place, source.piece(reader, token, blocks, length), scale, new_scale)
    return made


def _planes(source: Side, target: Side) -> Iterator[tuple[torch.Tensor, torch.Tensor, int, int]]:
    for layer in range(source.spec.num_layers):
        for part in range(len(source.spec.parts)):
            yield source.plane(layer, part), target.plane(layer, part), layer, part


def move(place: torch.Tensor, piece: torch.Tensor) -> None:
    """The same bytes elsewhere; a tiled side is split like the other one."""
    import torch

    raw = {1: torch.uint8, 2: torch.int16, 4: torch.int32}[piece.element_size()]
    place, piece = _alike(place, piece)
    place.view(raw).copy_(piece.view(raw))


def _alike(one: torch.Tensor, other: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Both with as many axes: a dim that only one of them has in two halves is split in the other too."""
    if one.dim() < other.dim():
        return _split(one, other.shape[-1]), other
    if other.dim() < one.dim():
        return one, _split(other, one.shape[-1])
    if one.shape != other.shape:
        raise InvalidRequest("both sides are tiled, by different sizes", field="layout")
    return one, other


def _split(view: torch.Tensor, tile: int) -> torch.Tensor:
    """The last axis as two: tiles, and what is in each."""
    step = view.stride(-1)
    shape = (*view.shape[:-1], view.shape[-1] // tile, tile)
    return view.as_strided(shape, (*view.stride()[:-1], tile * step, step), int(view.storage_offset()))


def _cast(
    place: torch.Tensor, piece: torch.Tensor, scale: torch.Tensor | None, new_scale: torch.Tensor | None
) -> None:
    """The same numbers in another dtype, as near as it has them."""
    place, piece = _alike(place, piece)
    if scale is None and new_scale is None:
        place.copy_(piece)
        return
    import torch

    numbers = piece.to(torch.float32)
    by_head = [1] * piece.dim()
    by_head[2] = -1
    if scale is not None:
        numbers = numbers * scale.view(by_head)
    if new_scale is not None:
        divisor = torch.where(new_scale > 0, new_scale, torch.ones_like(new_scale))
        numbers = numbers / divisor.view(by_head)
    place.copy_(numbers.to(place.dtype))


def _largest(
    source: Side, view: torch.Tensor, runs: Sequence[tuple[int, int, int]], scale: torch.Tensor | None
) -> torch.Tensor:
    """The largest magnitude of each head."""
    import torch

    found = torch.zeros(source.spec.num_kv_heads)
    for token, blocks, size in runs:
        piece = source.piece(view, token, blocks, size).to(torch.float32).abs()
        axes = [axis for axis in range(piece.dim()) if axis != 2]
        found = torch.maximum(found, piece.amax(axes))
    return found if scale is None else found * scale


def _zero_rest(target: Side, count: int) -> None:
    """Nothing of before stays in the last block."""
    size = target.spec.block_size
    rest = -count % size
    if not target.layout.is_paged or not rest:
        return
    at = target.place(count)
    for layer in range(target.spec.num_layers):
        for part in range(len(target.spec.parts)):
            target.plane(layer, part)[at.block, at.token :].zero_()
