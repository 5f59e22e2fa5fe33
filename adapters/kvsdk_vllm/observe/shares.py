"""Whose the blocks in a cache are: what `Residency` answers, and what it counts."""

from __future__ import annotations

from dataclasses import dataclass, field

from kvsdk_vllm.observe.lifetimes import LifetimeCounts, Lifetimes
from kvsdk_vllm.observe.values import BlockHash


@dataclass(frozen=True, slots=True, kw_only=True)
class ResidentBlock:
    """A block that is in the cache.

    Attributes:
        block_hash: The engine's name of it.
        first_token: Its place in the prompt, as the number of tokens before it; None where it is not known.
        tokens: How many tokens it has; None where the engine did not say.
        stored_at_s: Since when it has been there, by the engine's clock, in seconds since 1970.
    """

    block_hash: BlockHash
    first_token: int | None
    tokens: int | None
    stored_at_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheShare:
    """A session's part of the cache, or all of it. What is not known is None.

    A session's blocks are those that its requests stored or reported, whoever else shares them. Counts are
    since `since_s`, and all of them are None while something may have happened that was not seen.

    Attributes:
        since_s: Since when everything was seen, by the engine's clock, in seconds since 1970.
        resident_blocks: Blocks that are in the cache, each once however many copies of it there are.
        resident_tokens: Their tokens.
        evicted_blocks: Blocks whose last copy was removed.
        cleared_blocks: Blocks that went when the whole cache was cleared.
        lifetimes: How long the evicted ones had stayed, of all that were seen, gaps or not.
    """

    since_s: float | None
    resident_blocks: int | None
    resident_tokens: int | None
    evicted_blocks: int | None
    cleared_blocks: int | None
    lifetimes: Lifetimes


@dataclass(slots=True, eq=False)
class Owner:
    """A session, or everybody.

    Attributes:
        name: The session; None for requests without one, and for everybody.
        since_s: Since when it is counted, when it may have been forgotten before; None for as all others.
        is_whole: Whether all of its blocks are accounted for.
        blocks: How many it has.
        tokens: Theirs.
        sizeless: How many of them have no known size.
        evicted: How many were evicted.
        cleared: How many were cleared away.
    """

    name: str | None
    since_s: float | None = None
    is_whole: bool = True
    blocks: int = 0
    tokens: int = 0
    sizeless: int = 0
    evicted: int = 0
    cleared: int = 0
    lifetimes: LifetimeCounts = field(default_factory=LifetimeCounts)

    def gain(self, block: Block) -> None:
        """A block is this owner's too."""
        self.blocks += 1
        self.tokens += block.tokens or 0
        self.sizeless += block.tokens is None

    def lose(self, block: Block) -> None:
        """A block is not this owner's any more."""
        self.blocks -= 1
        self.tokens -= block.tokens or 0
        self.sizeless -= block.tokens is None

    def start_over(self) -> None:
        """It has nothing, and counts begin anew; its lifetimes stay."""
        self.since_s, self.is_whole = None, True
        self.blocks = self.tokens = self.sizeless = self.evicted = self.cleared = 0

    def share(self, *, is_known: bool, since_s: float | None) -> CacheShare:
        """Its part now."""
        is_known = is_known and self.is_whole
        if self.since_s is not None:
            since_s = self.since_s
        return CacheShare(
            since_s=since_s if is_known else None,
            resident_blocks=self.blocks if is_known else None,
            resident_tokens=self.tokens if is_known and not self.sizeless else None,
            evicted_blocks=self.evicted if is_known else None,
            cleared_blocks=self.cleared if is_known else None,
            lifetimes=self.lifetimes.summary(),
        )


@dataclass(slots=True)
class Block:
    """A block in the cache, with the sessions that it is of, the latest last."""

    first_token: int | None
    tokens: int | None
    stored_at_s: float
    copies: int = 0
    owners: dict[Owner, None] = field(default_factory=dict)
