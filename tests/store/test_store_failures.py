"""A store whose tiers fail, lie or hang: a miss or a shorter hit, a count, and never other KV."""

from __future__ import annotations

import errno
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kv_samples import SPEC, first, is_equal, kv_of, prompt
from kvsdk.kv import Fingerprint
from kvsdk.store import Disk, Hit, KVStore, Memory, Miss, Object
from kvsdk.store.tiers.buffers import Buffer, BufferPool
from kvsdk.testing import FaultyTier, SlowTier
from store_makers import StoreMaker

TOKENS = prompt(600)
KV = kv_of(TOKENS)


def names_of(tier: Any) -> list[str]:
    """The prompt's chunks in a tier, by depth; they are all there is."""
    names = {name.split("/")[1]: name for name in tier.list("kv/")}
    parents = set(names)
    keys = {name.rpartition("-")[2] for name in names.values()}
    (at,) = parents - keys
    found = []
    while at in names:
        found.append(names[at])
        at = names[at].rpartition("-")[2]
    return found


@pytest.mark.parametrize("lie", ["flip", "truncate", "swap"])
@pytest.mark.parametrize("chunk", [0, 1, 2])
def test_a_lying_tier_ends_the_hit_before_the_lie(make_store: StoreMaker, lie: str, chunk: int) -> None:
    """A byte flipped, the end missing, or another chunk in its place: only the chunks before are served."""
    tier = FaultyTier(Memory("64MiB"))
    store = make_store(tier)
    store.put(TOKENS, KV)
    names = names_of(tier)
    if lie == "flip":
        tier.flip(names[chunk], at=9000)
    elif lie == "truncate":
        tier.truncate(names[chunk], 9000)
    else:
        tier.swap(names[chunk], names[chunk - 1])
    found = store.get(TOKENS)
    assert found.tokens == chunk * 256
    end = found if isinstance(found, Miss) else found.ended_by
    assert end is not None
    assert end.kind == "corrupt"
    assert not found or is_equal(found.kv, first(KV, chunk * 256))
    assert store.stats().tiers["memory"].counts["corrupt"] == 1
    assert names[chunk] not in tier.list("kv/")


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_whatever_byte_is_wrong_nothing_wrong_is_served(data: st.DataObject, tmp_path: Path) -> None:
    """Any byte of any file, or any length: what is served is what was put."""
    folder = tmp_path / "store"
    with KVStore([Disk(folder, "64MiB")], fingerprint=Fingerprint.for_testing(SPEC)) as store:
        store.put(TOKENS, KV)
        store.flush()
        file = data.draw(st.sampled_from(sorted(folder.rglob("kv.*.safetensors"))))
        content = bytearray(file.read_bytes())
        at = data.draw(st.integers(0, len(content) - 1) | st.integers(0, 3000))
        if data.draw(st.booleans()):
            content[at] ^= 1 << data.draw(st.integers(0, 7))
        else:
            del content[at:]
        file.write_bytes(content)
        found = store.get(TOKENS)
        assert found.tokens in (0, 256, 512)
        assert not found or is_equal(found.kv, first(KV, found.tokens))
        store.put(TOKENS, KV)
        store.flush()
        assert is_equal(store.get(TOKENS).kv, KV)


def test_without_memory_to_unpack_it_is_a_miss(make_store: StoreMaker) -> None:
    """The entry is none the worse for it, and is served when there is memory again."""

    class Empty(BufferPool):
        def take(self, size: int) -> Buffer:
            raise MemoryError(f"no {size} bytes")

    store = make_store(Memory("64MiB"), codec="zstd")
    store.put(TOKENS, KV)
    images = store._images
    whole, images._scratch = images._scratch, Empty()
    miss = store.get(TOKENS)
    assert isinstance(miss, Miss)
    assert miss.kind == "unavailable"
    assert "the memory tier has cannot be opened: no " in miss.reason
    assert store.stats().tiers["memory"].counts == {"unopened": 3}  # all that were looked for
    images._scratch = whole
    assert is_equal(store.get(TOKENS).kv, KV)


