"""What was removed is gone, whatever was on its way; what is put afterwards is there."""

from __future__ import annotations

import errno
import threading
from pathlib import Path

from kv_samples import is_equal, kv_of, prompt
from kvsdk.store import Disk, Hit, Memory
from kvsdk.testing import FaultyTier
from store_makers import StoreMaker

TOKENS = prompt(300)
KV = kv_of(TOKENS)


def test_it_is_gone_at_once(make_store: StoreMaker, tmp_path: Path) -> None:
    """Also from a disk that is written to behind: no flush is needed."""
    store = make_store(Memory("64MiB"), Disk(tmp_path, "64MiB"))
    store.put(TOKENS, KV)
    assert store.remove(TOKENS)
    assert not store.get(TOKENS)


def test_what_is_on_its_way_is_gone_too(make_store: StoreMaker, tmp_path: Path) -> None:
    """The disk is busy with something else, so that nothing of the prompt is written yet."""
    tier = FaultyTier(Disk(tmp_path, "64MiB"))
    store = make_store(tier, deadline_s=0.1)
    stuck = tier.stick(on="put", times=1)
    store.put(prompt(10, seed=1), kv_of(prompt(10, seed=1)))
    assert stuck.entered.wait(10)
    store.put(TOKENS, KV)
    assert store.get(TOKENS).tokens == 300
    assert not store.remove(TOKENS)  # the disk did not answer in time
    assert not store.get(TOKENS)
    stuck.release.set()
    assert store.flush(10)
    assert not store.get(TOKENS)
    assert store.get(prompt(10, seed=1)).tokens == 10


def test_what_is_put_after_it_was_removed_stays(make_store: StoreMaker, tmp_path: Path) -> None:
    """Though the first put and the removal still wait for the disk."""
    tier = FaultyTier(Disk(tmp_path, "64MiB"))
    store = make_store(tier, deadline_s=0.1)
    stuck = tier.stick(on="put", times=1)
    store.put(TOKENS, KV)
    assert stuck.entered.wait(10)
    store.remove(TOKENS)
    assert store.put(TOKENS, KV).new_tokens == 300
    stuck.release.set()
    assert store.flush(10)
    hit = store.get(TOKENS)
    assert isinstance(hit, Hit)
    assert hit.tokens_by_tier == {"disk": 300}
    assert is_equal(hit.kv, KV)


def test_a_get_that_runs_meanwhile_brings_nothing_back(make_store: StoreMaker, tmp_path: Path) -> None:
    """It has read the disk's entries before they go, and would keep them in memory afterwards."""
    with make_store(Disk(tmp_path, "64MiB")) as before:
        before.put(TOKENS, KV)
    tier = FaultyTier(Disk(tmp_path, "64MiB"))
    store = make_store(Memory("64MiB"), tier)
    stuck = tier.stick(on="expiry", times=1)
    found: list[int] = []
    getting = threading.Thread(target=lambda: found.append(store.get(TOKENS).tokens))
    getting.start()
    assert stuck.entered.wait(10)
    assert store.remove(TOKENS)
    stuck.release.set()
    getting.join()
    assert found[0] >= 256
    assert not store.get(TOKENS)


def test_a_tier_that_cannot_remove_is_said(make_store: StoreMaker, tmp_path: Path) -> None:
    """The others have removed it all the same."""
    tier = FaultyTier(Disk(tmp_path, "64MiB"))
    store = make_store(Memory("64MiB"), tier)
    store.put(TOKENS, KV)
    store.flush()
    tier.fail(OSError(errno.EIO, "broken"), on="remove")
    assert not store.remove(TOKENS)
    hit = store.get(TOKENS)
    assert isinstance(hit, Hit)
    assert set(hit.tokens_by_tier) == {"disk"}
