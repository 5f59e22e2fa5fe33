"""Where each element of a KV cache lies: keys or values of one layer as one strided view.

A plane is a view with axes `(block, token, head, dim)` of a paged layout, `(token, head, dim)` of one without
blocks, whatever the layout. A tiled dim is split: `(..., dim/x, x)`. Nothing is copied.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from math import prod
from typing import TYPE_CHECKING, Any

from kvsdk.errors import InvalidRequest
from kvsdk.kv.layouts.layout import Axis, Layout
from kvsdk.kv.layouts.look import Look
from kvsdk.kv.models.spec import ITEM_BYTES, KVSpec

if TYPE_CHECKING:
    import torch

TILE_BYTES = 16
"""Bytes of the inner half of a tiled axis, where a tensor is made here."""


@dataclass(slots=True)
class _Place:
    """What is known so far of where a plane's elements lie: sizes and strides by axis, outermost first."""

    offset: int
    steps: dict[str, list[tuple[int, int]]] = field(default_factory=dict)

    def add(self, name: str, size: int, stride: int) -> None:
        self.steps.setdefault(name, []).append((size, stride))


def plane(kv: Any, layout: Layout, spec: KVSpec, layer: int, part: int) -> torch.Tensor:
    """Keys (`part` 0) or values (1) of a layer; the latent is part 0.

    Raises:
        InvalidRequest: The tensors do not have the shape of the layout and the spec.
    """
    tensor = _tensor(kv, layout, spec, layer, part)
    look, offset = _lie(layout.text, spec, tensor.shape, tensor.stride(), layer, part)
    return tensor.as_strided(*look, int(tensor.storage_offset()) + offset)


@dataclass(frozen=True, slots=True)
class Survey:
    """All planes of a KV cache in a processor's memory, where those of a part look the same in every layer.

    Attributes:
        looks: Of keys and of values.
        addresses: Where each plane begins, `(layers, parts)`.
        dtype: Of the elements.
    """

    looks: list[Look]
    addresses: Any
    dtype: torch.dtype


