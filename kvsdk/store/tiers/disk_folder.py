"""A folder in use by a disk tier of this process: its files, its index, and the two made to agree."""

from __future__ import annotations

import logging
import os
import threading
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path

from kvsdk._ids import new_id
from kvsdk.errors import ConfigurationError
from kvsdk.store.tiers.disk_files import Files
from kvsdk.store.tiers.disk_owners import Owner, look_for_owners
from kvsdk.store.tiers.index.database import Database
from kvsdk.store.tiers.index.index import Index
from kvsdk.store.tiers.index.policy import Policy
from kvsdk.store.tiers.index.schema import CorruptIndex

_log = logging.getLogger(__name__)


class Counts:
    """How often what has happened. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter()

    def add(self, what: str, number: int = 1) -> None:
        """It happened, so often."""
        with self._lock:
            self._counts[what] += number

    def all(self) -> dict[str, int]:
        """What happened at all."""
        with self._lock:
            return {what: number for what, number in self._counts.items() if number}


class Folder:
    """Opens a folder: makes what is missing, and finishes what the dead have left. Thread-safe.

    Args:
        files: Its files.
        policy: Which entries go first.
        clock: Seconds since 1970.
        capacity_bytes: How much fits, for all that use it; None for what is set already.
        counts: Where to count.

    Attributes:
        files: Its files.
        index: What is known of them.
        owner: Whose the files are that are being written here.
        process: The process that opened it.

    Raises:
        ConfigurationError: It cannot be used, or its index is a newer kvsdk's.
    """

    def __init__(
        self,
        files: Files,
        policy: Policy,
        clock: Callable[[], float],
        capacity_bytes: int | None,
        counts: Counts,
    ) -> None:
        self.files = files
        self.process = os.getpid()
        self._counts = counts
        try:
            files.prepare()
            with files.alone():
                self._enter(policy, clock, capacity_bytes)
        except OSError as error:
            raise ConfigurationError(f"{files.root} cannot be used as a store's folder: {error}") from error

    def close(self) -> None:
        """Not used any more."""
        self._database.close()
        self._owner.release()

    def is_in_place(self) -> bool:
        """Whether this process opened it, and its index is still the one that lies there."""
        if self.process != os.getpid():
            return False
        try:
            return _which(self.files.index) == self._index_file
        except (FileNotFoundError, NotADirectoryError):
            return False

    def leave(self) -> None:
        """Not used any more, but not closed.

        In a process that was forked this is the parent's, and SQLite must not even close it here: keep it.
        """
        self._owner.leave()

    @property
    def owner(self) -> str:
        """The name of this user of the folder."""
        return self._owner.name

    def reconcile(self, names: Iterable[str] | None = None) -> int:
        """Make the index agree with the files, all or these; how many entries were lost."""
        if names is None:
            names = sorted({*self.files.names(), *self.index.all_names()})
        adopted, lost = self.index.reconcile(names)
        self._counts.add("adopted", adopted)
        self._counts.add("lost", lost)
        return lost

    def collect(self) -> int:
        """Remove what has expired and what the dead have left, and reconcile; how many entries."""
        with self.files.alone():
            count = self._bury()[0]
            lost = self.reconcile()
        count += lost + self.index.expire()
        self.index.shrink()
        return count

    def find_room_of_the_dead(self) -> bool:
        """Clean up after those who have died over something; whether there were any."""
        if not self.index.others_are_busy():
            return False
        with self.files.alone():
            return self._bury()[1]

    def free(self, size: int, name: str) -> bool:
        """On a full file system, remove so many bytes to write this entry; False where nothing may go.

        Files go before their rows here: the index has no room for a note of it either.
        """
        names = self.index.first_to_go(size, name)
        for each in names:
            self.files.drop(each)
        self.index.reconcile(names)
        return bool(names)

    def sync(self) -> None:
        """Return when what was put here survives a power cut."""
        self.files.sync()
        self._database.checkpoint()

    def _enter(self, policy: Policy, clock: Callable[[], float], capacity_bytes: int | None) -> None:
        self._owner = Owner(self.files.owners)
        try:
            self._database = self._open_database()
            self._index_file = _which(self.files.index)
        except BaseException:
            self._owner.release()
            raise
        try:
            self.index = Index(self._database, self.files, policy, clock, self.owner)
            if capacity_bytes is not None:
                self.index.set_capacity(capacity_bytes)
            has_dead = self._bury()[1]
            if self._database.is_new or has_dead:
                self.reconcile()
            self.index.shrink()
        except BaseException:
            self.close()
            raise

    def _open_database(self) -> Database:
        path = self.files.index
        self.files.make_index()
        try:
            return Database(path)
        except CorruptIndex as error:
            self._counts.add("rebuilt")
            aside = new_id("corrupt")
            _log.warning("a store's index is damaged and built anew; the old one is *.%s: %s", aside, error)
        for file in (Path(f"{path}{suffix}") for suffix in ("", "-wal", "-shm")):
            if file.exists():
                file.rename(f"{file}.{aside}")
        self.files.make_index()
        return Database(path)

    def _bury(self) -> tuple[int, bool]:
        """Clean up after the dead, while nobody else does.

        Returns:
            How many entries nothing became of, and whether anybody had died.
        """
        alive, dead = look_for_owners(self.files.owners)
        count = self.index.bury(alive)
        self.files.clear(alive)
        for file in dead:
            file.unlink(missing_ok=True)
        return count, bool(dead) or count > 0


def _which(path: str) -> tuple[int, int]:
    """Which file lies there."""
    found = os.stat(path)
    return found.st_dev, found.st_ino
