"""The disk tier and `kill -9`: at every step, at any moment, and with several processes at once."""

from __future__ import annotations

import random
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import disk_victim
import pytest
from disk_check import check_agreement, files_of, query
from disk_victim import BIG, CHAIN, SIZE, put
from kvsdk.store.tiers.buffers import BufferPool
from kvsdk.store.tiers.disk import Disk
from kvsdk.store.tiers.tier import Hints
from processes import SEARCH
from tier_twin import Clock, content_of


def fill(root: Path, capacity: int, *, life_s: float | None = None) -> None:
    """Four entries of one prefix, the head first."""
    tier, pool, clock = Disk(root, capacity), BufferPool(), Clock()
    tier.open(clock=clock)
    for depth, name in enumerate(CHAIN):
        expires_at = None if life_s is None else clock.now + life_s
        assert put(tier, pool, name, hints=Hints(depth_tokens=256 * depth, expires_at=expires_at))
    tier.close()


def die(root: Path, moment: str, job: str) -> None:
    """Have a process do something until it is killed at that moment."""
    command = [sys.executable, disk_victim.__file__, str(root), moment, job]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60, env=SEARCH)
    assert done.returncode == -signal.SIGKILL, (done.stdout, done.stderr)


def reopen(root: Path) -> list[str]:
    """Open the folder; gives what is there then."""
    tier = Disk(root)
    tier.open(clock=Clock())
    names = check_agreement(root, users=1)
    assert tier.list("") == names
    tier.close()
    return names


PUT = ["reserved", "half written", "written", "moved"]
CASES = [
    *((moment, "put", 4) for moment in PUT),
    *((moment, "evict", 2) for moment in ("marked:1", "dropped:1", "marked:2", "dropped:2", *PUT)),
    *((moment, "full", left) for moment, left in {"marked:1": 4, "dropped:1": 3, "dropped:3": 1}.items()),
    *((moment, "full", 0) for moment in ("measured:1", "written", "moved")),
    ("marked", "remove", 3),
    ("dropped", "remove", 3),
    ("marked:1", "resize", 1),
    ("dropped:2", "resize", 1),
]
"""When, at what, and how many of the prefix of four are there afterwards.

For `evict` two have to go; what is marked to go goes. For `full` all four, 400,000 bytes, have to go for
100,000 + 262,144; they are not marked, as the index has no room for that.
"""


@pytest.mark.parametrize(("moment", "job", "count"), CASES)
def test_a_kill_leaves_index_and_files_agreeing(tmp_path: Path, moment: str, job: str, count: int) -> None:
    """Once one that was open all the time collects, and as well in a copy of the folder that is opened.

    The new entry is there if it had got to its place, and of the old ones those that were not to go.
    """
    root = tmp_path / "store"
    fill(root, 4 * SIZE if job in ("evict", "resize") else 10 * SIZE)
    survivor = Disk(root)
    survivor.open(clock=Clock())
    die(root, moment, job)
    for name, file in files_of(root).items():
        assert file.read_bytes() == content_of(name, file.stat().st_size)
    expected = sorted([*CHAIN[:count], *([BIG] if moment == "moved" else [])])
    copy = shutil.copytree(root, tmp_path / "copy")
    assert reopen(copy) == expected
    survivor.collect()
    assert check_agreement(root, users=1) == expected
    survivor.close()


COLLECT = ["marked:1", "dropped:1", "marked:3", "dropped:4", "buried", "cleared", "measured:2"]


@pytest.mark.parametrize("moment", COLLECT)
def test_a_kill_while_it_collects_is_no_other(tmp_path: Path, moment: str) -> None:
    """What had expired goes for good when the next one collects."""
    root = tmp_path / "store"
    fill(root, 10 * SIZE, life_s=10)
    die(root, moment, "collect")
    tier = Disk(root)
    tier.open(clock=Clock(1e9))
    check_agreement(root, users=1)
    tier.collect()
    assert check_agreement(root, users=1) == []
    tier.close()


@pytest.mark.parametrize("first", [("half written", "put"), ("marked:2", "resize"), ("moved", "put")])
@pytest.mark.parametrize("second", ["buried", "cleared", "measured:1"])
def test_a_kill_while_it_cleans_up_is_no_other(tmp_path: Path, first: tuple[str, str], second: str) -> None:
    """The third one cleans up after both."""
    root = tmp_path / "store"
    fill(root, 10 * SIZE)
    die(root, *first)
    die(root, second, "open")
    left = reopen(root)
    assert (BIG in left) == (first[0] == "moved")


@pytest.mark.parametrize("moment", ["measured:1", "measured:3"])
def test_a_kill_while_the_index_is_built_anew_is_no_other(tmp_path: Path, moment: str) -> None:
    """The next one finds all files."""
    root = tmp_path / "store"
    fill(root, 10 * SIZE)
    (root / "index.db").unlink()
    die(root, moment, "open")
    assert reopen(root) == sorted(CHAIN)


