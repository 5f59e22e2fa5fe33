"""Write-behind, workers and guards: the store's machinery alone."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from kvsdk.store import Hints, Memory
from kvsdk.store.levels.guard import Guard, TierUnavailable
from kvsdk.store.levels.workers import Workers
from kvsdk.store.levels.writer import Writer
from kvsdk.store.tiers.buffers import BufferPool
from kvsdk.testing import CountingTier, FaultyTier

NAME = "kv/" + "a" * 64 + "/256-" + "b" * 64
OTHER = "kv/" + "b" * 64 + "/256-" + "c" * 64


def open_tier() -> FaultyTier:
    tier = FaultyTier(Memory("64MiB"))
    tier.open()
    return tier


def test_an_entry_is_readable_before_it_is_written() -> None:
    """The writer has it while the tier is still busy, and lets go of it afterwards."""
    tier, pool = open_tier(), BufferPool()
    stuck = tier.stick(on="put")
    writer = Writer(Guard(tier), limit_bytes=1 << 20, patience_s=5)
    data = pool.take(5)
    data.view[:] = b"hello"
    assert writer.put(NAME, data, Hints())
    data.release()
    stuck.entered.wait(10)
    found = writer.find(NAME)
    assert found is not None
    assert bytes(found.view) == b"hello"
    found.release()
    assert writer.names("kv/") == [NAME]
    assert writer.waiting_bytes == 5
    stuck.release.set()
    assert writer.flush(10)
    assert (writer.find(NAME), writer.names(), writer.waiting_bytes) == (None, [], 0)
    assert tier.list("kv/") == [NAME]


def test_an_entry_that_waits_already_is_not_queued_twice() -> None:
    """The tier is asked to put it once."""
    faulty = open_tier()
    tier, pool = CountingTier(faulty), BufferPool()
    stuck = faulty.stick(on="put", names=[OTHER])
    writer = Writer(Guard(tier), limit_bytes=1 << 20, patience_s=5)
    for name in (OTHER, NAME, NAME, NAME):
        data = pool.take(5)
        assert writer.put(name, data, Hints())
        data.release()
    stuck.release.set()
    assert writer.flush(10)
    assert tier.count("put") == 2


def test_a_tier_that_fails_costs_the_entry_only() -> None:
    """The thread lives on, the memory is given back, the next entry is written."""
    tier, pool = open_tier(), BufferPool()
    tier.fail(RuntimeError("anything at all"), on="put", times=1)
    guard = Guard(tier)
    writer = Writer(guard, limit_bytes=1 << 20, patience_s=5)
    for name in (NAME, OTHER):
        data = pool.take(5)
        writer.put(name, data, Hints())
        data.release()
    assert writer.flush(10)
    assert tier.list("kv/") == [OTHER]
    assert guard.counts()["failures"] == 1
    tier.remove(OTHER)
    assert pool.used_bytes == 0


def test_what_is_done_later_is_done_in_its_turn() -> None:
    """After the entries that were put before it."""
    tier, pool = open_tier(), BufferPool()
    stuck = tier.stick(on="put")
    writer = Writer(Guard(tier), limit_bytes=1 << 20, patience_s=5)
    data = pool.take(5)
    writer.put(NAME, data, Hints())
    seen: list[Any] = []
    writer.later("look", lambda: seen.append(tier.contains([NAME])))
    assert seen == []
    stuck.release.set()
    assert writer.flush(10)
    assert seen == [[True]]


def test_a_flush_gives_up_in_time() -> None:
    """It says that something is left."""
    tier, pool = open_tier(), BufferPool()
    stuck = tier.stick(on="put")
    writer = Writer(Guard(tier), limit_bytes=1 << 20, patience_s=5)
    writer.put(NAME, pool.take(5), Hints())
    assert not writer.flush(0.05)
    stuck.release.set()
    assert writer.close(10)
    assert not writer.put(OTHER, pool.take(5), Hints())


def test_one_entry_may_be_larger_than_the_queue() -> None:
    """Alone; a second one has to wait for it."""
    tier, pool = open_tier(), BufferPool()
    stuck = tier.stick(on="put")
    writer = Writer(Guard(tier), limit_bytes=10, patience_s=5)
    assert writer.put(NAME, pool.take(100), Hints())
    assert not writer.put(OTHER, pool.take(1), Hints(), patience_s=0.0)
    stuck.release.set()
    assert writer.flush(10)
    assert writer.put(OTHER, pool.take(1), Hints())


def test_what_waits_is_counted_by_the_memory_it_takes() -> None:
    """An entry of 5 bytes takes 64 KiB, so of a queue of 200 KiB three fit."""
    tier, pool = open_tier(), BufferPool()
    stuck = tier.stick(on="put")
    writer = Writer(Guard(tier), limit_bytes=200 << 10, patience_s=5)
    names = [f"kv/{number}" for number in range(4)]
    taken = [writer.put(name, pool.take(5), Hints(), patience_s=0.0) for name in names]
    assert taken == [True, True, True, False]
    assert writer.waiting_bytes == 15
    stuck.release.set()
    assert writer.flush(10)


def test_two_that_wait_to_put_one_entry_put_it_once() -> None:
    """Both waited for room when neither had put it; the memory of both is given back."""
    tier, pool = open_tier(), BufferPool()
    stuck = tier.stick(on="put")
    counting = CountingTier(tier)
    writer = Writer(Guard(counting), limit_bytes=1, patience_s=30)
    first = pool.take(5)
    writer.put(OTHER, first, Hints())
    first.release()
    assert stuck.entered.wait(10)
    done: list[bool] = []

    def put() -> None:
        data = pool.take(5)
        done.append(writer.put(NAME, data, Hints()))
        data.release()

    waiting = [threading.Thread(target=put) for _ in range(2)]
    for thread in waiting:
        thread.start()
    while len(writer._changed._waiters) < 2:  # type: ignore[attr-defined]  # both wait for room
        threading.Event().wait(0.001)
    stuck.release.set()
    for thread in waiting:
        thread.join()
    assert writer.flush(10)
    assert done == [True, True]
    assert (counting.count("put"), writer.waiting_bytes) == (2, 0)
    for name in (NAME, OTHER):
        assert tier.remove(name)
    assert pool.used_bytes == 0


def test_a_panic_is_a_failure_like_others() -> None:
    """What panics in a Rust library is no `Exception`: the thread lives on, and the next entry is written."""

    class Panic(BaseException):
        pass

    def panic() -> None:
        raise Panic("deep inside")

    tier, pool = open_tier(), BufferPool()
    guard = Guard(tier)
    with pytest.raises(TierUnavailable, match="deep inside"):
        guard.run("read", panic)
    writer = Writer(guard, limit_bytes=1 << 20, patience_s=5)
    writer.later("panic", panic)
    data = pool.take(5)
    writer.put(NAME, data, Hints())
    data.release()
    assert writer.flush(10)
    assert tier.list("kv/") == [NAME]
    assert guard.counts()["failures"] == 2


def test_an_interrupt_is_the_callers() -> None:
    """It comes through as it is, and the tier may be asked again."""

    def interrupted() -> None:
        raise KeyboardInterrupt

    guard = Guard(open_tier(), failures=1, rest_s=0.0)
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            guard.run("read", interrupted)
    assert guard.run("read", lambda: 5) == 5


def test_a_put_that_waited_in_vain_is_the_last_to_wait() -> None:
    """Until something moves, entries that find no room are dropped at once, though the tier answers."""
    tier, pool = open_tier(), BufferPool()
    stuck = tier.stick(on="put")
    guard = Guard(tier)
    writer = Writer(guard, limit_bytes=1, patience_s=0.05)
    writer.put(NAME, pool.take(5), Hints())
    assert stuck.entered.wait(10)
    assert not writer.put(OTHER, pool.take(5), Hints())
    writer._patience_s = 1e6
    for _ in range(5):
        guard.run("look up", lambda: tier.contains([OTHER]))
        assert not writer.put(OTHER, pool.take(5), Hints())
    assert guard.counts() == {"failures": 1, "dropped": 6}
    stuck.release.set()
    assert writer.flush(10)
    assert writer.put(OTHER, pool.take(5), Hints())


def test_a_removal_goes_before_what_waits() -> None:
    """What is being written when it is asked for is removed after that; what waited is not written at all."""
    faulty = open_tier()
    tier, pool = CountingTier(faulty), BufferPool()
    stuck = faulty.stick(on="put", times=1)
    writer = Writer(Guard(tier), limit_bytes=1 << 30, patience_s=5)
    for name in (NAME, OTHER, "kv/0"):
        data = pool.take(5)
        writer.put(name, data, Hints())
        data.release()
    assert stuck.entered.wait(10)
    answers = [writer.remove(NAME), writer.remove(OTHER)]
    assert writer.names() == ["kv/0"]
    assert writer.find(NAME) is None
    stuck.release.set()
    assert [answer.result(10) for answer in answers] == [True, True]
    assert writer.flush(10)
    assert faulty.list("kv/") == ["kv/0"]
    assert tier.count("put") == 2
    faulty.remove("kv/0")
    assert (pool.used_bytes, writer.waiting_bytes) == (0, 0)


def test_a_guard_raises_one_error_only() -> None:
    """Whatever the tier raises, with the tier's own as its cause; open, it asks no more."""
    guard = Guard(open_tier(), failures=2)

    def broken() -> None:
        raise ZeroDivisionError("deep inside")

    for _ in range(2):
        with pytest.raises(TierUnavailable, match="the memory tier failed to read: deep inside") as caught:
            guard.run("read", broken)
        assert isinstance(caught.value.__cause__, ZeroDivisionError)
    with pytest.raises(TierUnavailable, match="not asked again yet"):
        guard.run("read", lambda: pytest.fail("it was asked"))
    assert guard.counts() == {"failures": 2, "not_asked": 1}


def test_workers_give_results_and_errors() -> None:
    """Each to whom it belongs."""
    workers = Workers(2, "test")
    assert [workers.submit(lambda number=number: number * 2).result(10) for number in range(5)] == [
        0,
        2,
        4,
        6,
        8,
    ]
    failing = workers.submit(lambda: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        failing.result(10)
    workers.close()


def test_workers_that_are_closed_do_what_comes_late() -> None:
    """A call that began before the end gets its answer, at once."""
    workers = Workers(1, "test")
    assert workers.submit(lambda: 1).result(10) == 1
    workers.close()
    workers.close()
    workers.replace()
    assert workers.submit(lambda: 2).result(10) == 2


def test_a_stuck_worker_is_replaced() -> None:
    """With its only thread stuck, a job is done once there is another."""
    workers, stuck = Workers(1, "test"), threading.Event()
    first = workers.submit(lambda: stuck.wait(30))
    second = workers.submit(lambda: "done")
    with pytest.raises(TimeoutError):
        second.result(0.05)
    workers.replace()
    assert second.result(10) == "done"
    stuck.set()
    assert first.result(10)
    workers.close()
