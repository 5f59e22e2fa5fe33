"""Broken tiers: who holds which memory, and several threads at once."""

from __future__ import annotations

import time

from broken_tiers import fails
from dict_tiers import DictTier
from kvsdk.store.tiers.buffers import Buffer, BufferPool
from kvsdk.store.tiers.tier import Hints, check_name

# ---------------------------------------------------------------------- memory


class Holding(DictTier):
    """Not broken: a tier that keeps the buffers themselves."""

    def __init__(self, place: dict[str, bytes]) -> None:
        super().__init__(place)
        self.buffers: dict[str, Buffer] = {}

    def put(self, name: str, data: Buffer, hints: Hints) -> bool:
        with self.lock:
            if check_name(name) not in self.buffers:
                self.buffers[name] = self.hold(data)
            return super().put(name, data, hints)

    def hold(self, data: Buffer) -> Buffer:
        return data.hold()

    def get(self, name: str, pool: BufferPool) -> Buffer | None:
        with self.lock:
            found = self.buffers.get(check_name(name))
            return None if found is None else self.hold(found)

    def remove(self, name: str) -> bool:
        with self.lock:
            found = self.buffers.pop(check_name(name), None)
            if found is not None:
                found.release()
            return super().remove(name)

    def close(self) -> None:
        for name in [*self.buffers]:
            self.remove(name)


@fails("test_the_writers_memory_is_the_writers")
class KeepsAView(Holding):
    def put(self, name: str, data: Buffer, hints: Hints) -> bool:
        self.views = {**getattr(self, "views", {}), check_name(name): data.view}
        return DictTier.put(self, name, data, hints)

    def get(self, name: str, pool: BufferPool) -> Buffer | None:
        buffer = DictTier.get(self, name, pool)
        if buffer is not None:
            buffer.view[:] = self.views[name]
        return buffer


@fails("test_put_takes_no_hold_away")
class LetsGoForTheWriter(DictTier):
    def put(self, name: str, data: Buffer, hints: Hints) -> bool:
        kept = super().put(name, data, hints)
        data.release()
        return kept


@fails("test_a_reader_keeps_what_it_has")
class HandsOutWithoutAHold(Holding):
    def get(self, name: str, pool: BufferPool) -> Buffer | None:
        return self.buffers.get(check_name(name))


@fails("test_a_reader_keeps_what_it_has")
class WipesWhatItRemoves(Holding):
    def remove(self, name: str) -> bool:
        found = self.buffers.get(check_name(name))
        if found is not None:
            found.view[:] = bytes(len(found))
        return super().remove(name)


@fails("test_what_is_removed_is_gone", "test_put_takes_no_hold_away", "test_closing_gives_the_memory_back")
class HoldsForEver(Holding):
    def remove(self, name: str) -> bool:
        self.buffers.pop(check_name(name), None)
        return DictTier.remove(self, name)


@fails("test_a_second_put_changes_nothing")
class HoldsTwice(Holding):
    def put(self, name: str, data: Buffer, hints: Hints) -> bool:
        if check_name(name) in self.buffers:
            data.hold()
        return super().put(name, data, hints)


@fails("test_what_fails_leaves_nothing_in_use")
class FailsWithAMiss(DictTier):
    def get(self, name: str, pool: BufferPool) -> Buffer | None:
        try:
            return super().get(name, pool)
        except MemoryError:
            return None


@fails("test_what_fails_leaves_nothing_in_use")
class FailsWithALeak(Holding):
    def get(self, name: str, pool: BufferPool) -> Buffer | None:
        found = super().get(name, pool)
        if found is None:
            return None
        copy = pool.take(len(found))  # when that fails, `found` is held for ever
        copy.view[:] = found.view
        found.release()
        return copy


@fails("test_closing_gives_the_memory_back")
class ClosesWithALeak(Holding):
    def close(self) -> None:
        pass


# ---------------------------------------------------------------------- threads


@fails("test_many_put_one_name")
class IsBusy(DictTier):
    def put(self, name: str, data: Buffer, hints: Hints) -> bool:
        if not self.lock.acquire(blocking=False):
            raise RuntimeError("busy")
        try:
            time.sleep(0.001)
            return super().put(name, data, hints)
        finally:
            self.lock.release()


@fails("test_many_put_many_names")
class LosesUpdates(DictTier):
    def put(self, name: str, data: Buffer, hints: Hints) -> bool:
        entries = {**self.entries, check_name(name): bytes(data.view)}
        time.sleep(0.001)
        self.entries.clear()
        self.entries.update(entries)
        return True


@fails("test_readers_see_all_or_nothing")
class ShowsHalf(DictTier):
    def put(self, name: str, data: Buffer, hints: Hints) -> bool:
        self.entries[check_name(name)] = bytes(data.view[: len(data) // 2])
        time.sleep(0.01)
        self.entries[name] = bytes(data.view)
        return True
