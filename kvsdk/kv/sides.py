"""The two sides of a conversion as blocks of one size, so that whole runs of blocks are one strided copy."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import gcd
from typing import TYPE_CHECKING, Any

from kvsdk.errors import InvalidRequest
from kvsdk.kv.layout import Layout
from kvsdk.kv.planes import plane
from kvsdk.kv.spec import KVSpec

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True)
class Run:
    """Consecutive tokens that lie regularly on a side: from this block and token on."""

    block: int
    token: int


@dataclass(frozen=True, slots=True)
class Side:
    """KV of one layout and the blocks of it that count, in logical order.

    `ids` is None for a layout without blocks, and for one whose blocks lie in order from 0.
    """

    kv: Any
    layout: Layout
    spec: KVSpec
    ids: Sequence[int] | None

    def plane(self, layer: int, part: int) -> torch.Tensor:
        """The view of a layer's part; a sequence without blocks as it is."""
        return plane(self.kv, self.layout, self.spec, layer, part)

    @property
    def is_scattered(self) -> bool:
        """Whether its blocks do not follow each other."""
        ids = self.ids
        return ids is not None and any(after != before + 1 for before, after in pairwise(ids))

    def tokens(self) -> int:
        """How many tokens there is room for."""
        view = self.plane(0, 0)
        if not self.layout.is_paged:
            return int(view.shape[0])
        blocks = view.shape[0] if self.ids is None else len(self.ids)
        return int(blocks) * self.spec.block_size

    def check(self, num_tokens: int, name: str) -> None:
        """Raise unless there is room, and every block id is one."""
        room = self.tokens()
        if num_tokens > room:
            raise InvalidRequest(
                f"{name} has room for {room} tokens, not for {num_tokens}", field=f"{name}_blocks"
            )
        if self.ids is None:
            return
        if not self.layout.is_paged:
            raise InvalidRequest(f"{self.layout.text!r} has no blocks to name", field=f"{name}_blocks")
        blocks = int(self.plane(0, 0).shape[0])
        for at, block in enumerate(self.ids):
            if not isinstance(block, int) or not 0 <= block < blocks:
                raise InvalidRequest(
                    f"{name}_blocks[{at}] is {block!r}; there are blocks 0 to {blocks - 1}",
                    field=f"{name}_blocks",
                )

    def as_blocks(self, view: torch.Tensor, blocks: int, size: int) -> torch.Tensor:
        """A plane as `(block, token, head, dim)`, whose blocks the ids name."""
        return view if self.layout.is_paged else self.piece(view, 0, blocks, size)

    def place(self, token: int) -> Run:
        """Where a token lies."""
        if not self.layout.is_paged:
            return Run(0, token)
        block, inside = divmod(token, self.spec.block_size)
        return Run(block if self.ids is None else self.ids[block], inside)

    def piece(self, view: torch.Tensor, token: int, blocks: int, size: int) -> torch.Tensor:
        """A regular run, `blocks` times `size` tokens from this one on, as `(blocks, size, head, dim)`."""
        at = self.place(token)
        if not self.layout.is_paged:
            step, rest, shape = view.stride(0), view.stride()[1:], view.shape[1:]
            start = view.storage_offset() + at.token * step
            return view.as_strided((blocks, size, *shape), (size * step, step, *rest), start)
        return view[at.block : at.block + blocks, at.token : at.token + size]


def common_block_size(source: Side, target: Side) -> int | None:
    """The block size of the paged sides; None where they differ, or where no side has blocks."""
    sizes = {side.spec.block_size for side in (source, target) if side.layout.is_paged}
    return sizes.pop() if len(sizes) == 1 else None


def pieces(source: Side, target: Side, num_tokens: int, start: int = 0) -> Iterator[tuple[int, int, int]]:
    """Runs of tokens from `start` on that are regular on both sides: `(first token, blocks, tokens of each)`.

    Where both have blocks of one size, a run is as many whole blocks as follow each other on both sides. Of
    different sizes, it is one stretch of the largest size that divides both.
    """
    sizes = [side.spec.block_size for side in (source, target) if side.layout.is_paged]
    if not sizes:
        yield start, 1, num_tokens - start
        return
    size, is_uniform = gcd(*sizes), common_block_size(source, target) is not None
    token = start
    if is_uniform and not source.is_scattered and not target.is_scattered:
        blocks = (num_tokens - start) // size
        if blocks:
            yield start, blocks, size
        token += blocks * size
    while token < num_tokens:
        blocks = 1
        if is_uniform:
            while token + (blocks + 1) * size <= num_tokens and _follow(source, target, token, blocks, size):
                blocks += 1
        length = min(size, num_tokens - token)
        yield token, blocks, length
        token += blocks * length


def _follow(source: Side, target: Side, token: int, blocks: int, size: int) -> bool:
    """Whether the next block comes right after the run on both sides."""
    after = token + blocks * size
    return all(
        not side.layout.is_paged or side.place(after).block == side.place(token).block + blocks
        for side in (source, target)
    )
