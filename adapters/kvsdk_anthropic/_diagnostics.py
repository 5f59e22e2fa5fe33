"""What the vendor says of a cache miss, in our terms. Pure.

Source: anthropic 2.14.0, `types/diagnostics.py` and `types/cache_miss_*.py` (2026-11-24).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kvsdk.reply import Miss, MissKind

_KINDS: Mapping[str, MissKind] = {
    "model_changed": "model",
    "system_changed": "system",
    "tools_changed": "tools",
    "messages_changed": "messages",
}

_NOTES: Mapping[str, str] = {
    "previous_message_not_found": "the vendor no longer knows the session's last message to compare with",
    "unavailable": "the vendor could not compare this request with the session's last",
}


def read_diagnostics(body: Mapping[str, Any]) -> tuple[Miss | None, tuple[str, ...]]:
    """The miss that a message's `diagnostics` names, and notes.

    Absent: not asked for. Null: the first turn, or no divergence. A null reason: the comparison was not done
    in time.
    """
    diagnostics = body.get("diagnostics")
    if not isinstance(diagnostics, Mapping):
        return None, ()
    reason = diagnostics.get("cache_miss_reason")
    if not isinstance(reason, Mapping):
        return None, ()
    kind = str(reason.get("type"))
    if kind not in _KINDS:
        return None, (_NOTES.get(kind, f"the vendor says of its cache: {kind}"),)
    missed = reason.get("cache_missed_input_tokens")
    return Miss(_KINDS[kind], None, f"{kind}, about {missed} tokens were not reused"), ()
