"""Anthropic's `usage` as ours. Pure.

`input_tokens` counts only what follows the last mark; the total is the sum of three fields
(anthropic 2.14.0, `types/usage.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kvsdk.usage import Usage

_TTLS = {"ephemeral_5m_input_tokens": "5m", "ephemeral_1h_input_tokens": "1h"}


_EXTRA_ITERATIONS = ("compaction", "advisor_message")


def to_usage(usage: Mapping[str, Any]) -> Usage:
    """Counts of one response, everything that is billed. A field that is missing is unknown, not zero.

    Compactions and an advisor's answers are billed beside the top-level counts (anthropic 2.14.0,
    `types/beta/beta_iterations_usage.py`).
    """
    counts = [counts for _, counts in billed(usage)]
    return counts[0] if len(counts) == 1 else Usage.sum(counts)


def billed(usage: Mapping[str, Any]) -> list[tuple[str | None, Usage]]:
    """What is billed, each with its model where that is not the response's."""
    extra = [item for item in usage.get("iterations") or () if item.get("type") in _EXTRA_ITERATIONS]
    return [(None, _counts(usage)), *((item.get("model"), _counts(item)) for item in extra)]


def _counts(usage: Mapping[str, Any]) -> Usage:
    split = usage.get("cache_creation")
    by_ttl = None
    if isinstance(split, Mapping):
        by_ttl = {ttl: split[name] for name, ttl in _TTLS.items() if split.get(name) is not None}
    details = usage.get("output_tokens_details")
    return Usage.of_parts(
        fresh=usage.get("input_tokens"),
        read=usage.get("cache_read_input_tokens"),
        write=usage.get("cache_creation_input_tokens"),
        output=usage.get("output_tokens"),
        reasoning=details.get("thinking_tokens") if isinstance(details, Mapping) else None,
        write_by_ttl=by_ttl,
    )


def merge(into: dict[str, Any], more: Mapping[str, Any]) -> None:
    """Take a later event's counters in: they are cumulative, so the larger holds; the rest is replaced."""
    for name, value in more.items():
        if value is None:
            continue
        before = into.get(name)
        is_count = isinstance(value, int) and isinstance(before, int)
        into[name] = max(before, value) if is_count else value
