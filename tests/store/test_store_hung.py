"""A tier that hangs costs its own answers, and no other tier's."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
from kv_samples import kv_of, prompt
from kvsdk.errors import ConfigurationError
from kvsdk.store import Disk, Memory
from kvsdk.testing import FaultyTier
from store_makers import StoreMaker

TOKENS = prompt(300)
KV = kv_of(TOKENS)


def hanging(folder: Path, name: str = "far") -> FaultyTier:
    tier = FaultyTier(Disk(folder / name, "64MiB"))
    tier.name = name
    return tier


def test_the_tier_before_it_serves_on(make_store: StoreMaker, tmp_path: Path) -> None:
    """Enough calls hang to fill any number of threads; the disk answers, and nothing is held against it."""
    far = hanging(tmp_path)
    stuck = far.stick(on="get")
    store = make_store(Disk(tmp_path / "disk", "64MiB"), far, deadline_s=0.3)
    store.put(TOKENS, KV)
    store.flush()
    absent = [prompt(256 * 5, seed=seed) for seed in range(1, 4)]
    asking = [threading.Thread(target=store.get, args=(tokens,)) for tokens in absent]
    for thread in asking:
        thread.start()
    assert stuck.entered.wait(10)
    for _ in range(20):
        assert store.get(TOKENS).tokens == 300
    for thread in asking:
        thread.join()
    counts = {name: tier.counts.get("failures", 0) for name, tier in store.stats().tiers.items()}
    assert counts["disk"] == 0
    assert counts["far"] >= 3
    stuck.release.set()


def test_a_flush_without_a_limit_ends(make_store: StoreMaker, tmp_path: Path) -> None:
    """Once nothing has moved for the deadline; it says that something is left."""
    far = hanging(tmp_path)
    stuck = far.stick(on="put")
    store = make_store(Memory("64MiB"), far, deadline_s=0.1)
    store.put(TOKENS, KV)
    assert not store.flush()
    stuck.release.set()
    assert store.flush(10)


@pytest.mark.parametrize("how", ["fails", "hangs"])
def test_a_flush_that_cannot_sync_says_so(make_store: StoreMaker, tmp_path: Path, how: str) -> None:
    """What is written but not synced may not survive a power cut."""
    far = hanging(tmp_path)
    stuck = far.stick(on="sync", times=1) if how == "hangs" else None
    store = make_store(Memory("64MiB"), far, deadline_s=0.1)
    store.put(TOKENS, KV)
    if stuck is None:
        far.fail(OSError("broken"), on="sync", times=1)
    assert not store.flush()
    if stuck is not None:
        stuck.release.set()
    assert store.flush()


@pytest.mark.parametrize(("operation", "entries"), [("list", 0), ("get", 0)])
def test_to_verify_it_is_reported(
    make_store: StoreMaker, tmp_path: Path, operation: str, entries: int
) -> None:
    """The other tiers are read; of this one what hangs is said, and what comes late is let go."""
    far = hanging(tmp_path)
    stuck = far.stick(on=operation)
    store = make_store(Memory("64MiB"), far, deadline_s=0.1)
    store.put(TOKENS, KV)
    reports = store.verify(remove=True)
    assert (reports["memory"].entries, reports["memory"].problems) == (3, ())
    assert reports["far"].entries == entries
    assert {problem.kind for problem in reports["far"].problems} == {"unreadable"}
    assert "no answer within 0.1 s" in reports["far"].problems[0].detail
    if operation == "get":
        assert reports["far"].problems[0].detail.endswith("the 2 after it were not read")
    stuck.release.set()
    far.heal()
    assert store.verify()["far"].entries == 3


def test_to_resize_it_is_an_error(make_store: StoreMaker, tmp_path: Path) -> None:
    """Of ours, and with the tier's name: whoever resizes has to know."""
    far = hanging(tmp_path)
    store = make_store(far, deadline_s=0.1)
    far.fail(OSError("broken"), on="resize", times=1)
    with pytest.raises(ConfigurationError, match="the far tier could not be resized: broken"):
        store.resize("far", "1MiB")
    stuck = far.stick(on="resize", times=1)
    with pytest.raises(ConfigurationError, match=r"no answer within 0\.1 s"):
        store.resize("far", "1MiB")
    stuck.release.set()


def test_uses_that_it_does_not_note_fill_no_memory(make_store: StoreMaker, tmp_path: Path) -> None:
    """While a put hangs, a thousand jobs wait for it at most; what else there is to say of use is counted."""
    far = hanging(tmp_path)
    stuck = far.stick(on="put")
    store = make_store(Memory("64MiB"), far)
    tokens = prompt(3)
    store.put(tokens, kv_of(tokens))
    for _ in range(1200):
        store.get(tokens)
    writer = store._levels.all[1].writer
    assert len(writer._jobs) == 1000
    assert store.stats().tiers["far"].counts["left_out"] >= 200
    store.end_session("s")  # is never left out
    assert len(writer._jobs) == 1001
    stuck.release.set()


def test_several_that_close_wait_for_the_one(make_store: StoreMaker, tmp_path: Path) -> None:
    """All return when it is closed, once, and what waited is written."""
    far = hanging(tmp_path)
    stuck = far.stick(on="put", times=1)
    store = make_store(far)
    store.put(TOKENS, KV)
    assert stuck.entered.wait(10)
    closing = [threading.Thread(target=store.close) for _ in range(3)]
    for thread in closing:
        thread.start()
    with pytest.raises(ConfigurationError, match="closed"):
        _until_closed(store)
    assert all(thread.is_alive() for thread in closing)
    stuck.release.set()
    for thread in closing:
        thread.join()
    with make_store(Disk(tmp_path / "far")) as again:
        assert again.get(TOKENS).tokens == 300


def _until_closed(store: Any) -> None:
    for _ in range(1_000_000):
        store.lookup([1])
