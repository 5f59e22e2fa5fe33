"""The memory tier."""

from __future__ import annotations

import math
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test
from kvsdk.errors import InvalidRequest
from kvsdk.store.tiers.buffers import BufferPool
from kvsdk.store.tiers.memory import Memory
from kvsdk.store.tiers.tier import Hints
from tier_machine import TierMachine
from tier_twin import UNIT, Clock, buffer_of, chain, content_of


class LruMachine(TierMachine):
    policy = "lru"

    def new_tier(self) -> Memory:
        return Memory("1GiB")


class HintsMachine(TierMachine):
    def new_tier(self) -> Memory:
        return Memory("1GiB")


@pytest.mark.parametrize("machine", [LruMachine, HintsMachine])
def test_a_memory_tier_does_what_its_naive_twin_does(machine: type[TierMachine]) -> None:
    """Whatever is put, touched, held, pinned, ended and evicted, in whatever order."""
    run_state_machine_as_test(
        machine, settings=settings(max_examples=40, stateful_step_count=30, deadline=None)
    )


@pytest.fixture
def pool() -> BufferPool:
    return BufferPool()


def opened(capacity: int, clock: Clock | None = None) -> Memory:
    tier = Memory(capacity)
    tier.open(clock=clock or Clock())
    return tier


def put(tier: Memory, pool: BufferPool, name: str, size: int = UNIT, hints: Hints | None = None) -> bool:
    data = buffer_of(pool, name, size)
    try:
        return tier.put(name, data, hints or Hints())
    finally:
        data.release()


def test_an_entry_is_kept_without_a_copy(pool: BufferPool) -> None:
    """What comes out is the buffer that went in, held once more."""
    tier = opened(UNIT)
    data = buffer_of(pool, "kv/a/1-b")
    assert tier.put("kv/a/1-b", data, Hints())
    assert tier.get("kv/a/1-b", pool) is data


def test_memory_is_counted_as_the_pool_gives_it(pool: BufferPool) -> None:
    """One byte takes 65,536, and 65,537 bytes take twice that: 3 * 65,536 together."""
    tier = opened(10 * UNIT)
    put(tier, pool, "fp/a", 1)
    put(tier, pool, "fp/b", UNIT + 1)
    assert tier.stats().used_bytes == 3 * 65_536 == pool.used_bytes


def test_what_is_evicted_or_removed_is_let_go(pool: BufferPool) -> None:
    """The pool has the memory back, once no reader holds it any more."""
    tier = opened(2 * UNIT)
    for name in ("fp/a", "fp/b", "fp/c"):
        put(tier, pool, name)
    assert pool.used_bytes == 2 * UNIT
    reader = tier.get("fp/c", pool)
    assert tier.remove("fp/c")
    assert pool.used_bytes == 2 * UNIT
    assert reader is not None
    reader.release()
    assert pool.used_bytes == UNIT
    tier.close()
    assert pool.used_bytes == 0


def test_what_is_larger_than_the_tier_evicts_nothing(pool: BufferPool) -> None:
    """It is refused, and everything else stays."""
    tier = opened(2 * UNIT)
    put(tier, pool, "fp/a")
    put(tier, pool, "fp/b")
    assert not put(tier, pool, "fp/c", 3 * UNIT)
    assert tier.list("") == ["fp/a", "fp/b"]


def test_a_put_that_cannot_fit_evicts_nothing(pool: BufferPool) -> None:
    """Two of three units are pinned, so two units cannot be had: the third stays."""
    tier = opened(3 * UNIT)
    put(tier, pool, "fp/a", hints=Hints(pinned=True))
    put(tier, pool, "fp/b", hints=Hints(pinned=True))
    put(tier, pool, "fp/c")
    assert not put(tier, pool, "fp/d", 2 * UNIT)
    assert tier.list("") == ["fp/a", "fp/b", "fp/c"]


def test_a_prefix_longer_than_the_tier_keeps_its_head(pool: BufferPool) -> None:
    """Put head first, its first three entries of five stay, and no entry goes for its own tail."""
    tier = opened(3 * UNIT)
    names = chain(1, 1, 1, 1, 1)
    hints = [Hints(depth_tokens=256 * depth) for depth in range(5)]
    kept = [put(tier, pool, name, hints=hint) for name, hint in zip(names, hints, strict=True)]
    assert kept == [True, True, True, False, False]
    assert tier.contains(names) == [True, True, True, False, False]