def test_the_next_tier_has_what_this_one_has_spoilt(make_store: StoreMaker, tmp_path: Path) -> None:
    """A damaged file on disk, a good object behind it: all is served, and the disk gets it anew."""
    (tmp_path / "objects").mkdir()
    with make_store(Disk(tmp_path / "disk", "64MiB"), Object((tmp_path / "objects").as_uri())) as store:
        store.put(TOKENS, KV)
        store.flush()
        for file in (tmp_path / "disk").rglob("kv.*.safetensors"):
            file.write_bytes(file.read_bytes()[:-1] + b"\x99")
        hit = store.get(TOKENS)
        assert isinstance(hit, Hit)
        assert hit.tokens_by_tier == {"object": 600}
        assert is_equal(hit.kv, KV)
        store.flush()
        assert store.get(TOKENS).tokens_by_tier == {"disk": 600}


@pytest.mark.parametrize("operation", ["get", "put", "contains", "list", "touch", "stats", "remove"])
def test_a_failing_tier_raises_nothing(make_store: StoreMaker, tmp_path: Path, operation: str) -> None:
    """With memory before it all is served still; alone it is a miss. Each failure is counted."""
    for tiers in ([Memory("64MiB")], []):
        tier = FaultyTier(Disk(tmp_path / str(len(tiers)), "64MiB"))
        store = make_store(*tiers, tier)
        tier.fail(OSError(errno.EIO, "broken"), on=operation)
        store.put(TOKENS, KV)
        store.flush()
        found = store.get(TOKENS)
        assert found.tokens == 600 or (not tiers and operation in ("get", "put"))
        store.get(prompt(300, seed=3))
        stats = store.stats()
        failed = operation not in ("remove",) and not (tiers and operation == "get" and not found)
        assert stats.tiers["disk"].counts.get("failures", 0) > 0 or not failed


def test_a_dead_tier_is_not_asked_for_a_while(make_store: StoreMaker) -> None:
    """After three failures in a row its breaker is open; the others serve on."""
    tier = FaultyTier(SlowTier(Memory("64MiB")))
    tier.name = "disk"
    store = make_store(Memory("64MiB"), tier)
    tier.fail(OSError(errno.EIO, "broken"))
    for seed in range(4):
        store.put(prompt(300, seed), kv_of(prompt(300, seed)))
        store.flush()
    assert store.stats().tiers["disk"].breaker == "open"
    counts = store.stats().tiers["disk"].counts
    assert counts["failures"] == 3
    assert counts["not_asked"] > 0
    assert counts["dropped"] > 0
    assert store.get(prompt(300, 2)).tokens == 300
    miss = store.get(prompt(300, 9))
    assert isinstance(miss, Miss)
    assert miss.kind == "unavailable"
    assert "disk" in miss.reason


def test_a_read_that_hangs_is_a_miss_at_the_deadline(make_store: StoreMaker, tmp_path: Path) -> None:
    """The chunks before it are served, and what comes late is let go."""
    tier = FaultyTier(Disk(tmp_path, "64MiB"))
    store = make_store(tier, deadline_s=0.2)
    store.put(TOKENS, KV)
    store.flush()
    second = names_of(tier)[1]
    stuck = tier.stick(on="get", names=[second])
    hit = store.get(TOKENS)
    assert isinstance(hit, Hit)
    assert hit.tokens == 256
    assert hit.ended_by is not None
    assert hit.ended_by.kind == "unavailable"
    assert "no answer within 0.2 s" in hit.ended_by.reason
    stuck.release.set()
    tier.heal()
    assert store.get(TOKENS).tokens == 600
    deadline = threading.Event()
    for _ in range(100):
        if store._pool.used_bytes == 0:
            break
        deadline.wait(0.05)
    assert store._pool.used_bytes == 0


