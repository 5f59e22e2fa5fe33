"""What a finished request is told of the store, as counts and words. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kvsdk_vllm.store.wishes import KEY


def store_notes(params: Mapping[str, Any] | None) -> tuple[str, ...]:
    """What was kept, what came from where, and why some did not.

    Args:
        params: The `kv_transfer_params` of an output; None before its end.
    """
    told = (params or {}).get(KEY)
    if told is None:
        return ()
    notes = []
    if told["kept_tokens"]:
        notes.append(f"{told['kept_tokens']:,} tokens up to the last breakpoint go to the store")
    if told["loaded_tokens"]:
        tiers = ", ".join(f"{tokens:,} from {tier}" for tier, tokens in told["loaded_tokens"].items())
        notes.append(f"read from the store: {tiers}")
    if told["missing_tokens"]:
        notes.append(f"{told['missing_tokens']:,} tokens were computed again: {told['reason']}")
    elif told["reason"] and not told["loaded_tokens"]:
        notes.append(told["reason"])
    return tuple(notes)


def read_tokens(cached: int | None, params: Mapping[str, Any] | None) -> int | None:
    """Tokens that were read, without those that vLLM counts though they did not come (0.32.0)."""
    told = (params or {}).get(KEY)
    return cached if cached is None or told is None else cached - told["missing_tokens"]


def load_seconds(params: Mapping[str, Any] | None) -> dict[str, float]:
    """How long loading took, where something was loaded."""
    told = (params or {}).get(KEY)
    return {"load_s": told["load_s"]} if told is not None and told["load_s"] else {}
