"""The two sides of a conversion as blocks of one size, so that whole runs of blocks are one strided copy."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from math import gcd
from typing import TYPE_CHECKING, Any

from kvsdk.errors import InvalidRequest
from kvsdk.kv.layouts.layout import Layout
from kvsdk.kv.layouts.look import Look
from kvsdk.kv.layouts.planes import Survey, look, plane, survey
from kvsdk.kv.models.spec import KVSpec

if TYPE_CHECKING:
    import torch


_STRETCH = 16
"""Tokens: a stretch of several heads stays in the cache, and a vector of the smallest elements fits in."""


@dataclass(frozen=True, slots=True)
class Run:
    """Consecutive tokens that lie regularly on a side: from this block and token on."""

    block: int
    token: int


@dataclass(frozen=True)
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

    @cached_property
    def is_paged(self) -> bool:
        """Whether its layout has blocks."""
        return self.layout.is_paged

    @property
    def is_scattered(self) -> bool:
        """Whether its blocks do not follow each other."""
        ids = self.ids
        return ids is not None and any(after != before + 1 for before, after in pairwise(ids))

    @cached_property
    def _extent(self) -> int:
        """Blocks, or tokens of a layout without blocks, that its planes have."""
        return look(self.kv, self.layout, self.spec).sizes[0]

    def tokens(self) -> int:
        """How many tokens there is room for."""
        if not self.is_paged:
            return self._extent
        return (self._extent if self.ids is None else len(self.ids)) * self.spec.block_size

    def check(self, num_tokens: int, name: str) -> None:
        """Raise unless there is room, and every block id is one."""
        room = self.tokens()
        if num_tokens > room:
            raise InvalidRequest(
                f"{name} has room for {room} tokens, not for {num_tokens}", field=f"{name}_blocks"
            )
        if self.ids is None:
            return
        if not self.is_paged:
            raise InvalidRequest(f"{self.layout.text!r} has no blocks to name", field=f"{name}_blocks")
        at = self._first_wrong()
        if at is not None:
            raise InvalidRequest(
                f"{name}_blocks[{at}] is {self.ids[at]!r}; there are blocks 0 to {self._extent - 1}",
                field=f"{name}_blocks",
            )

    def _first_wrong(self) -> int | None:
        """The place of the first id that is no block."""
        ids = self.ids or ()
        if set(map(type, ids)) <= {int} and min(ids, default=0) >= 0 and max(ids, default=-1) < self._extent:
            return None
        are_right = (isinstance(block, int) and 0 <= block < self._extent for block in ids)
        return next((at for at, is_right in enumerate(are_right) if not is_right), None)

    def blocks(self, num_tokens: int) -> Any:
        """The ids of the blocks that so many tokens take, checked before."""
        import numpy as np

        count = -(-num_tokens // self.spec.block_size)
        return np.arange(count) if self.ids is None else self._numbers[:count]

    @cached_property
    def _numbers(self) -> Any:
        import numpy as np

        return np.frombuffer(array("q", self.ids or ()), np.int64)

    @cached_property
    def survey(self) -> Survey | None:
        """All planes at once, where they look the same."""
        return survey(self.kv, self.layout, self.spec)

    def stretch(self, plane: Look, size: int) -> Look:
        """How so many tokens of a plane look, as `(token, head, dim)`."""
        axis = 1 if self.is_paged else 0
        return Look((size, *plane.sizes[axis + 1 :]), plane.strides[axis:])

    def starts(self, plane: Look, size: int, count: int) -> Any:
        """Where each of `count` stretches of `size` tokens begins, in elements from the plane's start on."""
        import numpy as np

        steps = plane.strides
        if not self.is_paged:
            return np.arange(count) * (size * steps[0])
        if size == self.spec.block_size:
            return self.blocks(count * size) * steps[0]
        blocks, tokens = np.divmod(np.arange(count) * size, self.spec.block_size)
        if self.ids is not None:
            blocks = self._numbers[blocks]
        return blocks * steps[0] + tokens * steps[1]

    def start(self, plane: Look, token: int) -> Any:
        """Where a token lies, likewise, as an array of one."""
        import numpy as np

        at, steps = self.place(token), plane.strides
        return np.array([at.block * steps[0] + at.token * steps[1] if self.is_paged else token * steps[0]])

    def place(self, token: int) -> Run:
        """Where a token lies."""
        if not self.is_paged:
            return Run(0, token)
        block, inside = divmod(token, self.spec.block_size)
        return Run(block if self.ids is None else self.ids[block], inside)

    def piece(self, view: torch.Tensor, token: int, blocks: int, size: int) -> torch.Tensor:
        """A regular run, `blocks` times `size` tokens from this one on, as `(blocks, size, head, dim)`."""
        at = self.place(token)
        if not self.is_paged:
            step, rest, shape = view.stride(0), view.stride()[1:], view.shape[1:]
            start = view.storage_offset() + at.token * step
            return view.as_strided((blocks, size, *shape), (size * step, step, *rest), start)
        return view[at.block : at.block + blocks, at.token : at.token + size]


def common_block_size(source: Side, target: Side) -> int | None:
    """The block size of the paged sides; None where they differ, or where no side has blocks."""
    sizes = {side.spec.block_size for side in (source, target) if side.is_paged}
    return sizes.pop() if len(sizes) == 1 else None


def stretch_size(source: Side, target: Side) -> int:
    """Tokens of a stretch that crosses no block's end: the fewest from 16 on, or all that a block allows."""
    common = gcd(*(side.spec.block_size for side in (source, target) if side.is_paged)) or _STRETCH
    sizes = (size for size in range(_STRETCH, common) if common % size == 0)
    return next(sizes, common)


def runs(source: Side, target: Side, num_tokens: int, start: int = 0) -> Iterator[tuple[int, int, int]]:
    """Runs of tokens from `start` on that are regular on both sides: `(first token, blocks, tokens of each)`.

    Where both have blocks of one size, a run is as many whole blocks as follow each other on both sides. Of
    different sizes, it is one stretch of the largest size that divides both.
    """
    sizes = [side.spec.block_size for side in (source, target) if side.is_paged]
    if not sizes:
        if num_tokens > start:
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
        not side.is_paged or side.place(after).block == side.place(token).block + blocks
        for side in (source, target)
    )
