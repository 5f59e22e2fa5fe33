"""Blocks for the tests of cache models, and what a row of a vector table says."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from kvsdk import CacheBlock, CacheModel, Predicted


class Row(NamedTuple):
    """One request of a table, and its counts: read, written by TTL, fresh."""

    name: str
    t_s: float
    blocks: Sequence[CacheBlock]
    read: int
    write: dict[str, int]
    fresh: int
    settings: dict[str, Any] = {}  # noqa: RUF012  # never changed


def tool(digest: str, tokens: int, ttl: Any = None) -> CacheBlock:
    """A tool's definition."""
    return CacheBlock("tools", 0, "system", "tool", digest, tokens, ttl)


def system(digest: str, tokens: int, ttl: Any = None) -> CacheBlock:
    """A system text."""
    return CacheBlock("system", 0, "system", "text", digest, tokens, ttl)


def developer(digest: str, tokens: int, ttl: Any = None, *, message: int = 0) -> CacheBlock:
    """A developer message."""
    return CacheBlock("messages", message, "developer", "text", digest, tokens, ttl)


def user(digest: str, tokens: int, ttl: Any = None, *, message: int = 1, kind: str = "text") -> CacheBlock:
    """A block of a user message."""
    return CacheBlock("messages", message, "user", kind, digest, tokens, ttl)


def assistant(
    digest: str, tokens: int, ttl: Any = None, *, message: int = 2, kind: str = "text"
) -> CacheBlock:
    """A block of an answer."""
    return CacheBlock("messages", message, "assistant", kind, digest, tokens, ttl)


def play(model: CacheModel, rows: Sequence[Row]) -> None:
    """Observe a table's requests one after the other and compare each with its row."""
    for row in rows:
        counts = model.observe(row.t_s, row.blocks, **row.settings)
        assert counts == Predicted(row.read, sum(row.write.values()), row.write, row.fresh), row.name


def texts(count: int, tokens: int, ttl: Any = None) -> list[CacheBlock]:
    """So many equal-sized user texts, the last one marked."""
    blocks = [user(f"text {at}", tokens, message=at) for at in range(count)]
    return [*blocks[:-1], user(f"text {count - 1}", tokens, ttl, message=count - 1)]


def marked(count: int, ttl: Any = "30m") -> list[CacheBlock]:
    """So many marked blocks of one user message."""
    return [user(f"m{at}", 2000, ttl) for at in range(count)]
