"""Where prompts were cut, so that one that goes on another is cut at the same places."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from heapq import merge

from kvsdk.cost.ledger.row import PrefixMark

_MAX_PREFIXES = 1 << 18


class PrefixPaths:
    """The prefixes of earlier prompts, each with the one that it goes on. Not thread-safe.

    A cache model knows a prefix by all blocks of it, so two prompts must be cut alike to share one. A row
    marks only a few places of its prompt, and a conversation's next row marks others. What is remembered here
    fills in the rest: a mark's digest stands for the whole prefix, so what is inside of it is known.

    Args:
        max_prefixes: How many are remembered, the least recently used going first.
    """

    def __init__(self, max_prefixes: int = _MAX_PREFIXES) -> None:
        self._max = max_prefixes
        self._known: OrderedDict[str, tuple[str | None, int]] = OrderedDict()  # what it goes on, its tokens

    def cut(self, marks: Sequence[PrefixMark]) -> list[tuple[str, int]]:
        """Digest and tokens of every prefix at which a prompt is cut: its marks, and those inside of them."""
        here = {mark.digest: mark.tokens for mark in marks}
        path: list[str] = []
        for digest in here:
            if digest not in path:
                inside = merge(path, self._inside(digest), key=lambda each: self._tokens(each, here))
                path = [*dict.fromkeys(inside), digest]
        sizes = [self._tokens(digest, here) for digest in path]
        self._remember(path, sizes)
        return list(zip(path, sizes, strict=True))

    def _inside(self, digest: str) -> list[str]:
        """The known prefixes of a prefix, the shortest first."""
        found: dict[str, None] = {}
        entry = self._known.get(digest)
        while entry is not None and entry[0] is not None and entry[0] not in found and entry[0] != digest:
            found[entry[0]] = None
            entry = self._known.get(entry[0])
        return list(found)[::-1]

    def _tokens(self, digest: str, here: dict[str, int]) -> int:
        return here[digest] if digest in here else self._known[digest][1] if digest in self._known else 0

    def _remember(self, path: Sequence[str], sizes: Sequence[int]) -> None:
        before = [None, *path[:-1]]
        for digest, parent, size in reversed(list(zip(path, before, sizes, strict=True))):
            self._known[digest] = (parent, size)  # heads after tails: they are forgotten later
            self._known.move_to_end(digest)
        while len(self._known) > self._max:
            self._known.popitem(last=False)
