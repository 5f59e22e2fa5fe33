"""No byte is written where another one is still to be read, and none is written twice."""

from __future__ import annotations

from typing import Any

from kvsdk.errors import InvalidRequest
from kvsdk.kv.layouts.look import Look
from kvsdk.kv.moving.sides import Side


def check_apart(source: Side, target: Side, num_tokens: int) -> None:
    """Raise if the target lies in the source's memory; blocks of a pool may be copied to others of it."""
    (reads, read_ends), (writes, write_ends) = _bounds(source), _bounds(target)
    if not ((reads[:, None] < write_ends) & (writes < read_ends[:, None])).any():
        return
    if not (_is_same_pool(source, target) and _have_own_blocks(source, target, num_tokens)):
        raise InvalidRequest(
            "out lies in memory that is still to be read; give it memory of its own", field="out"
        )


def check_once(target: Side, num_tokens: int) -> None:
    """Raise if two blocks are to be written to one place."""
    import numpy as np

    if target.ids is None:
        return
    blocks, counts = np.unique(target.blocks(num_tokens), return_counts=True)
    if len(counts) and counts.max() > 1:
        twice = int(blocks[counts.argmax()])
        raise InvalidRequest(f"dst_blocks has block {twice} more than once", field="dst_blocks")


def _bounds(side: Side) -> tuple[Any, Any]:
    """The first address of each plane, and the one behind its last byte."""
    import numpy as np

    found = side.survey
    if found is not None:
        sizes = [(look.reach + 1) * found.dtype.itemsize for look in found.looks]
        return found.addresses.reshape(-1), (found.addresses + sizes).reshape(-1)
    spec = side.spec
    planes = [side.plane(layer, part) for layer in range(spec.num_layers) for part in range(len(spec.parts))]
    starts = np.array([plane.data_ptr() for plane in planes], np.int64)
    sizes = [(Look.of(plane).reach + 1) * plane.itemsize for plane in planes]
    return starts, starts + sizes


def _is_same_pool(source: Side, target: Side) -> bool:
    here, there = source.survey, target.survey
    if here is None or there is None or not source.is_paged or source.spec != target.spec:
        return False
    return here.looks == there.looks and bool((here.addresses == there.addresses).all())


def _have_own_blocks(source: Side, target: Side, num_tokens: int) -> bool:
    return set(source.blocks(num_tokens).tolist()).isdisjoint(target.blocks(num_tokens).tolist())
