"""Files and folders that take their name only once they are whole."""

from __future__ import annotations

import os
import shutil
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path

from kvsdk._ids import new_id
from kvsdk.errors import ConfigurationError

_NAME_LENGTH = 50
"""Of 255 bytes that a name may have; a character can take four."""

_sync = getattr(os, "fdatasync", os.fsync)  # macOS has no fdatasync


def write(path: Path, view: memoryview) -> None:
    """Write a new file; the disk has it then."""
    with path.open("xb") as file:
        file.write(view)
        file.flush()
        _sync(file.fileno())


@contextmanager
def replacing(target: Path) -> Generator[Path]:
    """A place beside the target, which takes its name when all went well and is removed when not.

    A process that is killed leaves it behind, as `.NAME.tmp_...`.

    Raises:
        ConfigurationError: Something cannot be written.
    """
    place = _beside(target)
    try:
        yield place
        _publish(place, target)
    except OSError as error:
        raise ConfigurationError(f"{target} cannot be written: {error.strerror or error}") from error
    finally:
        _remove(place)


def _beside(target: Path) -> Path:
    """Another name in the same folder, by which one sees what it was to be."""
    return target.absolute().with_name(f".{target.name[:_NAME_LENGTH]}.{new_id('tmp')}")


def _publish(place: Path, target: Path) -> None:
    if not target.is_dir() and not place.is_dir():
        place.replace(target)
        return
    # A folder can only take the name of what is not there.
    old = _beside(target)
    if os.path.lexists(target):
        target.rename(old)
    try:
        place.rename(target)
    except OSError:
        if os.path.lexists(old):
            old.rename(target)
        raise
    _remove(old)


def _remove(place: Path) -> None:
    if place.is_dir() and not place.is_symlink():
        shutil.rmtree(place, ignore_errors=True)
    else:
        with suppress(OSError):
            place.unlink(missing_ok=True)
