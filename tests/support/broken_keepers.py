"""Broken tiers: capacity, closing, counting, and what the application said."""

from __future__ import annotations

import builtins
from collections.abc import Sequence
from dataclasses import replace

from broken_tiers import fails
from dict_tiers import DictTier, HintedTier
from kvsdk.store.tiers.buffers import Buffer, BufferPool
from kvsdk.store.tiers.tier import Hints, Size, TierStats

# ---------------------------------------------------------------------- life


@fails("test_it_says_what_it_is")
class HasNoName(DictTier):
    name = ""


@fails("test_another_one_finds_what_was_put")
class ForgetsWhenClosed(DictTier):
    def close(self) -> None:
        self.entries.clear()


@fails("test_it_counts_what_it_has")
class CountsPuts(DictTier):
    def __init__(self, place: dict[str, bytes]) -> None:
        super().__init__(place)
        self.puts = 0

    def put(self, name: str, data: Buffer, hints: Hints) -> bool:
        self.puts += 1
        return super().put(name, data, hints)

    def stats(self) -> TierStats:
        return replace(super().stats(), entries=self.puts)


@fails("test_it_counts_what_it_has", "test_new_entries_take_the_place_of_old_ones")
class NeverUsesLess(HintedTier):
    def __init__(self, place: dict[str, bytes]) -> None:
        super().__init__(place)
        self.most = 0

    def stats(self) -> TierStats:
        found = super().stats()
        self.most += found.used_bytes or 0
        return replace(found, used_bytes=self.most)


@fails("test_a_capacity_can_be_changed")
class ResizesNothing(HintedTier):
    def resize(self, capacity: Size) -> None:
        self.capacity_bytes, before = 64 << 20, self.capacity_bytes
        super().resize(capacity)
        self.capacity_bytes = before


@fails("test_a_capacity_can_be_changed")
class ResizesLater(HintedTier):
    def make_room(self, size: int) -> bool:
        return size == 0 or super().make_room(size)


@fails("test_a_capacity_can_be_changed")
class ResizesWithoutACapacity(DictTier):
    def resize(self, capacity: Size) -> None:
        pass


@fails("test_what_is_no_size_is_refused")
class TakesAnySize(HintedTier):
    def resize(self, capacity: Size) -> None:
        self.capacity_bytes = capacity if isinstance(capacity, int) else 64 << 20


@fails("test_what_has_no_room_is_not_kept")
class HasAlwaysRoom(HintedTier):
    def make_room(self, size: int) -> bool:
        super().make_room(size)
        return True


@fails("test_what_has_no_room_is_not_kept")
class KeepsHalfOfIt(HintedTier):
    def put(self, name: str, data: Buffer, hints: Hints) -> bool:
        kept = super().put(name, data, hints)
        if not kept:
            self.entries[name] = bytes(data.view[: self.capacity_bytes])
        return kept


@fails("test_new_entries_take_the_place_of_old_ones")
class RefusesWhenFull(HintedTier):
    def make_room(self, size: int) -> bool:
        return self.used_bytes() + size <= self.capacity_bytes


@fails("test_what_is_absent_cannot_be_used")
class TouchesWhatIsAbsent(HintedTier):
    def touch(self, names: Sequence[str], hints: Hints) -> None:
        for name in names:
            self.hints[name] = self.merged(self.hints[name], hints)


@fails("test_what_is_absent_cannot_be_used")
class MakesWhatItTouches(DictTier):
    def touch(self, names: Sequence[str], hints: Hints) -> None:
        for name in names:
            self.entries.setdefault(name, b"")


@fails("test_what_is_absent_cannot_be_used")
class UnpinsWithAnError(HintedTier):
    def unpin(self, names: Sequence[str]) -> None:
        for name in names:
            self.hints[name] = replace(self.hints[name], pinned=False)


