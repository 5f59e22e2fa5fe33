"""One tier of a store, with what stands around it."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

from kvsdk.store.levels.guard import Guard, TierUnavailable
from kvsdk.store.levels.workers import Workers
from kvsdk.store.levels.writer import Writer
from kvsdk.store.tiers.buffers import Buffer
from kvsdk.store.tiers.tier import Hints, Tier

Job = Callable[[Tier], Any]
T = TypeVar("T")


class Level:
    """One tier, its breaker, its queue and its threads. The writer is None where a put is done at once.

    Attributes:
        guard: The tier behind its breaker.
        workers: Threads for its calls, if they may block: its own, so that another tier may hang.
        writer: What writes to it in the background.
    """

    def __init__(self, tier: Tier, *, threads: int, queue_bytes: int, deadline_s: float) -> None:
        self.guard = Guard(tier)
        self._deadline_s = deadline_s
        self.workers = Workers(threads, f"kvsdk-store-{tier.name}")
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

    def later(self, what: str, job: Job, *, may_be_left_out: bool = False) -> None:
        """Have something done in the tier, in its turn."""
        if self.writer is not None:
            self.writer.later(what, lambda: job(self.tier), may_be_left_out=may_be_left_out)
        else:
            self.now(what, job)

    def remove(self, name: str) -> Future[bool]:
        """Have an entry removed, before what waits; whether that was done."""
        if self.writer is not None:
            return self.writer.remove(name)
        answer: Future[bool] = Future()
        answer.set_result(self.now("remove", lambda tier: tier.remove(name) or True, False))
        return answer

    def now(self, what: str, job: Job, default: Any = None) -> Any:
        """Do something in the tier; the default where that fails."""
        try:
            return self.guard.run(what, lambda: job(self.tier))
        except TierUnavailable:
            return default

    def call(self, job: Callable[[], T]) -> T:
        """Do something in the tier past its breaker, in a thread of its own if it may block.

        Raises:
            TierUnavailable: It did not answer in time. What it raises itself is raised as it is.
        """
        if not self.tier.may_block:
            return job()
        future = self.workers.submit(job)
        try:
            return future.result(self._deadline_s)
        except TimeoutError:
            if future.done():  # the tier's own
                raise
            future.add_done_callback(_let_go)
            raise TierUnavailable(self.stuck("answer")) from None

    def stuck(self, what: str) -> str:
        """A thread did not come back from the tier; gives the reason in words."""
        self.workers.replace()
        why = f"no answer within {self._deadline_s:g} s"
        self.guard.fail(what, why)
        return f"the {self.guard.name} tier failed to {what}: {why}"


def _let_go(future: Future[Any]) -> None:
    """Release what came too late."""
    if future.exception() is None and isinstance(found := future.result(), Buffer):
        found.release()
