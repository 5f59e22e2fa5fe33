"""One connection to an index's database, shared by the threads of a process."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Generator
from contextlib import contextmanager

from kvsdk.errors import InvalidRequest
from kvsdk.store.tiers.index.schema import open_database


class Database:
    """A connection behind a lock. Thread-safe.

    Args:
        path: A file, or `:memory:`.

    Attributes:
        is_new: Whether the tables were made just now.

    Raises:
        ConfigurationError: It is a newer kvsdk's, another program's, or cannot be opened.
        CorruptIndex: It is damaged.
    """

    def __init__(self, path: str) -> None:
        self._lock = threading.RLock()
        self._connection: sqlite3.Connection | None
        self._connection, self.is_new = open_database(path)

    @contextmanager
    def reading(self) -> Generator[sqlite3.Connection]:
        """The connection, for one query."""
        with self._lock:
            if self._connection is None:
                raise InvalidRequest("the tier is closed")
            yield self._connection

    @contextmanager
    def writing(self) -> Generator[sqlite3.Connection]:
        """The connection in a transaction; what is raised inside undoes it."""
        with self.reading() as connection:
            connection.execute("BEGIN IMMEDIATE")
            try:
                yield connection
                connection.execute("COMMIT")
            except BaseException:
                if connection.in_transaction:  # some errors, such as a full disk, have undone it already
                    connection.execute("ROLLBACK")
                raise

    def checkpoint(self) -> None:
        """Return when what was committed survives a power cut."""
        with self.reading() as connection:
            connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()

    def close(self) -> None:
        """Close it. May be called twice."""
        with self._lock:
            if self._connection is not None:
                self._connection.close()
                self._connection = None
