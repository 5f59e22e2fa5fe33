"""OpenAI's prompt cache as a model: gpt-5.5 and earlier.

Sources: developers.openai.com/api/docs/guides/prompt-caching (2026-10-02). Grades are named rule by rule.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Literal

from kvsdk.backend.cache_model import (
    CacheBlock,
    CacheSettings,
    Plan,
    Predicted,
    PrefixModel,
    RecentPrefixes,
    TtlTokens,
    chain,
    ends_tokens,
    key_part,
    one_of,
)
from kvsdk.errors import InvalidBreakpoints

from kvsdk_openai._cache_model import KEY, MIN_TOKENS

_IDLE_S = {"in_memory": 300.0, "24h": 1800.0}


class IntervalGptCacheModel(PrefixModel):
    """The cache of gpt-5.5 and earlier, which reads whole intervals of tokens.

    **Lookup** (documented): the longest prefix m in common with a live request counts from hidden content
    of H tokens before the prompt; k = floor((m + H) / interval) intervals, v = k * interval - H visible
    tokens; if v has the minimum, v floored to 128 is read. The prefix in common is counted in whole
    blocks. Interval: 2,048 for gpt-5.5 (documented), 128 for others (measured). H: 700 for gpt-5.5 (runs
    of 3,741, 1,289 and 1,323 tokens need 641 to 768), 64 for others (assumed; 12,033 tokens read 11,904).

    **Key** (documented): as for gpt-5.6, only that `cache_key` routes and does not partition (left aside).

    **Write**: costs nothing and is not counted (documented).

    **Life**: `"in_memory"`, 300 to 600 s idle (documented); `"24h"`, 1,800 s idle as a rule (documented).
    This model drops at the low end. Marks, `ttl` and the explicit
    `mode` are refused (measured: 400).

    Not modelled: routing between machines.

    Args:
        model: The model's name, for its interval and retention.
        hidden_tokens: H, instead of the model's.
        interval_tokens: Instead of the model's.
        min_tokens: The shortest visible prefix that is read (documented as about 1,024).
        retention: `"in_memory"` or `"24h"`; by default 24h where the model has it.
        idle_s: Seconds without use after which a prefix is gone, instead of the retention's.
    """

    def __init__(
        self,
        model: str,
        *,
        hidden_tokens: int | None = None,
        interval_tokens: int | None = None,
        min_tokens: int = MIN_TOKENS,
        retention: Literal["in_memory", "24h"] | None = None,
        idle_s: float | None = None,
    ) -> None:
        super().__init__()
        is_newest = model.startswith("gpt-5.5")
        self._hidden = (700 if is_newest else 64) if hidden_tokens is None else hidden_tokens
        self._interval = (2048 if is_newest else 128) if interval_tokens is None else interval_tokens
        self._min_tokens = min_tokens
        kept = retention or ("24h" if model.startswith(("gpt-5", "gpt-4.1")) else "in_memory")
        one_of("retention", kept, _IDLE_S)
        self._recent = RecentPrefixes(_IDLE_S[kept] if idle_s is None else idle_s)

    def __len__(self) -> int:
        """How many prefixes it holds."""
        return len(self._recent)

    def _plan(self, t_s: float, blocks: Sequence[CacheBlock], settings: CacheSettings) -> Plan:
        _refuse_marks(blocks, settings)
        keys = chain(blocks, key_part(settings, [name for name in KEY if name != "cache_key"]))
        ends = ends_tokens(blocks)
        hit = self._recent.longest(keys, t_s)
        read = 0 if hit is None else self._visible_tokens(ends[hit])
        total = ends[-1] if ends else 0
        return Plan(Predicted(read, 0, TtlTokens(), total - read), partial(self._recent.use, keys, t_s))

    def _visible_tokens(self, common: int) -> int:
        intervals = (common + self._hidden) // self._interval
        visible = intervals * self._interval - self._hidden
        return visible // 128 * 128 if visible >= self._min_tokens else 0


def _refuse_marks(blocks: Sequence[CacheBlock], settings: CacheSettings) -> None:
    has_options = settings.get("ttl") or settings.get("mode") not in (None, "implicit")
    if has_options or any(block.ttl is not None for block in blocks):
        raise InvalidBreakpoints("models before gpt-5.6 take no cache marks and no cache options")
