"""The disk tier in a folder where others are at work, or that cannot be written and read as it should."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from disk_check import check_agreement, files_of, query
from disk_using import Opener, put, read
from kvsdk.errors import ConfigurationError, InvalidRequest
from kvsdk.store.tiers.buffers import BufferPool
from kvsdk.store.tiers.disk import Disk
from kvsdk.store.tiers.disk_files import Files
from kvsdk.store.tiers.tier import Hints
from processes import SEARCH
from tier_twin import chain, content_of

NAME = "kv/0/256-ab"


# ---------------------------------------------------------------------- what others do to the folder


def test_a_file_that_the_index_does_not_know_is_adopted(opened: Opener, pool: BufferPool, root: Path) -> None:
    """When it is read, removed, or at the next `collect`; then it counts like the others."""
    tier = opened()
    for name in ("fp/ab", "fp/bb", "fp/cb"):
        (root / "entries" / name[-2:]).mkdir()
        (root / "entries" / name[-2:] / f"fp.{name[-2:]}.safetensors").write_bytes(content_of(name, 70))
    assert tier.contains(["fp/ab"]) == [False]
    assert read(tier, pool, "fp/ab") == content_of("fp/ab", 70)
    assert tier.contains(["fp/ab", "fp/bb"]) == [True, False]
    assert tier.remove("fp/bb")
    assert tier.collect() == 0
    assert check_agreement(root, users=1) == tier.list("") == ["fp/ab", "fp/cb"]
    assert tier.stats().used_bytes == 70 + 70
    assert tier.counts() == {"adopted": 3}


def test_adopting_keeps_the_quota(opened: Opener, pool: BufferPool, root: Path) -> None:
    """What was there goes before what has just come."""
    tier = opened(150)
    put(tier, pool, "fp/old1", 100)
    (root / "entries" / "ab").mkdir()
    (root / "entries" / "ab" / "fp.ab.safetensors").write_bytes(content_of("fp/ab", 70))
    os.utime(root / "entries" / "ab" / "fp.ab.safetensors", (2000, 2000))
    tier.collect()
    assert len(check_agreement(root, users=1)) == 1


@pytest.mark.parametrize("by", ["get", "put", "remove", "collect"])
def test_a_file_that_is_gone_is_a_miss(opened: Opener, pool: BufferPool, root: Path, by: str) -> None:
    """Its row goes when that is noticed, and the entry may be put again."""
    tier = opened()
    put(tier, pool, NAME)
    files_of(root)[NAME].unlink()
    if by == "get":
        assert read(tier, pool, NAME) is None
    elif by == "remove":
        tier.remove(NAME)
    elif by == "collect":
        assert tier.collect() == 1
    if by != "put":
        assert check_agreement(root, users=1) == []
    assert put(tier, pool, NAME)
    assert check_agreement(root, users=1) == [NAME]
    assert read(tier, pool, NAME) == content_of(NAME, 1000)


@pytest.mark.parametrize("size", [0, 999, 1001, 1 << 40])
def test_a_file_of_another_size_is_removed(opened: Opener, pool: BufferPool, root: Path, size: int) -> None:
    """Cut, or grown, even beyond all memory: it is a miss, and no memory is taken for it."""
    tier = opened()
    put(tier, pool, NAME)
    os.truncate(files_of(root)[NAME], size)
    assert read(tier, pool, NAME) is None
    assert tier.counts() == {"damaged": 1}
    assert check_agreement(root, users=1) == []


def _link(place: Path, elsewhere: Path) -> None:
    place.symlink_to(elsewhere)


def _folder(place: Path, elsewhere: Path) -> None:
    place.mkdir()


def _pipe(place: Path, elsewhere: Path) -> None:
    os.mkfifo(place)


@pytest.mark.parametrize("make", [_link, _folder, _pipe])
def test_what_is_no_file_is_no_entry(
    opened: Opener, pool: BufferPool, root: Path, tmp_path: Path, make: Callable[[Path, Path], None]
) -> None:
    """A link, a folder or a pipe in an entry's place: not read, not followed, not adopted, not waited for."""
    elsewhere = tmp_path / "secret"
    elsewhere.write_bytes(b"secret")
    tier = opened()
    put(tier, pool, NAME)
    place = files_of(root)[NAME]
    place.unlink()
    make(place, elsewhere)
    assert read(tier, pool, NAME) is None
    assert tier.contains([NAME]) == [False]
    tier.collect()
    assert tier.list("") == []
    if make is _folder:
        with pytest.raises(IsADirectoryError):
            put(tier, pool, NAME)
        assert place.is_dir()
    else:
        assert put(tier, pool, NAME)
        assert read(tier, pool, NAME) == content_of(NAME, 1000)
    assert elsewhere.read_bytes() == b"secret"
    assert list((root / "tmp").iterdir()) == []
    assert query(root, "SELECT count(*) FROM entries WHERE state <> 1") == [(0,)]


