"""OpenAI's prompt cache as a model: gpt-5.6 and later.

Sources: developers.openai.com/api/docs/guides/prompt-caching (2026-10-02), the docstrings of openai 3.57.0
(2026-11-19). Grades are named rule by rule.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Literal, NamedTuple

from kvsdk.backend.cache_model import (
    CacheBlock,
    CacheSettings,
    Plan,
    Predicted,
    PrefixModel,
    PrefixStore,
    chain,
    check_ttls,
    ends_tokens,
    key_part,
    one_of,
    split_by_ttl,
    visible_after_s,
)
from kvsdk.errors import InvalidBreakpoints

MIN_TOKENS = 1024
"""The shortest prefix that is written or read, in visible tokens (documented, 2026-10-02)."""

TTL_S: Mapping[str, float] = {"30m": 1800.0, "12h": 43200.0}
"""Minimum lifetimes after the latest write or reuse (documented, 2026-11-19)."""

_LONGEST_FIRST = ("12h", "30m")
KEY = (
    "scope",
    "cache_key",
    "parallel_tool_calls",
    "text_format",
    "effort",
    "verbosity",
    "service_tier",
)
"""The settings that are part of a prefix's key (documented, 2026-10-02)."""

_LOOKUP = ("guide", "sdk", "azure")


class _Boundaries(NamedTuple):
    """Where a request looks, the deepest first, and where it writes, with TTLs."""

    lookup: list[int]
    write: dict[int, str]


