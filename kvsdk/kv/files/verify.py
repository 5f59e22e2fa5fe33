"""Proof that files of KV hold the same as others: to the byte, or to the last digit of a smaller dtype."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from kvsdk.kv.files.ranks import RankFiles
from kvsdk.kv.files.shards import Shards, load_shards, reshard_shards
from kvsdk.kv.layouts.layout import Layout
from kvsdk.kv.layouts.planes import plane
from kvsdk.kv.models.spec import KVSpec
from kvsdk.kv.moving.certificate import verify_equal

if TYPE_CHECKING:
    import torch

_SLACK = 1.01
"""For the float32 arithmetic around a cast, which has digits to spare."""


class Deviation(NamedTuple):
    """How far one part is off at most.

    Attributes:
        part: `keys`, `values` or `latent`.
        error: The largest difference; infinite where one of the numbers is none.
        magnitude: The largest magnitude of what was read.
        steps: The largest difference over what the dtype's rounding may come to; above 1 it is a fault.
    """

    part: str
    error: float
    magnitude: float
    steps: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    """What was compared and what came out.

    Attributes:
        fault: What is wrong, in words; None where it is the same.
        num_blocks: Blocks that are equal byte for byte; None where the dtype is another.
        deviations: Of each part, where the dtype is another.
    """

    fault: str | None
    num_blocks: int | None = None
    deviations: tuple[Deviation, ...] = ()


class _Side(NamedTuple):
    """One rank's KV."""

    kv: Any
    scales: torch.Tensor | None
    layout: str
    spec: KVSpec


def verify_files(files: RankFiles, shards: Shards, others: RankFiles) -> Proof:
    """Read other files and compare them with KV that was read before.

    Args:
        files: Where that KV is from.
        shards: That KV, one per rank.
        others: The other files, of whatever layout, block size, dtype and number of ranks.

    Raises:
        InvalidFile: One of the others is not what was written.
        ConfigurationError: One cannot be read.
    """
    ours, theirs = files.first, others.first
    for name in ("key", "parent", "first_token", "num_tokens"):
        if getattr(ours, name) != getattr(theirs, name):
            return Proof(fault=f"the {name} differs")
    others = replace(others, num_kv_heads=files.num_kv_heads)
    back = load_shards(others)
    if fault := _unequal_copies(others):
        return Proof(fault=fault)
    back = reshard_shards(back, others, to=len(files.paths))
    spec = replace(others.spec, num_kv_heads=files.spec.num_kv_heads)
    sides = _sides(shards, ours.layout, files.spec), _sides(back, theirs.layout, spec)
    pairs = list(zip(*sides, strict=True))
    if files.spec.dtype != others.spec.dtype:
        return _compare_numbers(pairs, ours.num_tokens)
    return _compare_bytes(pairs, ours.num_tokens)


def _unequal_copies(files: RankFiles) -> str | None:
    """Of more ranks than heads, those that have the same one."""
    if files.spec.kind == "mla" or files.spec.num_kv_heads > 1:
        return None
    copies = len(files.paths) // files.num_kv_heads
    sums = [manifest.checksums for manifest in files.manifests]
    for rank, own in enumerate(sums):
        if own != sums[rank - rank % copies]:
            return f"rank {rank} differs from the other ranks that have its head"
    return None


def _sides(shards: Shards, layout: str, spec: KVSpec) -> list[_Side]:
    return [_Side(kv, scales, layout, spec) for kv, scales in zip(*shards, strict=True)]


# ---------------------------------------------------------------------- the same dtype


def _compare_bytes(pairs: Sequence[tuple[_Side, _Side]], num_tokens: int) -> Proof:
    blocks = 0
    for rank, (ours, theirs) in enumerate(pairs):
        found = verify_equal(
            ours.kv,
            ours.layout,
            theirs.kv,
            theirs.layout,
            ours.spec,
            num_tokens=num_tokens,
            b_block_size=theirs.spec.block_size,
        )
        if found.first_difference is not None:
            token, layer, part, head, dim = found.first_difference
            return Proof(
                fault=f"the {part} differ first at token {token}, layer {layer}, head {head}, element {dim} "
                f"of rank {rank}"
            )
        if not _are_equal(ours.scales, theirs.scales):
            return Proof(fault=f"the scales of rank {rank} differ")
        blocks += len(found.digests)
    return Proof(fault=None, num_blocks=blocks)


def _are_equal(one: torch.Tensor | None, other: torch.Tensor | None) -> bool:
    import torch

    if one is None or other is None:
        return one is other
    return torch.equal(one.contiguous().view(torch.uint8), other.contiguous().view(torch.uint8))


# ---------------------------------------------------------------------- another dtype


def _compare_numbers(pairs: Sequence[tuple[_Side, _Side]], num_tokens: int) -> Proof:
    spec = pairs[0][0].spec
    names = ("latent",) if spec.kind == "mla" else ("keys", "values")
    found = []
    for part, name in enumerate(names):
        each = [
            _deviation(ours, theirs, layer, part, num_tokens)
            for ours, theirs in pairs
            for layer in range(spec.num_layers)
        ]
        found.append(Deviation(name, *(max(column) for column in zip(*each, strict=True))))
    worst = max(found, key=lambda each: each.steps)
    fault = None
    if worst.steps > 1:
        dtype = pairs[0][1].spec.dtype
        fault = f"the {worst.part} are off by up to {worst.error:.3g}, more than {dtype} rounds"
    return Proof(fault=fault, deviations=tuple(found))


def _deviation(
    ours: _Side, theirs: _Side, layer: int, part: int, num_tokens: int
) -> tuple[float, float, float]:
    """Of one layer: the largest error, the largest magnitude, and the largest error of what is allowed."""
    import torch

    a, _ = _numbers(ours, layer, part, num_tokens)
    b, scale = _numbers(theirs, layer, part, num_tokens)
    is_same = (a == b) | (a.isnan() & b.isnan())
    error = (a - b).abs().masked_fill(is_same, 0.0).nan_to_num(nan=math.inf, posinf=math.inf)
    kind = torch.finfo(getattr(torch, theirs.spec.dtype))
    smallest = kind.tiny * kind.eps / 2 * scale
    allowed = torch.maximum(a.abs() * (kind.eps / 2), smallest).nan_to_num() * _SLACK
    steps = (error / allowed).masked_fill(is_same, 0.0)
    largest = a.abs().nan_to_num(posinf=math.inf)
    return float(error.max()), float(largest.max()), float(steps.max())


def _numbers(side: _Side, layer: int, part: int, num_tokens: int) -> tuple[torch.Tensor, torch.Tensor]:
    """What a plane's elements stand for, `(token, head, dim)`, float32, and the scales of its heads."""
    import torch

    spec = side.spec
    found = plane(side.kv, Layout.of(side.layout), spec, layer, part).to(torch.float32)
    flat = found.reshape(-1, spec.num_kv_heads, spec.parts[part])[:num_tokens]
    own = torch.ones(spec.num_kv_heads) if side.scales is None else side.scales[layer, part]
    scale = own.view(1, -1, 1)
    return flat * scale, scale