def test_eviction_leaves_alone_what_is_no_file(opened: Opener, pool: BufferPool, root: Path) -> None:
    """A folder in an evicted entry's place stays, and holds nothing up."""
    tier = opened()
    put(tier, pool, NAME)
    place = files_of(root)[NAME]
    place.unlink()
    place.mkdir()
    assert tier.remove(NAME)
    assert place.is_dir()
    assert tier.stats().used_bytes == 0


def test_foreign_files_are_left_alone(opened: Opener, pool: BufferPool, root: Path) -> None:
    """Whatever lies in the folder under a name that is no entry's is neither counted nor removed."""
    tier = opened()
    put(tier, pool, "fp/ab")
    foreign = [
        root / "notes.txt",
        root / "entries" / "notes.safetensors",
        root / "entries" / "ab" / "notes.txt",
        root / "entries" / "ab" / "fp.cd.safetensors",  # under the wrong letters
        root / "entries" / "ab" / "fp.AB.safetensors",
        root / "entries" / "ab" / "fp..ab.safetensors",
        root / "tmp" / "notes",
        root / "owners" / "notes",
    ]
    for file in foreign:
        file.write_bytes(b"mine")
    tier.collect()
    tier.close()
    assert opened().list("") == ["fp/ab"]
    assert all(file.read_bytes() == b"mine" for file in foreign)


UNREADABLE = """
import os, sys
from kvsdk.store.tiers.buffers import BufferPool
from kvsdk.store.tiers.disk import Disk
from kvsdk.store.tiers.tier import Hints

tier, pool = Disk(sys.argv[1]), BufferPool()
if os.geteuid() == 0:  # root may read anything
    os.setgroups([])
    os.setresgid(65534, 65534, 65534)
    os.setresuid(65534, 65534, 65534)
tier.open()
data = pool.take(10)
assert tier.put("fp/ab", data, Hints())
data.release()
file = tier.path / "entries" / "ab" / "fp.ab.safetensors"
file.chmod(0)
try:
    tier.get("fp/ab", pool)
except PermissionError:
    assert pool.used_bytes == 0
    (tier.path / "entries" / "ab").chmod(0o500)
    try:
        tier.remove("fp/ab")
    except PermissionError:
        assert tier.list("") == ["fp/ab"]
        print("refused")
"""


def test_a_file_that_may_not_be_read_or_removed_raises() -> None:
    """It is no miss: something is wrong with the folder; its row stays."""
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o777)
        command = [sys.executable, "-c", UNREADABLE, f"{folder}/store"]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.stdout == "refused\n", done.stderr


@pytest.mark.parametrize("name", ["../a/b", "kv/../b", "/etc/passwd", "kv//a", "kv/A", "kv", "", "kv/a\0", 7])
def test_what_is_no_name_is_refused(opened: Opener, pool: BufferPool, name: str) -> None:
    """By everything that makes a path of it, and by `contains`."""
    tier = opened()
    data = pool.take(1)
    for call in (
        lambda: tier.put(name, data, Hints()),
        lambda: tier.get(name, pool),
        lambda: tier.contains([name]),
        lambda: tier.remove(name),
    ):
        with pytest.raises(InvalidRequest, match="is no name"):
            call()
    data.release()


