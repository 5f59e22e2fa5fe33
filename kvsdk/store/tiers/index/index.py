"""What a tier has, what of it may go, and who is using it: one SQLite database, in a file or in memory.

The index knows names and sizes; the bytes are the tier's, its `Contents`. Several processes share an index in
a file. A put never makes the sizes of all rows together more than the capacity: entries that have to go are
marked in one transaction, then their bytes are removed, and only when their rows are gone too is the room
given to the new one.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from enum import Enum
from itertools import islice
from typing import Protocol

from kvsdk.store.tiers.index import rows, uses
from kvsdk.store.tiers.index.database import Database
from kvsdk.store.tiers.index.policy import Policy, links
from kvsdk.store.tiers.index.rows import Entry, Measured
from kvsdk.store.tiers.index.schema import EVICTING, READY, WRITING
from kvsdk.store.tiers.index.uses import IS_THERE, NAMED
from kvsdk.store.tiers.tier import Hints, TierStats

_BATCH = 64
"""Entries that are evicted or compared in one transaction, so that others need not wait long."""

_ALL = 1 << 62


class Contents(Protocol):
    """The bytes of a tier's entries."""

    def measure(self, name: str) -> Measured | None:
        """What is there under this name. Called in a transaction."""

    def drop(self, name: str) -> None:
        """Remove what is there, if anything. Called outside of transactions."""


class Admission(Enum):
    """What becomes of an entry that is put: write and publish it, or there is nothing to do."""

    WRITE = "write"
    PRESENT = "present"
    REFUSED = "refused"


class _NoRoom(Exception):
    """All that may go is not enough: the transaction is undone."""


class _Undone(Exception):
    """Undoes a transaction that was only a question."""