@fails("test_what_is_absent_cannot_be_used")
class DropsWhatItDemotes(DictTier):
    def demote(self, names: Sequence[str]) -> None:
        for name in names:
            self.remove(name)


@fails("test_what_is_absent_cannot_be_used", "test_an_ended_session_pins_nothing")
class EndsEverySession(HintedTier):
    def end_session(self, session: str) -> int:
        return len(self.entries)


@fails("test_what_is_good_is_not_collected")
class CollectsEverything(DictTier):
    def collect(self) -> int:
        self.entries.clear()
        return 0


# ---------------------------------------------------------------------- hints


@fails("test_what_has_expired_is_a_miss", "test_the_later_expiry_counts")
class ReadsWhatHasExpired(HintedTier):
    def get(self, name: str, pool: BufferPool) -> Buffer | None:
        return DictTier.get(self, name, pool)


@fails("test_what_has_expired_is_a_miss")
class HasWhatHasExpired(HintedTier):
    def contains(self, names: Sequence[str]) -> builtins.list[bool]:
        return DictTier.contains(self, names)


@fails("test_what_has_expired_is_a_miss")
class CollectsNothing(HintedTier):
    def collect(self) -> int:
        return 0


@fails("test_what_has_expired_may_be_put_again")
class KeepsThePlaceOfWhatHasExpired(HintedTier):
    def put(self, name: str, data: Buffer, hints: Hints) -> bool:
        return True if self.is_over(name) else super().put(name, data, hints)


@fails("test_the_later_expiry_counts", "test_never_is_the_latest")
class TakesTheLastExpiry(HintedTier):
    def merged(self, old: Hints, new: Hints) -> Hints:
        return replace(super().merged(old, new), expires_at=new.expires_at or old.expires_at)


@fails("test_the_later_expiry_counts", "test_never_is_the_latest", "test_what_is_pinned_stays")
class KeepsTheFirstHints(HintedTier):
    def merged(self, old: Hints, new: Hints) -> Hints:
        return old


@fails("test_the_later_expiry_counts", "test_what_is_pinned_stays")
class ForgetsWhatIsSaidOfUse(HintedTier):
    def touch(self, names: Sequence[str], hints: Hints) -> None:
        pass


@fails("test_use_alone_keeps_nothing_longer")
class KeepsForEverWhatIsUsed(HintedTier):
    def touch(self, names: Sequence[str], hints: Hints) -> None:
        for name in names:
            if name in self.entries:
                self.hints[name] = self.merged(self.of(name), hints)


@fails("test_it_says_until_when")
class SaysNothingOfExpiry(HintedTier):
    def expiry(self, name: str) -> float | None:
        return None


@fails("test_it_says_until_when")
class SaysTheFirstExpiry(HintedTier):
    def __init__(self, place: dict[str, bytes]) -> None:
        super().__init__(place)
        self.first: dict[str, float | None] = {}

    def put(self, name: str, data: Buffer, hints: Hints) -> bool:
        self.first.setdefault(name, hints.expires_at)
        return super().put(name, data, hints)

    def expiry(self, name: str) -> float | None:
        return self.first.get(name)


@fails("test_it_says_until_when")
class SaysThatAllExpires(HintedTier):
    def expiry(self, name: str) -> float | None:
        return super().expiry(name) or self.clock()


@fails("test_what_is_pinned_stays")
class PinsNothing(HintedTier):
    def merged(self, old: Hints, new: Hints) -> Hints:
        return replace(super().merged(old, new), pinned=False)


@fails("test_what_is_pinned_stays", "test_an_ended_session_pins_nothing")
class PinsForEver(HintedTier):
    def unpin(self, names: Sequence[str]) -> None:
        pass


@fails("test_an_ended_session_pins_nothing")
class DropsAnEndedSession(HintedTier):
    def end_session(self, session: str) -> int:
        theirs = [name for name in self.entries if self.of(name).session == session]
        return sum(self.remove(name) for name in theirs)
