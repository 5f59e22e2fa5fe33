"""The folder of a disk tier: where each entry's file is, and how it gets there whole.

```
index.db                 what the tier knows (metadata only)
lock                     held by whoever opens or cleans the folder
owners/<owner>.lock      held by each process that uses it, as long as it lives
tmp/<owner>.<number>     files that are being written
entries/<shard>/<name with dots>.safetensors
```

Only regular files are entries; links are not followed, and what else lies here is left alone.
"""

from __future__ import annotations

import errno
import fcntl
import itertools
import os
import re
import stat
import threading
from collections.abc import Generator, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from kvsdk.errors import InvalidRequest
from kvsdk.store.tiers.buffers import Buffer, BufferPool
from kvsdk.store.tiers.index.rows import Measured
from kvsdk.store.tiers.tier import check_name

_SUFFIX = ".safetensors"
_LONGEST_NAME = 255
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK  # a pipe must not hold anybody up
_TEMPORARY = re.compile(r"(own_[0-9a-f]{26})\.[0-9]+")
_NO_FILE = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENXIO)


class Files:
    """The files of one folder. Thread-safe.

    Args:
        root: The folder.

    Attributes:
        root: The folder.
        index: Where its index is.
        owners: Where the locks of its users are.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.index = str(root / "index.db")
        self.owners = root / "owners"
        self._entries = root / "entries"
        self._temporary = root / "tmp"
        self._numbers = itertools.count()
        self._lock = threading.Lock()
        self._unsynced: set[Path] = set()

    def prepare(self) -> None:
        """Make the folders that are missing, for this user alone."""
        self.root.mkdir(mode=0o700, parents=True, exist_ok=True)
        for folder in (self._entries, self._temporary, self.owners):
            folder.mkdir(mode=0o700, exist_ok=True)
        self._unsynced |= {self.root, self.root.parent}

    def make_index(self) -> None:
        """An empty file for the index, where there is none: SQLite would let others read it."""
        with suppress(FileExistsError):
            os.close(os.open(self.index, _NEW, 0o600))

    @contextmanager
    def alone(self) -> Generator[None]:
        """Nobody else, in whatever process, opens or cleans the folder meanwhile."""
        descriptor = os.open(self.root / "lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)

    def path(self, name: str) -> str:
        """Where an entry's file is.

        Raises:
            InvalidRequest: It is no name, or too long for a file's.
        """
        file = check_name(name).replace("/", ".") + _SUFFIX
        if len(file) > _LONGEST_NAME:
            raise InvalidRequest(f"{name:.80}… is too long for the name of a file", field="name")
        return f"{self._entries}/{_shard(name)}/{file}"

    # ------------------------------------------------------------------ one entry

    def measure(self, name: str) -> Measured | None:
        """Size and time of an entry's file."""
        try:
            found = os.lstat(self.path(name))
        except (FileNotFoundError, NotADirectoryError):
            return None
        return Measured(found.st_size, found.st_mtime) if stat.S_ISREG(found.st_mode) else None

    def drop(self, name: str) -> None:
        """Remove an entry's file. What has come in its place and is no file stays."""
        with suppress(FileNotFoundError, NotADirectoryError, IsADirectoryError):
            os.unlink(self.path(name))

    def temporary(self, owner: str) -> Path:
        """A place to write a file to that nobody else has."""
        return self._temporary / f"{owner}.{next(self._numbers)}"

    def write(self, place: Path, data: memoryview) -> None:
        """Write a new file; its content survives a power cut, if its name does."""
        descriptor = os.open(place, _NEW, 0o600)
        try:
            self.write_all(descriptor, data)
            os.fdatasync(descriptor)
        finally:
            os.close(descriptor)

    def write_all(self, descriptor: int, data: memoryview) -> None:
        """Write all of it."""
        done = 0
        while done < len(data):
            done += os.write(descriptor, data[done:])

    def move(self, place: Path, name: str) -> None:
        """Make a whole file the entry's, at once."""
        target, shard = self.path(name), self._entries / _shard(name)
        try:
            os.rename(place, target)
        except FileNotFoundError:
            shard.mkdir(mode=0o700, exist_ok=True)
            with self._lock:
                self._unsynced.add(self._entries)
            os.rename(place, target)
        with self._lock:
            self._unsynced.add(shard)

    def discard(self, place: Path) -> None:
        """Remove a file that was not finished, if it is there."""
        with suppress(FileNotFoundError):
            os.unlink(place)

    @contextmanager
    def reading(self, name: str) -> Generator[tuple[int, int] | None]:
        """An entry's open file and its size; None where there is none."""
        try:
            descriptor = os.open(self.path(name), _READ)
        except OSError as error:
            if error.errno not in _NO_FILE:
                raise
            yield None
            return
        try:
            found = os.fstat(descriptor)
            yield (descriptor, found.st_size) if stat.S_ISREG(found.st_mode) else None
        finally:
            os.close(descriptor)

    def read(self, descriptor: int, size: int, pool: BufferPool) -> Buffer | None:
        """So many bytes of a file; None where it ends before."""
        buffer = pool.take(size)
        done = 0
        try:
            while done < size:
                count = self.read_some(descriptor, buffer.view[done:], done)
                if count == 0:
                    buffer.release()
                    return None
                done += count
        except BaseException:
            buffer.release()
            raise
        return buffer

    def read_some(self, descriptor: int, into: memoryview, at: int) -> int:
        """Some bytes of a file; how many."""
        return os.preadv(descriptor, [into], at)

    # ------------------------------------------------------------------ all of them

    def names(self) -> Iterator[str]:
        """The names of all entries that have a file."""
        for shard in _listed(self._entries):
            for file in _listed(Path(shard.path)) if shard.is_dir(follow_symlinks=False) else ():
                name = _name(file.name)
                if name and _shard(name) == shard.name and file.is_file(follow_symlinks=False):
                    yield name

    def clear(self, alive: set[str]) -> None:
        """Remove the temporary files of owners that are not alive."""
        for file in _listed(self._temporary):
            written = _TEMPORARY.fullmatch(file.name)
            if written and written[1] not in alive:
                self.discard(Path(file.path))

    def sync(self) -> None:
        """Return when the names of all files survive a power cut."""
        with self._lock:
            folders, self._unsynced = self._unsynced, set()
        try:
            for folder in folders:
                self.sync_folder(folder)
        except BaseException:
            with self._lock:
                self._unsynced |= folders
            raise

    def sync_folder(self, folder: Path) -> None:
        """Return when the names in one folder survive a power cut."""
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _listed(folder: Path) -> list[os.DirEntry[str]]:
    with os.scandir(folder) as entries:
        return list(entries)


def _shard(name: str) -> str:
    return name.rpartition("/")[2][-2:]


def _name(file: str) -> str | None:
    """The name of the entry whose file is called so; None where it is no entry's."""
    name = file.removesuffix(_SUFFIX).replace(".", "/")
    try:
        return check_name(name) if file.endswith(_SUFFIX) else None
    except InvalidRequest:
        return None
