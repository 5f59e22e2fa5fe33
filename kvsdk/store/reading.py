"""Entries on their way up: each chunk is looked for in one tier after the other, some chunks ahead.

What a tier gives is checked here, in the thread that read it, before anything is made of it. An entry that is
not what it should be is removed there, and the next tier is asked.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterable
from concurrent.futures import Future
from dataclasses import dataclass, field

from kvsdk.errors import InvalidFile
from kvsdk.store.entries.chunks import Chunk
from kvsdk.store.entries.images import Image, Images
from kvsdk.store.levels.guard import TierUnavailable
from kvsdk.store.levels.level import Level
from kvsdk.store.levels.levels import Levels
from kvsdk.store.results import Miss
from kvsdk.store.tiers.buffers import Buffer, BufferPool


@dataclass(slots=True, kw_only=True)
class Found:
    """A chunk that is there and is what it should be. Whoever has it releases it.

    Attributes:
        chunk: Which.
        image: Its content.
        data: Its bytes as they are stored.
        level: Number of the tier, from 0.
        is_pending: Whether it was still on its way to that tier.
    """

    chunk: Chunk
    image: Image
    data: Buffer
    level: int
    is_pending: bool

    def release(self) -> None:
        """Give the memory back."""
        self.image.release()
        self.data.release()


@dataclass(slots=True)
class _Way:
    """How far one chunk's search has come; says which tier is stuck when time is up."""

    chunk: Chunk
    level: int = 0
    is_over: bool = False
    problem: Miss | None = None
    answer: Future[Found | Miss] = field(default_factory=Future)


class Reader:
    """Looks chunks up in a store's tiers. Thread-safe.

    Args:
        levels: The tiers, fastest first.
        images: What checks and opens entries.
        pool: Where memory comes from.
        ahead: How many chunks are looked for before the one that is being waited for is there.
        deadline_s: How long one chunk may take.
    """

    def __init__(
        self,
        levels: Levels,
        images: Images,
        pool: BufferPool,
        *,
        ahead: int,
        deadline_s: float,
    ) -> None:
        self._levels = levels
        self._images = images
        self._pool = pool
        self._ahead = ahead
        self._deadline_s = deadline_s

    def read(self, chunks: Iterable[Chunk]) -> Generator[tuple[Chunk, Found | Miss], None, None]:
        """Chunk after chunk, up to and with the first that is not there. Close it to let go of the rest."""
        coming = iter(chunks)
        ways: deque[_Way] = deque()
        try:
            while True:
                while len(ways) < self._ahead and (chunk := next(coming, None)) is not None:
                    ways.append(self._begin(chunk))
                if not ways:
                    return
                way = ways.popleft()
                result = self._wait(way)
                yield way.chunk, result
                if isinstance(result, Miss):
                    return
        finally:
            for way in ways:
                _abandon(way)

    def _begin(self, chunk: Chunk) -> _Way:
        way = _Way(chunk)
        self._go_on(way)
        return way

    def _go_on(self, way: _Way) -> None:
        """Look in the tiers that answer at once; have a thread of the first that may not go on from there."""
        while way.level < len(self._levels.all):
            level = self._levels.all[way.level]
            if level.tier.may_block:
                level.workers.submit(lambda: self._look_and_go_on(way))
                return
            if self._is_there(way):
                return
        way.answer.set_result(self._nothing(way))

    def _look_and_go_on(self, way: _Way) -> None:
        try:
            if not self._is_there(way):
                self._go_on(way)
        except BaseException as error:  # noqa: BLE001  it is raised where the answer is waited for
            way.answer.set_exception(error)

    def _is_there(self, way: _Way) -> bool:
        """Look in one tier; if the chunk is not there, the next one is next. Nothing, once nobody waits."""
        if way.is_over:
            way.answer.set_result(self._nothing(way))
            return True
        found = self._look(way)
        if found is None:
            way.level += 1
            return False
        way.answer.set_result(found)
        return True

    def _look(self, way: _Way) -> Found | None:
        """What the tier has of the chunk, checked."""
        level, name = self._levels.all[way.level], way.chunk.name
        data = level.writer.find(name) if level.writer is not None else None
        is_pending = data is not None
        if data is None:
            try:
                data = level.guard.run("read", lambda: level.tier.get(name, self._pool))
            except TierUnavailable as error:
                way.problem = Miss(str(error), "unavailable")
                return None
        if data is None:
            return None
        try:
            image = self._images.open(data, way.chunk)
        except InvalidFile as error:
            data.release()
            self._drop(level, name)
            way.problem = Miss(f"what the {level.guard.name} tier has is no good: {error}", "corrupt")
            return None
        except Exception as error:  # noqa: BLE001  such as no memory to unpack it: it may be good, so it stays
            data.release()
            level.guard.count("unopened")
            way.problem = Miss(
                f"what the {level.guard.name} tier has cannot be opened: {error}", "unavailable"
            )
            return None
        except BaseException:
            data.release()
            raise
        return Found(chunk=way.chunk, image=image, data=data, level=way.level, is_pending=is_pending)

    def _drop(self, level: Level, name: str) -> None:
        """Nobody shall read it again."""
        level.guard.count("corrupt")
        level.now("remove", lambda tier: tier.remove(name))

    @staticmethod
    def _nothing(way: _Way) -> Miss:
        return Miss("nothing is stored for these tokens") if way.problem is None else way.problem

    def _wait(self, way: _Way) -> Found | Miss:
        try:
            return way.answer.result(self._deadline_s)
        except TimeoutError:
            _abandon(way)
            level = self._levels.all[min(way.level, len(self._levels.all) - 1)]
            return Miss(level.stuck("read"), "unavailable")


def _abandon(way: _Way) -> None:
    """Nobody waits for it any more."""
    way.is_over = True
    way.answer.add_done_callback(_let_go)


def _let_go(answer: Future[Found | Miss]) -> None:
    """Release what came too late."""
    if answer.exception() is None and isinstance(found := answer.result(), Found):
        found.release()
