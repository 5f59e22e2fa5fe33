"""Anthropic's prompt cache as a model.

Sources: platform.claude.com/docs, prompt caching (2026-08-21; later copies to 2026-10), the types of
anthropic 2.14.0 (2026-11-24). Grades are named rule by rule.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from functools import partial
from typing import Literal

from kvsdk.backend.cache_model import (
    CacheBlock,
    CacheSettings,
    MarkedPrefixes,
    MarkRules,
    Plan,
    PrefixModel,
    chain,
    check_ttls,
    key_part,
    visible_after_s,
)
from kvsdk.errors import InvalidBreakpoints

from kvsdk_anthropic._facts import MAX_BREAKPOINTS, min_tokens

TTL_S: Mapping[str, float] = {"5m": 300.0, "1h": 3600.0}
"""Lifetimes from the start of the request that writes or reads (documented, 2026-08-21)."""

UNLISTED_MIN_TOKENS = 1024
"""The shortest cached prefix of a model that is not listed (assumed)."""

_THINKING = ("thinking", "redacted_thinking")
_ROOT = ("scope",)
_SYSTEM = ("web_search", "citations", "speed")
_MESSAGES = ("tool_choice", "disable_parallel_tool_use", "thinking", "effort")


class AnthropicCacheModel(PrefixModel):
    """The cache of one Claude model.

    **Key** (documented): `scope` (organisation and workspace), then tools, then `web_search`, `citations`,
    `speed` and the system, then `tool_choice`, `disable_parallel_tool_use`, the presence of images,
    `thinking`, `effort` and the messages. `mode` does not exist here and is left aside, as are
    `max_tokens` and the like.

    **Automatic mark** (documented): `auto=True` (with `ttl`, 5m by default) or `auto="1h"` marks the last
    block that is not thinking or an empty text; it counts as a mark. On a block that is marked with the
    same TTL it does nothing, with another TTL the request is refused.

    **Refused** (documented): more than 4 marks; a mark on thinking or an empty text; a TTL that is longer
    than an earlier mark's; a TTL other than 5m and 1h.

    **Lookup** (documented): from the last mark to the first, each looks at 20 positions, itself included;
    the first live prefix is read. A message's run of tool calls or of tool results is one position
    (documented by later copies, 2026-10; `group_tool_runs`).

    **Write** (documented): each mark after what was read, if its prefix has `min_tokens`. Tokens up to the
    last 1h mark written count as 1h, those after it as 5m; the rest is fresh.

    **Life** (documented): 5 minutes or 1 hour from the start of the request that writes or reads, at least;
    this model drops an entry at that moment. Others see it when the answer begins (`ttft_s`). A read keeps
    the entry alive for free; that it does so for the entries before it is assumed (`refresh`). A 1h mark
    on a live 5m entry reads it and lengthens nothing (assumed, from the billing formula).

    Not modelled: marks that the vendor puts on results of its own server tools.

    A request of 60 blocks with 4 marks takes 20 to 40 microseconds (measured, CPython 3.11).

    Args:
        model: The model's name, for its minimum.
        min_tokens: The shortest prefix that is cached, instead of the model's.
        min_on: `"prefix"` (documented): the minimum holds for the whole prefix. `"increment"` (a text of
            Amazon Bedrock's, assumed): each mark must add as much to the last one before it that counted.
        thinking_in_root: Whether `thinking` and `effort` are part of the key from the tools on
            (documented as "model-specific", without a list).
        refresh: `"chain"` or `"hit_only"`.
        group_tool_runs: Whether tool runs are one position.
    """

    def __init__(
        self,
        model: str,
        *,
        min_tokens: int | None = None,
        min_on: Literal["prefix", "increment"] = "prefix",
        thinking_in_root: bool = False,
        refresh: Literal["chain", "hit_only"] = "chain",
        group_tool_runs: bool = True,
    ) -> None:
        super().__init__()
        self._root = (*_ROOT, "thinking", "effort") if thinking_in_root else _ROOT
        rules = MarkRules(
            ttl_s=TTL_S,
            min_tokens=_minimum(model) if min_tokens is None else min_tokens,
            min_on=min_on,
            group_tool_runs=group_tool_runs,
            refresh=refresh,
        )
        self._prefixes = MarkedPrefixes(rules)

    def __len__(self) -> int:
        """How many prefixes it holds."""
        return len(self._prefixes)

    def _plan(self, t_s: float, blocks: Sequence[CacheBlock], settings: CacheSettings) -> Plan:
        marks = marks_of(blocks, settings)
        keys = chain(
            blocks, key_part(settings, self._root), _flags(settings, _SYSTEM), _message_key(blocks, settings)
        )
        look = self._prefixes.look(t_s, blocks, keys, marks)
        visible_s = t_s + visible_after_s(settings, "start")
        return Plan(look.predicted, partial(self._prefixes.keep, t_s, keys, marks, look, visible_s))


def _minimum(model: str) -> int:
    known = min_tokens(model)
    return UNLISTED_MIN_TOKENS if known is None else known


def _flags(settings: CacheSettings, names: Sequence[str]) -> Hashable:
    """Settings of these names that are on: False is the same as left out."""
    return key_part(settings, [name for name in names if settings.get(name)])


def _message_key(blocks: Sequence[CacheBlock], settings: CacheSettings) -> Hashable:
    images = settings.get("images")
    if images is None:
        images = "image" in [block.kind for block in blocks]
    return (_flags(settings, _MESSAGES), images)


def marks_of(blocks: Sequence[CacheBlock], settings: CacheSettings) -> dict[int, str]:
    """TTL by index of each marked block, the automatic mark included, as the vendor accepts them.

    Raises:
        InvalidBreakpoints: The vendor would refuse them.
    """
    marks: dict[int, str] = {at: block.ttl for at, block in enumerate(blocks) if block.ttl is not None}
    auto = settings.get("auto")
    if auto:
        _mark_automatically(marks, blocks, auto if isinstance(auto, str) else settings.get("ttl") or "5m")
    if marks:
        _check(marks, blocks)
    return marks


def _mark_automatically(marks: dict[int, str], blocks: Sequence[CacheBlock], ttl: str) -> None:
    last = next((at for at in range(len(blocks) - 1, -1, -1) if _can_carry(blocks[at])), None)
    if last is None:
        return
    if marks.get(last, ttl) != ttl:
        raise InvalidBreakpoints(
            f"blocks[{last}] is marked with {marks[last]}, the automatic mark on it has {ttl}",
            field=f"blocks[{last}].ttl",
        )
    marks[last] = ttl


def _can_carry(block: CacheBlock) -> bool:
    return block.kind not in _THINKING and not (block.kind == "text" and block.tokens == 0)


def _check(marks: Mapping[int, str], blocks: Sequence[CacheBlock]) -> None:
    if len(marks) > MAX_BREAKPOINTS:
        raise InvalidBreakpoints(
            f"at most {MAX_BREAKPOINTS} marks in a request, the automatic one included; found {len(marks)}",
            field="blocks",
        )
    check_ttls(marks, TTL_S)
    shortest: str | None = None
    for at in sorted(marks):
        if not _can_carry(blocks[at]):
            what = "an empty text" if blocks[at].kind == "text" else blocks[at].kind
            raise InvalidBreakpoints(f"blocks[{at}] is {what}, which takes no mark", field=f"blocks[{at}]")
        if shortest is not None and TTL_S[marks[at]] > TTL_S[shortest]:
            raise InvalidBreakpoints(
                f"blocks[{at}] has the TTL {marks[at]} after a mark with {shortest}; longer ones come first",
                field=f"blocks[{at}].ttl",
            )
        shortest = marks[at]
