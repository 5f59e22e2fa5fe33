"""A store's tiers as one: what is put, touched or forgotten in all of them."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any, cast

from kvsdk.errors import ConfigurationError, InvalidRequest, KvsdkError
from kvsdk.store.levels.level import Job, Level
from kvsdk.store.tiers.buffers import Buffer, BufferPool
from kvsdk.store.tiers.tier import Hints, PolicyName, Tier

_UNKNOWN = object()


class Levels:
    """The tiers of a store, fastest first. Thread-safe.

    Args:
        tiers: Ready to be opened; they are the store's from now on.
        pool: Where memory comes from.
        threads: How many calls of one tier may be under way, if they may block.
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
        *,
        threads: int,
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
        self._deadline_s = deadline_s
        self._lock = threading.Lock()
        self._removing = 0
        self._removals = 0
        sizes: dict[str, Any] = {"threads": threads, "queue_bytes": queue_bytes, "deadline_s": deadline_s}
        self.all = [Level(tier, **sizes) for tier in tiers]
        for at, level in enumerate(self.all):
            try:
                level.tier.open(policy=policy, clock=clock)
            except BaseException:
                self._close(self.all[:at])
                raise

    def ask(
        self, level: Level, what: str, job: Job, default: Any = None, *, within_s: float | None = None
    ) -> Any:
        """Do something in a tier, with a deadline if it may block; the default where that fails.

        Args:
            level: The tier.
            what: In words.
            job: What.
            default: The answer where there is none.
            within_s: How long to wait, if less than the deadline: then the tier has not failed.
        """
        if not level.tier.may_block:
            return level.now(what, job, default)
        future = level.workers.submit(lambda: level.now(what, job, default))
        is_short = within_s is not None and within_s < self._deadline_s
        try:
            return future.result(within_s if is_short else self._deadline_s)
        except TimeoutError:
            if not is_short:
                level.stuck(what)
            return default

    def holding(self, names: Sequence[str]) -> dict[str, set[int]]:
        """Which tiers have each entry, or will have it.

        Remote ones are asked only where there are no others.
        """
        asked = [at for at, level in enumerate(self.all) if not level.tier.is_remote]
        found: dict[str, set[int]] = {name: set() for name in names}
        for at in asked or range(len(self.all)):
            for name, is_there in zip(names, self._has(self.all[at], names), strict=True):
                if is_there:
                    found[name].add(at)
        return found

    def leading(self, names: Sequence[str]) -> int:
        """How many of these entries, from the first one on, some tier has or will have.

        Remote tiers are asked for more and more at once, and for none behind one that nobody has.
        """
        found = [False] * len(names)
        for level in self.all:
            if level.tier.is_remote:
                self._look_far(level, names, found)
            else:
                found = [one or other for one, other in zip(found, self._has(level, names), strict=True)]
        return found.index(False) if False in found else len(found)

    def _look_far(self, level: Level, names: Sequence[str], found: list[bool]) -> None:
        """Ask a remote tier, until it lacks one."""
        batch = 1
        while missing := [at for at, is_there in enumerate(found) if not is_there][:batch]:
            has = self._has(level, [names[at] for at in missing])
            for at, is_there in zip(missing, has, strict=True):
                found[at] = is_there
            if not all(has):
                return
            batch *= 4

    def _has(self, level: Level, names: Sequence[str]) -> list[bool]:
        """Which of these entries a tier has or will have."""
        pending = set(level.writer.names()) if level.writer is not None else set()
        has = self.ask(level, "look up", lambda tier: tier.contains(names), [False] * len(names))
        return [is_there or name in pending for name, is_there in zip(names, has, strict=True)]

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
            if not level.tier.is_remote:
                has = self._has(level, names)
                there.update(name for name, is_there in zip(names, has, strict=True) if is_there)
                continue
            if level.writer is not None:
                there.update(level.writer.names(prefix))
            there.update(self.ask(level, "list", lambda tier: tier.list(prefix), ()))
        return there.intersection(names)

    def lacking(self, there: set[int]) -> set[int]:
        """The other tiers; not the remote ones, which were not asked."""
        return {at for at, level in enumerate(self.all) if at not in there and not level.tier.is_remote}

    def put(self, name: str, data: Buffer, hints: Hints, *, only: set[int] | None = None) -> None:
        """Keep an entry in every tier, or in these."""
        for at, level in enumerate(self.all):
            if only is None or at in only:
                level.put(name, data, hints)

    def promote(self, name: str, data: Buffer, hints: Hints, below: int, *, since: int) -> None:
        """Keep what a lower tier had in the tiers above it, as long as there, if there is room at once.

        Not where that tier does not say until when, nor where something was removed meanwhile: it might be
        this.

        Args:
            name: The entry's.
            data: Its bytes.
            hints: What is known of it.
            below: The number of the tier that had it.
            since: What `removals` was before it was read.
        """
        expires_at = self.ask(self.all[below], "look up", lambda tier: _expiry(tier, name), _UNKNOWN)
        if expires_at is _UNKNOWN:
            return
        kept = replace(hints, expires_at=cast("float | None", expires_at))
        with self._lock:
            if self._removing or self._removals != since:
                return
            for level in self.all[:below]:
                level.put(name, data, kept, patience_s=0.0)

    @property
    def removals(self) -> int:
        """Goes up whenever something is removed."""
        return self._removals

    def remove(self, names: Sequence[str]) -> bool:
        """Remove entries from every tier, the lowest first, so that none comes up again.

        Returns:
            False where a tier has failed, or did not answer in time.
        """
        with self._lock:
            self._removing += 1
            self._removals += 1
        try:
            done = [self._remove(level, names) for level in reversed(self.all)]
            return all(done)
        finally:
            with self._lock:
                self._removing -= 1
                self._removals += 1

    def _remove(self, level: Level, names: Sequence[str]) -> bool:
        asked = [level.remove(name) for name in names]
        try:
            return all(answer.result(self._deadline_s) for answer in asked)
        except TimeoutError:
            level.guard.fail("remove", f"no answer within {self._deadline_s:g} s")
            return False

    def touch(self, names: Sequence[str], hints: Hints) -> None:
        """These were used now."""
        if names:
            is_bare = hints == Hints()
            self.each("touch", lambda tier: tier.touch(names, hints), may_be_left_out=is_bare)

    def each(self, what: str, job: Job, *, may_be_left_out: bool = False) -> None:
        """Have something done in every tier, in its turn."""
        for level in self.all:
            level.later(what, job, may_be_left_out=may_be_left_out)

    def find(self, name: str) -> Level:
        """A tier by its name."""
        for level in self.all:
            if level.guard.name == name:
                return level
        known = ", ".join(level.guard.name for level in self.all)
        raise InvalidRequest(f"there is no tier {name!r}, only {known}", field="tier")

    def resize(self, name: str, capacity_bytes: int) -> None:
        """Set how much fits into a tier.

        Raises:
            InvalidRequest: There is no such tier.
            Unsupported: It has no capacity of its own.
            ConfigurationError: It has failed to.
        """
        level = self.find(name)
        try:
            level.call(lambda: level.tier.resize(capacity_bytes))
        except KvsdkError:
            raise
        except Exception as error:
            raise ConfigurationError(f"the {name} tier could not be resized: {error}") from error

    def flush(self, timeout_s: float | None) -> bool:
        """Write what waits, everywhere, and have it survive a power cut; False where it may not."""
        ends_at = None if timeout_s is None else time.monotonic() + timeout_s
        done = True
        for level in self.all:
            if level.writer is not None:
                done = level.writer.flush(_left_s(ends_at)) and done
            done = self.ask(level, "sync", _sync, False, within_s=_left_s(ends_at)) and done
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
            level.workers.close()


def _sync(tier: Tier) -> bool:
    tier.sync()
    return True


def _left_s(ends_at: float | None) -> float | None:
    return None if ends_at is None else max(0.0, ends_at - time.monotonic())


def _expiry(tier: Tier, name: str) -> object:
    """Until when an entry may be served; unknown of one that is gone."""
    expires_at = tier.expiry(name)
    is_known = expires_at is not None or tier.is_remote or tier.contains([name])[0]
    return expires_at if is_known else _UNKNOWN
