"""How compiled code goes through a stretch of tokens: tables that follow from sizes and strides alone.

Stretches all look the same, so what one looks like on both sides is worked out once, as a table of units:

- Bytes that are contiguous on both sides are copied as runs, however the other axes lie.
- Where one axis is contiguous there and another one here, as of transposed values, squares are transposed.
- Anything else is copied element by element.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from math import gcd
from typing import Any

from kvsdk.errors import InvalidRequest
from kvsdk.kv.layouts.look import Look, alike

LINE_BYTES = 64
SQUARE_BYTES = 16
"""Of a square's rows: a vector of the compiled loops."""

_UNIT_BYTES = 256
_AHEAD_BYTES = 64 << 10

Axes = tuple[tuple[int, int, int], ...]
"""Size and both strides, there and here, of each axis, in bytes."""

_Left = list[tuple[int, int, int]]


@dataclass(frozen=True, slots=True)
class Tile:
    """What a stretch looks like on both sides, in bytes.

    Attributes:
        units: Where each unit begins there and here, in the order of there.
        lines: The cache lines of the stretch here, a share of them for each unit.
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

    @property
    def ahead(self) -> int:
        """How many stretches ahead to fetch: small ones are over before the next one has come."""
        return max(1, _AHEAD_BYTES // (int(self.lines.size) * LINE_BYTES))

    def align(self, places: Any) -> int:
        """What divides every address that a unit is written to."""
        import numpy as np

        bits = int(np.bitwise_or.reduce(places, None) | np.bitwise_or.reduce(self.units[:, 0]))
        return gcd(bits, LINE_BYTES)


@lru_cache(maxsize=256)
def axes(there: Look, here: Look, to_item: int, from_item: int) -> Axes:
    """The axes of a stretch that have more than one element; a dim in two halves is so on both sides."""
    there, here = alike(there, here)
    found = zip(there.sizes, there.strides, here.strides, strict=True)
    return tuple((size, one * to_item, other * from_item) for size, one, other in found if size > 1)


@lru_cache(maxsize=64)
def tile(axes: Axes, item: int) -> Tile:
    """Units whose elements have so many bytes on both sides."""
    left, run = list(axes), item
    while grown := [axis for axis in left if axis[1] == axis[2] == run]:
        run *= grown[0][0]
        left.remove(grown[0])
    square = _square(left, item) if run == item else None
    if square:
        left, to_step, from_step = square
        return _tile(left, 0, to_step, from_step, SQUARE_BYTES // item, SQUARE_BYTES)
    part = gcd(run, _UNIT_BYTES)
    if run > part >= _UNIT_BYTES:
        left.append((run // part, part, part))
        run = part
    pieces, to_step, from_step = 1, 0, 0
    if run < _UNIT_BYTES and left:
        pieces, to_step, from_step = min(left, key=lambda axis: axis[1])
        left.remove((pieces, to_step, from_step))
    return _tile(left, pieces, to_step, from_step, pieces, run)


def _square(axes: _Left, item: int) -> tuple[_Left, int, int] | None:
    """The axes by squares, and the steps between a square's rows there and here; None without squares."""
    size = SQUARE_BYTES // item
    rows = next((axis for axis in axes if axis[1] == item and axis[0] % size == 0), None)
    columns = next((axis for axis in axes if axis[2] == item and axis[0] % size == 0), None)
    if rows is None or columns is None:
        return None
    left = [axis for axis in axes if axis not in (rows, columns)]
    left.append((rows[0] // size, SQUARE_BYTES, size * rows[2]))
    left.append((columns[0] // size, size * columns[1], SQUARE_BYTES))
    return left, columns[1], rows[2]


def _tile(axes: _Left, pieces: int, to_step: int, from_step: int, rows: int, run: int) -> Tile:
    """A tile of units at each place of these axes, which read so many rows each."""
    import numpy as np

    units = np.zeros((1, 2), np.int64)
    for size, *steps in axes:
        units = (units[:, None] + np.arange(size)[:, None] * np.array(steps)).reshape(-1, 2)
    units = np.ascontiguousarray(units[np.argsort(units[:, 0], kind="stable")])
    lines = _lines(units[:, 1, None] + np.arange(rows) * from_step, run, len(units))
    return Tile(units, lines, pieces, to_step, from_step, run)


def _lines(starts: Any, run: int, units: int) -> Any:
    """The cache lines of runs, in order, as a table of so many rows; what is left of it is filled up."""
    import numpy as np

    found = np.unique((starts[..., None] + np.arange(0, run, LINE_BYTES)) // LINE_BYTES) * LINE_BYTES
    return np.resize(found, (units, -(-len(found) // units)))


@lru_cache(maxsize=64)
def rows(there: Look, here: Look, to_item: int, from_item: int) -> tuple[Tile, Any]:
    """A unit for each token and head, whose numbers lie together, and each unit's head."""
    import numpy as np

    if there.sizes != here.sizes:
        raise InvalidRequest(f"{here.sizes} elements do not become {there.sizes}", field="kv")
    outer = zip(there.sizes[:2], there.strides[:2], here.strides[:2], strict=True)
    axes = [(size, one * to_item, other * from_item) for size, one, other in outer]
    (tokens, token_step, _), (heads, head_step, _) = axes
    places = np.arange(tokens)[:, None] * token_step + np.arange(heads) * head_step
    order = np.argsort(places.reshape(-1), kind="stable")
    return _tile(axes, 1, 0, 0, 1, here.sizes[-1] * from_item), np.tile(np.arange(heads), tokens)[order]
