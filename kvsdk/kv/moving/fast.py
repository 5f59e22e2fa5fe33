"""Compiled moves, where numba is installed (`kvsdk[fast]`).

`off()` switches all compiled code off, and torch and numpy do the same more slowly. Both give the same bytes.
"""

from __future__ import annotations

import warnings
from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from math import gcd
from threading import Lock
from typing import Any

from kvsdk.kv.layouts.look import Look
from kvsdk.kv.moving.tiles import LINE_BYTES, axes, tile

STREAM_BYTES = 8 << 20
"""From this much on a destination is written past the cache: little of it would be there in the end."""

_LOADING = Lock()
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
    return _IS_ON.get() and kernels() is not None


def kernels() -> Any:
    """The compiled loops; None without numba. One that is installed and does not load is warned of, once."""
    with _LOADING:
        return _load()


@cache
def _load() -> Any:
    try:
        from kvsdk.kv.moving import kernels as found
    except ModuleNotFoundError:
        return None
    except (ImportError, OSError, SystemError, AttributeError) as error:
        text = f"numba does not load, so KV is converted without it, slowly: {error}"
        warnings.warn(text, RuntimeWarning, stacklevel=3)
        return None
    return found


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
    found = tile(axes(there, here, item, item), item)
    align = gcd(found.align(places), found.to_step)
    lines = found.lines if stream else found.lines[:, :0]
    ends = (places.reshape(-1), sources.reshape(-1), found.units, lines, found.ahead)
    if not found.pieces:
        loop = kernels().squares(item, int(stream and align % 16 == 0))
        loop(*ends, found.to_step, found.from_step)
        return
    width = gcd(found.run, LINE_BYTES)
    is_streamed = stream and gcd(width, align) >= 16
    width = gcd(width, align) if is_streamed else width
    loop = kernels().runs(width, width == found.run, int(is_streamed))
    loop(*ends, found.pieces, found.to_step, found.from_step, found.run)
