"""The worker's side: KV out of the engine's blocks into the store, and back, on threads of their own."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from kvsdk.store import Hit, KVStore

from kvsdk_vllm.store.jobs import Load, Loaded, Save

if TYPE_CHECKING:
    import torch

logger = logging.getLogger("kvsdk.vllm")


class Mover:
    """Saves and loads. What fails is logged and counted, and never raised into the engine.

    Args:
        store: Where to and from.
        layers: The engine's KV, a tensor per layer.
        layout: How it lies.
        block_size: Tokens of a block.
    """

    def __init__(self, store: KVStore, layers: Sequence[torch.Tensor], layout: str, block_size: int) -> None:
        self._store = store
        self._layers = list(layers)
        self._layout = layout
        self._block = block_size
        self._lock = threading.Condition()
        self._saving: Counter[str] = Counter()
        self._had_saves: set[str] = set()
        self._ended: set[str] = set()
        self._received: set[str] = set()
        self._bad_blocks: set[int] = set()
        self._loaded: dict[str, Loaded] = {}
        self._savers = ThreadPoolExecutor(1, thread_name_prefix="kvsdk-save")
        self._loaders = ThreadPoolExecutor(2, thread_name_prefix="kvsdk-load")

    def save(self, save: Save) -> None:
        """Keep blocks, once all is computed that the engine was told before; they must stay until then."""
        is_ready = _after_now(self._layers[0])
        with self._lock:
            self._saving[save.request] += 1
            self._had_saves.add(save.request)
        self._savers.submit(self._save, save, is_ready)

    def load(self, load: Load) -> None:
        """Bring KV into blocks."""
        self._loaders.submit(self._load, load)

    def finished(self, ended: set[str]) -> tuple[set[str], set[str]]:
        """Requests whose blocks are no longer needed for saving, and those that have been loaded.

        Args:
            ended: Requests that have ended since the last call.
        """
        with self._lock:
            self._ended |= ended & self._had_saves
            saved = {name for name in self._ended if not self._saving[name]}
            self._ended -= saved
            self._had_saves -= saved
            for name in saved:
                del self._saving[name]
            received = self._received
            self._received = set()
            return saved, received

    def bad_blocks(self) -> set[int]:
        """Blocks that were to be loaded and were not, since the last call."""
        with self._lock:
            found = self._bad_blocks
            self._bad_blocks = set()
            return found

    def loaded(self) -> dict[str, Loaded]:
        """What became of loads, since the last call."""
        with self._lock:
            found = self._loaded
            self._loaded = {}
            return found

    def wait(self, requests: Iterable[str]) -> None:
        """Until nothing of these requests is being saved."""
        names = set(requests)
        with self._lock:
            self._lock.wait_for(lambda: not any(self._saving[name] for name in names))

    def close(self) -> None:
        """Finish what is being saved, and let go of the threads."""
        self._savers.shutdown(wait=True)
        self._loaders.shutdown(wait=False, cancel_futures=True)

    def _save(self, save: Save, is_ready: Callable[[], None]) -> None:
        try:
            is_ready()
            self._store.put(
                save.tokens,
                self._layers,
                layout=self._layout,
                blocks=save.blocks,
                tenant=save.whose.salt,
                lora=save.whose.lora,
                media=save.whose.media,
                session=save.session,
                ttl=save.ttl_s,
                pin=save.pin,
            )
        except Exception:  # what cannot be kept is computed again; the engine goes on
            logger.exception("KV of a request was not kept")
        finally:
            with self._lock:
                self._saving[save.request] -= 1
                self._lock.notify_all()

    def _load(self, load: Load) -> None:
        began_s = time.perf_counter()
        try:
            result = self._get(load)
        except Exception as error:  # it is computed instead; the engine goes on
            logger.exception("KV of a request was not loaded")
            result = Loaded(missing=len(load.tokens) - load.first, reason=str(error))
        result.seconds = time.perf_counter() - began_s
        came = len(load.tokens) - result.missing
        with self._lock:
            self._loaded[load.request] = result
            self._bad_blocks.update(load.blocks[came // self._block :])
            self._received.add(load.request)

    def _get(self, load: Load) -> Loaded:
        found = self._store.get(
            load.tokens,
            layout=self._layout,
            blocks=load.blocks,
            out=self._layers,
            first_token=load.first,
            tenant=load.whose.salt,
            lora=load.whose.lora,
            media=load.whose.media,
        )
        _wait_for(self._layers[0])
        wanted = len(load.tokens)
        if not isinstance(found, Hit):
            return Loaded(missing=wanted - load.first, reason=str(found))
        whole = max(load.first, found.tokens // self._block * self._block)
        reason = None if found.ended_by is None else str(found.ended_by)
        return Loaded(tokens=dict(found.tokens_by_tier), missing=wanted - whole, reason=reason)


def _after_now(tensor: torch.Tensor) -> Callable[[], None]:
    """What waits until the device has done all that it has been told until now."""
    if not tensor.is_cuda:
        return lambda: None
    import torch

    event = torch.cuda.Event()
    event.record(torch.cuda.current_stream(tensor.device))
    return event.synchronize


def _wait_for(tensor: torch.Tensor) -> None:
    """Until copies of this thread have arrived on the device."""
    if tensor.is_cuda:
        import torch

        torch.cuda.current_stream(tensor.device).synchronize()