class MarkedGptCacheModel(PrefixModel):
    """The cache of gpt-5.6 and later, which reads and writes only at boundaries.

    **Key** (documented): `scope` (organisation, region), `cache_key` (measured to partition), tools,
    `parallel_tool_calls`, `text_format`, `effort`, `verbosity`, `service_tier`. `tool_choice` is no part.

    **Message endings** (documented): of every user message, of the last tool result of a group, of the
    last developer (or system) message of the run that the prompt begins with.

    **Implicit** (documented, the default `mode`): looks at the marks, the latest ending, up to 20 endings
    before it and the end of the developer run; writes at the latest ending and the last 3 marks.
    **Explicit** (documented): looks at the marks, writes at the last 4; without a mark, no cache.
    More marks than that are no error (documented).

    **Lookup** (documented): the longest boundary of this request that has a live entry and 1,024 tokens.
    No prefix between boundaries is found, and no distance limits it.

    **Counts** (documented, by the guide's example): read up to there, written up to the last boundary
    written, the rest fresh; nothing is rounded. With 30m and 12h together, tokens up to the last 12h
    boundary count as 12h (assumed). A mark on the latest ending keeps its own TTL (assumed).

    **Life** (documented): at least the TTL from the start of the request that writes or reuses; this model
    drops an entry at that moment. A live 30m entry under a 12h mark is read and stays 30m (assumed).

    Not modelled: overflow to another machine at more than about 15 requests a minute.

    A request of 60 blocks with 4 marks takes about 25 microseconds (measured, CPython 3.11).

    Args:
        implicit_lookback: Off: implicit mode looks only at the marks and the latest ending, as one
            gateway's users saw in agent loops (measured, contradicts the guide).
        lookup: Which marks are looked at: `"guide"`, the first 2 and latest 50 (documented); `"sdk"`, the
            latest 80 (the SDK's docstring); `"azure"`, the latest 50 (documented there).
        refresh: Which entries a read keeps alive: the one read (`"hit_only"`) or also those before it
            (`"chain"`). Unspecified.
        visible: When others see what was written: at the answer's `"start"` (`ttft_s`) or `"completion"`
            (`total_s`). Unspecified.
        ttls: The TTLs that the API takes; Chat Completions has only 30m.
    """

    def __init__(
        self,
        *,
        implicit_lookback: bool | Literal["on", "off"] = True,
        lookup: Literal["guide", "sdk", "azure"] = "guide",
        refresh: Literal["chain", "hit_only"] = "hit_only",
        visible: Literal["start", "completion"] = "start",
        ttls: Sequence[str] = ("30m", "12h"),
    ) -> None:
        super().__init__()
        self._has_lookback = implicit_lookback not in (False, "off")
        self._lookup = one_of("lookup", lookup, _LOOKUP)
        self._refresh = one_of("refresh", refresh, ("chain", "hit_only"))
        self._visible = one_of("visible", visible, ("start", "completion"))
        self._ttl_s = {one_of("ttls", ttl, TTL_S): TTL_S[ttl] for ttl in ttls}
        self._store = PrefixStore()

    def __len__(self) -> int:
        """How many prefixes it holds."""
        return len(self._store)

    def _plan(self, t_s: float, blocks: Sequence[CacheBlock], settings: CacheSettings) -> Plan:
        boundaries = self._boundaries(blocks, settings)
        keys = chain(blocks, key_part(settings, KEY))
        ends = ends_tokens(blocks)
        lookup = [at for at in boundaries.lookup if ends[at] >= MIN_TOKENS]
        hit = self._store.first_live(keys, lookup, t_s)
        read = 0 if hit is None else ends[hit]
        writes = {
            at: ttl for at, ttl in boundaries.write.items() if ends[at] >= MIN_TOKENS and ends[at] > read
        }
        split = split_by_ttl(read, [(ends[at], ttl) for at, ttl in writes.items()], _LONGEST_FIRST)
        write = max((ends[at] for at in writes), default=read) - read
        fresh = (ends[-1] if ends else 0) - read - write
        visible_s = t_s + visible_after_s(settings, self._visible)
        return Plan(
            Predicted(read, write, split, fresh), partial(self._keep, t_s, keys, hit, writes, visible_s)
        )

    def _keep(
        self, t_s: float, keys: Sequence[int], hit: int | None, writes: Mapping[int, str], visible_s: float
    ) -> None:
        self._store.drop_expired(t_s)
        if hit is not None:
            first = 0 if self._refresh == "chain" else hit
            self._store.refresh(keys[first : hit + 1], t_s)
        for at, ttl in writes.items():
            self._store.write(keys[at], t_s, self._ttl_s[ttl], visible_s)

    def _boundaries(self, blocks: Sequence[CacheBlock], settings: CacheSettings) -> _Boundaries:
        mode, ttl = settings.get("mode") or "implicit", settings.get("ttl") or "30m"
        marks: dict[int, str] = {at: block.ttl for at, block in enumerate(blocks) if block.ttl is not None}
        check_ttls(marks, self._ttl_s)
        if ttl not in self._ttl_s or mode not in ("implicit", "explicit"):
            raise InvalidBreakpoints(f"the API has no mode {mode!r} with ttl {ttl!r}", field="mode, ttl")
        order = list(marks)
        lookup = self._marks_looked_at(order)
        if mode == "explicit":
            return _Boundaries(sorted(lookup, reverse=True), {at: marks[at] for at in order[-4:]})
        ends, developer_end = message_ends(blocks)
        lookup.update(ends[-21:] if self._has_lookback else ends[-1:])
        if self._has_lookback and developer_end is not None:
            lookup.add(developer_end)
        write = dict.fromkeys(ends[-1:], ttl)
        write.update((at, marks[at]) for at in order[-3:])
        if ends and ends[-1] in marks:
            write[ends[-1]] = marks[ends[-1]]
        return _Boundaries(sorted(lookup, reverse=True), write)

    def _marks_looked_at(self, order: Sequence[int]) -> set[int]:
        if self._lookup == "sdk":
            return set(order[-80:])
        return {*order[-50:], *(order[:2] if self._lookup == "guide" else ())}


def message_ends(blocks: Sequence[CacheBlock]) -> tuple[list[int], int | None]:
    """Where eligible messages end, in order, and where the developer messages at the start end."""
    ends: list[int] = []
    developer_end: int | None = None
    is_start = True
    last = len(blocks) - 1
    speaker = "" if last < 0 else _speaker(blocks[0])
    for at, block in enumerate(blocks):
        following = "" if at == last else _speaker(blocks[at + 1])
        if speaker == "user":
            is_start = False
            if following != "user" or blocks[at + 1].message != block.message:
                ends.append(at)
        elif speaker == "developer":
            if is_start and following != "developer":
                developer_end = at
                ends.append(at)
        elif speaker != "tools":
            is_start = False
            if speaker == "tool" and following != "tool":
                ends.append(at)
        speaker = following
    return ends, developer_end


def _speaker(block: CacheBlock) -> str:
    if block.section == "tools":
        return "tools"
    if block.kind == "tool_result":
        return "tool"
    if block.section == "system" or block.role == "system":
        return "developer"
    return block.role
