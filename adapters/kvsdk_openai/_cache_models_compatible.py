"""The caches of other vendors that speak OpenAI's APIs.

Best effort unless a class says otherwise: these vendors promise no hit, so a model says what an undisturbed
cache on one machine would do. The longest common prefix (LCP) is over whole blocks: a block that differs
anywhere is not in common, unless the caller splits it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Literal

from kvsdk.backend.cache_model import (
    CacheBlock,
    CacheModel,
    CacheSettings,
    MarkedPrefixes,
    MarkRules,
    Plan,
    Predicted,
    PrefixModel,
    PrefixStore,
    RecentPrefixes,
    TtlTokens,
    chain,
    check_ttls,
    ends_tokens,
    key_part,
    visible_after_s,
)
from kvsdk.errors import InvalidBreakpoints

_KEY = ("scope", "cache_key")


class CommonPrefixModel(PrefixModel):
    """Reads the longest common prefix, floored; writing costs nothing and is not counted.

    Args:
        key: The settings that are its key: `scope`, and `cache_key` where a session's id chooses the server.
        step_tokens: What is read is a multiple of it.
        min_tokens: The shortest read.
        idle_s: Seconds without use after which a prefix is gone; None for never.
        has_whole_repeats: Whether a prompt sent again is read to its end, whatever the step.
        max_prefixes: How many prefixes are remembered.
    """

    def __init__(
        self,
        *,
        step_tokens: int = 1,
        min_tokens: int = 0,
        idle_s: float | None = None,
        has_whole_repeats: bool = False,
        max_prefixes: int = 1 << 18,
        key: Sequence[str] = _KEY,
    ) -> None:
        super().__init__()
        self._key = key
        self._step = step_tokens
        self._min = min_tokens
        self._has_whole_repeats = has_whole_repeats
        self._recent = RecentPrefixes(idle_s, max_prefixes)

    def __len__(self) -> int:
        """How many prefixes it holds."""
        return len(self._recent)

    def _plan(self, t_s: float, blocks: Sequence[CacheBlock], settings: CacheSettings) -> Plan:
        keys = chain(blocks, key_part(settings, self._key))
        ends = ends_tokens(blocks)
        hit = self._recent.longest(keys, t_s)
        total = ends[-1] if ends else 0
        read = 0 if hit is None else self._read(ends[hit], is_whole=hit == len(keys) - 1)
        return Plan(Predicted(read, 0, TtlTokens(), total - read), partial(self._recent.use, keys, t_s))

    def _read(self, common: int, *, is_whole: bool) -> int:
        floored = common if is_whole and self._has_whole_repeats else common // self._step * self._step
        return floored if floored >= self._min else 0


class KimiCacheModel(PrefixModel):
    """Kimi k3 and k3.1: the longest common prefix, and a write that is counted (documented; best effort).

    What is not read is written under the request's `ttl`, 5m by default or 1h; which prefixes "meet hit
    conditions" the vendor does not say (assumed: all). A prefix lives 5 minutes or 1 hour without use
    (assumed from the TTLs' names). forum.moonshot.ai/t/613, read 2026-11.

    Args:
        max_prefixes: How many prefixes are remembered, per TTL.
    """

    _TTL_S: Mapping[str, float] = {"5m": 300.0, "1h": 3600.0}

    def __init__(self, *, max_prefixes: int = 1 << 18) -> None:
        super().__init__()
        self._by_ttl = {ttl: RecentPrefixes(idle_s, max_prefixes) for ttl, idle_s in self._TTL_S.items()}

    def __len__(self) -> int:
        """How many prefixes it holds."""
        return sum(map(len, self._by_ttl.values()))

    def _plan(self, t_s: float, blocks: Sequence[CacheBlock], settings: CacheSettings) -> Plan:
        ttl = settings.get("ttl") or "5m"
        if ttl not in self._TTL_S:
            raise InvalidBreakpoints(f"ttl is 5m or 1h, not {ttl!r}", field="ttl")
        keys = chain(blocks, key_part(settings, ("scope",)))
        ends = ends_tokens(blocks)
        hits = [hit for kept in self._by_ttl.values() if (hit := kept.longest(keys, t_s)) is not None]
        read = ends[max(hits)] if hits else 0
        write = (ends[-1] if ends else 0) - read
        split = TtlTokens({ttl: write}) if write else TtlTokens()
        return Plan(Predicted(read, write, split, 0), partial(self._by_ttl[ttl].use, keys, t_s))


class DeepSeekCacheModel(PrefixModel):
    """DeepSeek: prefixes are kept as whole units, and a unit is read only whole.

    **Units** (documented): a request leaves one at its end, one at the end of its answer (`output`), and
    one where it parts from an earlier request. Long texts leave more at a stride that is not disclosed.
    **Lookup** (documented): the longest unit that begins the prompt. **Key** (documented): `scope` and
    `cache_key` (account and `user_id`). **Write**: not counted. **Life** (documented): hours to days, best
    effort. api-docs.deepseek.com/guides/kv_cache, read 2026-11.

    Args:
        step_tokens: What is read is a multiple of it; 64 was seen on earlier models (measured).
        stride_tokens: Distance of further units in long prompts; None for none (assumed).
        build_s: Seconds that a unit takes to be built after the answer ("seconds", documented).
        idle_s: Seconds without use after which a unit is gone (assumed; "a few hours to a few days").
    """

    def __init__(
        self,
        *,
        step_tokens: int = 1,
        stride_tokens: int | None = None,
        build_s: float = 0.0,
        idle_s: float = 7200.0,
    ) -> None:
        super().__init__()
        self._step = step_tokens
        self._stride = stride_tokens
        self._build_s = build_s
        self._idle_s = idle_s
        self._units = PrefixStore()
        self._seen = RecentPrefixes(idle_s)

    def __len__(self) -> int:
        """How many units it holds."""
        return len(self._units)

    def _plan(self, t_s: float, blocks: Sequence[CacheBlock], settings: CacheSettings) -> Plan:
        output = settings.get("output")
        keys = chain([*blocks, output] if output else blocks, key_part(settings, _KEY))
        ends = ends_tokens(blocks)
        hit = self._units.first_live(keys, range(len(blocks) - 1, -1, -1), t_s)
        read = 0 if hit is None else ends[hit] // self._step * self._step
        total = ends[-1] if ends else 0
        units = self._new_units(t_s, keys, ends)
        visible_s = t_s + visible_after_s(settings, "completion") + self._build_s
        return Plan(
            Predicted(read, 0, TtlTokens(), total - read),
            partial(self._keep, t_s, keys, hit, units, visible_s),
        )

    def _new_units(self, t_s: float, keys: Sequence[int], ends: Sequence[int]) -> set[int]:
        """Indexes of the prefixes that become units."""
        if not ends:
            return set()
        units = {len(ends) - 1, len(keys) - 1}
        common = self._seen.longest(keys, t_s)
        if common is not None:
            units.add(common)
        if self._stride is not None:
            steps = [end // self._stride for end in ends]
            units.update(at for at, step in enumerate(steps) if step > (steps[at - 1] if at else 0))
        return units

    def _keep(
        self, t_s: float, keys: Sequence[int], hit: int | None, units: set[int], visible_s: float
    ) -> None:
        self._units.drop_expired(t_s)
        if hit is not None:
            self._units.refresh([keys[hit]], t_s)
        for at in units:
            self._units.write(keys[at], t_s, self._idle_s, visible_s)
        self._seen.use(keys, t_s)


class QwenCacheModel(PrefixModel):
    """Qwen (Model Studio): marks as at Anthropic, with one TTL (documented).

    At most 4 marks (more: refused, assumed); each looks back over 20 blocks; at least 1,024 tokens; 300 s
    from the start of the request that writes or reads; an entry is there once the answer is complete
    (`total_s`). **Key** (documented): `scope`. A request without a mark uses the implicit cache, which
    promises nothing: by default it reads 0. alibabacloud.com Model Studio, context cache, 2026-10-11.

    Args:
        implicit: Whether requests without a mark read their longest common prefix of 1,024 tokens or more.
        refresh: `"chain"` or `"hit_only"` (unspecified).
    """

    def __init__(self, *, implicit: bool = False, refresh: Literal["chain", "hit_only"] = "chain") -> None:
        super().__init__()
        self._ttl_s = {"5m": 300.0}
        self._prefixes = MarkedPrefixes(MarkRules(ttl_s=self._ttl_s, min_tokens=1024, refresh=refresh))
        self._implicit = CommonPrefixModel(min_tokens=1024, idle_s=300.0) if implicit else None

    def __len__(self) -> int:
        """How many prefixes it holds."""
        return len(self._prefixes)

    def _plan(self, t_s: float, blocks: Sequence[CacheBlock], settings: CacheSettings) -> Plan:
        marks: dict[int, str] = {at: block.ttl for at, block in enumerate(blocks) if block.ttl is not None}
        if not marks and self._implicit is not None:
            return self._implicit._plan(t_s, blocks, settings)
        check_ttls(marks, self._ttl_s)
        if len(marks) > 4:
            raise InvalidBreakpoints(f"at most 4 marks in a request; found {len(marks)}", field="blocks")
        keys = chain(blocks, key_part(settings, ("scope",)))
        look = self._prefixes.look(t_s, blocks, keys, marks)
        visible_s = t_s + visible_after_s(settings, "completion")
        return Plan(look.predicted, partial(self._prefixes.keep, t_s, keys, marks, look, visible_s))


COMPATIBLE: Mapping[str, Callable[..., CacheModel]] = {
    "deepseek": DeepSeekCacheModel,
    # 128 by one gateway's measurement; an official example shows 98 of 125. No lifetime is promised.
    "xai": partial(CommonPrefixModel, step_tokens=128),
    # Blocks of 64 (documented: docs.mistral.ai, 2026-11), if routing finds them; no lifetime is known.
    "mistral": partial(CommonPrefixModel, step_tokens=64),
    "kimi": KimiCacheModel,
    # Measured: chunks of 256, an exact repeat reads all, gone after 300 to 1,800 s, no key matters.
    "kimi-for-coding": partial(
        CommonPrefixModel, step_tokens=256, idle_s=300.0, has_whole_repeats=True, key=("scope",)
    ),
    "qwen": QwenCacheModel,
    # On supported models, two hours without use (documented: console.groq.com, 2026-11).
    "groq": partial(CommonPrefixModel, idle_s=7200.0, key=("scope",)),
    # Per replica (documented: docs.fireworks.ai, 2026-11); no lifetime is known.
    "fireworks": CommonPrefixModel,
}
"""The models by vendor. All but Qwen's marks are best effort."""
