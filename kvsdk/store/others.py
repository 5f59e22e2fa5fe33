"""Entries of other identities in the same tiers: never read, but they explain a miss."""

from __future__ import annotations

import threading
from collections.abc import Callable

from kvsdk.errors import KvsdkError
from kvsdk.store.entries.identity import Identity
from kvsdk.store.levels.level import Level
from kvsdk.store.levels.levels import Levels
from kvsdk.store.tiers.buffers import BufferPool

_PREFIX = "fp/"


class Others:
    """The identities that a store's tiers hold entries of. Thread-safe.

    Args:
        own: The store's.
        levels: Its tiers.
    """

    def __init__(self, own: Identity, levels: Levels) -> None:
        self._own = own
        self._levels = levels
        self._pool = BufferPool(spare_bytes=1 << 20)
        self._lock = threading.Lock()
        self._known: dict[str, Identity | None] = {}

    def explain(self, name_of: Callable[[Identity], str]) -> str | None:
        """Why what is stored under another identity is not served; None where nothing is.

        Args:
            name_of: What the entry that was looked for is called under another identity.
        """
        for level in self._levels.all:
            for other in self._in(level):
                if self._has(level, name_of(other)):
                    return self._own.explain(other)
        return None

    def _has(self, level: Level, name: str) -> bool:
        has = self._levels.ask(level, "look up", lambda tier: tier.contains([name]), [False])
        return bool(has[0])

    def _in(self, level: Level) -> list[Identity]:
        """The other identities that a tier has a record of."""
        names = self._levels.ask(level, "list", lambda tier: tier.list(_PREFIX), [])
        found = [self._read(level, name) for name in names if name != self._own.record_name]
        return [identity for identity in found if identity is not None]

    def _read(self, level: Level, name: str) -> Identity | None:
        """A record; None for one that is damaged, or that a newer kvsdk wrote."""
        with self._lock:
            if name in self._known:
                return self._known[name]
        data = self._levels.ask(level, "read", lambda tier: tier.get(name, self._pool))
        if data is None:
            return None
        try:
            identity = Identity.from_json(bytes(data.view))
            found = identity if identity.record_name == name else None
        except KvsdkError:
            found = None
        finally:
            data.release()
        with self._lock:
            self._known[name] = found
        return found
