"""A store's tiers as one: what is put, touched or forgotten in all of them."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

from kvsdk.errors import InvalidRequest
from kvsdk.store.levels.guard import Guard, TierUnavailable
from kvsdk.store.levels.workers import Workers
from kvsdk.store.levels.writer import Writer
from kvsdk.store.tiers.buffers import Buffer, BufferPool
from kvsdk.store.tiers.tier import Hints, PolicyName, Tier

Job = Callable[[Tier], Any]


class Level:
    """One tier, its breaker and its queue. The writer is None where a put is done at once.

    Attributes:
        guard: The tier behind its breaker.
        writer: What writes to it in the background.
    """

    def __init__(self, tier: Tier, *, queue_bytes: int, deadline_s: float) -> None:
        self.guard = Guard(tier)
        self.writer = (
            Writer(self.guard, limit_bytes=queue_bytes, patience_s=deadline_s) if tier.may_block else None
        )

    @property
    def tier(self) -> Tier:
        """The tier itself."""
        return self.guard.tier

    def put(self, name: str, data: Buffer, hints: Hints, *, patience_s: float | None = None) -> None:
        """Keep an entry, now or behind; what does not work is counted."""
        if self.writer is not None:
            self.writer.put(name, data, hints, patience_s=patience_s)
            return
        if self.now("put", lambda tier: tier.put(name, data, hints)) is False:
            self.guard.count("no_room")

    def later(self, what: str, job: Job) -> None:
        """Have something done in the tier, in its turn."""
        if self.writer is not None:
            self.writer.later(what, lambda: job(self.tier))
        else:
            self.now(what, job)

    def now(self, what: str, job: Job, default: Any = None) -> Any:
        """Do something in the tier; the default where that fails."""
        try:
            return self.guard.run(what, lambda: job(self.tier))
        except TierUnavailable:
            return default


class Levels:
    """The tiers of a store, fastest first. Thread-safe.

    Args:
        tiers: Ready to be opened; they are the store's from now on.
        pool: Where memory comes from.
        workers: Threads for what may block.
        policy: Which entries go first.
        clock: Seconds since 1970.
        queue_bytes: How much may wait for each tier.
        deadline_s: How long an answer may take.

    Raises:
        InvalidRequest: There are no tiers, two have one name, or there is no such policy.
        Exception: What a tier raises when it is opened: it cannot be used as it is set up.
    """

    def __init__(
        self,
        tiers: Sequence[Tier],
        pool: BufferPool,
        workers: Workers,
        *,
        policy: PolicyName,
        clock: Callable[[], float],
        queue_bytes: int,
        deadline_s: float,
    ) -> None:
        if not tiers or not all(isinstance(tier, Tier) for tier in tiers):
            raise InvalidRequest(
                "tiers has Memory(...), Disk(...) and Object(...), fastest first", field="tiers"
            )
        names = Counter(tier.name for tier in tiers)
        if twice := [name for name, count in names.items() if count > 1]:
            raise InvalidRequest(f"there are two tiers named {twice[0]!r}", field="tiers")
        if policy not in ("lru", "hints"):
            raise InvalidRequest(f"policy is 'lru' or 'hints', not {policy!r}", field="policy")
        self._pool = pool
        self._workers = workers
        self._deadline_s = deadline_s
        self.all = [Level(tier, queue_bytes=queue_bytes, deadline_s=deadline_s) for tier in tiers]
        for at, level in enumerate(self.all):
            try:
                level.tier.open(policy=policy, clock=clock)
            except BaseException:
                self._close(self.all[:at])
                raise

    def ask(self, level: Level, what: str, job: Job, default: Any = None) -> Any:
        """Do something in a tier, with a deadline if it may block; the default where that fails."""
        if not level.tier.may_block:
            return level.now(what, job, default)
        future = self._workers.submit(lambda: level.now(what, job, default))
        try:
            return future.result(self._deadline_s)
        except TimeoutError:
            self.stuck(level, what)
            return default

    def stuck(self, level: Level, what: str) -> str:
        """A thread did not come back from this tier; gives the reason in words."""
        self._workers.replace()
        why = f"no answer within {self._deadline_s:g} s"
        level.guard.fail(what, why)
        return f"the {level.guard.name} tier failed to {what}: {why}"

    def holding(self, names: Sequence[str]) -> dict[str, set[int]]:
        """Which tiers have each entry, or will have it.

        Remote ones are asked only where there are no others.
        """
        asked = [at for at, level in enumerate(self.all) if not level.tier.is_remote]
        found: dict[str, set[int]] = {name: set() for name in names}
        for at in asked or range(len(self.all)):
            level = self.all[at]
            pending = set(level.writer.names()) if level.writer is not None else set()
            default = [False] * len(names)
            has = self.ask(level, "look up", lambda tier: tier.contains(names), default)
            for name, is_there in zip(names, has, strict=True):
                if is_there or name in pending:
                    found[name].add(at)
        return found

    def at_hand(self, name: str, levels: Iterable[int]) -> Buffer | None:
        """An entry, if one of these tiers can give it at once, held for the caller."""
        for at in levels:
            level = self.all[at]
            data = level.writer.find(name) if level.writer is not None else None
            if data is None and not level.tier.may_block:
                data = level.now("read", lambda tier: tier.get(name, self._pool))
            if data is not None:
                return data
        return None

    def present(self, names: Sequence[str], prefix: str) -> set[str]:
        """Those of the names, all with this prefix, that some tier has or will have."""
        there: set[str] = set()
        for level in self.all:
            if level.writer is not None:
                there.update(level.writer.names(prefix))
            if level.tier.is_remote:
                there.update(self.ask(level, "list", lambda tier: tier.list(prefix), ()))
            else:
                default = [False] * len(names)
                has = self.ask(level, "look up", lambda tier: tier.contains(names), default)
                there.update(name for name, is_there in zip(names, has, strict=True) if is_there)
        return there.intersection(names)

    def lacking(self, there: set[int]) -> set[int]:
        """The other tiers; not the remote ones, which were not asked."""
        return {at for at, level in enumerate(self.all) if at not in there and not level.tier.is_remote}

    def put(self, name: str, data: Buffer, hints: Hints, *, only: set[int] | None = None) -> None:
        """Keep an entry in every tier, or in these."""
        for at, level in enumerate(self.all):
            if only is None or at in only:
                level.put(name, data, hints)

    def promote(self, name: str, data: Buffer, hints: Hints, below: int) -> None:
        """Keep what a lower tier had in the tiers above it, as long as there, if there is room at once."""
        expires_at = self.ask(self.all[below], "look up", lambda tier: tier.expiry(name))
        for level in self.all[:below]:
            level.put(name, data, replace(hints, expires_at=expires_at), patience_s=0.0)

    def touch(self, names: Sequence[str], hints: Hints) -> None:
        """These were used now."""
        if names:
            self.each("touch", lambda tier: tier.touch(names, hints))

    def each(self, what: str, job: Job) -> None:
        """Have something done in every tier, in its turn."""
        for level in self.all:
            level.later(what, job)

    def find(self, name: str) -> Level:
        """A tier by its name."""
        for level in self.all:
            if level.guard.name == name:
                return level
        known = ", ".join(level.guard.name for level in self.all)
        raise InvalidRequest(f"there is no tier {name!r}, only {known}", field="tier")

    def flush(self, timeout_s: float | None) -> bool:
        """Write what waits, everywhere, and have it survive a power cut; False where time was up."""
        ends_at = None if timeout_s is None else time.monotonic() + timeout_s
        done = True
        for level in self.all:
            if level.writer is not None:
                left_s = None if ends_at is None else max(0.0, ends_at - time.monotonic())
                done = level.writer.flush(left_s) and done
            self.ask(level, "sync", lambda tier: tier.sync())
        return done

    def close(self, timeout_s: float) -> bool:
        """Write what waits and close the tiers; False where time was up."""
        done = self.flush(timeout_s)
        self._close(self.all)
        return done

    def _close(self, levels: Iterable[Level]) -> None:
        for level in levels:
            if level.writer is not None:
                level.writer.close(0.0)
            self.ask(level, "close", lambda tier: tier.close())
