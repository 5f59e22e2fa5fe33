"""Rows of an index: finding, adding and marking them. All run in a transaction."""

from __future__ import annotations

import sqlite3
from typing import NamedTuple

from kvsdk.store.tiers.index.policy import links
from kvsdk.store.tiers.index.schema import EVICTING, READY
from kvsdk.store.tiers.tier import Hints

COLUMNS = "id, name, bytes, state, owner, expires_at"

_NEVER_FULL = -(1 << 62)
_INSERT = """
    INSERT INTO entries (name, key, before, bytes, state, owner, used_at, depth_tokens, expires_at)
    VALUES (:name, :key, :before, :bytes, :state, :owner, :used_at, :depth_tokens, :expires_at)
"""


class Measured(NamedTuple):
    """Bytes that are there whole, and when they came, in seconds since 1970."""

    size: int
    came_at: float


class Entry(NamedTuple):
    """A row."""

    id: int
    name: str
    bytes: int
    state: int
    owner: str | None
    expires_at: float | None

    @property
    def is_ready(self) -> bool:
        """Whether it is there, unless it has expired."""
        return self.state == READY

    def is_over(self, now: float) -> bool:
        """Whether it has expired."""
        return self.expires_at is not None and self.expires_at <= now


def find(db: sqlite3.Connection, name: str) -> Entry | None:
    """The row of a name, whatever its state."""
    row = db.execute(f"SELECT {COLUMNS} FROM entries WHERE name = ?", (name,)).fetchone()
    return None if row is None else Entry(*row)


def insert(
    db: sqlite3.Connection,
    name: str,
    size: int,
    *,
    used_at: float,
    state: int,
    owner: str | None,
    hints: Hints,
) -> int:
    """Add a row, without its holds; gives its id."""
    key, before = links(name)
    values: dict[str, object] = {"name": name, "key": key, "before": before, "bytes": size}
    values |= {"state": state, "owner": owner}
    values |= {"used_at": used_at, "depth_tokens": hints.depth_tokens, "expires_at": hints.expires_at}
    entry = db.execute(_INSERT, values).lastrowid
    assert entry is not None, "an insert has a row"
    return entry


def is_astray(db: sqlite3.Connection, name: str, hints: Hints) -> bool:
    """Whether it is not the first of its prefix, and the one before it is not here."""
    before = links(name)[1]
    if before is None or hints.depth_tokens == 0:
        return False
    query = "SELECT 1 FROM entries WHERE key = ? AND state <> ? LIMIT 1"
    return db.execute(query, (before, EVICTING)).fetchone() is None


def used(db: sqlite3.Connection) -> int:
    """Bytes of all rows, whatever their state."""
    used: int = db.execute("SELECT used_bytes FROM totals").fetchone()[0]
    return used


def excess(db: sqlite3.Connection) -> int:
    """Bytes above the capacity; below 0 where there is room."""
    used, capacity = db.execute("SELECT used_bytes, capacity_bytes FROM totals").fetchone()
    return _NEVER_FULL if capacity is None else int(used - capacity)


def leaving(db: sqlite3.Connection) -> int:
    """Bytes of what is being removed already."""
    leaving: int = db.execute("SELECT coalesce(sum(bytes), 0) FROM entries WHERE state = 2").fetchone()[0]
    return leaving


def mark(db: sqlite3.Connection, entry: Entry, owner: str) -> None:
    """The entry is being removed by this owner."""
    db.execute("UPDATE entries SET state = ?, owner = ? WHERE id = ?", (EVICTING, owner, entry.id))


def settle(db: sqlite3.Connection, name: str, measured: Measured | None, now: float) -> int:
    """Make a name's row agree with what is there: 1 where one was added, -1 where it was dropped."""
    found = find(db, name)
    if found is None and measured is not None:
        used_at = min(measured.came_at, now)
        insert(db, name, measured.size, used_at=used_at, state=READY, owner=None, hints=Hints())
        return 1
    if found is None or not found.is_ready:
        return 0
    if measured is None:
        db.execute("DELETE FROM entries WHERE id = ?", (found.id,))
        return -1
    if measured.size != found.bytes:
        db.execute("UPDATE entries SET bytes = ? WHERE id = ?", (measured.size, found.id))
    return 0


def finish(db: sqlite3.Connection, entry: Entry, measured: Measured | None) -> bool:
    """What a dead one was writing: it is there if its bytes had got to their place."""
    if measured is None:
        db.execute("DELETE FROM entries WHERE id = ?", (entry.id,))
        return False
    values = (READY, measured.size, entry.id)
    db.execute("UPDATE entries SET state = ?, owner = NULL, bytes = ? WHERE id = ?", values)
    return True
