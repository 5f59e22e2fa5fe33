"""Prefix keys, and the two stores of what is alive."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Iterable, Sequence
from heapq import heappop, heappush
from itertools import accumulate

from kvsdk.backend.cache_model.values import CacheBlock
from kvsdk.errors import InvalidRequest

_ORDER = ("tools", "system", "messages")


def chain(blocks: Sequence[CacheBlock], *parts: Hashable) -> list[int]:
    """A key for the prefix that ends at each block: a hash chained over all blocks before it.

    Keys are hashes of Python's own, 61 bits, good within one process. Marks and token counts are no part
    of them.

    Args:
        blocks: The prompt.
        *parts: What enters the key at the start of the tools, of the system and of the messages.

    Raises:
        InvalidRequest: The blocks are not in the order tools, system, messages.
    """
    section = "tools"
    key = hash(("tools", parts[:1]))
    keys = []
    for block in blocks:
        if block.section != section:
            key = _enter(key, section, block.section, parts)
            section = block.section
        key = hash((key, block.digest, block.kind, block.role))
        keys.append(key)
    return keys


def _enter(key: int, section: str, following: str, parts: Sequence[Hashable]) -> int:
    before, now = _ORDER.index(section), _ORDER.index(following)
    if now < before:
        raise InvalidRequest(f"a {following} block stands after a {section} block", field="blocks")
    for index in range(before + 1, now + 1):
        key = hash((key, _ORDER[index], parts[index : index + 1]))
    return key


def ends_tokens(blocks: Sequence[CacheBlock]) -> list[int]:
    """Tokens of the prefix that ends at each block."""
    return list(accumulate([block.tokens for block in blocks]))


class Entry:
    """One cached prefix: seen by requests at `visible_s <= t < expires_s`."""

    __slots__ = ("expires_s", "ttl_s", "visible_s")

    def __init__(self, ttl_s: float, visible_s: float, expires_s: float) -> None:
        self.ttl_s = ttl_s
        self.visible_s = visible_s
        self.expires_s = expires_s


class PrefixStore:
    """Cached prefixes with a TTL each. One that is over is not found, and dropped as time goes on."""

    def __init__(self) -> None:
        self._entries: dict[int, Entry] = {}
        self._queue: list[tuple[float, int]] = []  # each entry once, at a time when it may be over

    def __len__(self) -> int:
        return len(self._entries)

    def first_live(self, keys: Sequence[int], indexes: Iterable[int], t_s: float) -> int | None:
        """The first of these indexes whose key is alive. No change."""
        entries = self._entries
        for index in indexes:
            entry = entries.get(keys[index])
            if entry is not None and entry.visible_s <= t_s < entry.expires_s:
                return index
        return None

    def write(self, key: int, t_s: float, ttl_s: float, visible_s: float) -> None:
        """Put a prefix in. While one of the same key is there, the earlier visibility stays."""
        expires_s = t_s + ttl_s
        entry = self._entries.get(key)
        if entry is None:
            self._entries[key] = Entry(ttl_s, visible_s, expires_s)
            heappush(self._queue, (expires_s, key))
            return
        still_there = t_s < entry.expires_s
        entry.visible_s = min(entry.visible_s, visible_s) if still_there else visible_s
        entry.ttl_s, entry.expires_s = ttl_s, expires_s

    def refresh(self, keys: Iterable[int], t_s: float) -> None:
        """Start the TTL of those that are alive anew."""
        entries = self._entries
        for key in keys:
            entry = entries.get(key)
            if entry is not None and entry.visible_s <= t_s < entry.expires_s:
                entry.expires_s = t_s + entry.ttl_s

    def drop_expired(self, t_s: float) -> None:
        """Forget what is over."""
        queue = self._queue
        while queue and queue[0][0] <= t_s:
            _, key = heappop(queue)
            expires_s = self._entries[key].expires_s
            if expires_s <= t_s:
                del self._entries[key]
            else:
                heappush(queue, (expires_s, key))


class RecentPrefixes:
    """Every prefix of the latest requests, for vendors that find the longest common one by themselves.

    Args:
        idle_s: Seconds without use after which a prefix is gone; None for never.
        max_prefixes: How many are kept, the least recently used going first, tails before heads.
    """

    def __init__(self, idle_s: float | None, max_prefixes: int = 1 << 18) -> None:
        self._idle_s = float("inf") if idle_s is None else idle_s
        self._max = max_prefixes
        self._used_s: OrderedDict[int, float] = OrderedDict()  # the least recently used first

    def __len__(self) -> int:
        return len(self._used_s)

    def longest(self, keys: Sequence[int], t_s: float) -> int | None:
        """Index of the longest prefix that is alive. No change."""
        used_s, idle_s = self._used_s, self._idle_s
        for index in range(len(keys) - 1, -1, -1):
            at_s = used_s.get(keys[index])
            if at_s is not None and t_s - at_s < idle_s:
                return index
        return None

    def use(self, keys: Sequence[int], t_s: float) -> None:
        """Note that a request with these prefixes was served, and forget what is over or too much."""
        used_s = self._used_s
        for key in reversed(keys):
            used_s[key] = t_s
            used_s.move_to_end(key)
        while len(used_s) > self._max:
            used_s.popitem(last=False)
        while used_s and t_s - next(iter(used_s.values())) >= self._idle_s:
            used_s.popitem(last=False)
