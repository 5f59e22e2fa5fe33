"""The disk tier: its files, its index, opening and closing."""

from __future__ import annotations

import errno
import os
import stat
import tempfile
from pathlib import Path
from typing import Any

import pytest
from disk_check import check_agreement, files_of, query
from disk_using import Opener, put, read
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test
from kvsdk.errors import ConfigurationError, InvalidRequest
from kvsdk.store.tiers.buffers import BufferPool
from kvsdk.store.tiers.disk import Disk
from kvsdk.store.tiers.disk_files import Files
from tier_machine import TierMachine
from tier_twin import content_of

NAME = "kv/0/256-ab"


class DiskMachine(TierMachine):
    def new_tier(self) -> Disk:
        self.folder = tempfile.TemporaryDirectory()
        return Disk(self.folder.name)

    def teardown(self) -> None:
        if hasattr(self, "folder"):
            with self.folder:
                super().teardown()
                check_agreement(Path(self.folder.name), users=0)


def test_a_disk_tier_does_what_its_naive_twin_does() -> None:
    """Whatever is put, touched, held, pinned, ended and evicted; and its files are what its index says."""
    run_state_machine_as_test(
        DiskMachine, settings=settings(max_examples=15, stateful_step_count=20, deadline=None)
    )


# ---------------------------------------------------------------------- files


@pytest.mark.parametrize("size", [0, 1, 65_536, 3_000_001])
def test_what_was_put_is_read(opened: Opener, pool: BufferPool, size: int) -> None:
    """Also by another tier on the folder, and after everything was closed."""
    tier = opened()
    assert put(tier, pool, NAME, size)
    assert read(tier, pool, NAME) == content_of(NAME, size)
    assert read(opened(), pool, NAME) == content_of(NAME, size)
    tier.close()
    assert read(opened(), pool, NAME) == content_of(NAME, size)


def test_a_file_is_where_its_name_says(opened: Opener, pool: BufferPool, root: Path) -> None:
    """Under the last two letters of the name, with dots for slashes; only the user can read any of it."""
    tier = opened()
    put(tier, pool, NAME)
    file = root / "entries" / "ab" / "kv.0.256-ab.safetensors"
    assert file.read_bytes() == content_of(NAME, 1000)
    for path in [root, *root.rglob("*")]:
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600), path


def test_capacities_are_shared(opened: Opener, pool: BufferPool) -> None:
    """Who opens last with one, or resizes, sets it for all; None takes what is there."""
    first = opened(5000)
    for number in range(5):
        assert put(first, pool, f"fp/{number}")
    assert opened().stats().capacity_bytes == 5000
    second = opened(3000)
    assert first.stats().capacity_bytes == 3000
    assert first.stats().used_bytes == 3000
    first.resize(2000)
    assert second.stats().capacity_bytes == 2000
    assert second.list("") == ["fp/3", "fp/4"]


def test_without_a_capacity_everything_fits(opened: Opener, pool: BufferPool) -> None:
    """And the tier cannot say how much would."""
    tier = opened()
    assert put(tier, pool, NAME, 3_000_000)
    assert tier.stats().capacity_bytes is None


def test_a_session_ends_in_all_processes(opened: Opener, pool: BufferPool) -> None:
    """Holds and pins are in the index that all share."""
    first, second = opened(2000), opened()
    put(first, pool, "fp/a", session="s", pinned=True)
    put(second, pool, "fp/b")
    assert put(second, pool, "fp/c")
    assert second.list("") == ["fp/a", "fp/c"]
    assert second.end_session("s") == 1
    assert put(second, pool, "fp/d")
    assert first.list("") == ["fp/c", "fp/d"]


# ---------------------------------------------------------------------- the index


def test_an_index_that_is_gone_is_built_from_the_files(opened: Opener, pool: BufferPool, root: Path) -> None:
    """The oldest file counts as used the longest ago."""
    tier = opened()
    for number, name in enumerate(["fp/a", "fp/b", "fp/c"]):
        put(tier, pool, name)
        os.utime(files_of(root)[name], (500 - number, 500 - number))
    tier.close()
    (root / "index.db").unlink()
    tier = opened(2000)
    assert check_agreement(root, users=1) == ["fp/a", "fp/b"]
    assert read(tier, pool, "fp/a") == content_of("fp/a", 1000)


