"""What this process knows to be stored, so that a scheduler can ask before it plans, and no tier is asked."""

from __future__ import annotations

import hashlib
import threading

from kvsdk.store.entries.chunks import Prompt
from kvsdk.store.entries.prefix_tree import PrefixTree

_MOST_TOKENS = 16 << 20
"""Token ids that are remembered: 64 MiB of them."""


class Known:
    """The prefixes that were put or found last. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._tree: PrefixTree[None] = PrefixTree(max_tokens=_MOST_TOKENS)

    def learn(self, prompt: Prompt, tokens: int) -> None:
        """So many first tokens of a prompt are stored, and no more of it."""
        path, ahead = _path(prompt.root, prompt.packed)
        ends = [ahead + chunk.end for chunk in prompt.chunks if chunk.end <= tokens]
        with self._lock:
            self._tree.insert(path, [(end, None) for end in ends])
            for end, _ in reversed(self._tree.longest(path)):
                if end <= ahead + tokens:
                    break
                self._tree.remove(path, end)

    def tokens(self, root: bytes, packed: bytes) -> int:
        """How many first tokens of a prompt are stored, as far as is known."""
        path, ahead = _path(root, packed)
        with self._lock:
            return max(0, self._tree.longest(path).end_tokens - ahead)


def _path(root: bytes, packed: bytes) -> tuple[bytes, int]:
    """A prompt's place in the tree: behind its root, which takes as much as some tokens."""
    digest = hashlib.sha256(root).digest()
    return digest + packed, len(digest) // 4
