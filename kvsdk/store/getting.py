"""Giving KV back: the longest prefix of a prompt that is stored and is what it should be."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field

from kvsdk.store.entries.chunks import Chunk, Prompt
from kvsdk.store.entries.ends import Target, Unconverted
from kvsdk.store.entries.identity import Identity
from kvsdk.store.levels.levels import Levels
from kvsdk.store.others import Others
from kvsdk.store.reading import Found, Reader
from kvsdk.store.results import Hit, Miss
from kvsdk.store.tiers.tier import Hints


@dataclass(slots=True)
class _Taken:
    """What has been laid out so far, and what had been removed before."""

    since: int
    tokens: int = 0
    names: list[str] = field(default_factory=list)
    by_tier: Counter[str] = field(default_factory=Counter)
    notes: list[str] = field(default_factory=list)
    dtype: str = ""
    is_lossy: bool = False
    is_converted: bool = False

    def add(self, found: Found, tier: str, tokens: int, is_converted: bool) -> None:
        """One chunk more, or the last tokens of it."""
        self.tokens = found.chunk.end
        self.names.append(found.chunk.name)
        self.by_tier["writing" if found.is_pending else tier] += tokens
        self.notes += found.image.notes
        self.dtype = found.image.spec.dtype
        self.is_lossy = found.image.is_lossy
        self.is_converted |= is_converted


class Getter:
    """Brings prompts' KV back. Thread-safe.

    Args:
        identity: Whose KV it is.
        levels: The tiers.
        reader: What looks chunks up in them.
    """

    def __init__(self, identity: Identity, levels: Levels, reader: Reader) -> None:
        self._identity = identity
        self._levels = levels
        self._reader = reader
        self._others = Others(identity, levels)

    def probe(self, prompt: Prompt) -> int:
        """How many first tokens some tier has, by the entries' names; none is read."""
        leading = self._levels.leading(prompt.names)
        tokens = prompt.chunks[leading - 1].end if leading else 0
        if leading < len(prompt.chunks):
            tokens += max(
                (chunk.tokens for chunk in self._shorter(prompt, prompt.chunks[leading])), default=0
            )
        return tokens

    def get(self, prompt: Prompt, target: Target, root_of: Callable[[Identity], bytes]) -> Hit | Miss:
        """The KV of the longest prefix that is stored.

        Args:
            prompt: The prompt.
            target: Where it goes, and from which token on.
            root_of: The prompt's root under another identity, to say why nothing is there.
        """
        taken = _Taken(since=self._levels.removals, names=[c.name for c in prompt.chunks if target.has(c)])
        ended_by = self._take_all(prompt, target, taken)
        self._levels.touch(taken.names, Hints())
        if ended_by is not None and not taken.tokens:
            return self._explained(ended_by, prompt, root_of)
        try:
            kv = target.finish(taken.tokens)
        except Unconverted as error:
            return Miss(str(error), "unconverted")
        return Hit(
            tokens=taken.tokens,
            kv=kv,
            tokens_by_tier=dict(taken.by_tier),
            dtype=taken.dtype,
            codec=self._identity.codec,
            is_lossy=taken.is_lossy,
            is_converted=taken.is_converted,
            ended_by=ended_by,
            notes=tuple(dict.fromkeys(taken.notes)),
        )

    def _take_all(self, prompt: Prompt, target: Target, taken: _Taken) -> Miss | None:
        """Lay out chunk after chunk; why it ended, if not at the prompt's end."""
        wanted = (chunk for chunk in prompt.chunks if not target.has(chunk))
        with closing(self._reader.read(wanted)) as coming:
            for chunk, result in coming:
                problem = self._take(result, target, taken)
                if problem is not None:
                    self._take_shorter(prompt, chunk, target, taken)
                    return problem
        return None

    def _take_shorter(self, prompt: Prompt, missing: Chunk, target: Target, taken: _Taken) -> None:
        """The longest of the shorter chunks in the place of one that is not there."""
        for chunk in self._shorter(prompt, missing):
            if not target.has(chunk):
                with closing(self._reader.read([chunk])) as coming:
                    _, result = next(coming)
                    if self._take(result, target, taken) is None:
                        return

    def _shorter(self, prompt: Prompt, missing: Chunk) -> list[Chunk]:
        """Those in the place of one that is not there which some tier has, the longest first."""
        shorter = prompt.shorter(missing)
        if not shorter:
            return []
        prefix, _, _ = missing.name.rpartition("/")
        present = self._levels.present([chunk.name for chunk in shorter], f"{prefix}/")
        return [chunk for chunk in shorter if chunk.name in present]

    def _take(self, result: Found | Miss, target: Target, taken: _Taken) -> Miss | None:
        """Lay out one chunk and keep it in the tiers above; what was wrong, if anything."""
        if isinstance(result, Miss):
            return result
        level, chunk = self._levels.all[result.level], result.chunk
        try:
            is_converted = target.take(result.image, chunk)
            if result.level and not result.is_pending:
                own = Hints(depth_tokens=chunk.first)
                self._levels.promote(chunk.name, result.data, own, result.level, since=taken.since)
        except Unconverted as error:
            level.guard.count("unconverted")
            return Miss(str(error), "unconverted")
        finally:
            result.release()
        taken.add(result, level.guard.name, chunk.end - max(chunk.first, target.first_token), is_converted)
        return None

    def _explained(self, miss: Miss, prompt: Prompt, root_of: Callable[[Identity], bytes]) -> Miss:
        """Of a prompt that is not there: whether it is there under another identity, and how that differs."""
        if miss.kind != "absent":
            return miss
        why = self._others.explain(lambda other: prompt.head(root_of(other)).name)
        return miss if why is None else Miss(f"refused: {why}", "refused")
