"""What OpenAI itself says of a prompt that was not read from its cache. Pure.

Responses, gpt-5.6 and later, asked for with `prompt_cache_options.comparison_response_id` (openai 3.57.0,
`types/responses/response.py`, 2026-11-19).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kvsdk.reply import Miss, MissKind

_REASONS: Mapping[str, tuple[MissKind, str | None]] = {
    "model_changed": ("model", None),
    "tools_changed": ("tools", None),
    "input_changed": ("messages", None),
    "context_compacted": ("messages", None),
    "prompt_cache_key_changed": ("settings", "prompt_cache_key"),
    "text_format_changed": ("settings", "text.format"),
    "reasoning_effort_changed": ("settings", "reasoning.effort"),
    "verbosity_changed": ("settings", "text.verbosity"),
    "service_tier_changed": ("settings", "service_tier"),
}

_NO_WORD = {
    "comparison_response_not_found": "OpenAI no longer has the session's last response to compare with",
    "unavailable": "OpenAI has no cache diagnostics for this response",
}


def diagnose(body: Mapping[str, Any]) -> tuple[Miss | None, tuple[str, ...]]:
    """The reason for a miss, if there was one, and a note where no comparison was made."""
    found = body.get("prompt_cache_diagnostics")
    if not isinstance(found, Mapping) or found.get("type") == "cache_hit":
        return None, ()
    if found.get("type") != "cache_miss":
        words = _NO_WORD.get(str(found.get("type")))
        return None, (words or f"OpenAI's cache diagnostics say {found.get('type')!r}",)
    reason = str(found.get("reason"))
    kind, where = _REASONS.get(reason, ("evicted_or_unknown", None))
    detail = f"{reason}; about {found.get('cache_missed_tokens')} tokens from there on were not read"
    reusable = found.get("comparison_reusable_tokens")
    if reusable is not None:
        detail += f"; the last response left a prefix of {reusable}"
    return Miss(kind, where, detail), ()
