"""What an index remembers of an entry's use: when, by whom, how long it is wanted.

All run in a transaction.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Sequence

from kvsdk.store.tiers.tier import Hints

NAMED = "name IN (SELECT value FROM json_each(:names))"
IS_THERE = "state = 1 AND (expires_at IS NULL OR expires_at > :now)"

_USE = f"""
    UPDATE entries SET used_at = :now, is_demoted = 0,
        is_held = is_held OR :session <> '', is_pinned = is_pinned OR :is_pinned,
        expires_at = CASE WHEN :expires_at IS NULL THEN expires_at ELSE max(expires_at, :expires_at) END
    WHERE {NAMED} AND {IS_THERE}
"""  # SQLite's max() with a NULL is NULL: what never expires goes on so
_HOLD = f"""
    INSERT INTO holds SELECT id, :session, :is_pinned FROM entries WHERE {NAMED} AND {IS_THERE}
    ON CONFLICT DO UPDATE SET is_pinned = max(is_pinned, excluded.is_pinned)
"""
_COUNT_HOLDS = """
    UPDATE entries SET
        is_held = EXISTS (SELECT 1 FROM holds WHERE entry = entries.id AND session <> ''),
        is_pinned = EXISTS (SELECT 1 FROM holds WHERE entry = entries.id AND is_pinned)
    WHERE id IN (SELECT value FROM json_each(:ids))
"""


def about(names: Sequence[str], now: float) -> dict[str, object]:
    """The parameters of `NAMED` and `IS_THERE`."""
    return {"names": json.dumps(list(names)), "now": now}


def use(db: sqlite3.Connection, names: Sequence[str], hints: Hints, now: float) -> None:
    """These were used. Session, expiry and pin are added; no expiry says nothing of when they end."""
    values = about(names, now) | {"session": hints.session or "", "is_pinned": hints.pinned}
    if hints.session or hints.pinned:
        db.execute(_HOLD, values)
    db.execute(_USE, values | {"expires_at": hints.expires_at})


def put_again(
    db: sqlite3.Connection, entry: int, name: str, hints: Hints, now: float, *, is_over: bool
) -> None:
    """One that is there was put: it is used, and what is said of it holds as well.

    Args:
        db: In a transaction.
        entry: Its id.
        name: Its name.
        hints: What is said.
        now: Seconds since 1970.
        is_over: Whether it had expired, so that nothing of before counts.
    """
    if is_over or hints.expires_at is None:
        db.execute("UPDATE entries SET expires_at = ? WHERE id = ?", (hints.expires_at, entry))
    if is_over:
        db.execute("DELETE FROM holds WHERE entry = ?", (entry,))
        _count_holds(db, [entry])
    deepest = (hints.depth_tokens, entry)
    db.execute("UPDATE entries SET depth_tokens = max(depth_tokens, ?) WHERE id = ?", deepest)
    use(db, [name], hints, now)


def hold_new(db: sqlite3.Connection, entry: int, hints: Hints) -> None:
    """A new entry's first session and pin."""
    if hints.session or hints.pinned:
        db.execute("INSERT INTO holds VALUES (?, ?, ?)", (entry, hints.session or "", hints.pinned))
        _count_holds(db, [entry])


def demote(db: sqlite3.Connection, names: Sequence[str], now: float) -> None:
    """These go first, until they are used again."""
    db.execute(f"UPDATE entries SET is_demoted = 1 WHERE {NAMED} AND {IS_THERE}", about(names, now))


def unpin(db: sqlite3.Connection, names: Sequence[str], now: float) -> None:
    """Lift all pins of these; sessions go on holding them."""
    found = db.execute(f"SELECT id FROM entries WHERE is_pinned AND {NAMED}", about(names, now))
    ids = [row[0] for row in found]
    db.executemany("DELETE FROM holds WHERE session = '' AND entry = ?", [(id,) for id in ids])
    db.executemany("UPDATE holds SET is_pinned = 0 WHERE entry = ?", [(id,) for id in ids])
    _count_holds(db, ids)


def end_session(db: sqlite3.Connection, session: str) -> int:
    """Lift a session's holds; how many entries it held."""
    if not session:  # pins of no session are kept as if of one without a name
        return 0
    held = [row[0] for row in db.execute("SELECT entry FROM holds WHERE session = ?", (session,))]
    db.execute("DELETE FROM holds WHERE session = ?", (session,))
    _count_holds(db, held)
    return len(held)


def _count_holds(db: sqlite3.Connection, entries: Iterable[int]) -> None:
    db.execute(_COUNT_HOLDS, {"ids": json.dumps(list(entries))})
