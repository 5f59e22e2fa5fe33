"""Compiled casts, where numba is installed: of rows of numbers that lie together, or by way of a buffer."""

from __future__ import annotations

from collections.abc import Iterator
from math import gcd, prod
from typing import TYPE_CHECKING, Any

from kvsdk.kv.layouts.look import Look
from kvsdk.kv.moving.fast import is_on, kernels, move
from kvsdk.kv.moving.tiles import LINE_BYTES, rows

if TYPE_CHECKING:
    import torch

_CHUNK_BYTES = 1 << 18
"""What is cast by way of a buffer goes through one of this size, which stays in the cache."""


class Factors:
    """What each plane's and head's numbers are multiplied or divided by."""

    def __init__(self, values: torch.Tensor, *, is_divided: bool) -> None:
        import numpy as np

        self.values = np.ascontiguousarray(values.detach().cpu().numpy(), np.float32)
        self.scaling: int = kernels().OVER if is_divided else kernels().TIMES


class Largest:
    """Finds the largest magnitude of each plane and head, NaN where there is one."""

    def __init__(self, planes: int, heads: int, dtype: torch.dtype) -> None:
        import numpy as np

        self._dtype, self._lanes = dtype, kernels().LANES
        kind = np.int32 if dtype.itemsize == 4 else np.int16
        self._found = np.zeros((planes, heads, self._lanes), kind)

    def look_at(self, here: Look, sources: Any) -> None:
        """Take in stretches of all planes: their addresses are `(layers, stretches, parts)`."""
        item, steps = self._dtype.itemsize, self._found.strides
        for look, chunk, planes in _in_rows(here, item, sources.reshape(-1), _planes(sources)):
            tile, heads = rows(look, look, item, item)
            count = look.sizes[-1]
            loop = kernels().largest(8 * item, gcd(count, self._lanes))
            ends = (chunk, tile.units, tile.lines, tile.ahead, count, heads, planes)
            loop(*ends, self._found.ctypes.data, steps[0], steps[1])

    def magnitudes(self) -> torch.Tensor:
        """What was found, float32, `(planes, heads)`."""
        import torch

        return torch.from_numpy(self._found.max(-1)).view(self._dtype).to(torch.float32)


def can_cast(*dtypes: torch.dtype) -> bool:
    """Whether there is compiled code that casts these."""
    return is_on() and all(_kind(dtype) is not None for dtype in dtypes)


def cast(
    there: Look,
    here: Look,
    to: torch.dtype,
    from_: torch.dtype,
    places: Any,
    sources: Any,
    factors: Factors | None,
    *,
    stream: bool,
) -> None:
    """Cast stretches of tokens: the same numbers in the destination's dtype.

    Args:
        there: How one looks in the destination.
        here: Likewise in the source.
        to: The destination's dtype.
        from_: The source's.
        places: The address of each in the destination, `(layers, stretches, parts)`.
        sources: Likewise in the source.
        factors: Of the planes, if they are scaled.
        stream: Whether to write past the cache.
    """
    kinds = (to, from_)
    flat = places.reshape(-1)
    made = None if _has_rows(there) else _Buffer(there, to.itemsize)
    step = None if made is None else len(made.starts)
    done = 0
    for look, chunk, planes in _in_rows(here, from_.itemsize, sources.reshape(-1), _planes(sources), step):
        target = flat[done : done + len(chunk)]
        done += len(chunk)
        if made is None:
            _cast_rows(there, look, kinds, target, chunk, planes, factors, stream)
            continue
        starts = made.starts[: len(chunk)]
        _cast_rows(made.look, look, kinds, starts, chunk, planes, factors, False)
        move(there, made.look, to.itemsize, target, starts, stream=stream)


def _planes(sources: Any) -> Any:
    """The number of each stretch's plane."""
    import numpy as np

    layers, _, parts = sources.shape
    return np.broadcast_to(np.arange(layers * parts).reshape(layers, 1, parts), sources.shape).flatten()


def _kind(dtype: torch.dtype) -> int | None:
    """How the compiled code calls the dtype."""
    kinds: dict[str, int] = {
        "torch.float32": kernels().FLOAT32,
        "torch.float16": kernels().FLOAT16,
        "torch.bfloat16": kernels().BFLOAT16,
        "torch.float8_e4m3fn": kernels().E4M3,
    }
    return kinds.get(str(dtype))


def _has_rows(look: Look) -> bool:
    """Whether each head's numbers lie together."""
    return len(look.sizes) == 3 and (look.strides[-1] == 1 or look.sizes[-1] == 1)


class _Buffer:
    """Room for some stretches, without gaps and untiled."""

    def __init__(self, like: Look, item: int) -> None:
        import numpy as np

        token, head, *dims = like.sizes
        dim = prod(dims)
        size = token * head * dim * item
        count = max(1, _CHUNK_BYTES // size)
        self.look = Look((token, head, dim), (head * dim, dim, 1))
        self._memory = np.empty(count * size + LINE_BYTES, np.uint8)
        self.starts = np.arange(count) * size + self._memory.ctypes.data


def _in_rows(
    here: Look, item: int, sources: Any, planes: Any, step: int | None = None
) -> Iterator[tuple[Look, Any, Any]]:
    """Stretches whose heads' numbers lie together: where they are, or gathered in a buffer.

    Yields:
        How one looks, their addresses, and the planes that they are of: all at once, or some at a time.
    """
    made = None if _has_rows(here) else _Buffer(here, item)
    step = min(step or len(sources), len(sources) if made is None else len(made.starts))
    for start in range(0, len(sources), step):
        part = slice(start, start + step)
        chunk = sources[part]
        if made is None:
            yield here, chunk, planes[part]
            continue
        starts = made.starts[: len(chunk)]
        move(made.look, here, item, starts, chunk, stream=False)
        yield made.look, starts, planes[part]


def _cast_rows(
    there: Look,
    here: Look,
    kinds: tuple[torch.dtype, torch.dtype],
    places: Any,
    sources: Any,
    planes: Any,
    factors: Factors | None,
    stream: bool,
) -> None:
    import numpy as np

    (to, from_), count = kinds, here.sizes[-1]
    tile, heads = rows(there, here, to.itemsize, from_.itemsize)
    lanes = gcd(count, kernels().LANES)
    vector = min(lanes * to.itemsize, LINE_BYTES)
    is_streamed = stream and vector >= 16 and tile.align(places) % vector == 0
    if factors is None:
        scaling, values = kernels().UNSCALED, np.ones((1, 1), np.float32)
        planes, heads = np.zeros_like(planes), np.zeros_like(heads)
    else:
        scaling, values = factors.scaling, factors.values
    loop = kernels().casts(_kind(from_), _kind(to), scaling, lanes, int(is_streamed))
    lines = tile.lines if stream else tile.lines[:, :0]
    loop(places, sources, tile.units, lines, tile.ahead, count, heads, planes, values)
