"""Tiers that each break one promise, beside the standard test that must find it: entries and names."""

from __future__ import annotations

import builtins
from collections.abc import Callable, Sequence

from dict_tiers import DictTier
from kvsdk.store.tiers.buffers import Buffer, BufferPool
from kvsdk.store.tiers.tier import Hints, check_name

BROKEN: list[tuple[str, type[DictTier]]] = []
"""The standard test, and the tier that it must fail."""


def fails(*tests: str) -> Callable[[type[DictTier]], type[DictTier]]:
    """Register a broken tier."""

    def register(kind: type[DictTier]) -> type[DictTier]:
        BROKEN.extend((test, kind) for test in tests)
        return kind

    return register


# ---------------------------------------------------------------------- entries


@fails("test_what_is_put_lies_there", "test_what_is_put_is_read", "test_entries_are_kept_apart")
class Forgets(DictTier):
    def put(self, name: str, data: Buffer, hints: Hints) -> bool:
        check_name(name)
        return True


@fails("test_what_is_put_lies_there", "test_what_lies_there_is_read")
class KeepsItInAnotherForm(DictTier):
    def put(self, name: str, data: Buffer, hints: Hints) -> bool:
        self.entries.setdefault(check_name(name), bytes(data.view)[::-1])
        return True

    def get(self, name: str, pool: BufferPool) -> Buffer | None:
        buffer = super().get(name, pool)
        if buffer is not None:
            buffer.view[:] = bytes(buffer.view)[::-1]
        return buffer


@fails("test_what_lies_there_is_read")
class ReadsOnlyItsOwn(DictTier):
    def __init__(self, place: dict[str, bytes]) -> None:
        super().__init__(place)
        self.mine: set[str] = set()

    def put(self, name: str, data: Buffer, hints: Hints) -> bool:
        self.mine.add(name)
        return super().put(name, data, hints)

    def get(self, name: str, pool: BufferPool) -> Buffer | None:
        check_name(name)
        return super().get(name, pool) if name in self.mine else None


@fails("test_what_lies_there_is_read")
class ListsOnlyItsOwn(ReadsOnlyItsOwn):
    def get(self, name: str, pool: BufferPool) -> Buffer | None:
        return DictTier.get(self, name, pool)

    def list(self, prefix: str) -> builtins.list[str]:
        return [name for name in super().list(prefix) if name in self.mine]