def test_a_name_has_to_fit_a_file(opened: Opener, pool: BufferPool) -> None:
    """The file system's limit is 255 letters; 3 * 100 and what is between them are too many."""
    name = "kv/" + "/".join([100 * "a", 100 * "b", 100 * "c"])
    with pytest.raises(InvalidRequest, match="too long for the name of a file"):
        put(opened(), pool, name)


# ---------------------------------------------------------------------- errors of the system


def failing(code: int, times: int, after_bytes: int = 0) -> type[Disk]:
    """A disk whose writes fail so often, each after some bytes are written."""
    left = [times]

    class FailingFiles(Files):
        def write_all(self, descriptor: int, data: memoryview) -> None:
            if left[0]:
                left[0] -= 1
                super().write_all(descriptor, data[:after_bytes])
                raise OSError(code, os.strerror(code))
            super().write_all(descriptor, data)

    class FailingDisk(Disk):
        def _new_files(self) -> Files:
            return FailingFiles(self.path)

    return FailingDisk


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_file_system_has_as_much_evicted_as_is_needed(
    opened: Opener, pool: BufferPool, root: Path, code: int
) -> None:
    """And 262,144 bytes for the index: three of 300,000 go for one of 400,000, as 2 * 300,000 < 662,144."""
    first = opened("1GiB")
    for name in ("fp/a", "fp/b", "fp/c", "fp/d"):
        put(first, pool, name, 300_000)
    tier = opened(None, failing(code, times=1, after_bytes=700))
    assert put(tier, pool, NAME, 400_000)
    assert check_agreement(root, users=2) == ["fp/d", NAME]
    assert tier.counts() == {"no_space": 1}


def test_a_file_system_that_stays_full_is_no_error(opened: Opener, pool: BufferPool, root: Path) -> None:
    """Once evicted for and tried again, the put is refused; nothing of it stays."""
    put(opened(), pool, "fp/a", 5000)
    tier = opened(None, failing(errno.ENOSPC, times=2, after_bytes=700))
    assert not put(tier, pool, NAME)
    assert check_agreement(root, users=2) == []
    assert tier.counts() == {"no_space": 2}
    assert put(tier, pool, NAME)


def test_a_full_file_system_with_nothing_to_evict_is_tried_once(
    opened: Opener, pool: BufferPool, root: Path
) -> None:
    """What is pinned stays, and so does the head of what is put."""
    head, tail = chain(1, 2)
    tier = opened(None, failing(errno.ENOSPC, times=0))
    put(tier, pool, "fp/a", pinned=True)
    put(tier, pool, head)
    full = opened(None, failing(errno.ENOSPC, times=1))
    assert not put(full, pool, tail, depth_tokens=256)
    assert full.counts() == {"no_space": 1}
    assert check_agreement(root, users=2) == sorted(["fp/a", head])


@pytest.mark.parametrize("code", [errno.EIO, errno.EROFS, errno.EFBIG])
def test_other_errors_are_raised(opened: Opener, pool: BufferPool, root: Path, code: int) -> None:
    """Nothing is evicted for them, and nothing of the entry stays."""
    put(opened(), pool, "fp/a")
    tier = opened(None, failing(code, times=1, after_bytes=700))
    with pytest.raises(OSError, match=os.strerror(code)):
        put(tier, pool, NAME)
    assert check_agreement(root, users=2) == ["fp/a"]
    assert put(tier, pool, NAME)


class CutFiles(Files):
    """Files that end before their size, or cannot be read to the end."""

    error: OSError | None = None

    def read_some(self, descriptor: int, into: memoryview, at: int) -> int:
        if at < 500:
            return super().read_some(descriptor, into[:500], at)
        if CutFiles.error is not None:
            raise CutFiles.error
        return 0


class CutDisk(Disk):
    def _new_files(self) -> Files:
        return CutFiles(self.path)


