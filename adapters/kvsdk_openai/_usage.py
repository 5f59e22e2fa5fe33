"""The `usage` of OpenAI and its kin as ours, of both APIs. Pure.

The total includes what was read and written. Where a count stands, and what it means when it is missing, is
in the server's profile; a details object that is absent leaves what stands in it unknown.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kvsdk.usage import Usage

from kvsdk_openai._profiles import Profile

_TTLS = {"ttl_30m_tokens": "30m", "ttl_12h_tokens": "12h"}
_DETAILS = "details."


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
        read=_count(usage, details, server.read, server.absent_read),
        write=_written(usage, details, server),
        output=usage.get("output_tokens"),
        reasoning=_inside(usage.get("output_tokens_details"), "reasoning_tokens"),
        write_by_ttl=by_ttl,
    )


def of_chat(usage: Mapping[str, Any] | None, server: Profile) -> Usage:
    """Counts of a Chat answer."""
    if usage is None:
        return Usage()
    details = usage.get("prompt_tokens_details")
    return Usage.of_total(
        usage.get("prompt_tokens"),
        read=_count(usage, details, server.read, server.absent_read),
        write=_written(usage, details, server),
        output=usage.get("completion_tokens"),
        reasoning=_inside(usage.get("completion_tokens_details"), "reasoning_tokens"),
    )


def _count(usage: Mapping[str, Any], details: Any, places: tuple[str, ...], absent: int | None) -> int | None:
    """The first count that is there; without any, what its absence from present details means."""
    for place in places:
        name = place.removeprefix(_DETAILS)
        count = _inside(usage if name == place else details, name)
        if count is not None:
            return count
    return absent if isinstance(details, Mapping) else None


def _written(usage: Mapping[str, Any], details: Any, server: Profile) -> int | None:
    """Tokens written; where an older place than the details has the read, the details are taken as there."""
    if server.free_writes:
        return 0
    count = _count(usage, details, server.write, server.absent_write)
    if count is None and _count(usage, None, server.read, None) is not None:
        return server.absent_write
    return count


def _inside(details: Any, name: str) -> int | None:
    return details.get(name) if isinstance(details, Mapping) else None
