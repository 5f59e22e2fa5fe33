"""Files and folders that take their name only once they are whole."""

from __future__ import annotations

import os
import shutil
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path

from kvsdk._ids import new_id
from kvsdk.errors import ConfigurationError, InvalidRequest
from kvsdk.kv.files.ranks import rank_file


def write(path: Path, view: memoryview) -> None:
    """Write a new file; the disk has it then."""
    with path.open("xb") as file:
        file.write(view)
        file.flush()
        os.fsync(file.fileno())


def check_target(source: Path, target: Path, *, force: bool) -> None:
    """Whether something may be written there.

    Args:
        source: What is to be converted.
        target: Where to.
        force: Whether what is there may be replaced: a file, or a folder with nothing but files of ranks.

    Raises:
        InvalidRequest: It must not.
    """
    if not os.path.isdir(target.parent):
        raise InvalidRequest(f"the folder of {target} does not exist", field="target")
    old, new = source.resolve(), target.resolve()
    if old == new or (os.path.exists(target) and target.samefile(source)):
        raise InvalidRequest(f"{target} is what is to be converted; name another place", field="target")
    if old in new.parents or new in old.parents:
        raise InvalidRequest(
            f"one of {source} and {target} lies in the other; name another place", field="target"
        )
    if not os.path.lexists(target):
        return
    if not force:
        raise InvalidRequest(f"{target} is there already; force (--force) replaces it", field="force")
    if target.is_dir() and not _is_of_ranks(target):
        raise InvalidRequest(
            f"{target} is a folder with other things in it; it is not replaced", field="force"
        )


def _is_of_ranks(folder: Path) -> bool:
    names = {path.name for path in folder.iterdir()}
    return names == {rank_file(folder, rank).name for rank in range(len(names))}


@contextmanager
def replacing(target: Path) -> Generator[Path]:
    """A place beside the target, which takes its name when all went well and is removed when not.

    Raises:
        ConfigurationError: Something cannot be written.
    """
    place = target.absolute().with_name(f".{new_id('tmp')}")
    try:
        yield place
        _publish(place, target)
    except OSError as error:
        raise ConfigurationError(f"{target} cannot be written: {error}") from error
    finally:
        _remove(place)


def _publish(place: Path, target: Path) -> None:
    if not target.is_dir() and not place.is_dir():
        place.replace(target)
        return
    # A folder can only take the name of what is not there.
    old = target.absolute().with_name(f".{new_id('tmp')}")
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