def test_a_read_that_ends_early_is_a_miss(opened: Opener, pool: BufferPool) -> None:
    """Its memory is given back; the `pool` fixture sees to that."""
    tier = opened(None, CutDisk)
    put(tier, pool, NAME)
    assert read(tier, pool, NAME) is None
    assert tier.counts() == {"cut_short": 1}


def test_a_read_that_fails_raises(opened: Opener, pool: BufferPool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its memory is given back as well."""
    monkeypatch.setattr(CutFiles, "error", OSError(errno.EIO, "broken"))
    tier = opened(None, CutDisk)
    put(tier, pool, NAME)
    with pytest.raises(OSError, match="broken"):
        read(tier, pool, NAME)


TINY = """
import sys
from pathlib import Path
from disk_check import check_agreement
from kvsdk.store.tiers.buffers import BufferPool
from kvsdk.store.tiers.disk import Disk
from kvsdk.store.tiers.tier import Hints
from tier_twin import buffer_of

tier, pool = Disk(sys.argv[1]), BufferPool()
tier.open()
for number in range(40):
    name = f"fp/{number}"
    data = buffer_of(pool, name, 1 << 20)
    assert tier.put(name, data, Hints()), (number, tier.counts())
    data.release()
assert tier.counts()["no_space"] > 0
left = check_agreement(Path(sys.argv[1]), users=1)
assert left == sorted(f"fp/{number}" for number in range(40 - len(left), 40)), left
tier.close()
print(len(left))
"""


def _can_mount() -> bool:
    unshare = shutil.which("unshare")
    if unshare is None:
        return False
    try_it = [unshare, "-rm", "mount", "-t", "tmpfs", "tmpfs", "/tmp"]
    return subprocess.run(try_it, capture_output=True, check=False).returncode == 0


@pytest.mark.skipif(not _can_mount(), reason="no file system can be mounted here")
def test_a_file_system_that_is_really_full(tmp_path: Path) -> None:
    """40 entries of 1 MiB into 16 MiB without a capacity: each is put, and the latest are there."""
    script = 'mount -t tmpfs -o size=16m tmpfs "$1" && exec "$2" -c "$3" "$1/store"'
    place = tmp_path / "small"
    place.mkdir()
    done = subprocess.run(
        ["unshare", "-rm", "sh", "-c", script, "sh", str(place), sys.executable, TINY],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        env=SEARCH,
    )
    assert done.returncode == 0, done.stderr
    assert 8 <= int(done.stdout) <= 15


@pytest.mark.parametrize("what", ["index", "folder"])
def test_what_was_deleted_under_it_is_made_anew(
    opened: Opener, pool: BufferPool, root: Path, what: str
) -> None:
    """The tier goes on, and with whoever opens the folder afterwards it shares one index and one quota."""
    first = opened(10_000)
    put(first, pool, NAME, 100)
    if what == "folder":
        shutil.rmtree(root)
    for file in root.glob("index.db*"):
        file.unlink()
    there = [NAME] if what == "index" else []
    assert read(first, pool, NAME) == (content_of(NAME, 100) if there else None)
    second = opened()
    put(first, pool, "kv/0/256-cd", 100)
    put(second, pool, "kv/0/256-ef", 100)
    assert first.list("") == second.list("") == [*there, "kv/0/256-cd", "kv/0/256-ef"]
    assert first.stats() == second.stats()
    assert second.stats().capacity_bytes == 10_000
    assert check_agreement(root, users=2) == first.list("")


def test_a_folder_that_cannot_be_made_anew(opened: Opener, pool: BufferPool, root: Path) -> None:
    """It is an error at each call, no file of anybody's is closed by it, and it heals."""
    tier = opened(10_000)
    put(tier, pool, NAME, 100)
    shutil.rmtree(root)
    root.write_bytes(b"a file")
    for _ in range(3):
        with pytest.raises(ConfigurationError, match="cannot be used as a store's folder"):
            tier.contains([NAME])
    root.unlink()
    put(tier, pool, NAME, 100)
    assert check_agreement(root, users=1) == [NAME]
