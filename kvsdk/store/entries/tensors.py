"""What tensors of KV cannot be, whatever their layout, though each alone has the right shape."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from typing import TYPE_CHECKING, Any

from kvsdk.errors import InvalidRequest
from kvsdk.kv.moving.sides import Side

if TYPE_CHECKING:
    import torch


def check_tensors(side: Side, tokens: int, field: str) -> None:
    """Raise unless all tensors have one dtype, their own memory and room: they are moved byte by byte.

    Args:
        side: The KV; its first tensor has been looked at already.
        tokens: How many there must be room for.
        field: What the error is about.
    """
    shapes, dtypes = set(), set()
    for tensor in _tensors(side.kv):
        shapes.add(tensor.shape)
        dtypes.add(str(tensor.dtype).removeprefix("torch."))
        kind = str(tensor.layout).removeprefix("torch.")
        if kind != "strided" or tensor.is_meta:
            what = "meta" if tensor.is_meta else kind
            raise InvalidRequest(f"{field} has a {what} tensor; KV is in dense tensors", field=field)
    if len(dtypes) > 1:
        raise InvalidRequest(f"{field} has tensors of {' and '.join(sorted(dtypes))}", field=field)
    if len(shapes) > 1:
        _check_room(side, tokens, field)


def _check_room(side: Side, tokens: int, field: str) -> None:
    spec, ids = side.spec, side.ids
    needed = tokens
    if side.is_paged:
        blocks = -(-tokens // spec.block_size)
        needed = blocks if ids is None else max(ids[:blocks], default=-1) + 1
    for layer, part in product(range(spec.num_layers), range(len(spec.parts))):
        room = side.plane(layer, part).shape[0]
        if room < needed:
            what = "blocks" if side.is_paged else "tokens"
            raise InvalidRequest(f"layer {layer} of {field} has {room} {what}, not {needed}", field=field)


def check_apart(out: Any, blocks: Sequence[int] | None) -> None:
    """Raise where two elements would be written to one place.

    Args:
        out: Sequences and tensors, as a layout has them.
        blocks: Those that are written.
    """
    if blocks is not None and len(set(blocks)) < len(blocks):
        raise InvalidRequest("out_blocks names a block twice", field="out_blocks")
    starts = set()
    for tensor in _tensors(out):
        if any(size > 1 and not step for size, step in zip(tensor.shape, tensor.stride(), strict=True)):
            raise InvalidRequest("out has a tensor that was expanded: its elements share memory", field="out")
        start = (tensor.device, tensor.data_ptr())
        if tensor.numel() and start in starts:
            raise InvalidRequest("out has two tensors in the same memory", field="out")
        starts.add(start)


def _tensors(kv: Any) -> Iterator[torch.Tensor]:
    if isinstance(kv, (list, tuple)):
        for item in kv:
            yield from _tensors(item)
    elif hasattr(kv, "stride"):
        yield kv
    else:
        raise InvalidRequest(f"KV is in tensors, not in a {type(kv).__name__}", field="kv")
