"""What is in an engine's cache, and for how long it stays, from its events alone."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from kvsdk.errors import InvalidRequest

from kvsdk_vllm.observe.shares import Block, CacheShare, Owner, ResidentBlock
from kvsdk_vllm.observe.values import (
    AllBlocksCleared,
    BlockHash,
    BlockRemoved,
    BlockStored,
    Gap,
    KvEvent,
    Restarted,
)

SHARERS = 64
"""Sessions that are kept for one block. Where more share it, the earliest is no longer accounted for."""


class Residency:
    """Follows the blocks of an engine's cache. Pure: it knows the events it was fed, in order, and no clock.

    Before the first event, and after a `Gap`, nothing is known, and the answer is None. It is known again
    when the engine clears its cache or is a new one; counts start anew then. In between, blocks are followed
    from the gap on, for their lifetimes; a copy from before it may outlive one that was seen to go.

    It holds an entry for each resident block, and for each session that has one; of sessions that have none,
    the last `idle_sessions`, and one that comes after it was forgotten starts anew. Not thread-safe.

    Args:
        medium: Which cache, as the events name it: `"GPU"` is the engine's own, on a CPU too; `"CPU"` is the
            host's memory. What is in storage is there before the engine is, so its events do not tell it.
        group: Which of the model's groups of layers; most models have only 0. An event that names none is of
            group 0.
        repeats: What it means when a resident block is stored again. `copies`: another copy of it, which is
            removed on its own; so it is unless requests ask otherwise. `reports`: nothing, the engine
            repeats what is there because requests have `kv_cache_report_mode: "full"`. The events do not tell
            the two apart.
        idle_sessions: How many sessions without a resident block are remembered.
    """

    def __init__(
        self,
        *,
        medium: Literal["GPU", "CPU"] = "GPU",
        group: int = 0,
        repeats: Literal["copies", "reports"] = "copies",
        idle_sessions: int = 10_000,
    ) -> None:
        if medium not in ("GPU", "CPU"):
            raise InvalidRequest(f"medium is 'GPU' or 'CPU', not {medium!r}", field="medium")
        if repeats not in ("copies", "reports"):
            raise InvalidRequest(f"repeats is 'copies' or 'reports', not {repeats!r}", field="repeats")
        if idle_sessions < 0:
            raise InvalidRequest(f"idle_sessions is 0 or more, not {idle_sessions}", field="idle_sessions")
        self._medium = medium
        self._group = group
        self._counts_copies = repeats == "copies"
        self._idle_limit = idle_sessions
        self._has_begun = False
        self._is_known = False
        self._since_s: float | None = None
        self._has_forgotten = False
        self._blocks: dict[BlockHash, Block] = {}
        self._all = Owner(None)
        self._owners: dict[str | None, Owner] = {}
        self._idle: dict[str | None, None] = {}

    def feed(self, event: KvEvent) -> None:
        """The next event. Those of another medium or group change nothing here."""
        if isinstance(event, Gap | Restarted):
            self._start_over(is_known=isinstance(event, Restarted))
            return
        if not self._has_begun:
            self._start_over(is_known=event.seq == 0)
        if self._since_s is None:
            self._since_s = event.at_s
        if isinstance(event, AllBlocksCleared):
            self._clear(event)
        elif event.medium == self._medium and (event.group or 0) == self._group:
            if isinstance(event, BlockStored):
                self._store(event)
            else:
                self._remove(event)

    def everything(self) -> CacheShare:
        """All blocks, those of no session too; each counts once."""
        return self._all.share(is_known=self._is_known, since_s=self._since_s)

    def of(self, session: str | None) -> CacheShare:
        """A session's part; of None, that of the requests that named no session."""
        owner = self._owners.get(session)
        share = (owner or Owner(session)).share(is_known=self._is_known, since_s=self._since_s)
        if owner is None and self._has_forgotten:
            return replace(share, since_s=None, evicted_blocks=None, cleared_blocks=None)
        return share

    def blocks(self, session: str | None) -> tuple[ResidentBlock, ...] | None:
        """A session's blocks in the cache, by their place in the prompt; None when they are not known.

        Those without a known place come last. It looks at every resident block.
        """
        owner = self._owners.get(session)
        if not self._is_known or (owner is not None and not owner.is_whole):
            return None
        found = [
            ResidentBlock(
                block_hash=name,
                first_token=block.first_token,
                tokens=block.tokens,
                stored_at_s=block.stored_at_s,
            )
            for name, block in self._blocks.items()
            if owner is not None and owner in block.owners
        ]
        return tuple(sorted(found, key=lambda block: (block.first_token is None, block.first_token or 0)))

    def _start_over(self, *, is_known: bool) -> None:
        """The cache is empty, or what is in it is not known."""
        self._has_begun = True
        self._is_known = is_known
        self._since_s = None
        self._blocks.clear()
        self._all.start_over()
        for name, owner in self._owners.items():
            owner.start_over()
            self._idle.setdefault(name)
        self._forget()
        self._has_forgotten = False  # what was forgotten had nothing, and counts begin now

    def _clear(self, event: AllBlocksCleared) -> None:
        if self._medium != "GPU":
            return  # it is said of the engine's own cache
        if not self._is_known:
            self._start_over(is_known=True)
            self._since_s = event.at_s
            return
        gone = list(self._blocks.values())
        self._blocks.clear()
        for block in gone:
            for owner in (self._all, *block.owners):
                owner.cleared += 1
                self._release(owner, block)
        self._forget()

    def _store(self, event: BlockStored) -> None:
        first_token = self._first_token(event)
        owner = self._owner(event)
        for name in event.block_hashes:
            block = self._blocks.get(name)
            if block is None:
                block = self._blocks[name] = Block(first_token, event.block_tokens, event.at_s)
                self._all.gain(block)
            if self._counts_copies or not block.copies:
                block.copies += 1
            self._attribute(block, owner)
            if first_token is not None and event.block_tokens is not None:
                first_token += event.block_tokens
        if not owner.blocks:
            self._rest(owner)
        self._forget()

    def _remove(self, event: BlockRemoved) -> None:
        for name in event.block_hashes:
            block = self._blocks.get(name)
            if block is None:
                continue  # stored when nobody looked
            block.copies -= 1
            if block.copies:
                continue
            del self._blocks[name]
            lifetime_s = event.at_s - block.stored_at_s
            for owner in (self._all, *block.owners):
                owner.evicted += 1
                if lifetime_s >= 0:  # a clock that was put back has measured nothing
                    owner.lifetimes.add(lifetime_s)
                self._release(owner, block)
        self._forget()

    def _first_token(self, event: BlockStored) -> int | None:
        """Where the first of these blocks begins, when the one before is known and none is left out."""
        if event.tokens is None or event.tokens != event.covered_tokens:
            return None
        if event.parent_block_hash is None:
            return 0
        parent = self._blocks.get(event.parent_block_hash)
        if parent is None or parent.first_token is None or parent.tokens is None:
            return None
        return parent.first_token + parent.tokens

    def _owner(self, event: BlockStored) -> Owner:
        owner = self._owners.get(event.session)
        if owner is None:
            since_s = event.at_s if self._has_forgotten else None
            owner = self._owners[event.session] = Owner(event.session, since_s)
        return owner

    def _attribute(self, block: Block, owner: Owner) -> None:
        """The block is this session's too, from now on its latest."""
        if owner in block.owners:
            del block.owners[owner]
        else:
            if len(block.owners) == SHARERS:
                earliest = next(iter(block.owners))
                del block.owners[earliest]
                earliest.is_whole = False
                self._release(earliest, block)
            owner.gain(block)
            self._idle.pop(owner.name, None)
        block.owners[owner] = None

    def _release(self, owner: Owner, block: Block) -> None:
        owner.lose(block)
        if not owner.blocks and owner is not self._all:
            self._rest(owner)

    def _rest(self, owner: Owner) -> None:
        """The session has no block; of those it is the last to be forgotten."""
        self._idle.pop(owner.name, None)
        self._idle[owner.name] = None

    def _forget(self) -> None:
        while len(self._idle) > self._idle_limit:
            name = next(iter(self._idle))
            del self._idle[name], self._owners[name]
            self._has_forgotten = True
