"""Processes that are killed while they put, promote, evict and collect in one folder."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time
from pathlib import Path

from busy_store import CAPACITY, PROMPTS
from kv_samples import first, is_equal, kv_of
from kvsdk.store import Disk
from kvsdk.store.scrub import scrub
from kvsdk.store.tiers.tier import parse_size
from processes import SEARCH
from store_makers import StoreMaker

SCRIPT = Path(__file__).parents[1] / "support" / "busy_store.py"


def test_after_kills_at_any_moment_all_is_whole(make_store: StoreMaker, tmp_path: Path) -> None:
    """Two processes at a time on one folder that holds less than they put, killed again and again.

    Afterwards what is served is right, every file is whole, index and files agree, and the quota holds.
    """
    chance = random.Random(5)
    for round_number in range(4):
        busy = [
            subprocess.Popen(
                [sys.executable, SCRIPT, str(tmp_path), str(2 * round_number + number)],
                stdout=subprocess.PIPE,
                text=True,
                env=SEARCH,
            )
            for number in range(2)
        ]
        for process in busy:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
        time.sleep(chance.uniform(0.2, 0.8))
        for process in busy:
            assert process.poll() is None
            process.send_signal(signal.SIGKILL)
            process.communicate()

    disk = Disk(tmp_path)
    disk.open()
    disk.collect()
    report = scrub(disk)
    assert report.problems == ()
    files = [file for file in (tmp_path / "entries").rglob("*") if file.is_file()]
    assert len(files) == len(disk.list("")) > 0
    used, capacity = disk.stats().used_bytes, disk.stats().capacity_bytes
    assert used == sum(file.stat().st_size for file in files) <= capacity == parse_size(CAPACITY)
    assert list((tmp_path / "tmp").iterdir()) == []
    disk.close()

    store = make_store(Disk(tmp_path))
    for tokens in PROMPTS:
        found = store.get(tokens)
        assert not found or is_equal(found.kv, first(kv_of(tokens), found.tokens))
    store.put(PROMPTS[0], kv_of(PROMPTS[0]))
    store.flush()
    assert store.get(PROMPTS[0]).tokens == len(PROMPTS[0])
