"""Scattered stretches in one gather or scatter, instead of a copy for each.

Where an element's place is regular but for where stretches begin, both sides are rows of one length: the
longest run that is contiguous on both. Then a whole layer is one `take` into the destination (its rows lie
one after the other) or one assignment to its rows (the source's do), and each byte is moved once. The row
numbers depend on strides and places only, so they are worked out once for all layers.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

_WORD_BYTES = 8
_CHUNK_BYTES = 1 << 18
"""Rows that are scattered on both sides go through a buffer of this size, which stays in the cache."""

_Lie = tuple[tuple[int, int], ...]


def move_rows(place: torch.Tensor, piece: torch.Tensor, to: Any, from_: Any) -> bool:
    """Move stretches of tokens; False where the sides have no rows in common.

    Args:
        place: The destination's first stretch, `(token, head, dim)`.
        piece: The source's.
        to: Where each one begins there, in elements from the first one on.
        from_: Likewise here.
    """
    run, item = _run(place, piece), place.element_size()
    starts = (int(place.storage_offset()), int(piece.storage_offset()))
    if run == 0 or any(number * item % _WORD_BYTES for number in (run, *starts)):
        return False
    plan = _plan(_lie(place), _lie(piece), to.tobytes(), from_.tobytes(), run)
    if plan is None:
        return False
    writing, reading = plan
    _move(_rows(place, run, writing), writing, _rows(piece, run, reading), reading)
    return True


def _run(place: torch.Tensor, piece: torch.Tensor) -> int:
    """Elements of the longest run that is contiguous on both sides; 0 without one."""
    if place.dim() != 3 or piece.dim() != 3 or place.stride(-1) != 1 or piece.stride(-1) != 1:
        return 0
    run, left = place.shape[-1], [0, 1]
    while grown := [axis for axis in left if place.stride(axis) == piece.stride(axis) == run]:
        run *= place.shape[grown[0]]
        left.remove(grown[0])
    return run


def _lie(view: torch.Tensor) -> _Lie:
    """Size and stride of token and head."""
    return tuple(zip(view.shape[:2], view.stride()[:2], strict=True))


@lru_cache(maxsize=16)
def _plan(place: _Lie, piece: _Lie, to: bytes, from_: bytes, run: int) -> tuple[Any, Any] | None:
    """Row numbers there and here; in the destination's order where it has no gaps, else in the source's."""
    import numpy as np

    writing, reading = _numbers(place, to, run), _numbers(piece, from_, run)
    if writing is None or reading is None:
        return None
    by = writing if int(writing.max()) + 1 == len(writing) else reading
    order = np.argsort(by)
    return writing[order], reading[order]


def _numbers(lie: _Lie, starts: bytes, run: int) -> Any:
    """The row of each run, by stretch, token and head; None where one begins at no multiple of its length."""
    import numpy as np

    begins = np.frombuffer(starts, np.int64)
    outer = [(step, size) for size, step in lie if step >= run and size > 1]
    if (begins % run).any() or any(step % run for step, _ in outer):
        return None
    numbers = begins // run
    for step, size in outer:
        numbers = numbers[..., None] + np.arange(size) * (step // run)
    return numbers.reshape(-1)


def _rows(view: torch.Tensor, run: int, numbers: Any) -> Any:
    """The memory from the view's start on as rows of 8-byte words."""
    import torch

    count = int(numbers.max()) + 1
    flat = view.as_strided((count, run), (run, 1), int(view.storage_offset()))
    return flat.view(torch.int64).numpy()


def _move(place: Any, writing: Any, piece: Any, reading: Any) -> None:
    import numpy as np

    if len(writing) == len(place) and _is_in_order(writing):
        np.take(piece, reading, axis=0, out=place, mode="clip")
    elif len(reading) == len(piece) and _is_in_order(reading):
        place[writing] = piece
    else:
        step = max(1, _CHUNK_BYTES // piece[0].nbytes)
        for start in range(0, len(reading), step):
            place[writing[start : start + step]] = piece[reading[start : start + step]]


def _is_in_order(numbers: Any) -> bool:
    return bool((numbers[1:] == numbers[:-1] + 1).all())
