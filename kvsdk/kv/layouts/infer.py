"""The sizes of a model, from the tensors of a KV cache whose layout is known."""

from __future__ import annotations

from typing import Any

from kvsdk.errors import InvalidRequest
from kvsdk.kv.layouts.layout import Axis, Layout
from kvsdk.kv.models.spec import KVSpec


def infer_spec(kv: Any, layout: Layout, *, block_size: int) -> KVSpec:
    """What the tensors say of the model.

    Args:
        kv: The KV, in the Python sequences and tensors that its layout says.
        layout: Its layout.
        block_size: Where the layout does not show it: of slots, or where there are no blocks.

    Raises:
        InvalidRequest: The tensors do not have the layout's shape, or a size does not show in it (heads and
            dims packed into one axis): then pass a spec.
    """
    layers, sizes, dtype = _walk(kv, layout)
    keys, values = sizes[0], sizes[-1]
    if layout.is_paged and "token" in keys:
        block_size = keys["token"]
    dims = [
        _dim(axes, own, block_size, layout) for axes, own in zip(layout.axes, (keys, values), strict=True)
    ]
    return KVSpec(
        num_layers=layers,
        num_kv_heads=1 if layout.is_mla else keys["head"] if "head" in keys else _unseen("heads", layout),
        head_dim=dims[0],
        head_dim_v=None if layout.is_mla or dims[1] == dims[0] else dims[1],
        dtype=dtype,
        block_size=block_size,
        kind="mla" if layout.is_mla else "mha",
    )


def _walk(kv: Any, layout: Layout) -> tuple[int, list[dict[str, int]], str]:
    """Layers, the sizes of single axes of keys and of values, and the dtype."""
    layers = None
    parts = [kv, kv]
    for name in layout.left:
        for part in range(2):
            if not isinstance(parts[part], (list, tuple)) or not parts[part]:
                raise InvalidRequest(
                    f"the KV is no sequence by {name}, as {layout.text!r} has it", field="kv"
                )
        if name == "layer":
            layers = len(parts[0])
            parts = [part[0] for part in parts]
        else:
            parts = [part[min(at, len(part) - 1)] for at, part in enumerate(parts)]
    sizes = [_sizes(tensor, layout.axes[part], layout) for part, tensor in enumerate(parts)]
    if layers is None:
        layers = sizes[0].get("layer") or _unseen("layers", layout)
    return layers, sizes, str(parts[0].dtype).removeprefix("torch.")


def _sizes(tensor: Any, axes: tuple[Axis, ...], layout: Layout) -> dict[str, int]:
    shape = tuple(getattr(tensor, "shape", ()))
    if len(shape) != len(axes):
        raise InvalidRequest(
            f"a tensor of shape {shape} does not have the {len(axes)} axes of {layout.text!r}", field="kv"
        )
    return {" ".join(axis.names): size for axis, size in zip(axes, shape, strict=True)}


def _dim(axes: tuple[Axis, ...], sizes: dict[str, int], block_size: int, layout: Layout) -> int:
    """Elements of a head: an axis of its own, both halves of a tiled one, or half of one packed with kv."""
    for name in ("latent", "dim"):
        if name in sizes:
            return sizes[name]
    if "dim/x" in sizes:
        return sizes["dim/x"] * sizes["x"]
    for axis in axes:
        names = set(axis.names) | set(axis.value_names)
        size = sizes[" ".join(axis.names)]
        if names == {"kv", "dim"} or (axis.is_segmented and names == {"dim"}):
            return size // 2
        if axis.is_segmented and names == {"dim", "token"}:
            return size // (2 * block_size)
    return _unseen("head size", layout)


def _unseen(what: str, layout: Layout) -> int:
    raise InvalidRequest(f"the {what} does not show in tensors of {layout.text!r}; pass spec=", field="spec")