@fails("test_what_is_put_is_read", "test_what_lies_there_is_read")
class ReadsTooMuch(DictTier):
    def get(self, name: str, pool: BufferPool) -> Buffer | None:
        data = self.entries.get(check_name(name))
        if data is None:
            return None
        buffer = pool.take(-(-len(data) // 512) * 512)
        buffer.view[: len(data)] = data
        return buffer


@fails("test_what_is_put_is_read")
class HasNoEmptyEntries(DictTier):
    def get(self, name: str, pool: BufferPool) -> Buffer | None:
        return super().get(name, pool) if self.entries.get(check_name(name)) else None


@fails("test_what_is_put_is_read")
class IsReadOnce(DictTier):
    def get(self, name: str, pool: BufferPool) -> Buffer | None:
        buffer = super().get(name, pool)
        self.entries.pop(name, None)
        return buffer


@fails("test_entries_are_kept_apart")
class MixesItsEntries(DictTier):
    def put(self, name: str, data: Buffer, hints: Hints) -> bool:
        return super().put(check_name(name)[:-2] + "00", data, hints)

    def get(self, name: str, pool: BufferPool) -> Buffer | None:
        return super().get(check_name(name)[:-2] + "00", pool)


@fails("test_what_is_absent_is_a_miss")
class MissesWithAnError(DictTier):
    def get(self, name: str, pool: BufferPool) -> Buffer | None:
        if check_name(name) not in self.entries:
            raise KeyError(name)
        return super().get(name, pool)


@fails("test_what_is_absent_is_a_miss")
class MissesWithNothing(DictTier):
    def get(self, name: str, pool: BufferPool) -> Buffer | None:
        return super().get(name, pool) or pool.take(0)


@fails("test_what_is_absent_is_a_miss")
class MissesWithALeak(DictTier):
    def get(self, name: str, pool: BufferPool) -> Buffer | None:
        if check_name(name) not in self.entries:
            pool.take(1)
            return None
        return super().get(name, pool)


@fails("test_a_second_put_changes_nothing")
class Overwrites(DictTier):
    def put(self, name: str, data: Buffer, hints: Hints) -> bool:
        self.entries[check_name(name)] = bytes(data.view)
        return True


@fails("test_a_second_put_changes_nothing")
class RefusesASecondPut(DictTier):
    def put(self, name: str, data: Buffer, hints: Hints) -> bool:
        return check_name(name) not in self.entries and super().put(name, data, hints)


@fails("test_a_batch_is_answered_in_its_order")
class AnswersSorted(DictTier):
    def contains(self, names: Sequence[str]) -> builtins.list[bool]:
        return super().contains(sorted(names))


@fails("test_a_batch_is_answered_in_its_order")
class AnswersEachNameOnce(DictTier):
    def contains(self, names: Sequence[str]) -> builtins.list[bool]:
        return super().contains([*dict.fromkeys(names)])


@fails("test_names_are_listed_by_how_they_begin")
class ListsFolders(DictTier):
    def list(self, prefix: str) -> builtins.list[str]:
        folder = prefix.rstrip("/")
        return [
            name for name in super().list("") if not folder or name == folder or name.startswith(f"{folder}/")
        ]


@fails("test_names_are_listed_by_how_they_begin")
class ListsInAnyOrder(DictTier):
    def list(self, prefix: str) -> builtins.list[str]:
        return [name for name in self.entries if name.startswith(prefix)]


@fails("test_what_is_removed_is_gone")
class RemovesWhatIsUnder(DictTier):
    def remove(self, name: str) -> bool:
        for other in self.list(f"{check_name(name)}/"):
            del self.entries[other]
        return super().remove(name)


@fails("test_what_is_removed_is_gone")
class OnlyHidesWhatIsRemoved(DictTier):
    def __init__(self, place: dict[str, bytes]) -> None:
        super().__init__(place)
        self.hidden: set[str] = set()

    def get(self, name: str, pool: BufferPool) -> Buffer | None:
        return super().get(name, pool) if name not in self.hidden else None

    def contains(self, names: Sequence[str]) -> builtins.list[bool]:
        return [
            there and name not in self.hidden
            for name, there in zip(names, super().contains(names), strict=True)
        ]

    def list(self, prefix: str) -> builtins.list[str]:
        return [name for name in super().list(prefix) if name not in self.hidden]

    def remove(self, name: str) -> bool:
        there = self.contains([name])[0]
        self.hidden.add(name)
        return there


@fails("test_what_is_removed_is_gone", "test_what_is_absent_is_a_miss")
class AlwaysRemoved(DictTier):
    def remove(self, name: str) -> bool:
        super().remove(name)
        return True


@fails("test_what_is_no_name_is_refused")
class PutsAnything(DictTier):
    def put(self, name: str, data: Buffer, hints: Hints) -> bool:
        self.entries.setdefault(name, bytes(data.view))
        return True


@fails("test_what_is_no_name_is_refused")
class GetsAnything(DictTier):
    def get(self, name: str, pool: BufferPool) -> Buffer | None:
        return super().get(name, pool) if name in self.entries else None


@fails("test_what_is_no_name_is_refused")
class LooksUpAnything(DictTier):
    def contains(self, names: Sequence[str]) -> builtins.list[bool]:
        return [name in self.entries for name in names]


@fails("test_what_is_no_name_is_refused")
class RemovesAnything(DictTier):
    def remove(self, name: str) -> bool:
        return self.entries.pop(name, None) is not None


@fails("test_no_prefix_leads_out")
class ListsPaths(DictTier):
    def list(self, prefix: str) -> builtins.list[str]:
        return super().list(prefix.replace("../", "").strip("./*"))
