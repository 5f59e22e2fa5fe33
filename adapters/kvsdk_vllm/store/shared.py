"""One store for the scheduler's and the worker's side, where both are in one process."""

from __future__ import annotations

import threading
from dataclasses import dataclass

from kvsdk.store import KVStore

from kvsdk_vllm.store.config import StoreConfig
from kvsdk_vllm.store.identity import EngineKV


@dataclass(slots=True)
class _Held:
    store: KVStore
    holders: int = 0


_stores: dict[tuple[str, bytes, int], _Held] = {}
_lock = threading.Lock()


class Lease:
    """A hold on the store of a configuration and a model; the last one that is released closes it."""

    def __init__(self, config: StoreConfig, found: EngineKV, rank: int = 0) -> None:
        self._key = (config.to_json(), found.fingerprint.digest(), rank)
        with _lock:
            held = _stores.get(self._key)
            if held is None:
                held = _stores[self._key] = _Held(config.open(found.fingerprint, spec=found.spec, rank=rank))
            held.holders += 1
        self.store = held.store
        self._is_held = True

    def release(self) -> None:
        """Let go. Safe to call again."""
        with _lock:
            if not self._is_held:
                return
            self._is_held = False
            held = _stores[self._key]
            held.holders -= 1
            if held.holders:
                return
            del _stores[self._key]
        held.store.close()
