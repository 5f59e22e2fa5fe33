"""KV of one layout into another: each byte is moved once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from kvsdk.errors import InvalidRequest
from kvsdk.kv.layouts.layout import Layout
from kvsdk.kv.layouts.planes import allocate
from kvsdk.kv.models.spec import ITEM_BYTES, SHORT_DTYPES, KVSpec
from kvsdk.kv.moving.apart import check_apart, check_once
from kvsdk.kv.moving.casting import cast
from kvsdk.kv.moving.sides import Side
from kvsdk.kv.moving.transfer import Transfer

if TYPE_CHECKING:
    import torch

QUANTISED = ("float8_e4m3fn",)
"""Dtypes that come with scales, one for each layer, part and head."""


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
            more than any layout. It lies apart from the source, but for other blocks of the same pool.

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
    size = dst_block_size or spec.block_size
    is_same = (size, wanted) == (spec.block_size, spec.dtype)
    target_spec = spec if is_same else replace(spec, block_size=size, dtype=wanted)
    made = allocate(layout, target_spec, tokens=count) if out is None else out
    target = Side(made, layout, target_spec, dst_blocks)
    source.check(count, "src")
    target.check(count, "dst")
    if out is not None:
        check_apart(source, target, count)
        check_once(target, count)
    made_scales = _scales(scales, spec)
    transfer = Transfer(source, target, count)
    if wanted == spec.dtype:
        transfer.move()
    else:
        given, made_scales = made_scales, _new_scales(wanted, spec)
        cast(transfer, given, made_scales)
    _zero_rest(target, count)
    return (made, made_scales) if wanted in QUANTISED else made


def _check_count(count: int) -> None:
    if not isinstance(count, int) or isinstance(count, bool) or count < 0:
        raise InvalidRequest(f"num_tokens is a number of at least 0, not {count!r}", field="num_tokens")


def _dtype(dtype: str | None, spec: KVSpec) -> str:
    wanted = SHORT_DTYPES.get(dtype, dtype) if dtype else spec.dtype
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


def _new_scales(dtype: str, spec: KVSpec) -> torch.Tensor | None:
    """Room for the scales of a quantised dtype."""
    import torch

    shape = (spec.num_layers, len(spec.parts), spec.num_kv_heads)
    return torch.empty(shape) if dtype in QUANTISED else None


def _zero_rest(target: Side, count: int) -> None:
    """Nothing of before stays in the last block."""
    size = target.spec.block_size
    rest = -count % size
    if not target.is_paged or not rest:
        return
    at = target.place(count)
    for layer in range(target.spec.num_layers):
        for part in range(len(target.spec.parts)):
            target.plane(layer, part)[at.block, at.token :].zero_()
