"""vLLM's prefix cache as a model."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from functools import partial

from kvsdk.backend.cache_model import (
    CacheBlock,
    CacheSettings,
    Plan,
    Predicted,
    PrefixModel,
    TtlTokens,
    chain,
    ends_tokens,
    key_part,
)
from kvsdk.errors import ConfigurationError

BLOCK_SIZE = 16
"""Tokens per KV block of an engine on a GPU that was not told otherwise (vllm 0.32.0)."""


class VllmCacheModel(PrefixModel):
    """The prefix cache of one vLLM engine: whole KV blocks, found by content, least recently used first out.

    **Read** (documented, and measured with vllm 0.32.0): floor(min(LCP, T - 1) / block) * block tokens, T
    being the prompt's and LCP the longest prefix in common with what is resident. LCP ends with the last
    `CacheBlock` in common: one is indivisible. **Write**: whole blocks that were not resident, as vLLM's
    `created_cache_tokens` counts them; they cost nothing and have no TTL. **Key** (documented): `scope`,
    the cache salt. Marks, `mode`, `ttl` and `auto` mean nothing here.

    **Eviction** (documented): the least recently used block, the tail of a prompt before its head. A prompt
    longer than the capacity keeps its head. Blocks that answers fill are not modelled: an answer counts
    once it stands in a later prompt.

    A request of 60 blocks takes about 25 microseconds (measured, CPython 3.11).

    Args:
        block_size: Tokens per KV block.
        capacity_blocks: KV blocks that the engine has; None for no limit.
        max_prefixes: How many prefixes are remembered at most, whatever the capacity.
    """

    def __init__(
        self,
        *,
        block_size: int = BLOCK_SIZE,
        capacity_blocks: int | None = None,
        max_prefixes: int = 1 << 18,
    ) -> None:
        if block_size < 1 or (capacity_blocks is not None and capacity_blocks < 0):
            raise ConfigurationError("block_size is at least 1 and capacity_blocks at least 0")
        super().__init__()
        self._block = block_size
        self._capacity = capacity_blocks
        self._max_prefixes = max_prefixes
        self._resident: OrderedDict[int, int] = OrderedDict()  # KV blocks by prefix, the next to go first
        self._total = 0

    def __len__(self) -> int:
        """How many KV blocks are resident."""
        return self._total

    def _plan(self, t_s: float, blocks: Sequence[CacheBlock], settings: CacheSettings) -> Plan:
        keys = chain(blocks, key_part(settings, ("scope",)))
        ends = ends_tokens(blocks)
        total = ends[-1] if ends else 0
        whole = [end // self._block for end in ends]
        held = self._held(keys, whole)
        read = min(held, max(0, total - 1) // self._block) * self._block
        write = (whole[-1] - held if whole else 0) * self._block
        return Plan(
            Predicted(read, write, TtlTokens(), total - read - write), partial(self._keep, keys, whole)
        )

    def _held(self, keys: Sequence[int], whole: Sequence[int]) -> int:
        """KV blocks of the prompt that are resident without a gap."""
        held = 0
        for key, upto in zip(keys, whole, strict=True):
            if upto > held:
                held += self._resident.get(key, 0)
                if held < upto:
                    break
        return held

    def _keep(self, keys: Sequence[int], whole: Sequence[int]) -> None:
        resident = self._resident
        for at in range(len(keys) - 1, -1, -1):  # the tail is the first to go
            count = whole[at] - (whole[at - 1] if at else 0)
            if count:
                self._total += count - resident.get(keys[at], 0)
                resident[keys[at]] = count
                resident.move_to_end(keys[at])
        self._evict()

    def _evict(self) -> None:
        resident = self._resident
        while len(resident) > self._max_prefixes:
            self._total -= resident.popitem(last=False)[1]
        while self._capacity is not None and self._total > self._capacity:
            oldest, count = next(iter(resident.items()))
            gone = min(count, self._total - self._capacity)
            self._total -= gone
            if gone == count:
                del resident[oldest]
            else:
                resident[oldest] = count - gone
