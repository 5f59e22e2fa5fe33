"""Standard tests of tiers: memory, threads, capacity, closing and opening again."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from kvsdk.errors import InvalidRequest, Unsupported
from kvsdk.store.tiers.buffers import Buffer, BufferPool
from kvsdk.store.tiers.tier import Hints, Tier
from kvsdk.testing.tier_fixtures import TierFixtures, content, keep, read

NAME = "kv/0/256-ab"
_MIB = 1 << 20
_THREADS = 8


class _EmptyPool(BufferPool):
    """A pool that has no memory left."""

    def take(self, size: int) -> Buffer:
        raise MemoryError("the pool is empty")


class MemoryTests(TierFixtures):
    """Who holds which memory, and for how long."""

    def test_the_writers_memory_is_the_writers(self, tier: Tier, pool: BufferPool) -> None:
        """What it does with it after `put` does not change the entry."""
        assert keep(tier, pool, NAME, content(NAME, 1000))
        _scribble(pool, 1000)
        assert self.raw_get(tier, NAME) == content(NAME, 1000)
        assert read(tier, pool, NAME) == content(NAME, 1000)

    def test_put_takes_no_hold_away(self, tier: Tier, pool: BufferPool) -> None:
        """The writer still has its memory, and lets go of it once."""
        buffer = pool.take(1000)
        buffer.view[:] = content(NAME, 1000)
        assert tier.put(NAME, buffer, Hints())
        assert tier.remove(NAME)
        _scribble(pool, 1000)
        assert buffer.view == content(NAME, 1000)
        buffer.release()
        assert pool.used_bytes == 0

    def test_a_reader_keeps_what_it_has(self, tier: Tier, pool: BufferPool) -> None:
        """Also when the entry is removed, and when another reader lets go."""
        assert keep(tier, pool, NAME, content(NAME, 1000))
        first, second = tier.get(NAME, pool), tier.get(NAME, pool)
        assert first is not None
        assert second is not None
        first.release()
        assert tier.remove(NAME)
        _scribble(pool, 1000)
        assert second.view == content(NAME, 1000)
        second.release()
        assert pool.used_bytes == 0

    def test_what_fails_leaves_nothing_in_use(self, tier: Tier, pool: BufferPool) -> None:
        """A read without memory raises, unless it needs none; the next one goes well."""
        assert keep(tier, pool, NAME, content(NAME, 1000))
        used = pool.used_bytes
        try:
            buffer = tier.get(NAME, _EmptyPool())
        except MemoryError:
            pass
        else:
            assert buffer is not None, "no memory is no miss"
            buffer.release()
        assert pool.used_bytes == used
        assert read(tier, pool, NAME) == content(NAME, 1000)

    def test_closing_gives_the_memory_back(self, pool: BufferPool) -> None:
        """All of it; but what a reader has stays the reader's."""
        tier = self.make_tier()
        tier.open()
        assert keep(tier, pool, NAME, content(NAME, 1000))
        buffer = tier.get(NAME, pool)
        tier.close()
        assert buffer is not None
        _scribble(pool, 1000)
        assert buffer.view == content(NAME, 1000)
        buffer.release()
        assert pool.used_bytes == 0


class ThreadTests(TierFixtures):
    """Several threads at once."""

    def test_many_put_one_name(self, tier: Tier, pool: BufferPool) -> None:
        """All succeed, and it is there once and whole."""
        data = content(NAME, _MIB + 1)
        assert _together(lambda number: keep(tier, pool, NAME, data)) == [True] * _THREADS
        assert tier.list("") == [NAME]
        assert read(tier, pool, NAME) == data

    def test_many_put_many_names(self, tier: Tier, pool: BufferPool) -> None:
        """Each is there with its own bytes."""
        names = [f"kv/{number}" for number in range(_THREADS * 4)]

        def put(thread: int) -> bool:
            return all(keep(tier, pool, name, content(name, 70_000)) for name in names[thread::_THREADS])

        assert _together(put) == [True] * _THREADS
        assert tier.list("kv/") == sorted(names)
        assert all(_together(lambda thread: _are_right(tier, names[thread::_THREADS])))

    def test_readers_see_all_or_nothing(self, tier: Tier, pool: BufferPool) -> None:
        """While one thread puts and removes, the others read the whole entry or a miss."""
        data = content(NAME, 600_005)
        done = threading.Event()

        def write() -> None:
            try:
                for _ in range(10):
                    assert keep(tier, pool, NAME, data)
                    tier.remove(NAME)
            finally:
                done.set()

        def look(thread: int) -> int:
            if thread == 0:
                write()
            wrong = 0
            own = BufferPool()
            while not done.is_set():
                buffer = tier.get(NAME, own)
                if buffer is not None:
                    wrong += buffer.view != data
                    buffer.release()
            return wrong

        assert _together(look) == [0] * _THREADS
        assert read(tier, pool, NAME) is None
        assert pool.used_bytes == 0


