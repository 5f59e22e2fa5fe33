"""Compiled moves and casts, where numba is installed (`kvsdk[fast]`); they are chosen by strides alone.

A conversion moves stretches of tokens, which all look the same. What one looks like on both sides is worked
out once, as a table of units:

- Bytes that are contiguous on both sides are copied as runs, however the other axes lie.
- Where one axis is contiguous there and another one here, as of transposed values, squares are transposed.
- Anything else is copied element by element.

`off()` switches all of it off, and torch and numpy do the same more slowly. Both give the same bytes.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache, lru_cache
from math import gcd, prod
from typing import TYPE_CHECKING, Any

from kvsdk.errors import InvalidRequest
from kvsdk.kv.layouts.planes import Look

if TYPE_CHECKING:
    import torch

STREAM_BYTES = 8 << 20
"""From this much on a destination is written past the cache: little of it would be there in the end."""

_LINE_BYTES = 64
_UNIT_BYTES = 256
_AHEAD_BYTES = 64 << 10
_CHUNK_BYTES = 1 << 18
"""What is cast by way of a buffer goes through one of this size, which stays in the cache."""

_IS_ON: ContextVar[bool] = ContextVar("kvsdk.kv.fast", default=True)


@contextmanager
def off() -> Generator[None]:
    """Do without compiled code in this thread or task."""
    before = _IS_ON.set(False)
    try:
        yield
    finally:
        _IS_ON.reset(before)


def is_on() -> bool:
    """Whether there is compiled code, and it is not switched off."""
    return _IS_ON.get() and _kernels() is not None


@cache
def _kernels() -> Any:
    """The compiled loops; None without numba."""
    try:
        from kvsdk.kv.moving import kernels
    except ImportError:
        return None
    return kernels


@dataclass(frozen=True, slots=True)
class _Tile:
    """What a stretch looks like on both sides, in bytes.

    Attributes:
        units: Where each unit begins there and here, in the order of there.
        lines: The cache lines of the stretch here.
        pieces: Runs of a unit; 0 where a unit is a square to be transposed.
        to_step: From one piece, or row, of a unit to the next, there.
        from_step: Likewise here.
        run: Bytes of a piece.
    """

    units: Any
    lines: Any
    pieces: int
    to_step: int
    from_step: int
    run: int


def move(there: Look, here: Look, item: int, places: Any, sources: Any, *, stream: bool) -> None:
    """Move stretches of tokens byte for byte.

    Args:
        there: How one looks in the destination, `(token, head, dim)`; a tiled dim is two axes.
        here: Likewise in the source.
        item: Bytes of an element on both sides.
        places: The address of each in the destination, in whatever axes.
        sources: Likewise in the source.
        stream: Whether to write past the cache.
    """
    tile = _tile(_axes(there, here, item, item), item)
    align = gcd(_align(places, tile.units), tile.to_step)
    lines = tile.lines if stream else tile.lines[:0]
    ends = (places.reshape(-1), sources.reshape(-1), tile.units, lines, _ahead(tile.lines))
    if not tile.pieces:
        loop = _kernels().squares(item, int(stream and align % 16 == 0))
        loop(*ends, tile.to_step, tile.from_step)
        return
    width = gcd(tile.run, _LINE_BYTES)
    is_streamed = stream and gcd(width, align) >= 16
    width = gcd(width, align) if is_streamed else width
    loop = _kernels().runs(width, width == tile.run, int(is_streamed))
    loop(*ends, tile.pieces, tile.to_step, tile.from_step, tile.run)


@lru_cache(maxsize=256)
def _axes(there: Look, here: Look, to_item: int, from_item: int) -> tuple[tuple[int, int, int], ...]:
    """Size and both strides of each axis that has more than one element, in bytes."""
    there, here = _alike(there, here)
    if there.sizes != here.sizes:
        raise InvalidRequest(f"{here.sizes} elements do not become {there.sizes}", field="kv")
    axes = zip(there.sizes, there.strides, here.strides, strict=True)
    return tuple((size, one * to_item, other * from_item) for size, one, other in axes if size > 1)


def _alike(one: Look, other: Look) -> tuple[Look, Look]:
    """Both with as many axes: a dim that only one of them has in two halves is split in the other too."""
    if len(one.sizes) < len(other.sizes):
        return _split(one, other.sizes[-1]), other
    if len(other.sizes) < len(one.sizes):
        return one, _split(other, one.sizes[-1])
    return one, other


def _split(look: Look, tile: int) -> Look:
    (*sizes, size), (*strides, step) = look
    return Look((*sizes, size // tile, tile), (*strides, tile * step, step))


def _align(places: Any, units: Any) -> int:
    """What divides every address that is written to."""
    import numpy as np

    return gcd(int(np.bitwise_or.reduce(places, None) | np.bitwise_or.reduce(units[:, 0])), _LINE_BYTES)


def _ahead(lines: Any) -> int:
    """How many stretches ahead to fetch: small ones are over before the next one has come."""
    return max(1, _AHEAD_BYTES // (len(lines) * _LINE_BYTES))


@lru_cache(maxsize=64)
def _tile(axes: tuple[tuple[int, int, int], ...], item: int) -> _Tile:
    left, run = list(axes), item
    while grown := [axis for axis in left if axis[1] == axis[2] == run]:
        run *= grown[0][0]
        left.remove(grown[0])
    square = _square(left, item) if run == item else None
    if square:
        left, to_step, from_step = square
        return _made(left, 0, to_step, from_step, 16 // item, 16)
    part = gcd(run, _UNIT_BYTES)
    if run > part >= 256:
        left.append((run // part, part, part))
        run = part
    pieces, to_step, from_step = 1, 0, 0
    if run < 256 and left:
        pieces, to_step, from_step = min(left, key=lambda axis: axis[1])
        left.remove((pieces, to_step, from_step))
    return _made(left, pieces, to_step, from_step, pieces, run)


def _square(
    axes: list[tuple[int, int, int]], item: int
) -> tuple[list[tuple[int, int, int]], int, int] | None:
    """The axes by squares, and the steps between a square's rows there and here; None without squares."""
    size = 16 // item
    rows = next((axis for axis in axes if axis[1] == item and axis[0] % size == 0), None)
    columns = next((axis for axis in axes if axis[2] == item and axis[0] % size == 0), None)
    if rows is None or columns is None:
        return None
    left = [axis for axis in axes if axis not in (rows, columns)]
    left.append((rows[0] // size, 16, size * rows[2]))
    left.append((columns[0] // size, size * columns[1], 16))
    return left, columns[1], rows[2]


def _made(
    axes: list[tuple[int, int, int]], pieces: int, to_step: int, from_step: int, rows: int, run: int
) -> _Tile:
    """A tile of units at each place of these axes, which read so many rows each."""
    import numpy as np

    units = np.zeros((1, 2), np.int64)
    for size, *steps in axes:
        units = (units[:, None] + np.arange(size)[:, None] * np.array(steps)).reshape(-1, 2)
    units = np.ascontiguousarray(units[np.argsort(units[:, 0], kind="stable")])
    starts = units[:, 1, None] + np.arange(rows) * from_step
    ends = np.arange(0, run, _LINE_BYTES)
    lines = np.unique((starts[..., None] + ends) // _LINE_BYTES) * _LINE_BYTES
    return _Tile(units, lines, pieces, to_step, from_step, run)


# ---------------------------------------------------------------------- casts


class Factors:
    """What each plane's and head's numbers are multiplied or divided by."""

    def __init__(self, values: torch.Tensor, *, is_divided: bool) -> None:
        import numpy as np

        self.values = np.ascontiguousarray(values.detach().cpu().numpy(), np.float32)
        self.scaling: int = _kernels().OVER if is_divided else _kernels().TIMES


class Largest:
    """Finds the largest magnitude of each plane and head, NaN where there is one."""

    def __init__(self, planes: int, heads: int, dtype: torch.dtype) -> None:
        import numpy as np

        self._dtype, self._lanes = dtype, _kernels().LANES
        kind = np.int32 if dtype.itemsize == 4 else np.int16
        self._found = np.zeros((planes, heads, self._lanes), kind)

    def look_at(self, here: Look, sources: Any) -> None:
        """Take in stretches of all planes: their addresses are `(layers, stretches, parts)`."""
        kernels, item = _kernels(), self._dtype.itemsize
        steps = self._found.strides
        for look, chunk, planes in _in_rows(here, item, sources.reshape(-1), _planes(sources)):
            rows, count = _rows(_axes_of_rows(look, look, item, item), look.sizes[-1] * item), look.sizes[-1]
            loop = kernels.largest(8 * item, gcd(count, self._lanes))
            ends = (chunk, rows.units, rows.lines, _ahead(rows.lines), count, rows.heads, planes)
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
    return np.broadcast_to(np.arange(layers * parts).reshape(layers, 1, parts), sources.shape).reshape(-1)


def _kind(dtype: torch.dtype) -> int | None:
    """How the compiled code calls the dtype."""
    kernels = _kernels()
    kinds: dict[str, int] = {
        "torch.float32": kernels.FLOAT32,
        "torch.float16": kernels.FLOAT16,
        "torch.bfloat16": kernels.BFLOAT16,
        "torch.float8_e4m3fn": kernels.E4M3,
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
        self._memory = np.empty(count * size + _LINE_BYTES, np.uint8)
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

    kernels, (to, from_), count = _kernels(), kinds, here.sizes[-1]
    rows = _rows(_axes_of_rows(there, here, to.itemsize, from_.itemsize), count * from_.itemsize)
    lanes = gcd(count, kernels.LANES)
    vector = lanes * to.itemsize
    is_streamed = stream and vector >= 16 and _align(places, rows.units) % vector == 0
    scaling = kernels.UNSCALED if factors is None else factors.scaling
    values = np.ones((1, 1), np.float32) if factors is None else factors.values
    if factors is None:
        planes, heads = np.zeros_like(planes), np.zeros_like(rows.heads)
    else:
        heads = rows.heads
    loop = kernels.casts(_kind(from_), _kind(to), scaling, lanes, int(is_streamed))
    lines = rows.lines if stream else rows.lines[:0]
    loop(places, sources, rows.units, lines, _ahead(rows.lines), count, heads, planes, values)


def _axes_of_rows(there: Look, here: Look, to: int, from_: int) -> tuple[tuple[int, int, int], ...]:
    """Size and both strides of token and head, in bytes."""
    if there.sizes != here.sizes:
        raise InvalidRequest(f"{here.sizes} elements do not become {there.sizes}", field="kv")
    axes = zip(there.sizes[:2], there.strides[:2], here.strides[:2], strict=True)
    return tuple((size, one * to, other * from_) for size, one, other in axes)


@dataclass(frozen=True, slots=True)
class _Rows:
    """The rows of a stretch: where each begins there and here, its head, and the cache lines here."""

    units: Any
    heads: Any
    lines: Any


@lru_cache(maxsize=64)
def _rows(axes: tuple[tuple[int, int, int], ...], run: int) -> _Rows:
    import numpy as np

    tile = _made(list(axes), 1, 0, 0, 1, run)
    (tokens, token_step, _), (heads, head_step, _) = axes
    places = np.arange(tokens)[:, None] * token_step + np.arange(heads) * head_step
    order = np.argsort(places.reshape(-1), kind="stable")
    return _Rows(tile.units, np.tile(np.arange(heads), tokens)[order], tile.lines)
