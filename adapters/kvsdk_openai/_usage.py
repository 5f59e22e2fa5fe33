"""OpenAI's `usage` as ours, of both APIs. Pure.

The total includes what was read and written. A details object that is absent leaves both unknown; a field
missing from one that is present means what the server's profile says.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kvsdk.usage import Usage

from kvsdk_openai._facts import Profile

_TTLS = {"ttl_30m_tokens": "30m", "ttl_12h_tokens": "12h"}


def of_responses(usage: Mapping[str, Any] | None, server: Profile) -> Usage:
    """Counts of a Responses answer."""
    if usage is None:
        return Usage()
    details = usage.get("input_tokens_details")
    split = details.get("cache_write_tokens_details") if isinstance(details, Mapping) else None
    by_ttl = None
    if isinstance(split, Mapping):
        by_ttl = {ttl: split[name] for name, ttl in _TTLS.items() if split.get(name) is not None}
    return Usage.of_total(
        usage.get("input_tokens"),
        read=_count(details, "cached_tokens"),
        write=_write(details, "cache_write_tokens", server),
        output=usage.get("output_tokens"),
        reasoning=_count(usage.get("output_tokens_details"), "reasoning_tokens"),
        write_by_ttl=by_ttl,
    )


def of_chat(usage: Mapping[str, Any] | None, server: Profile) -> Usage:
    """Counts of a Chat answer."""
    if usage is None:
        return Usage()
    details = usage.get("prompt_tokens_details")
    return Usage.of_total(
        usage.get("prompt_tokens"),
        read=_count(details, "cached_tokens"),
        write=_write(details, server.write_field, server),
        output=usage.get("completion_tokens"),
        reasoning=_count(usage.get("completion_tokens_details"), "reasoning_tokens"),
    )


def _count(details: Any, name: str) -> int | None:
    return details.get(name) if isinstance(details, Mapping) else None


def _write(details: Any, name: str, server: Profile) -> int | None:
    if not isinstance(details, Mapping):
        return None
    count: int | None = details.get(name)
    return server.absent_write if count is None else count


def to_bill(body: Mapping[str, Any]) -> dict[str, str]:
    """What the price depends on beside the counts: the tier that the answer says was billed."""
    tier = body.get("service_tier")
    return {"service_tier": tier} if isinstance(tier, str) and tier not in ("default", "auto") else {}