def test_a_damaged_index_is_set_aside(
    opened: Opener, pool: BufferPool, root: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It is kept, counted and logged, and the files are all found again."""
    tier = opened()
    for name in ("fp/a", "fp/b"):
        put(tier, pool, name)
    tier.close()
    (root / "index.db").write_bytes(b"no database" * 1000)
    tier = opened()
    assert check_agreement(root, users=1) == tier.list("") == ["fp/a", "fp/b"]
    assert tier.counts() == {"rebuilt": 1, "adopted": 2}
    assert "a store's index is damaged and built anew" in caplog.text
    (aside,) = root.glob("index.db.corrupt_*")
    assert aside.read_bytes() == b"no database" * 1000


def test_a_newer_index_is_refused(opened: Opener, pool: BufferPool, root: Path) -> None:
    """Nobody is left among the owners, and an upgrade finds everything as it was."""
    tier = opened()
    put(tier, pool, NAME)
    tier.close()
    query(root, "PRAGMA user_version = 7")
    with pytest.raises(ConfigurationError, match="has version 7, this kvsdk knows up to 1; upgrade kvsdk"):
        Disk(root).open()
    query(root, "PRAGMA user_version = 1")
    assert read(opened(), pool, NAME) == content_of(NAME, 1000)


# ---------------------------------------------------------------------- opening and closing


def test_a_closed_tier_says_so(opened: Opener, pool: BufferPool, root: Path) -> None:
    """Before `open` and after `close`, which may be called twice; then it may be opened again."""
    tier = Disk(root)
    with pytest.raises(InvalidRequest, match="is closed, or not opened yet"):
        tier.stats()
    tier.open()
    with pytest.raises(InvalidRequest, match="is open already"):
        tier.open()
    put(tier, pool, NAME)
    tier.close()
    tier.close()
    for call in (tier.stats, tier.sync, tier.collect, lambda: tier.get(NAME, pool), lambda: tier.list("")):
        with pytest.raises(InvalidRequest, match="is closed"):
            call()
    tier.open()
    assert read(tier, pool, NAME) == content_of(NAME, 1000)
    tier.close()
    assert check_agreement(root, users=0) == [NAME]


@pytest.mark.parametrize("path", ["", None, 7])
def test_a_folder_is_a_path(path: Any) -> None:
    """Anything else is refused when the tier is made."""
    with pytest.raises(InvalidRequest, match="path is a folder"):
        Disk(path)


@pytest.mark.parametrize("capacity", [0, -1, "much", True])
def test_a_capacity_is_a_size(root: Path, capacity: Any) -> None:
    """When it is given at all."""
    with pytest.raises(InvalidRequest, match="capacity is a size"):
        Disk(root, capacity)


def test_a_folder_that_cannot_be_used_is_said(root: Path) -> None:
    """A file in its place, with its path in the error."""
    root.write_text("a file")
    with pytest.raises(ConfigurationError, match="store cannot be used as a store's folder"):
        Disk(root).open()


def test_the_folder_stays_where_it_was(
    root: Path, pool: BufferPool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A relative path is of the time when the tier was made."""
    monkeypatch.chdir(tmp_path)
    tier = Disk("store")
    (tmp_path / "other").mkdir()
    monkeypatch.chdir(tmp_path / "other")
    tier.open()
    put(tier, pool, NAME)
    tier.close()
    assert check_agreement(root, users=0) == [NAME]


class SyncedFiles(Files):
    """Notes which folders are synced; can fail."""

    synced: list[str]
    fails = False

    def sync_folder(self, folder: Path) -> None:
        if self.fails:
            raise OSError(errno.EIO, "broken")
        super().sync_folder(folder)
        self.synced.append(folder.name)


class SyncedDisk(Disk):
    def _new_files(self) -> Files:
        self.synced_files = SyncedFiles(self.path)
        self.synced_files.synced = []
        return self.synced_files


def test_a_sync_makes_names_survive(opened: Opener, pool: BufferPool) -> None:
    """The folder of each new file, and those above it when they are new; once, unless it fails."""
    tier = opened(None, SyncedDisk)
    assert isinstance(tier, SyncedDisk)
    files = tier.synced_files
    tier.sync()
    files.synced.clear()
    put(tier, pool, "fp/ab")
    put(tier, pool, "fp/xab")
    tier.sync()
    assert sorted(files.synced) == ["ab", "entries"]
    files.synced.clear()
    put(tier, pool, "fp/yab")
    files.fails = True
    with pytest.raises(OSError, match="broken"):
        tier.sync()
    files.fails = False
    tier.sync()
    tier.sync()
    assert files.synced == ["ab"]
