"""Who uses the folder of a disk tier: each holds a lock that the system lifts when its process dies."""

from __future__ import annotations

import fcntl
import os
from contextlib import suppress
from pathlib import Path

from kvsdk._ids import new_id

_SUFFIX = ".lock"


class Owner:
    """One user of a folder. Make one only while nobody else looks for the living (`Files.alone`).

    Args:
        folder: Where the locks are.

    Attributes:
        name: A name that no other has.
    """

    def __init__(self, folder: Path) -> None:
        self.name = new_id("own")
        self._file = folder / f"{self.name}{_SUFFIX}"
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        self._descriptor = os.open(self._file, flags, 0o600)
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BaseException:
            self.release()
            raise

    def release(self) -> None:
        """Not a user any more."""
        with suppress(FileNotFoundError):
            os.unlink(self._file)
        os.close(self._descriptor)

    def leave(self) -> None:
        """Let go of the lock. After a fork it is the parent's, and must not outlive it here."""
        os.close(self._descriptor)


def look_for_owners(folder: Path) -> tuple[set[str], list[Path]]:
    """The names of the owners that are alive, and the locks of the dead."""
    alive: set[str] = set()
    dead: list[Path] = []
    for file in sorted(folder.glob(f"own_*{_SUFFIX}")):
        if _is_held(file):
            alive.add(file.name.removesuffix(_SUFFIX))
        else:
            dead.append(file)
    return alive, dead


def _is_held(file: Path) -> bool:
    try:
        descriptor = os.open(file, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    except OSError:  # another user's: nothing can be said, so nothing of theirs is touched
        return True
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False
