"""Why a prefix was not read from the cache, found on the client by comparing digests."""

from __future__ import annotations

from dataclasses import dataclass

from kvsdk.backend import Capabilities
from kvsdk.caching.change import first_change
from kvsdk.caching.plan import Plan
from kvsdk.caching.prefix import Prefix
from kvsdk.caching.settings import changed_settings
from kvsdk.caching.tokens import TokenScale
from kvsdk.caching.traits import Trait
from kvsdk.reply import Miss, Predicted
from kvsdk.usage import Usage


@dataclass(frozen=True, slots=True)
class Seen:
    """What a session remembers of its last request.

    Attributes:
        model: Backend and model, such as `"anthropic:claude-sonnet-5-5"`.
        prefix: Its digests.
        cached_blocks: How many leading blocks it left in the cache.
        at_s: When it was sent, in seconds since 1970; None where a log does not say.
        ttl_s: How long the cache keeps them, or None when it promises nothing.
        scale: Its bytes per token, as the backend counted.
        traits: What tells how a piece changed; none outside of a session.
    """

    model: str
    prefix: Prefix
    cached_blocks: int
    at_s: float | None
    ttl_s: int | None
    scale: TokenScale
    traits: tuple[Trait, ...] = ()

    @property
    def cached_tokens(self) -> int:
        """About how many tokens it left in the cache."""
        return self.scale.tokens(self.prefix.ends_bytes[self.cached_blocks - 1]) if self.cached_blocks else 0


def known_traits(seen: Seen | None) -> dict[bytes, Trait]:
    """The traits of the pieces that a session's last request had, by digest."""
    if seen is None:
        return {}
    return dict(zip((block.digest for block in seen.prefix.blocks), seen.traits, strict=False))


def cached_blocks(plan: Plan, prefix: Prefix, capabilities: Capabilities) -> int:
    """How many leading blocks its cache keeps: up to the last mark, or all where none is needed."""
    if plan.last_end is not None:
        return plan.last_end + 1
    return (
        0 if capabilities.caches_only_at_marks or capabilities.breakpoints == "none" else len(prefix.blocks)
    )


def explain_miss(
    now: Seen, before: Seen | None, usage: Usage, capabilities: Capabilities, *, has_session: bool
) -> Miss | None:
    """The reason for a miss, or None: all was read, nothing was to be cached, or the backend does not say.

    A part of a prefix that was read while a later part of it had moved is a miss too; its detail says so.
    """
    read = usage.cache_read_tokens
    if read is None or not now.cached_blocks:
        return None
    return (
        _below_minimum(now, usage, capabilities)
        or (None if before is None else _moved(now, before, read))
        or (None if read else _not_there(now, before, has_session))
    )


def expect_miss(now: Seen, before: Seen | None, capabilities: Capabilities) -> Miss | None:
    """The reason why nothing will be read, or less than could be, without an answer that says so."""
    if not now.cached_blocks:
        return None
    short = _below_minimum(now, Usage(), capabilities)
    if short is not None or before is None:
        return short or _not_there(now, None, has_session=True)
    return _moved(now, before, None) or _expired(now, before)


def with_prediction(miss: Miss | None, before: Seen | None, predicted: Predicted | None) -> Miss | None:
    """Say so where an unexplained miss is what the backend's rules give, such as a mark out of reach."""
    if miss is None or before is None or predicted is None:
        return miss
    if miss.kind != "evicted_or_unknown" or predicted.read_tokens:
        return miss
    why = "the backend's own rules give this: from this request's marks they do not reach what was cached"
    return Miss(miss.kind, miss.where, f"{miss.detail}; {why}")