def test_room_of_the_dead_is_found_by_the_living(tmp_path: Path) -> None:
    """Without a `collect`: a put that has no room, or whose entry a dead one was removing, looks for them."""
    root = tmp_path / "store"
    pool = BufferPool()
    living = Disk(root, 4 * SIZE)
    living.open(clock=Clock())
    for name in CHAIN[:2]:
        assert put(living, pool, name, hints=Hints(pinned=True))
    die(root, "half written", "evict")
    assert living.stats().used_bytes == 4 * SIZE
    assert put(living, pool, "fp/a", 2 * SIZE)
    living.remove("fp/a")
    die(root, "written", "put")
    assert put(living, pool, BIG)
    assert living.get(BIG, pool) is not None
    living.close()


USER = """
import random, sys
from kvsdk.store.tiers.buffers import BufferPool
from kvsdk.store.tiers.disk import Disk
from kvsdk.store.tiers.tier import Hints
from tier_twin import buffer_of, chain, content_of

draw = random.Random(int(sys.argv[2]))
tier, pool = Disk(sys.argv[1], 3_000_000), BufferPool()
tier.open()
print("open", flush=True)
for step in range(100_000):
    path = [draw.randrange(3) for _ in range(4)]
    for depth, name in enumerate(chain(*path)):
        data = buffer_of(pool, name, 100_000 + 1000 * path[0])
        tier.put(name, data, Hints(depth_tokens=256 * depth, session=draw.choice("abc")))
        data.release()
    tier.touch(chain(*path), Hints())
    kind = draw.randrange(20)
    if kind == 0:
        tier.collect()
    elif kind == 1:
        tier.end_session("a")
    elif kind == 2:
        tier.remove(chain(*path)[3])
    elif kind == 3:
        tier.resize(draw.choice([2_000_000, 3_000_000]))
    for name in chain(*path):
        data = tier.get(name, pool)
        if data is not None:
            assert data.view == content_of(name, len(data)), name
            data.release()
    print(step, flush=True)
"""

ABOVE = """
CREATE TRIGGER above AFTER UPDATE OF used_bytes ON totals
WHEN NEW.used_bytes > OLD.used_bytes AND NEW.used_bytes > NEW.capacity_bytes
BEGIN SELECT RAISE(ABORT, 'above the capacity'); END
"""


def user(root: Path, seed: int) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", USER, str(root), str(seed)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=SEARCH)


@pytest.mark.parametrize("seed", range(3))
def test_processes_that_are_killed_at_any_moment(tmp_path: Path, seed: int) -> None:
    """Three share a folder and are killed one after the other; none ever reads anything but whole entries."""
    root = tmp_path / "store"
    draw = random.Random(seed)
    fill(root, 3_000_000)
    query(root, ABOVE)
    users = [user(root, 10 * seed + number) for number in range(3)]
    for one in users:
        assert one.stdout is not None
        for _ in range(draw.randrange(3, 20)):
            assert one.stdout.readline(), one.stderr and one.stderr.read()
        one.send_signal(signal.SIGKILL)
    for one in users:
        errors = one.communicate(timeout=60)[1]
        assert one.returncode == -signal.SIGKILL, errors
    assert reopen(root)


WRITER = """
import sys
from kvsdk.store.tiers.buffers import BufferPool
from kvsdk.store.tiers.disk import Disk
from kvsdk.store.tiers.tier import Hints
from tier_twin import buffer_of

tier, pool = Disk(sys.argv[1]), BufferPool()
tier.open()
for number in range(55):
    name = f"fp/{sys.argv[2]}-{number}"
    data = buffer_of(pool, name, 10_000)
    assert tier.put(name, data, Hints()), name
    data.release()
tier.close()
"""


def test_two_processes_at_110_percent(tmp_path: Path) -> None:
    """2 * 55 entries into room for 100: all puts succeed, never more than the quota, and 100 are left."""
    root = tmp_path / "store"
    tier = Disk(root, 100 * 10_000)
    tier.open()
    query(root, ABOVE)
    commands = [[sys.executable, "-c", WRITER, str(root), name] for name in ("a", "b")]
    writers = [
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=SEARCH)
        for command in commands
    ]
    for one in writers:
        errors = one.communicate(timeout=60)[1]
        assert one.returncode == 0, errors
    left = check_agreement(root, users=1)
    assert len(left) == 100
    assert {"fp/a-54", "fp/b-54"} <= set(left)
    tier.close()


FORK = """
import os, sys
from kvsdk.store.tiers.buffers import BufferPool
from kvsdk.store.tiers.disk import Disk
from kvsdk.store.tiers.tier import Hints
from tier_twin import buffer_of

def put(name):
    data = buffer_of(pool, name)
    assert tier.put(name, data, Hints())
    data.release()

tier, pool = Disk(sys.argv[1]), BufferPool()
tier.open()
put("fp/a")
child = os.fork()
if child == 0:
    put("fp/b")
    assert len(os.listdir(tier.path / "owners")) == 2
    tier.close()
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
assert len(os.listdir(tier.path / "owners")) == 1
put("fp/c")
child = os.fork()
if child == 0:
    tier.close()
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
put("fp/d")
tier.close()
"""


def test_a_process_that_forks_goes_on_with_its_tier(tmp_path: Path) -> None:
    """The child is a user of its own, and what it closes is its own."""
    root = tmp_path / "store"
    command = [sys.executable, "-W", "ignore", "-c", FORK, str(root)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60, env=SEARCH)
    assert done.returncode == 0, done.stderr
    assert check_agreement(root, users=0) == ["fp/a", "fp/b", "fp/c", "fp/d"]
