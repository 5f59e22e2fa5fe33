"""What keeps a conversation's prefix stable: its name, its tenant, and the digests of its last request."""

from __future__ import annotations

import threading
from collections import OrderedDict

from kvsdk.caching import Seen
from kvsdk.errors import InvalidRequest


class SessionState:
    """The memory of one session. It keeps no messages. Thread-safe; the last request to finish wins."""

    __slots__ = ("_lock", "_seen", "last_reply_id", "name", "tenant")

    def __init__(self, name: str, tenant: str | None = None) -> None:
        if not name:
            raise InvalidRequest("a session needs a name", field="session")
        self.name = name
        self.tenant = tenant
        self.last_reply_id: str | None = None
        self._seen: Seen | None = None
        self._lock = threading.Lock()

    @property
    def seen(self) -> Seen | None:
        """What is remembered of the last request, None before the first."""
        return self._seen

    def last_reply_from(self, scheme: str, model: str) -> str | None:
        """The id of the last reply, if it came from this backend and model."""
        seen = self._seen
        return self.last_reply_id if seen is not None and seen.model == f"{scheme}:{model}" else None

    def remember(self, seen: Seen, reply_id: str | None) -> None:
        """Remember a request that was answered."""
        with self._lock:
            self._seen = seen
            self.last_reply_id = reply_id


class SessionTable:
    """The sessions of one client by tenant and name; of too many, the least recently used is forgotten."""

    def __init__(self, limit: int = 10_000) -> None:
        self._limit = limit
        self._states: OrderedDict[tuple[str | None, str], SessionState] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, name: str, tenant: str | None) -> SessionState:
        """The session of this name, made at its first use."""
        key = (tenant, name)
        with self._lock:
            state = self._states.get(key)
            if state is None:
                state = self._states[key] = SessionState(name, tenant)
            self._states.move_to_end(key)
            while len(self._states) > self._limit:
                self._states.popitem(last=False)
        return state
