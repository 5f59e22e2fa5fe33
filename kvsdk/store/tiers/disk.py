"""The disk tier: a file per entry in a folder that several processes share, and an index of them."""

from __future__ import annotations

import builtins
import errno
import os
import sqlite3
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from kvsdk.errors import InvalidRequest
from kvsdk.store.tiers.buffers import Buffer, BufferPool
from kvsdk.store.tiers.disk_files import Files
from kvsdk.store.tiers.disk_folder import Counts, Folder
from kvsdk.store.tiers.index.index import Admission
from kvsdk.store.tiers.index.policy import Policy
from kvsdk.store.tiers.tier import Hints, PolicyName, Size, Tier, TierStats, check_name, parse_size

_FULL = (errno.ENOSPC, errno.EDQUOT)
_SLACK_BYTES = 1 << 18
"""What the index and the folders may need on a full file system, besides the entry."""


class Disk(Tier):
    """Entries in the files of a folder. Thread-safe; several processes may use one folder.

    A file that is in its place is whole, and is what counts for reading: the index beside it says what is
    used, by whom, and what may go. A process that is killed leaves nothing that can be read half; what it was
    doing is cleaned up when the folder is next opened or collected. `sync` is what a power cut needs.

    Args:
        path: The folder; made if it is not there. It has to be on a local file system.
        capacity: How much fits, such as `"50GiB"`. All that use the folder share it: who opens it last with a
            capacity, or resizes, sets it. None for what is set already, or no limit if nothing is.

    Attributes:
        path: The folder.

    Raises:
        InvalidRequest: That is no folder, or no size.
    """

    name = "disk"

    def __init__(self, path: str | os.PathLike[str], capacity: Size | None = None) -> None:
        if not isinstance(path, (str, os.PathLike)) or not os.fspath(path):
            raise InvalidRequest(f"path is a folder, not {path!r}", field="path")
        self.path = Path(path).expanduser().absolute()
        self._capacity_bytes = None if capacity is None else parse_size(capacity)
        self._counts = Counts()
        self._policy = Policy("hints")
        self._clock: Callable[[], float] = time.time
        self._lock = threading.Lock()
        self._folder: Folder | None = None
        self._left_behind: builtins.list[Folder] = []

    # ------------------------------------------------------------------ opening and closing

    def open(self, *, policy: PolicyName = "hints", clock: Callable[[], float] = time.time) -> None:
        """Get ready, and finish what killed processes have left. A damaged index is built anew.

        Raises:
            ConfigurationError: The folder cannot be used, or its index is a newer kvsdk's.
            InvalidRequest: There is no such policy, or the tier is open already.
        """
        with self._lock:
            if self._folder is not None:
                raise InvalidRequest(f"the disk tier at {self.path} is open already; a store needs its own")
            self._policy, self._clock = Policy(policy), clock
            self._folder = self._enter()

    def close(self) -> None:
        """Give up what it holds open. May be called twice."""
        with self._lock:
            folder, self._folder = self._folder, None
            if folder is not None and folder.process != os.getpid():
                self._leave(folder)
            elif folder is not None:
                folder.close()

    def counts(self) -> dict[str, int]:
        """What happened since it was made, besides the ordinary.

        `no_space`: the file system was full. `adopted`: a file that the index did not know. `lost`: an entry
        whose file was gone. `damaged`: one whose file had another size, and was removed. `cut_short`: a file
        that ended while it was read. `rebuilt`: the index was damaged.
        """
        return self._counts.all()

    # ------------------------------------------------------------------ entries

    def put(self, name: str, data: Buffer, hints: Hints) -> bool:
        """Write an entry's file, evicting what has to go for it.

        Where the file system is full, what the entry needs and a little more is evicted, and it is tried once
        more.

        Returns:
            False where there is no room in the capacity or the file system, or the entry is being removed.

        Raises:
            InvalidRequest: It is no name.
            OSError: The file cannot be written.
        """
        folder = self._now()
        folder.files.path(name)
        kept = self._unless_full(lambda: self._put(folder, name, data, hints))
        if kept is None:
            size = len(data) + _SLACK_BYTES
            kept = self._unless_full(lambda: folder.free(size, name) and self._put(folder, name, data, hints))
        return bool(kept)

    def get(self, name: str, pool: BufferPool) -> Buffer | None:
        """Read an entry's file. This is no use: `touch` says what was used, all of a prefix at once.

        A file that the index does not know is adopted, without depth or holds. One whose size is not what was
        written is removed.

        Raises:
            InvalidRequest: It is no name.
            OSError: The file cannot be read.
        """
        folder = self._now()
        folder.files.path(name)
        entry = folder.index.find(name)
        if entry is not None and entry.is_over(self._clock()):
            return None
        with folder.files.reading(name) as found:
            if found is not None and (entry is None or not entry.is_ready or entry.bytes == found[1]):
                if entry is None:
                    folder.reconcile([name])
                buffer = folder.files.read(*found, pool)
                if buffer is None:
                    self._counts.add("cut_short")
                return buffer
        if found is not None:
            self._counts.add("damaged")
            folder.index.remove(name)
        elif entry is not None:
            folder.reconcile([name])
        return None

    def contains(self, names: Sequence[str]) -> builtins.list[bool]:
        """Which of these the index has; no file is looked at.

        Raises:
            InvalidRequest: One is no name.
        """
        for name in names:
            check_name(name)
        return self._now().index.contains(names)

    def expiry(self, name: str) -> float | None:
        """When an entry expires."""
        entry = self._now().index.find(check_name(name))
        return None if entry is None else entry.expires_at

    def list(self, prefix: str) -> builtins.list[str]:
        """The names that begin so, sorted."""
        return self._now().index.names(prefix)

    def remove(self, name: str) -> bool:
        """Remove an entry and its file, known to the index or not.

        Raises:
            InvalidRequest: It is no name.
            OSError: The file cannot be removed.
        """
        folder = self._now()
        folder.files.path(name)
        if folder.index.find(name) is None:
            folder.reconcile([name])
        return folder.index.remove(name)

    def touch(self, names: Sequence[str], hints: Hints) -> None:
        """These were used now, all at once."""
        self._now().index.touch(names, hints)

    def demote(self, names: Sequence[str]) -> None:
        """These go first, until they are used again."""
        self._now().index.demote(names)

    def unpin(self, names: Sequence[str]) -> None:
        """These may be evicted again, whoever pinned them."""
        self._now().index.unpin(names)

    def end_session(self, session: str) -> int:
        """The session is over, in all processes; how many entries it held."""
        return self._now().index.end_session(session)

    # ------------------------------------------------------------------ the whole

    def resize(self, capacity: Size) -> None:
        """Set how much fits, for all that use the folder; what is too much is evicted at once.

        Raises:
            InvalidRequest: That is no size.
        """
        index = self._now().index
        index.set_capacity(parse_size(capacity))
        index.shrink()

    def collect(self) -> int:
        """Remove what has expired and what the dead have left, and make index and files agree."""
        return self._now().collect()

    def stats(self) -> TierStats:
        """What all that use the folder have in it, with what has expired but is not collected yet."""
        return self._now().index.stats()

    def sync(self) -> None:
        """Return when everything that this process has put survives a power cut."""
        self._now().sync()

    # ------------------------------------------------------------------ inside

    def _new_files(self) -> Files:
        return Files(self.path)

    def _enter(self) -> Folder:
        return Folder(self._new_files(), self._policy, self._clock, self._capacity_bytes, self._counts)

    def _now(self) -> Folder:
        """The folder, opened by this process, and again where it or its index was deleted meanwhile.

        Raises:
            InvalidRequest: The tier is not open.
            ConfigurationError: The folder cannot be used any more.
        """
        folder = self._folder
        if folder is not None and not folder.is_in_place():
            with self._lock:
                folder = self._folder
                if folder is not None and not folder.is_in_place():
                    self._folder = self._enter()
                    self._leave(folder)
                    folder = self._folder
        if folder is None:
            raise InvalidRequest(f"the disk tier at {self.path} is closed, or not opened yet")
        return folder

    def _leave(self, folder: Folder) -> None:
        """Use it no more; what is under way in it goes on, so it is not closed."""
        folder.leave()
        self._left_behind.append(folder)

    def _put(self, folder: Folder, name: str, data: Buffer, hints: Hints) -> bool:
        admission = self._admit(folder, name, len(data), hints)
        if admission is Admission.PRESENT and folder.files.measure(name) is None:
            folder.reconcile([name])
            admission = self._admit(folder, name, len(data), hints)
        if admission is not Admission.WRITE:
            return admission is Admission.PRESENT
        try:
            self._write(folder, name, data)
            folder.index.publish(name, len(data))
        except BaseException:
            folder.index.abandon(name)
            raise
        return True

    def _admit(self, folder: Folder, name: str, size: int, hints: Hints) -> Admission:
        admission = folder.index.admit(name, size, hints)
        if admission is Admission.REFUSED and folder.find_room_of_the_dead():
            return folder.index.admit(name, size, hints)
        return admission

    def _write(self, folder: Folder, name: str, data: Buffer) -> None:
        place = folder.files.temporary(folder.owner)
        try:
            folder.files.write(place, data.view)
            folder.files.move(place, name)
        except BaseException:
            folder.files.discard(place)
            raise

    def _unless_full(self, job: Callable[[], bool]) -> bool | None:
        """Do it; None where the file system has no room for it, or for the index's note of it."""
        try:
            return job()
        except OSError as error:
            if error.errno not in _FULL:
                raise
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode != sqlite3.SQLITE_FULL:
                raise
        self._counts.add("no_space")
        return None