def survey(kv: Any, layout: Layout, spec: KVSpec) -> Survey | None:
    """All planes at once; None where they do not look the same, or are elsewhere than in memory.

    Raises:
        InvalidRequest: The tensors do not have the shape of the layout and the spec.
    """
    import numpy as np

    parts, last = range(len(spec.parts)), spec.num_layers - 1
    is_listed = "layer" in layout.left
    picked = parts if "kv" in layout.left else range(1)
    layers = range(last + 1 if is_listed else 1)
    rows = [[_tensor(kv, layout, spec, layer, part) for part in picked] for layer in layers]
    dtype = rows[0][0].dtype
    kinds = [(tensor.shape, tensor.stride()) for tensor in rows[0]]
    for row in rows:
        for tensor, kind in zip(row, kinds, strict=True):
            if (tensor.shape, tensor.stride()) != kind or tensor.dtype != dtype or not tensor.is_cpu:
                return None
    lies = [_lie(layout.text, spec, *kinds[part % len(kinds)], 0, part) for part in parts]
    addresses = np.array([[tensor.data_ptr() for tensor in row] for row in rows], np.int64)
    addresses = addresses + np.array([offset for _, offset in lies]) * dtype.itemsize
    if not is_listed and last:
        ends = [_lie(layout.text, spec, *kinds[part % len(kinds)], last, part)[1] for part in parts]
        steps = [(end - offset) // last * dtype.itemsize for end, (_, offset) in zip(ends, lies, strict=True)]
        addresses = addresses + np.arange(last + 1)[:, None] * np.array(steps)
    return Survey([look for look, _ in lies], addresses, dtype)


def look(kv: Any, layout: Layout, spec: KVSpec) -> Look:
    """How the first plane looks."""
    tensor = _tensor(kv, layout, spec, 0, 0)
    return _lie(layout.text, spec, tensor.shape, tensor.stride(), 0, 0)[0]


def _tensor(kv: Any, layout: Layout, spec: KVSpec, layer: int, part: int) -> torch.Tensor:
    import torch

    tensor: torch.Tensor = _pick(kv, layout, layer, part)
    if tensor.requires_grad:
        tensor = tensor.detach()
    element = getattr(torch, spec.dtype)
    if tensor.dtype != element:
        tensor = _as(tensor, element, _where(layer, part))
    if tensor.dim() == len(layout.axes[part]):
        return tensor
    return _with_axes(tensor, len(layout.axes[part]), _where(layer, part), layout)


def _as(tensor: torch.Tensor, element: torch.dtype, where: str) -> torch.Tensor:
    """Integers are taken for the bits of the spec's dtype, as engines keep fp8 in bytes."""
    if tensor.dtype.is_floating_point or tensor.itemsize != element.itemsize:
        raise InvalidRequest(f"{where}: the tensor is {tensor.dtype}, the spec says {element}", field="kv")
    return tensor.view(element)


@lru_cache(maxsize=4096)
def _lie(
    text: str, spec: KVSpec, shape: tuple[int, ...], strides: tuple[int, ...], layer: int, part: int
) -> tuple[Look, int]:
    """How a plane looks in a tensor that looks like this, and where it begins there."""
    place = _Place(0)
    where = f"{_where(layer, part)} of {text!r}"
    for axis, size, stride in zip(Layout.parse(text).axes[part], shape, strides, strict=True):
        _lay(place, axis, size, stride, spec, layer, part, where)
    steps = place.steps
    if "dim/x" in steps:
        steps["dim"] = [*steps.pop("dim/x"), *steps.pop("x")]
        _expect(spec.parts[part], prod(size for size, _ in steps["dim"]), ("dim/x", "x"), where)
    if "block" in steps:
        _expect(spec.block_size, steps["token"][0][0], ("token",), where)
    head = steps.get("head", [(1, 0)])
    order = [*steps.get("block", []), *steps["token"], *head, *steps["dim"]]
    return Look(tuple(size for size, _ in order), tuple(stride for _, stride in order)), place.offset


def _where(layer: int, part: int) -> str:
    return f"layer {layer} {'values' if part else 'keys'}"


def _pick(kv: Any, layout: Layout, layer: int, part: int) -> Any:
    """The tensor that holds a layer's part."""
    for name in layout.left:
        at = layer if name == "layer" else part
        try:
            kv = kv[at]
        except (IndexError, TypeError, KeyError) as error:
            raise InvalidRequest(
                f"the KV is no sequence by {name} with an entry {at}, as {layout.text!r} has it", field="kv"
            ) from error
    if not hasattr(kv, "stride"):
        raise InvalidRequest(f"expected a tensor per {layout.left}, found {type(kv).__name__}", field="kv")
    return kv


def _with_axes(tensor: torch.Tensor, count: int, where: str, layout: Layout) -> torch.Tensor:
    """The tensor with as many axes as the layout: a packed last axis may come as two that lie together."""
    while tensor.dim() > count and tensor.stride(-2) == tensor.shape[-1] * tensor.stride(-1):
        shape = (*tensor.shape[:-2], tensor.shape[-2] * tensor.shape[-1])
        tensor = tensor.as_strided(shape, (*tensor.stride()[:-2], tensor.stride(-1)), tensor.storage_offset())
    if tensor.dim() != count:
        raise InvalidRequest(
            f"{where}: a tensor of shape {tuple(tensor.shape)} does not have the {count} axes of "
            f"{layout.text!r}",
            field="kv",
        )
    return tensor


def _lay(
    place: _Place, axis: Axis, size: int, stride: int, spec: KVSpec, layer: int, part: int, where: str
) -> None:
    """Take in one axis of the tensor."""
    own = axis.value_names if part else axis.names
    if axis.is_segmented:
        lengths = [_length(names, spec, at) for at, names in enumerate((axis.names, axis.value_names))]
        _expect(sum(lengths), size, own, where)
        place.offset += lengths[0] * stride if part else 0
    elif own[0] == "kv" and len(own) > 1:
        lengths = [_length(own[1:], spec, at) for at in range(2)]
        _expect(sum(lengths), size, own, where)
        place.offset += lengths[0] * stride if part else 0
        own = own[1:]
    elif len(own) == 1:
        _lay_one(place, own[0], size, stride, spec, layer, part, where)
        return
    else:
        _expect(_length(own, spec, part), size, own, where)
    for at, name in enumerate(own):
        inner = _length(own[at + 1 :], spec, part)
        place.add(name, _size(name, spec, part), stride * inner)


def _lay_one(
    place: _Place, name: str, size: int, stride: int, spec: KVSpec, layer: int, part: int, where: str
) -> None:
    if name in ("layer", "kv"):
        at = layer if name == "layer" else part
        if at >= size:
            raise InvalidRequest(f"{where}: there is no {name} {at} in an axis of {size}", field="kv")
        place.offset += at * stride
    elif name == "batch":
        _expect(1, size, (name,), where)
    elif name == "slot":
        place.add("block", size // spec.block_size, stride * spec.block_size)
        place.add("token", spec.block_size, stride)
    elif name in ("dim/x", "x"):
        place.add(name, size, stride)
    else:
        if name not in ("block", "token") or (name == "token" and "block" in place.steps):
            _expect(_size(name, spec, part), size, (name,), where)
        place.add("dim" if name == "latent" else name, size, stride)


def _size(name: str, spec: KVSpec, part: int) -> int:
    sizes = {"token": spec.block_size, "head": spec.num_kv_heads}
    return sizes[name] if name in sizes else spec.parts[part]


def _length(names: Sequence[str], spec: KVSpec, part: int) -> int:
    """Elements of an axis that is packed from these."""
    length = 1
    for name in names:
        length *= _size(name, spec, part)
    return length


def _expect(expected: int, size: int, names: Sequence[str], where: str) -> None:
    if size != expected:
        raise InvalidRequest(
            f"{where}: the axis {' '.join(names)} has {size} elements, the spec says {expected}", field="kv"
        )


# ---------------------------------------------------------------------- making tensors


def allocate(layout: Layout, spec: KVSpec, *, tokens: int, dtype: str | None = None) -> Any:
    """New KV of this layout, its content undefined: blocks enough for so many tokens.

    Args:
        layout: The layout.
        spec: The model; its block size is the new one's.
        tokens: How many there must be room for.
        dtype: Of its elements; the spec's by default.
    """
    import torch

    element = getattr(torch, dtype or spec.dtype)

    def make(layer: int, part: int) -> torch.Tensor:
        return torch.empty(tensor_shape(layout, spec, part, tokens=tokens, dtype=dtype), dtype=element)

    return arrange(layout, spec, make)


def tensor_shape(
    layout: Layout, spec: KVSpec, part: int, *, tokens: int, dtype: str | None = None
) -> tuple[int, ...]:
    """The shape of a tensor of keys (`part` 0) or values (1), without gaps; arguments as in `allocate`."""
    blocks = -(-tokens // spec.block_size)
    room = {"block": blocks, "slot": blocks * spec.block_size, "layer": spec.num_layers, "batch": 1, "kv": 2}
    tile = TILE_BYTES // ITEM_BYTES[dtype or spec.dtype]
    names = [name for axis in layout.axes[part] for name in axis.names]
    sizes = room | {"x": tile, "dim/x": spec.parts[part] // tile}
    if "x" in names and spec.parts[part] % tile:
        raise InvalidRequest(f"a dim of {spec.parts[part]} cannot be tiled by {tile}", field="layout")
    if "block" not in names and "slot" not in names:
        sizes["token"] = tokens
    return tuple(_axis_size(axis, sizes, spec, part) for axis in layout.axes[part])


def arrange(layout: Layout, spec: KVSpec, make: Callable[[int, int], Any]) -> Any:
    """A layout's Python sequences of what `make(layer, part)` gives; 0 for what is an axis of the tensors."""
    layers = range(spec.num_layers)
    if layout.left == ("layer",):
        return [make(layer, 0) for layer in layers]
    if layout.left == ("layer", "kv"):
        return [tuple(make(layer, part) for part in range(2)) for layer in layers]
    if layout.left == ("kv", "layer"):
        return [[make(layer, part) for layer in layers] for part in range(2)]
    return [make(0, part) for part in range(2)] if layout.left == ("kv",) else make(0, 0)


def _axis_size(axis: Axis, sizes: dict[str, int], spec: KVSpec, part: int) -> int:
    if axis.is_segmented:
        return sum(_length(names, spec, at) for at, names in enumerate((axis.names, axis.value_names)))
    if axis.names[0] == "kv" and axis.is_packed:
        return sum(_length(axis.names[1:], spec, at) for at in range(2))
    if axis.is_packed:
        return _length(axis.names, spec, part)
    (name,) = axis.names
    if name == "kv" and len(set(spec.parts)) > 1:
        raise InvalidRequest("keys and values of different sizes cannot share an axis kv", field="layout")
    return sizes[name] if name in sizes else _size(name, spec, part)