class LifeTests(TierFixtures):
    """Opening, closing, what it says of itself, and what it need not do."""

    def test_it_says_what_it_is(self, tier: Tier) -> None:
        """A name for people, and two traits for the store."""
        assert tier.name
        assert isinstance(tier.name, str)
        assert isinstance(tier.may_block, bool)
        assert isinstance(tier.is_remote, bool)

    def test_another_one_finds_what_was_put(self, pool: BufferPool) -> None:
        """At the same place, once the first one has synced and closed."""
        if not self.persists:
            pytest.skip("this tier forgets when it is closed")
        names = ["kv/0", "kv/0/1"]
        first = self.make_tier()
        first.open()
        for name in names:
            assert keep(first, pool, name, content(name, 70_000))
        first.sync()
        first.close()
        second = self.make_tier()
        second.open()
        try:
            assert second.list("") == names
            assert second.contains(names) == [True, True]
            assert all(read(second, pool, name) == content(name, 70_000) for name in names)
        finally:
            second.close()

    def test_it_counts_what_it_has(self, tier: Tier, pool: BufferPool) -> None:
        """Entries and bytes, or None where it cannot say; never a guess."""
        empty = tier.stats()
        assert empty.entries in (0, None)
        assert empty.used_bytes in (0, None)
        for name in ("kv/0", "kv/1", "kv/2"):
            assert keep(tier, pool, name, content(name, 10_000))
        assert tier.remove("kv/1")
        full = tier.stats()
        assert full.entries == (None if empty.entries is None else 2)
        assert (full.used_bytes is None) == (empty.used_bytes is None)
        assert full.used_bytes is None or 2 * 10_000 <= full.used_bytes < 2 * 10_000 + _MIB
        assert full.capacity_bytes == empty.capacity_bytes
        for name in ("kv/0", "kv/2"):
            assert tier.remove(name)
        assert tier.stats() == empty

    def test_a_capacity_can_be_changed(self, tier: Tier, pool: BufferPool) -> None:
        """What is too much goes at once. Who has no capacity says so."""
        if tier.stats().capacity_bytes is None:
            with pytest.raises(Unsupported):
                tier.resize("1GiB")
            return
        names = [f"kv/{number}" for number in range(6)]
        for name in names:
            assert keep(tier, pool, name, content(name, _MIB))
        tier.resize("4MiB")
        assert tier.stats().capacity_bytes == 4 * _MIB
        left = tier.list("")
        assert 2 <= len(left) <= 4
        assert tier.contains(names) == [name in left for name in names]
        assert all(read(tier, pool, name) == content(name, _MIB) for name in left)
        assert all(read(tier, pool, name) is None for name in set(names) - set(left))
        assert pool.used_bytes <= 4 * _MIB + 4 * 65536

    @pytest.mark.parametrize("size", [0, -1, "", "4 sausages", None, "-1MiB", True])
    def test_what_is_no_size_is_refused(self, tier: Tier, size: object) -> None:
        """And the capacity is what it was."""
        before = tier.stats().capacity_bytes
        with pytest.raises(Unsupported if before is None else InvalidRequest):
            tier.resize(size)  # type: ignore[arg-type]
        assert tier.stats().capacity_bytes == before

    def test_what_has_no_room_is_not_kept(self, tier: Tier, pool: BufferPool) -> None:
        """`put` says so; no part of it is there, and no memory stays in use."""
        if tier.stats().capacity_bytes is None:
            pytest.skip("this tier has room for everything")
        tier.resize("1MiB")
        used = pool.used_bytes
        assert keep(tier, pool, NAME, content(NAME, 2 * _MIB)) is False
        assert pool.used_bytes == used
        assert read(tier, pool, NAME) is None
        assert self.raw_get(tier, NAME) is None
        assert tier.list("") == []
        assert keep(tier, pool, NAME, b"1")

    def test_new_entries_take_the_place_of_old_ones(self, tier: Tier, pool: BufferPool) -> None:
        """Where there is no room, some go; the newest is there, and all in all it fits."""
        if tier.stats().capacity_bytes is None:
            pytest.skip("this tier has room for everything")
        tier.resize("4MiB")
        for name in (f"kv/{number}" for number in range(12)):
            assert keep(tier, pool, name, content(name, _MIB))
            assert read(tier, pool, name) == content(name, _MIB)
            used = tier.stats().used_bytes
            assert used is None or used <= 4 * _MIB
        assert 2 <= len(tier.list("")) <= 4

    def test_what_is_absent_cannot_be_used(self, tier: Tier, pool: BufferPool) -> None:
        """To touch, demote or unpin it, or to end a session that nobody began, does no harm."""
        hints = Hints(session="nobody", expires_at=1e12, pinned=True)
        assert keep(tier, pool, NAME, b"1")
        before = tier.stats()
        for names in ((), ("kv/9",), ("kv/9", NAME)):
            tier.touch(names, hints)
            tier.demote(names)
            tier.unpin(names)
        assert tier.end_session("somebody else") == 0
        assert tier.stats() == before
        assert tier.list("") == [NAME]
        assert read(tier, pool, NAME) == b"1"

    def test_what_is_good_is_not_collected(self, tier: Tier, pool: BufferPool) -> None:
        """Nothing has expired and nothing is half done, so nothing goes."""
        assert tier.collect() == 0
        assert keep(tier, pool, NAME, b"1")
        tier.sync()
        assert tier.collect() == 0
        assert read(tier, pool, NAME) == b"1"


def _scribble(pool: BufferPool, size: int) -> None:
    """Write into memory that was given back."""
    buffers = [pool.take(size) for _ in range(4)]
    for buffer in buffers:
        buffer.view[:] = b"\xaa" * size
    for buffer in buffers:
        buffer.release()


def _are_right(tier: Tier, names: list[str]) -> bool:
    own = BufferPool()
    return all(read(tier, own, name) == content(name, 70_000) for name in names)


def _together(job: Callable[[int], object]) -> list[object]:
    """What comes of doing it in several threads that begin at once."""
    begin = threading.Barrier(_THREADS)

    def run(thread: int) -> object:
        begin.wait()
        return job(thread)

    with ThreadPoolExecutor(_THREADS) as threads:
        return [*threads.map(run, range(_THREADS))]
