"""What a vLLM engine says of its KV cache, as values.

Every value has `seq`, the number of the batch it came in. What the engine did has `at_s` too: when the engine
sent that batch, in seconds since 1970 by the engine's clock. What a prompt says is not in them: tokens are
counted, and the tenants' salts, which the engine publishes in clear, are dropped.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

BlockHash = bytes | int
"""The engine's own name of a block: the last 8 bytes of its digest as a number, or all of it as bytes where
the engine runs with `VLLM_KV_EVENTS_USE_INT_BLOCK_HASHES=0` (vllm 0.32.0)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockStored:
    """Blocks that came to be in the cache.

    A request that reads what is there already says nothing, unless it has `kv_cache_report_mode: "full"`.
    Requests that compute the same prefix side by side each store a copy of a block, and each says so.

    Attributes:
        block_hashes: The blocks, in the prompt's order.
        parent_block_hash: The block before them; None at the prompt's start.
        block_tokens: Tokens of each block; None where the engine did not say.
        covered_tokens: Tokens from the first block's start to the last one's end, those of blocks that were
            left out in between included (sliding windows do that).
        medium: Where they are: `"GPU"` (the engine's own cache, also on a CPU), `"CPU"`, `"STORAGE"`.
        group: The model's group of layers that they belong to; most models have one, 0.
        session: The session of the request that stored or reported them; others may share them.
        rank: The engine's data-parallel rank.
    """

    seq: int
    at_s: float
    block_hashes: tuple[BlockHash, ...]
    parent_block_hash: BlockHash | None
    block_tokens: int | None
    covered_tokens: int
    medium: str | None
    group: int | None
    session: str | None
    rank: int | None

    @property
    def tokens(self) -> int | None:
        """Tokens of all these blocks; None where the engine did not say."""
        return None if self.block_tokens is None else self.block_tokens * len(self.block_hashes)


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockRemoved:
    """Copies of blocks that are not in the cache any more. Attributes as in `BlockStored`."""

    seq: int
    at_s: float
    block_hashes: tuple[BlockHash, ...]
    medium: str | None
    group: int | None
    rank: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class AllBlocksCleared:
    """The engine's own cache was emptied.

    The engine says so with the next batch only, which may be much later, or never when it has no more work.
    """

    seq: int
    at_s: float
    rank: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Gap:
    """Batches `first` to `last` whose events are not known.

    Attributes:
        reason: `lost`: they did not arrive, and the engine could not repeat them. `unreadable`: something in
            them is not understood; the rest of that batch is given out.
    """

    first: int
    last: int
    reason: Literal["lost", "unreadable"]

    @property
    def seq(self) -> int:
        """The last batch that is missing."""
        return self.last


@dataclass(frozen=True, slots=True, kw_only=True)
class Restarted:
    """The engine counts from the start again: it is a new one, with an empty cache.

    What the old one did after the last batch that arrived is not known.

    Attributes:
        seq: The number of the new engine's batch by which it was noticed.
    """

    seq: int


KvEvent = BlockStored | BlockRemoved | AllBlocksCleared | Gap | Restarted
