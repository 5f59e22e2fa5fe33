"""Proof that two KV caches hold the same, whatever layouts they lie in."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from kvsdk.kv.layouts.layout import Layout
from kvsdk.kv.models.spec import KVSpec
from kvsdk.kv.moving.convert import QUANTISED, convert

if TYPE_CHECKING:
    import torch

LOGICAL = "| block layer (kv token head dim)"
"""The order in which a block is digested: layer, keys then values, token, head, dim."""

_LOGICAL_MLA = "| block layer token latent"


class Difference(NamedTuple):
    """The first element that differs, in logical order. `token` counts from the sequence's start."""

    token: int
    layer: int
    part: str
    head: int
    dim: int


@dataclass(frozen=True, slots=True)
class Certificate:
    """What was compared and what came out.

    Attributes:
        equal: Whether every byte is the same.
        digests: Of each block of the first one, in logical order: xxh3, 128 bits, 16 bytes each. The same
            KV has the same digests in every layout.
        first_difference: Where they differ first; None where they do not.
    """

    equal: bool
    digests: tuple[bytes, ...]
    first_difference: Difference | None


def verify_equal(
    a: Any,
    a_layout: Layout | str,
    b: Any,
    b_layout: Layout | str,
    spec: KVSpec,
    *,
    num_tokens: int | None = None,
    a_blocks: Sequence[int] | None = None,
    b_blocks: Sequence[int] | None = None,
    b_block_size: int | None = None,
) -> Certificate:
    """Compare two KV caches byte for byte in logical order.

    Args:
        a: One.
        a_layout: Its layout.
        b: The other.
        b_layout: Its layout.
        spec: The model; its block size is the first one's, and that of the digests.
        num_tokens: How many tokens to compare; all of the first one by default.
        a_blocks: The first one's blocks in logical order; 0, 1, ... by default.
        b_blocks: The other one's.
        b_block_size: The other one's block size, where that differs.

    Raises:
        UnknownLayout: A name that the registry does not have.
        InvalidRequest: The tensors do not fit the layouts and the spec.
    """
    from dataclasses import replace

    ours = _logical(a, a_layout, spec, spec.block_size, num_tokens, a_blocks)
    other_spec = replace(spec, block_size=b_block_size or spec.block_size)
    count = _count(ours) * spec.block_size if num_tokens is None else num_tokens
    theirs = _logical(b, b_layout, other_spec, spec.block_size, count, b_blocks)
    digests = tuple(_digest(block) for block in ours)
    for at, block in enumerate(theirs):
        if _digest(block) != digests[at]:
            return Certificate(False, digests, _first(ours[at], block, at, spec))
    return Certificate(True, digests, None)


def _logical(
    kv: Any,
    layout: Layout | str,
    spec: KVSpec,
    block_size: int,
    num_tokens: int | None,
    blocks: Sequence[int] | None,
) -> torch.Tensor:
    """Blocks by bytes, in logical order."""
    import torch

    to = _LOGICAL_MLA if spec.kind == "mla" else LOGICAL
    made = convert(
        kv,
        layout,
        to,
        spec,
        dst_block_size=block_size,
        num_tokens=num_tokens,
        src_blocks=blocks,
        **unit_scales(spec),
    )
    found: torch.Tensor = made[0] if spec.dtype in QUANTISED else made
    return found.flatten(1).view(torch.uint8)


def unit_scales(spec: KVSpec) -> dict[str, Any]:
    """What `convert` is told to take a quantised cache's bytes as they are, whatever they stand for."""
    import torch

    if spec.dtype not in QUANTISED:
        return {}
    return {"scales": torch.ones(spec.num_layers, len(spec.parts), spec.num_kv_heads)}


def _count(blocks: torch.Tensor) -> int:
    return int(blocks.shape[0])


def _digest(block: torch.Tensor) -> bytes:
    import xxhash

    data: Any = block.numpy()
    return xxhash.xxh3_128(data).digest()


def _first(one: torch.Tensor, other: torch.Tensor, block: int, spec: KVSpec) -> Difference:
    """Where two blocks differ first."""
    from kvsdk.kv.models.spec import ITEM_BYTES

    element = int((one != other).nonzero()[0]) // ITEM_BYTES[spec.dtype]
    lengths = [spec.block_size * spec.num_kv_heads * dim for dim in spec.parts]
    layer, element = divmod(element, sum(lengths))
    part = int(element >= lengths[0])
    element -= lengths[0] if part else 0
    token, element = divmod(element, spec.num_kv_heads * spec.parts[part])
    head, dim = divmod(element, spec.parts[part])
    name = "latent" if spec.kind == "mla" else ("keys", "values")[part]
    return Difference(block * spec.block_size + token, layer, name, head, dim)
