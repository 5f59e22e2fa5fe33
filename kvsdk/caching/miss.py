"""Why a prefix was not read from the cache, found on the client by comparing digests."""

from __future__ import annotations

from dataclasses import dataclass

from kvsdk.backend import Capabilities
from kvsdk.caching.plan import Plan
from kvsdk.caching.prefix import Prefix
from kvsdk.caching.tokens import TokenScale
from kvsdk.reply import Miss, MissKind
from kvsdk.usage import Usage


@dataclass(frozen=True, slots=True)
class Seen:
    """What a session remembers of its last request.

    Attributes:
        model: Backend and model, such as `"anthropic:claude-sonnet-5-5"`.
        prefix: Its digests.
        cached_blocks: How many leading blocks it left in the cache.
        at_s: When it was sent, in seconds since 1970.
        ttl_s: How long the cache keeps them, or None when it promises nothing.
        scale: Its bytes per token, as the backend counted.
    """

    model: str
    prefix: Prefix
    cached_blocks: int
    at_s: float
    ttl_s: int | None
    scale: TokenScale


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


def _moved(now: Seen, before: Seen, read: int) -> Miss | None:
    """What changed between the two prompts, within what the first one left in the cache."""
    if now.model != before.model:
        return (
            None if read else Miss("model", None, f"was {before.model}, is {now.model}; caches are per model")
        )
    common = now.prefix.common_blocks(before.prefix)
    if common < before.cached_blocks:
        return _diverged(now.prefix, before.prefix, common, read)
    changed = [
        name for name, value in now.prefix.settings.items() if before.prefix.settings.get(name) != value
    ]
    if changed and not read:
        name = changed[0]
        old, new = before.prefix.settings.get(name) or "unset", now.prefix.settings[name] or "unset"
        return Miss("settings", name, f"{name} was {old}, is {new}")
    return None


def _diverged(now: Prefix, before: Prefix, common: int, read: int) -> Miss:
    if common < len(now.blocks):
        block = now.blocks[common]
        known = {other.digest for other in before.blocks}
        change = "stood elsewhere in the session's last request" if block.digest in known else "changed"
    else:
        block = before.blocks[common]
        change = "is no longer there"
    kind: MissKind = block.section
    part = f"; {read} tokens before it were read" if read else ""
    return Miss(kind, block.where, f"{block.where} {change}: the prefix ends before it{part}")


def _not_there(now: Seen, before: Seen | None, has_session: bool) -> Miss:
    if before is None:
        if has_session:
            return Miss("first_request", None, "the session's first request writes what later ones read")
        detail = "nothing was read; without a session there is no earlier request to compare with"
        return Miss("evicted_or_unknown", None, detail)
    age_s = now.at_s - before.at_s
    if before.ttl_s is not None and age_s >= before.ttl_s:
        return Miss("ttl_expired", None, f"last used {age_s:.0f} s ago; kept for {before.ttl_s} s")
    detail = f"the prefix is unchanged since {age_s:.0f} s ago; the backend no longer has it"
    return Miss("evicted_or_unknown", None, detail)