def test_a_stuck_tier_holds_up_no_exit(tmp_path: Path) -> None:
    """A process whose disk never answers ends at its store's deadline."""
    script = f"""
import sys
sys.path.insert(0, {str(Path(__file__).parents[1] / "support")!r})
from kv_samples import SPEC, kv_of, prompt
from kvsdk.kv import Fingerprint
from kvsdk.store import Disk, KVStore
from kvsdk.testing import FaultyTier
tier = FaultyTier(Disk({str(tmp_path)!r}, "64MiB"))
store = KVStore([tier], fingerprint=Fingerprint.for_testing(SPEC), deadline_s=0.2)
tier.stick(on=("get", "put", "contains"))
tokens = prompt(10)
store.put(tokens, kv_of(tokens))
print(store.get(prompt(9)).kind)
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout) == (0, "unavailable\n"), done.stderr


def test_a_full_queue_makes_put_wait_then_drop(make_store: StoreMaker, tmp_path: Path) -> None:
    """One chunk of 1 MiB fits; the next ones are dropped when nothing moves, counted, and memory has them."""
    tier = FaultyTier(Disk(tmp_path, "64MiB"))
    store = make_store(Memory("64MiB"), tier, queue="1MiB", deadline_s=0.1)
    stuck = tier.stick(on="put")
    store.put(TOKENS, KV)
    counts = store.stats().tiers["disk"].counts
    assert counts["dropped"] > 0
    assert store.get(TOKENS).tokens == 600
    stuck.release.set()


def test_a_put_waits_for_room_in_the_queue(make_store: StoreMaker, tmp_path: Path) -> None:
    """A slow disk and a queue of one chunk: nothing is dropped, and never more than the queue waits."""
    waiting = []
    tier = SlowTier(Disk(tmp_path, "64MiB"), put_s=0.01, sleep=lambda _: waiting.append(writer.waiting_bytes))
    store = make_store(tier, queue="600KiB")
    writer = store._levels.all[0].writer
    tokens = prompt(256 * 6)
    store.put(tokens, kv_of(tokens))
    store.flush()
    assert store.get(tokens).tokens == 256 * 6
    assert "dropped" not in store.stats().tiers["disk"].counts
    chunk = store.stats().new_bytes // 6
    assert max(waiting) <= max(600 << 10, chunk + 2000)


def test_no_room_anywhere_is_a_miss_and_counted(make_store: StoreMaker, tmp_path: Path) -> None:
    """A chunk is larger than either tier."""
    store = make_store(Memory("100KiB"), Disk(tmp_path, "100KiB"))
    store.put(TOKENS, KV)
    store.flush()
    assert not store.get(TOKENS)
    stats = store.stats()
    assert stats.tiers["memory"].counts["no_room"] == 3
    assert stats.tiers["disk"].counts["no_room"] == 3


def test_memory_that_shrinks_and_grows_while_it_runs(make_store: StoreMaker) -> None:
    """Shrunk to less than two chunks, only the head is left; grown again, all fits."""
    store = make_store(Memory("64MiB"))
    store.put(TOKENS, KV)
    store.resize("memory", "900KiB")
    assert store.get(TOKENS).tokens == 256
    store.resize("memory", "64MiB")
    store.put(TOKENS, KV)
    assert store.get(TOKENS).tokens == 600


def test_expired_pinned_and_ended(make_store: StoreMaker, tmp_path: Path) -> None:
    """What has expired is not served; what is pinned stays until its session ends."""
    now = [1000.0]
    tokens = [prompt(256, seed) for seed in range(6)]
    for tier in (Memory("1200KiB"), Disk(tmp_path, "1200KiB")):  # two chunks of 512 KiB each fit
        store = make_store(tier, clock=lambda: now[0])
        store.put(tokens[0], kv_of(tokens[0]), ttl="5m")
        store.flush()
        now[0] += 299
        assert store.get(tokens[0]).tokens == 256
        now[0] += 2
        assert not store.get(tokens[0])
        store.put(tokens[1], kv_of(tokens[1]), pin=True, session="s")
        for number in (2, 3, 4):
            store.put(tokens[number], kv_of(tokens[number]))
            store.flush()
        assert store.get(tokens[1]).tokens == 256
        assert not store.get(tokens[2])
        store.end_session("s")
        store.flush()
        now[0] += 1
        for number in (3, 4, 5):
            store.put(tokens[number], kv_of(tokens[number]))
            store.flush()
        assert not store.get(tokens[1])
        now[0] += 1


def test_what_expires_on_disk_expires_in_memory_too(make_store: StoreMaker, tmp_path: Path) -> None:
    """A chunk that a `get` brings up keeps the end of its time."""
    now = [1000.0]
    clock = lambda: now[0]  # noqa: E731
    with make_store(Disk(tmp_path, "64MiB"), clock=clock) as store:
        store.put(TOKENS, KV, ttl="5m")
    store = make_store(Memory("64MiB"), Disk(tmp_path, "64MiB"), clock=clock)
    assert store.get(TOKENS).tokens_by_tier == {"disk": 600}
    assert store.get(TOKENS).tokens_by_tier == {"memory": 600}
    now[0] += 301
    assert not store.get(TOKENS)


@pytest.mark.parametrize("why", ["cannot be asked", "is gone"])
def test_what_may_expire_unseen_is_not_kept_above(
    make_store: StoreMaker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, why: str
) -> None:
    """Where the disk does not say until when a chunk may be served, memory does not get it."""
    now = [1000.0]
    clock = lambda: now[0]  # noqa: E731
    with make_store(Disk(tmp_path, "64MiB"), clock=clock) as store:
        store.put(TOKENS, KV, ttl="5m")
    tier = FaultyTier(Disk(tmp_path, "64MiB"))
    store = make_store(Memory("64MiB"), tier, clock=clock)
    if why == "cannot be asked":
        tier.fail(OSError(errno.EIO, "broken"), on="expiry")
    else:  # it goes right after it was read
        expiry = tier.expiry
        monkeypatch.setattr(tier, "expiry", lambda name: tier.remove(name) and expiry(name))
    assert store.get(TOKENS).tokens_by_tier == {"disk": 600}
    assert store._levels.all[0].tier.list("kv/") == []
    now[0] += 301
    assert not store.get(TOKENS)


def test_the_last_put_says_how_long_it_stays_if_that_is_longer(
    make_store: StoreMaker, tmp_path: Path
) -> None:
    """A second put may lengthen its time, or lift the end of it; it never shortens it."""
    now = [1000.0]
    store = make_store(Memory("64MiB"), Disk(tmp_path, "64MiB"), clock=lambda: now[0])
    for ttl, then in (("30m", 1000), ("5m", 1700), ("1h", 3000), (None, 1e9)):
        store.put(TOKENS, KV, ttl=ttl)
        store.flush()
        now[0] = 1000 + then
        assert store.get(TOKENS).tokens == 600
        names = names_of(store._levels.all[1].tier)
        assert store._levels.all[1].tier.contains(names) == [True] * 3


def test_many_threads(make_store: StoreMaker, tmp_path: Path) -> None:
    """Eight threads put and get prompts that share beginnings: every hit is right, no buffer is left."""
    store = make_store(Memory("4MiB"), Disk(tmp_path, "8MiB"))
    prompts = [prompt(300) + prompt(100 * (number % 4) + 20, seed=number % 7) for number in range(16)]
    whole = [kv_of(tokens) for tokens in prompts]
    wrong: list[str] = []

    def work(start: int) -> None:
        for step in range(12):
            at = (start * 5 + step * 3) % len(prompts)
            if step % 3 == 0:
                store.put(prompts[at], whole[at])
            found = store.get(prompts[at])
            if found and not is_equal(found.kv, first(whole[at], found.tokens)):
                wrong.append(f"{at} {found}")

    threads = [threading.Thread(target=work, args=(start,)) for start in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    store.flush()
    holds = store.stats().tiers["memory"].holds
    assert holds is not None
    assert store._pool.used_bytes == holds.used_bytes
