"""Rows that the database did not take, kept in a file until it does.

A spill is JSON Lines beside the ledger, one record of the table a line, so that it can be read without kvsdk.
Processes share it: whoever appends or empties it holds its lock, and a line is on disk when `keep` returns.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager, suppress
from hashlib import sha256
from pathlib import Path
from typing import IO, Any

from kvsdk._paths import cache_dir

Record = dict[str, Any]
_BATCH = 256


class Spill:
    """The places where rows may be kept; the first that takes them is used.

    Args:
        places: Files, in order of preference. They need not be there.
    """

    def __init__(self, places: Sequence[Path]) -> None:
        self._places = tuple(places)

    @classmethod
    def beside(cls, name: str) -> Spill:
        """Beside a ledger's file; else, or for a URL, in the cache folder or the one for temporary files.

        A full disk often holds both the ledger and what is beside it, so there is more than one place.
        """
        digest = sha256(name.encode()).hexdigest()[:16]
        elsewhere = [cache_dir() / "spill", Path(tempfile.gettempdir()) / f"kvsdk-spill-{os.getuid()}"]
        places = [folder / f"ledger-{digest}.jsonl" for folder in elsewhere]
        if "://" not in name:
            file = Path(name).expanduser()
            places.insert(0, Path(f"{file}.spill.jsonl"))
        return cls(places)

    @property
    def files(self) -> tuple[Path, ...]:
        """The files that hold rows now."""
        return tuple(place for place in self._places if _size(place) > 0)

    def keep(self, records: Sequence[Record]) -> Path:
        """Append records to the first place that takes them; they are on disk when it returns.

        Raises:
            OSError: No place takes them.
        """
        lines = "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records).encode()
        failure: OSError | None = None
        for place in self._places:
            try:
                place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                with _locked(place, "ab") as file:
                    _append(file, lines)
            except OSError as error:
                failure = failure or error
            else:
                return place
        raise failure or OSError("no place was named for rows that cannot be written")

    def replay(self, write: Callable[[Sequence[Record]], None]) -> int:
        """Hand every record back to the database and empty the files; gives how many there were.

        What `write` raises leaves the file as it is. A line that is no record (cut short by a crash) goes to
        a file `….rejected` beside it.
        """
        return sum(_replay(place, write) for place in self.files)


def _replay(place: Path, write: Callable[[Sequence[Record]], None]) -> int:
    try:
        with _locked(place, "r+b") as file:
            records, rejected = _read(file)
            for start in range(0, len(records), _BATCH):
                write(records[start : start + _BATCH])
            if rejected:
                with place.with_name(f"{place.name}.rejected").open("ab") as kept:
                    kept.writelines(rejected)
            place.unlink()
            return len(records)
    except FileNotFoundError:  # another process was faster
        return 0


def _read(file: IO[bytes]) -> tuple[list[Record], list[bytes]]:
    records: list[Record] = []
    rejected: list[bytes] = []
    for line in file:
        try:
            record = json.loads(line)
        except ValueError:
            record = None
        if isinstance(record, dict):
            records.append(record)
        else:
            rejected.append(line)
    return records, rejected


def _append(file: IO[bytes], lines: bytes) -> None:
    """Write all of it or nothing: a disk that is full takes half a line."""
    begins = file.seek(0, os.SEEK_END)
    rest = memoryview(lines)
    try:
        while rest:
            rest = rest[file.write(rest) :]
        os.fsync(file.fileno())
    except OSError:
        with suppress(OSError):
            os.truncate(file.fileno(), begins)
        raise


@contextmanager
def _locked(place: Path, mode: str) -> Generator[IO[bytes]]:
    """The file, held by this process alone; one that was emptied and removed meanwhile is opened anew."""
    import fcntl

    while True:
        with place.open(mode, buffering=0) as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            if _is_same(place, file):
                yield file
                return


def _is_same(place: Path, file: IO[bytes]) -> bool:
    try:
        return os.path.samestat(place.stat(), os.fstat(file.fileno()))
    except FileNotFoundError:
        return False


def _size(place: Path) -> int:
    try:
        return place.stat().st_size
    except OSError:
        return 0