def test_an_expired_entry_is_not_there(pool: BufferPool) -> None:
    """It is neither listed, contained nor read, nor touched back to life; `collect` removes it."""
    clock = Clock(100.0)
    tier = opened(UNIT, clock)
    put(tier, pool, "fp/a", hints=Hints(expires_at=110.0, pinned=True))
    clock.now = 109.0
    assert tier.contains(["fp/a"]) == [True]
    clock.now = 110.0
    tier.touch(["fp/a"], Hints(expires_at=200.0))
    assert tier.contains(["fp/a"]) == [False]
    assert tier.list("") == []
    assert tier.get("fp/a", pool) is None
    assert tier.collect() == 1
    assert tier.stats().used_bytes == 0


def test_the_latest_expiry_counts(pool: BufferPool) -> None:
    """A put without one means never; a use without one says nothing; a use may say for ever as a number."""
    clock = Clock(100.0)
    tier = opened(4 * UNIT, clock)
    for name in ("fp/a", "fp/b", "fp/c", "fp/d"):
        put(tier, pool, name, hints=Hints(expires_at=110.0))
    tier.touch(["fp/a", "fp/b", "fp/c", "fp/d"], Hints())
    tier.touch(["fp/b"], Hints(expires_at=120.0))
    tier.touch(["fp/c"], Hints(expires_at=math.inf))
    put(tier, pool, "fp/d", hints=Hints())
    clock.now = 111.0
    assert tier.list("") == ["fp/b", "fp/c", "fp/d"]
    clock.now = 1e12
    assert tier.list("") == ["fp/c", "fp/d"]


@pytest.mark.parametrize("name", ["../a/b", "kv/../b", "/etc/passwd", "kv//a", "kv/A", "kv", "", "kv/a\n", 7])
def test_what_is_no_name_is_refused(pool: BufferPool, name: str) -> None:
    """By everything that takes one name or asks for some."""
    tier = opened(UNIT)
    data = pool.take(1)
    for call in (
        lambda: tier.put(name, data, Hints()),
        lambda: tier.get(name, pool),
        lambda: tier.contains([name]),
        lambda: tier.remove(name),
    ):
        with pytest.raises(InvalidRequest, match="is no name"):
            call()


@pytest.mark.parametrize("capacity", [0, -1, "much", None, True, ""])
def test_a_capacity_is_a_size(capacity: int | str) -> None:
    """Above 0, as bytes or as text; for a resize too."""
    with pytest.raises(InvalidRequest, match="capacity is a size"):
        Memory(capacity)
    tier = opened(UNIT)
    with pytest.raises(InvalidRequest, match="capacity is a size"):
        tier.resize(capacity)


def test_a_closed_tier_says_so(pool: BufferPool) -> None:
    """Before `open` and after `close`, which may be called twice; then it may be opened again, empty."""
    tier = Memory(UNIT)
    with pytest.raises(InvalidRequest, match="memory tier is closed, or not opened yet"):
        tier.list("")
    tier.open()
    with pytest.raises(InvalidRequest, match="is open already"):
        tier.open()
    put(tier, pool, "fp/a")
    tier.close()
    tier.close()
    with pytest.raises(InvalidRequest, match="memory tier is closed"):
        put(tier, pool, "fp/a")
    tier.open()
    assert tier.list("") == []


def test_a_policy_has_to_be_known() -> None:
    """The error says what is meant."""
    with pytest.raises(InvalidRequest, match=r"no policy 'hint'\. Did you mean 'hints'"):
        Memory(UNIT).open(policy="hint")  # type: ignore[arg-type]


def test_threads_share_one_tier(pool: BufferPool) -> None:
    """Eight threads put, read and remove the same entries; counts and memory agree afterwards."""
    tier = opened(6 * UNIT)

    def work(seed: int) -> None:
        for step in range(200):
            name = f"fp/{(seed * 7 + step * 3) % 12}"
            put(tier, pool, name)
            data = tier.get(name, pool)
            if data is not None:
                assert data.view[:64] == content_of(name, 64)
                data.release()
            if step % 5 == 0:
                tier.remove(name)

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(work, range(8)))
    assert tier.stats().used_bytes == pool.used_bytes == UNIT * len(tier.list(""))