def with_diagnosis(miss: Miss | None, diagnosis: Miss | None) -> Miss | None:
    """Complete what was found here by what the backend itself says.

    The backend knows what its cache holds; we know the place in the prompt. Where both found the same kind,
    ours has the place and the backend confirms; where we found no change, the backend's word stands.
    """
    if diagnosis is None or miss is None:
        return miss or diagnosis
    if miss.kind == diagnosis.kind:
        return Miss(miss.kind, miss.where, f"{miss.detail}; the backend says so too: {diagnosis.detail}")
    if miss.kind in ("evicted_or_unknown", "first_request"):
        return diagnosis
    return Miss(miss.kind, miss.where, f"{miss.detail}; the backend says: {diagnosis.detail}")


def _below_minimum(now: Seen, usage: Usage, capabilities: Capabilities) -> Miss | None:
    minimum = capabilities.min_tokens
    if minimum is None or usage.cache_read_tokens or usage.cache_write_tokens:
        return None
    end = now.cached_blocks - 1
    tokens = now.scale.tokens(now.prefix.ends_bytes[end])
    if end == len(now.prefix.blocks) - 1 and usage.input_tokens is not None:
        tokens = usage.input_tokens
    if tokens >= minimum:
        return None
    detail = f"the prefix has about {tokens} tokens; the minimum that this model caches is {minimum}"
    return Miss("below_minimum", now.prefix.blocks[end].where, detail)


def _moved(now: Seen, before: Seen, read: int | None) -> Miss | None:
    """What changed between the two prompts, within what the first one left in the cache."""
    if now.model != before.model:
        how = f"the model was {before.model}, is {now.model}; caches are per model"
        return None if read else Miss("model", None, how)
    if now.prefix.common_blocks(before.prefix) < before.cached_blocks:
        change = first_change(now.prefix, now.traits, before.prefix, before.traits)
        assert change is not None
        part = f"; {read} tokens before it were read" if read else ""
        return Miss(change.section, change.where, f"{change.where}: {change.how}{part}")
    return _switched(now, before, read)


_SHORT = 0.7
"""Reading less than this share of what should be there is a miss: counts before are estimates."""


def _switched(now: Seen, before: Seen, read: int | None) -> Miss | None:
    """A setting that enters the cache's key."""
    changed = changed_settings(now.prefix.settings, before.prefix.settings, now.model.partition(":")[0])
    could = now.scale.tokens(now.prefix.ends_bytes[before.cached_blocks - 1]) if before.cached_blocks else 0
    if not changed or (read and read >= _SHORT * could):
        return None
    groups = {name.rpartition(".")[0] or name: (name, old, new) for name, old, new in reversed(changed)}
    words = " and ".join(f"{name} was {old}, is {new}" for name, old, new in reversed(groups.values()))
    part = f"; only {read} of about {could} tokens were read" if read else ""
    return Miss("settings", changed[0][0], f"{words}{part}")


def _expired(now: Seen, before: Seen) -> Miss | None:
    age_s = _age_s(now, before)
    if age_s is None or before.ttl_s is None or age_s < before.ttl_s:
        return None
    return Miss("ttl_expired", None, f"last used {_span(age_s)} ago; kept for {_span(before.ttl_s)}")


def _not_there(now: Seen, before: Seen | None, has_session: bool) -> Miss:
    if before is None:
        if has_session:
            return Miss("first_request", None, "the session's first request writes what later ones read")
        detail = "nothing was read; without a session there is no earlier request to compare with"
        return Miss("evicted_or_unknown", None, detail)
    age_s = _age_s(now, before)
    since = "" if age_s is None else f" since {_span(age_s)} ago"
    detail = f"the prefix is unchanged{since}; the backend no longer has it"
    return _expired(now, before) or Miss("evicted_or_unknown", None, detail)


def _age_s(now: Seen, before: Seen) -> float | None:
    return None if now.at_s is None or before.at_s is None else now.at_s - before.at_s


def _span(seconds: float) -> str:
    """A length of time as people say it, never rounded up."""
    whole = int(seconds)
    if whole < 120:
        return f"{whole} s"
    hours, minutes, rest = whole // 3600, whole // 60 % 60, whole % 60
    parts = ((hours, "h"), (minutes, "min"), (rest, "s"))
    return " ".join(f"{number} {unit}" for number, unit in parts if number)
