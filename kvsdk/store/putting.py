"""Keeping a prompt's KV: what is there already is not written again."""

from __future__ import annotations

import math
import threading
from dataclasses import replace

from kvsdk.store.entries.chunks import Chunk, Prompt
from kvsdk.store.entries.ends import Source
from kvsdk.store.entries.identity import Identity
from kvsdk.store.entries.images import Images
from kvsdk.store.levels.levels import Levels
from kvsdk.store.results import Stored
from kvsdk.store.tiers.buffers import BufferPool
from kvsdk.store.tiers.tier import Hints


class Putter:
    """Puts prompts' chunks into the tiers that lack them. Thread-safe.

    Args:
        identity: Whose KV it is.
        levels: The tiers.
        images: What makes entries of KV.
        pool: Where memory comes from.
    """

    def __init__(self, identity: Identity, levels: Levels, images: Images, pool: BufferPool) -> None:
        self._identity = identity
        self._levels = levels
        self._images = images
        self._pool = pool
        self._lock = threading.Lock()
        self._is_announced = False

    def put(self, prompt: Prompt, source: Source, hints: Hints) -> Stored:
        """Keep a prompt's KV; it is read before this returns."""
        self._announce()
        holding = self._levels.holding(prompt.names)
        new_tokens = new_bytes = 0
        for chunk in prompt.chunks:
            there = holding[chunk.name]
            own = replace(hints, depth_tokens=chunk.first)
            if there:
                self._spread(chunk, own, there)
            else:
                new_bytes += self._write(source, chunk, own)
                new_tokens += chunk.tokens
        never = math.inf if hints.expires_at is None else hints.expires_at
        self._levels.touch(prompt.names, replace(hints, expires_at=never))
        if new_tokens:
            self._demote_shorter(prompt)
        return Stored(tokens=prompt.tokens, new_tokens=new_tokens, new_bytes=new_bytes)

    def _write(self, source: Source, chunk: Chunk, hints: Hints) -> int:
        """A chunk that no tier has; its bytes."""
        data = self._images.make(source, chunk)
        try:
            self._levels.put(chunk.name, data, hints)
            return len(data)
        finally:
            data.release()

    def _spread(self, chunk: Chunk, hints: Hints, there: set[int]) -> None:
        """A chunk that some tiers have goes to the others, if it is at hand."""
        lacking = self._levels.lacking(there)
        data = self._levels.at_hand(chunk.name, there) if lacking else None
        if data is not None:
            try:
                self._levels.put(chunk.name, data, hints, only=lacking)
            finally:
                data.release()

    def _demote_shorter(self, prompt: Prompt) -> None:
        """What ended inside of the last chunk before is only its beginning now."""
        last = prompt.chunks[-1]
        names = [chunk.name for chunk in prompt.shorter(last) if chunk.tokens < last.tokens]
        if names:
            self._levels.each("demote", lambda tier: tier.demote(names))

    def _announce(self) -> None:
        """Say once in each tier what this store's identity is, so that others can explain a miss."""
        with self._lock:
            if self._is_announced:
                return
            self._is_announced = True
        text = self._identity.to_json().encode()
        data = self._pool.take(len(text))
        try:
            data.view[:] = text
            self._levels.put(self._identity.record_name, data, Hints(pinned=True))
        finally:
            data.release()
