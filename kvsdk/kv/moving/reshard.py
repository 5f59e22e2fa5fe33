"""KV of a model that runs on several devices, for another number of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate
from typing import Any, Literal

from kvsdk.errors import InvalidRequest
from kvsdk.kv.layouts.layout import Layout
from kvsdk.kv.layouts.planes import allocate
from kvsdk.kv.models.spec import KVSpec
from kvsdk.kv.moving.apart import check_apart
from kvsdk.kv.moving.sides import Side
from kvsdk.kv.moving.transfer import Heads, Transfer, move_together


def reshard(
    shards: Sequence[Any],
    spec: KVSpec,
    layout: Layout | str,
    *,
    to: int,
    axis: Literal["tp", "pp"] = "tp",
    out: Sequence[Any] | None = None,
) -> list[Any]:
    """Cut KV anew for `to` devices. The shards are left as they are, and all have the layout.

    `tp`: heads are divided evenly. Of more devices than heads each has one head, and as many devices in a row
    have the same one as there are devices per head; copies are taken to be equal, and the first one is read.
    `pp`: layers are divided as vLLM does (0.32, `distributed/utils.py:get_pp_indices`): evenly, and what is
    left over goes one each to the last but one device, the one before it, and so on. Where layers are Python
    sequences no byte is moved and the result has the very tensors of the shards.

    Args:
        shards: One per device, in the order of rank.
        spec: The whole model.
        layout: Theirs and the result's.
        to: How many devices.
        axis: Whether heads (`tp`) or layers (`pp`) are divided.
        out: With `tp`: where to write; new tensors by default.

    Raises:
        InvalidRequest: The heads or layers cannot be divided so, or the tensors do not fit.
    """
    if axis not in ("tp", "pp"):
        raise InvalidRequest(f"axis is 'tp' or 'pp', not {axis!r}", field="axis")
    if not shards:
        raise InvalidRequest("there are no shards", field="shards")
    if not isinstance(to, int) or isinstance(to, bool) or to < 1:
        raise InvalidRequest(f"to is a number of at least 1, not {to!r}", field="to")
    lying = Layout.of(layout)
    return _by_heads(shards, spec, lying, to, out) if axis == "tp" else _by_layers(shards, spec, lying, to)


# ---------------------------------------------------------------------- heads


def _by_heads(
    shards: Sequence[Any], spec: KVSpec, layout: Layout, to: int, out: Sequence[Any] | None
) -> list[Any]:
    if spec.kind == "mla":
        raise InvalidRequest(
            "MLA's latent is the same on every device of tp; there is nothing to cut", field="axis"
        )
    old, new = _heads(spec, len(shards)), _heads(spec, to)
    old_spec = replace(spec, num_kv_heads=len(old[0]))
    new_spec = replace(spec, num_kv_heads=len(new[0]))
    sources = [Side(shard, layout, old_spec, None) for shard in shards]
    tokens = sources[0].tokens()
    for source in sources:
        source.check(tokens, "shards")
    made = list(out) if out is not None else [allocate(layout, new_spec, tokens=tokens) for _ in new]
    if len(made) != to:
        raise InvalidRequest(f"out has {len(made)} shards, not {to}", field="out")
    transfers = []
    for heads, shard in zip(new, made, strict=True):
        target = Side(shard, layout, new_spec, None)
        if out is not None:
            target.check(tokens, "out")
            for source in sources:
                check_apart(source, target, tokens)
        for start, rank, inside, length in _overlaps(heads, old):
            transfers.append(Transfer(sources[rank], target, tokens, Heads(start, inside, length)))
    move_together(transfers)
    return made


def _heads(spec: KVSpec, devices: int) -> list[range]:
    """The heads of each device."""
    heads = spec.num_kv_heads
    if devices <= heads:
        if heads % devices:
            raise InvalidRequest(f"{heads} KV heads cannot be divided among {devices} devices", field="to")
        each = heads // devices
        return [range(rank * each, (rank + 1) * each) for rank in range(devices)]
    if devices % heads:
        raise InvalidRequest(f"{heads} KV heads cannot be copied evenly to {devices} devices", field="to")
    copies = devices // heads
    return [range(rank // copies, rank // copies + 1) for rank in range(devices)]


def _overlaps(heads: range, old: Sequence[range]) -> list[tuple[int, int, int, int]]:
    """Where a device's heads come from: `(place in it, old rank, place there, how many)`."""
    found = []
    head = heads.start
    while head < heads.stop:
        rank = next(rank for rank, those in enumerate(old) if head in those)
        length = min(heads.stop, old[rank].stop) - head
        found.append((head - heads.start, rank, head - old[rank].start, length))
        head += length
    return found


# ---------------------------------------------------------------------- layers


def _by_layers(shards: Sequence[Any], spec: KVSpec, layout: Layout, to: int) -> list[Any]:
    if to > spec.num_layers:
        raise InvalidRequest(f"{spec.num_layers} layers cannot be divided among {to} devices", field="to")
    counts = _layers(spec.num_layers, to)
    if "layer" not in layout.left:
        return _copy_layers(shards, spec, layout, counts)
    if layout.left[0] == "layer":
        whole = [layer for shard in shards for layer in shard]
        _check_layers(len(whole), spec)
        return _cut(whole, counts)
    parts = [[layer for shard in shards for layer in shard[part]] for part in range(2)]
    _check_layers(len(parts[0]), spec)
    return [list(pair) for pair in zip(*(_cut(part, counts) for part in parts), strict=True)]


def _layers(layers: int, devices: int) -> list[int]:
    counts = [layers // devices] * devices
    for left in range(layers % devices):
        counts[-2 - left] += 1
    return counts


def _cut(items: Sequence[Any], counts: Sequence[int]) -> list[list[Any]]:
    ends = list(accumulate(counts))
    return [list(items[end - count : end]) for end, count in zip(ends, counts, strict=True)]


def _check_layers(found: int, spec: KVSpec) -> None:
    if found != spec.num_layers:
        raise InvalidRequest(
            f"the shards have {found} layers, the spec says {spec.num_layers}", field="shards"
        )


def _copy_layers(shards: Sequence[Any], spec: KVSpec, layout: Layout, counts: Sequence[int]) -> list[Any]:
    """Layers that are an axis of a tensor are copied."""
    sizes = _layers(spec.num_layers, len(shards))
    source = [(rank, layer) for rank, size in enumerate(sizes) for layer in range(size)]
    old = [replace(spec, num_layers=size, layer_kinds=()) for size in sizes]
    sources = [Side(shard, layout, own, None) for shard, own in zip(shards, old, strict=True)]
    tokens = sources[0].tokens()
    made: list[Any] = []
    at = 0
    for count in counts:
        own = replace(spec, num_layers=count, layer_kinds=())
        target = Side(allocate(layout, own, tokens=tokens), layout, own, None)
        for layer in range(count):
            rank, inside = source[at]
            transfer = Transfer(sources[rank], target, tokens)
            for part in range(len(spec.parts)):
                transfer.move_plane(target.plane(layer, part), sources[rank].plane(inside, part))
            at += 1
        made.append(target.kv)
    return made
