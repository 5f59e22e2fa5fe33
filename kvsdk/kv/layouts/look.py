"""Sizes and strides of views, and how two of them come to have the same axes."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from kvsdk.errors import InvalidRequest

if TYPE_CHECKING:
    import torch


class Look(NamedTuple):
    """Sizes and strides of a view, in elements."""

    sizes: tuple[int, ...]
    strides: tuple[int, ...]

    @classmethod
    def of(cls, view: torch.Tensor) -> Look:
        """A tensor's."""
        return cls(tuple(view.shape), view.stride())

    @property
    def reach(self) -> int:
        """How far the last element is from the first."""
        return sum((size - 1) * stride for size, stride in zip(self.sizes, self.strides, strict=True))

    def split(self, axis: int, inner: int) -> Look:
        """An axis as two: runs of so many elements, and what is in each. The axis counts from the end."""
        size, step = self.sizes[axis], self.strides[axis]
        if size % inner:
            raise InvalidRequest(f"an axis of {size} elements cannot be tiled by {inner}", field="layout")
        ends = [values[axis:][1:] for values in (self.sizes, self.strides)]
        sizes = (*self.sizes[:axis], size // inner, inner, *ends[0])
        return Look(sizes, (*self.strides[:axis], inner * step, step, *ends[1]))


def alike(one: Look, other: Look) -> tuple[Look, Look]:
    """Both with the same axes: a dim that only one has in tiles, or in larger ones, is split on both sides.

    Raises:
        InvalidRequest: They do not have the same elements.
    """
    if len(one.sizes) < len(other.sizes):
        one = one.split(-1, other.sizes[-1])
    elif len(other.sizes) < len(one.sizes):
        other = other.split(-1, one.sizes[-1])
    elif one.sizes[-1] < other.sizes[-1]:
        one, other = _finer(one, other)
    elif other.sizes[-1] < one.sizes[-1]:
        other, one = _finer(other, one)
    if one.sizes != other.sizes:
        raise InvalidRequest(f"{other.sizes} elements do not become {one.sizes}", field="kv")
    return one, other


def _finer(fine: Look, coarse: Look) -> tuple[Look, Look]:
    """Tiles of two sizes as those of the smaller one."""
    tile = fine.sizes[-1]
    return fine.split(-2, coarse.sizes[-1] // tile), coarse.split(-1, tile)


def views_alike(one: torch.Tensor, other: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Likewise of tensors; nothing is copied."""
    if one.shape == other.shape:
        return one, other
    looks = alike(Look.of(one), Look.of(other))
    views = [
        view.as_strided(*look, int(view.storage_offset()))
        for view, look in zip((one, other), looks, strict=True)
    ]
    return views[0], views[1]
