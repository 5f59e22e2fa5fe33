"""The tables of a tier's index, and how they are opened: a SQLite file, or memory."""

from __future__ import annotations

import sqlite3

from kvsdk.errors import ConfigurationError

VERSION = 1
BUSY_S = 30
"""Seconds that other processes may hold the index."""

WRITING, READY, EVICTING = 0, 1, 2
"""States of an entry: its bytes are on their way, are there, or are being removed."""

_OURS = 0x6B767364  # "kvsd": says that a SQLite file is an index of ours
_CORRUPT = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)

_TABLES = """
CREATE TABLE entries (
    id INTEGER PRIMARY KEY,
    name TEXT NOT NULL UNIQUE,
    key INTEGER,
    before INTEGER,
    bytes INTEGER NOT NULL,
    state INTEGER NOT NULL,
    owner TEXT,
    used_at REAL NOT NULL,
    depth_tokens INTEGER NOT NULL,
    expires_at REAL,
    is_demoted INTEGER NOT NULL DEFAULT 0,
    is_held INTEGER NOT NULL DEFAULT 0,
    is_pinned INTEGER NOT NULL DEFAULT 0
);
CREATE INDEX heads ON entries (key) WHERE key IS NOT NULL;
CREATE INDEX tails ON entries (before, state) WHERE before IS NOT NULL;
CREATE INDEX unfinished ON entries (state) WHERE state <> 1;
CREATE INDEX expiring ON entries (expires_at, depth_tokens DESC) WHERE expires_at IS NOT NULL;

CREATE TABLE holds (
    entry INTEGER NOT NULL REFERENCES entries ON DELETE CASCADE,
    session TEXT NOT NULL,
    is_pinned INTEGER NOT NULL,
    PRIMARY KEY (entry, session)
) WITHOUT ROWID;
CREATE INDEX of_session ON holds (session);

CREATE TABLE totals (used_bytes INTEGER NOT NULL, capacity_bytes INTEGER);
INSERT INTO totals VALUES (0, NULL);
CREATE TRIGGER more AFTER INSERT ON entries
    BEGIN UPDATE totals SET used_bytes = used_bytes + NEW.bytes; END;
CREATE TRIGGER less AFTER DELETE ON entries
    BEGIN UPDATE totals SET used_bytes = used_bytes - OLD.bytes; END;
CREATE TRIGGER other AFTER UPDATE OF bytes ON entries
    BEGIN UPDATE totals SET used_bytes = used_bytes - OLD.bytes + NEW.bytes; END;
"""


class CorruptIndex(Exception):
    """The file is damaged: it has to be built anew."""


def open_database(path: str) -> tuple[sqlite3.Connection, bool]:
    """Open an index, making its tables if there are none; gives also whether there were none.

    One process at a time may do this.

    Args:
        path: A file, or `:memory:`.

    Raises:
        CorruptIndex: The file is damaged.
        ConfigurationError: It was written by a newer kvsdk, is another program's, or cannot be opened.
    """
    try:
        db = sqlite3.connect(path, timeout=BUSY_S, isolation_level=None, check_same_thread=False)
    except sqlite3.Error as error:
        raise ConfigurationError(f"the store's index {path} cannot be opened: {error}") from error
    try:
        return db, _prepare(db, path)
    except sqlite3.DatabaseError as error:
        db.close()
        if (getattr(error, "sqlite_errorcode", 0) & 0xFF) in _CORRUPT:
            raise CorruptIndex(f"{path}: {error}") from error
        raise ConfigurationError(f"the store's index {path} cannot be opened: {error}") from error
    except BaseException:
        db.close()
        raise


def _prepare(db: sqlite3.Connection, path: str) -> bool:
    has_tables = db.execute("SELECT count(*) FROM sqlite_schema").fetchone()[0] > 0
    if has_tables:
        _check(db, path)
    for setting in ("journal_mode = WAL", "synchronous = NORMAL", "foreign_keys = ON", "temp_store = MEMORY"):
        db.execute(f"PRAGMA {setting}").fetchall()
    if not has_tables:
        marks = f"PRAGMA application_id = {_OURS}; PRAGMA user_version = {VERSION};"
        db.executescript(f"BEGIN IMMEDIATE; {_TABLES} {marks} COMMIT;")
    return not has_tables


def _check(db: sqlite3.Connection, path: str) -> None:
    """Whether it is an index of ours, of a version that is known here, and whole."""
    if db.execute("PRAGMA application_id").fetchone()[0] != _OURS:
        raise ConfigurationError(f"{path} is no index of a store; choose another folder")
    found = db.execute("PRAGMA user_version").fetchone()[0]
    if found > VERSION:
        raise ConfigurationError(
            f"the store's index {path} has version {found}, this kvsdk knows up to {VERSION}; upgrade kvsdk"
        )
    says = db.execute("PRAGMA quick_check(1)").fetchone()[0]
    if says != "ok":
        raise CorruptIndex(f"{path}: {says}")