class Index:
    """The index of one tier. Thread-safe.

    Args:
        database: Where it is; closed by whoever opened it.
        contents: The bytes.
        policy: Which entries go first.
        clock: Seconds since 1970.
        owner: Whose the entries are that this one is writing or removing; no other has this name.
    """

    def __init__(
        self, database: Database, contents: Contents, policy: Policy, clock: Callable[[], float], owner: str
    ) -> None:
        self._database = database
        self._contents = contents
        self._policy = policy
        self._clock = clock
        self._owner = owner
        with database.writing() as db:
            db.execute(policy.index)

    # ------------------------------------------------------------------ putting

    def admit(self, name: str, size: int, hints: Hints) -> Admission:
        """Find room for an entry, evicting what has to go for it.

        One that is there is used again. One that another is still writing is taken over, so that it becomes
        visible even if the other dies. Nothing goes for one that is larger than the tier, or whose
        predecessor is not here: so of a prefix that is too long the head stays. After `WRITE`, call `publish`
        or `abandon`.
        """
        while True:
            try:
                with self._database.writing() as db:
                    found = rows.find(db, name)
                    if found is not None and found.state != WRITING:
                        return self._put_again(db, found, hints)
                    excess = rows.excess(db) + size - (found.bytes if found else 0)
                    if excess <= 0:
                        self._reserve(db, name, size, hints, found)
                        return Admission.WRITE
                    if excess > rows.used(db) or rows.is_astray(db, name, hints):
                        return Admission.REFUSED  # larger than the whole tier, or nobody would find it
                    victims = self._choose(db, excess, links(name)[1])
            except _NoRoom:
                return Admission.REFUSED
            self._drop(victims)

    def publish(self, name: str, size: int) -> None:
        """The bytes of an admitted entry are there: from now on it is."""
        with self._database.writing() as db:
            done = db.execute(
                "UPDATE entries SET state = ?, owner = NULL, bytes = ? WHERE name = ? AND state = ?",
                (READY, size, name, WRITING),
            ).rowcount
        if not done:  # another has written it as well, or its row went as that of a dead one
            self.reconcile([name])

    def abandon(self, name: str) -> None:
        """Nothing comes of an admitted entry."""
        with self._database.writing() as db:
            mine = (name, WRITING, self._owner)
            db.execute("DELETE FROM entries WHERE name = ? AND state = ? AND owner = ?", mine)

    def _put_again(self, db: sqlite3.Connection, found: Entry, hints: Hints) -> Admission:
        if found.state == EVICTING:
            return Admission.REFUSED
        now = self._clock()
        uses.put_again(db, found.id, found.name, hints, now, is_over=found.is_over(now))
        return Admission.PRESENT

    def _reserve(
        self, db: sqlite3.Connection, name: str, size: int, hints: Hints, found: Entry | None
    ) -> None:
        if found is not None:
            db.execute("UPDATE entries SET owner = ?, bytes = ? WHERE id = ?", (self._owner, size, found.id))
            return
        entry = rows.insert(
            db, name, size, used_at=self._clock(), state=WRITING, owner=self._owner, hints=hints
        )
        uses.hold_new(db, entry, hints)

    # ------------------------------------------------------------------ asking

    def find(self, name: str) -> Entry | None:
        """The row of a name, whatever its state."""
        with self._database.reading() as db:
            return rows.find(db, name)

    def contains(self, names: Sequence[str]) -> list[bool]:
        """Which of these are there."""
        query = f"SELECT name FROM entries WHERE {NAMED} AND {IS_THERE}"
        with self._database.reading() as db:
            found = {row[0] for row in db.execute(query, uses.about(names, self._clock()))}
        return [name in found for name in names]

    def names(self, prefix: str) -> list[str]:
        """The names that begin so, sorted."""
        query = f"SELECT name FROM entries WHERE name >= :low AND name < :high AND {IS_THERE} ORDER BY name"
        values = {"low": prefix, "high": prefix + "\U0010ffff", "now": self._clock()}
        with self._database.reading() as db:
            return [row[0] for row in db.execute(query, values)]

    def all_names(self) -> list[str]:
        """The names of all that is there or has expired."""
        with self._database.reading() as db:
            return [row[0] for row in db.execute("SELECT name FROM entries WHERE state = 1")]

    def others_are_busy(self) -> bool:
        """Whether others are writing or removing something, or have died over it."""
        query = "SELECT 1 FROM entries WHERE state <> 1 AND owner <> ? LIMIT 1"
        with self._database.reading() as db:
            return db.execute(query, (self._owner,)).fetchone() is not None

    def stats(self) -> TierStats:
        """What it holds, with what has expired but is not collected yet."""
        with self._database.reading() as db:
            entries = db.execute("SELECT count(*) FROM entries WHERE state = 1").fetchone()[0]
            used, capacity = db.execute("SELECT used_bytes, capacity_bytes FROM totals").fetchone()
        return TierStats(entries=entries, used_bytes=used, capacity_bytes=capacity)

    # ------------------------------------------------------------------ using

    def touch(self, names: Sequence[str], hints: Hints) -> None:
        """These were used now; session, expiry (unless it is None) and pin are added."""
        with self._database.writing() as db:
            uses.use(db, names, hints, self._clock())

    def demote(self, names: Sequence[str]) -> None:
        """These go first, until they are used again."""
        with self._database.writing() as db:
            uses.demote(db, names, self._clock())

    def unpin(self, names: Sequence[str]) -> None:
        """Lift all pins of these; sessions go on holding them."""
        with self._database.writing() as db:
            uses.unpin(db, names, self._clock())

    def end_session(self, session: str) -> int:
        """Lift a session's holds; how many entries it held."""
        with self._database.writing() as db:
            return uses.end_session(db, session)

    # ------------------------------------------------------------------ removing

    def remove(self, name: str) -> bool:
        """Drop an entry and its bytes; False where it was not there, or not any more."""
        with self._database.writing() as db:
            found = rows.find(db, name)
            if found is None or not found.is_ready:
                return False
            rows.mark(db, found, self._owner)
        self._drop([found])
        return not found.is_over(self._clock())

    def set_capacity(self, capacity_bytes: int) -> None:
        """How much fits from now on, for all that share the index. Call `shrink` afterwards."""
        with self._database.writing() as db:
            db.execute("UPDATE totals SET capacity_bytes = ?", (capacity_bytes,))

    def shrink(self) -> int:
        """Evict what is too much, as far as it may go; how many entries."""
        count = 0
        while True:
            with self._database.writing() as db:
                victims = self._choose(db, rows.excess(db) - rows.leaving(db), limit=_BATCH)
            if not victims:
                return count
            self._drop(victims)
            count += len(victims)

    def first_to_go(self, size: int, name: str) -> list[str]:
        """What would be evicted for so many bytes of this entry. Changes nothing, so it needs no room."""
        chosen: list[Entry] = []
        with suppress(_Undone), self._database.writing() as db:
            chosen = self._choose(db, size, links(name)[1], limit=_ALL)
            raise _Undone
        return [entry.name for entry in chosen]

    def expire(self) -> int:
        """Drop what has expired; how many entries."""
        query = (
            f"SELECT {rows.COLUMNS} FROM entries WHERE expires_at <= ? AND state = 1"
            f" ORDER BY expires_at, depth_tokens DESC LIMIT {_BATCH}"
        )
        count = 0
        while True:
            with self._database.writing() as db:
                victims = [Entry(*row) for row in db.execute(query, (self._clock(),))]
                for victim in victims:
                    rows.mark(db, victim, self._owner)
            if not victims:
                return count
            self._drop(victims)
            count += len(victims)

    def _choose(
        self, db: sqlite3.Connection, size: int, before: int | None = None, limit: int | None = None
    ) -> list[Entry]:
        """Mark entries to be evicted, until they have so many bytes together.

        Args:
            db: In a transaction.
            size: Bytes.
            before: The key of an entry that must stay, since what is to come follows it.
            limit: How many at most; without it, less than `size` is of no use and raises `_NoRoom`.
        """
        victims: list[Entry] = []
        while size > 0 and (limit is None or len(victims) < limit):
            victim = self._next(db, before)
            if victim is None and limit is None:
                raise _NoRoom
            if victim is None:
                break
            rows.mark(db, victim, self._owner)
            victims.append(victim)
            size -= victim.bytes
        return victims

    def _next(self, db: sqlite3.Connection, before: int | None) -> Entry | None:
        for query in self._policy.choices:
            row = db.execute(query, {"now": self._clock(), "before": before}).fetchone()
            if row is not None:
                return Entry(*row)
        return None

    def _drop(self, victims: Iterable[Entry]) -> None:
        """Remove the bytes of entries that are marked, then their rows; what cannot be removed stays."""
        left = list(victims)
        gone: list[Entry] = []
        try:
            while left:
                self._contents.drop(left[0].name)
                gone.append(left.pop(0))
        finally:
            mine = f"id = ? AND state = {EVICTING} AND owner = ?"
            with self._database.writing() as db:
                ids = [(entry.id, self._owner) for entry in gone]
                db.executemany(f"DELETE FROM entries WHERE {mine}", ids)
                ids = [(entry.id, self._owner) for entry in left]
                db.executemany(f"UPDATE entries SET state = 1, owner = NULL WHERE {mine}", ids)

    # ------------------------------------------------------------------ agreeing with what is there

    def reconcile(self, names: Iterable[str]) -> tuple[int, int]:
        """Make rows agree with the bytes that are there; how many were added, and how many dropped.

        Added ones have no depth and no holds, and were last used when they came.
        """
        added = dropped = 0
        rest = iter(names)
        while batch := list(islice(rest, _BATCH)):
            with self._database.writing() as db:
                now = self._clock()
                measured = [(name, self._contents.measure(name)) for name in batch]
                changes = [rows.settle(db, name, found, now) for name, found in measured]
            added += changes.count(1)
            dropped += changes.count(-1)
        if added:
            self.shrink()
        return added, dropped

    def bury(self, alive: set[str]) -> int:
        """Finish what those have left who are not alive any more; how many entries nothing became of.

        Args:
            alive: Owners, besides this one. Nobody new may come while this runs.
        """
        unfinished = f"SELECT {rows.COLUMNS} FROM entries WHERE state <> 1"
        leaving: list[Entry] = []
        lost = 0
        with self._database.writing() as db:
            for entry in [Entry(*row) for row in db.execute(unfinished)]:
                if entry.owner in alive or entry.owner == self._owner:
                    continue
                if entry.state == EVICTING:
                    rows.mark(db, entry, self._owner)
                    leaving.append(entry)
                else:
                    lost += not rows.finish(db, entry, self._contents.measure(entry.name))
        self._drop(leaving)
        return lost + len(leaving)
