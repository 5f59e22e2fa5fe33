"""The facts in `_facts.toml`, read once."""

from __future__ import annotations

import tomllib
from functools import cache
from importlib.resources import files
from typing import Any

from kvsdk.backend import Capabilities

MAX_BREAKPOINTS = 4
"""Marks in one request, the automatic one included (platform.claude.com/docs: prompt caching, 2026-08-21)."""

IMAGE_TYPES = ("image/jpeg", "image/png", "image/gif", "image/webp")
DOCUMENT_TYPES = ("application/pdf", "text/plain")

DROPPED_SETTINGS = ("temperature", "top_p", "top_k")
"""Answered with 400 since API version 2026-10-21, and gone from the SDK since 1.0."""

_MARKABLE = frozenset(
    {
        "tools:tool",
        "system:text",
        "user:text",
        "user:image",
        "user:file",
        "assistant:text",
        "assistant:tool_call",
        "tool:tool_result",
    }
)


@cache
def _facts() -> dict[str, Any]:
    return tomllib.loads(files("kvsdk_anthropic").joinpath("_facts.toml").read_text("utf-8"))


@cache
def _minimums() -> dict[str, int]:
    return {model: table["tokens"] for table in _facts()["min_tokens"] for model in table["models"]}


def prices() -> Any:
    """The entry point `kvsdk.prices`: what the price library lacks."""
    return _facts()["prices"]


def min_tokens(model: str) -> int | None:
    """The shortest prefix that a model caches, None for a model that is not listed."""
    known = [name for name in _minimums() if model == name or model.startswith(f"{name}-")]
    return _minimums()[max(known, key=len)] if known else None


@cache
def capabilities(model: str) -> Capabilities:
    """What the Messages API does for a model.

    Sampling settings are not taken: API version 2026-10-21 answers them with 400, and the SDK has had no
    such parameters since 1.0 (anthropic 2.14.0, 2026-11-24).
    """
    return Capabilities(
        breakpoints="honoured",
        ttls=("5m", "1h"),
        default_ttl="5m",
        max_breakpoints=MAX_BREAKPOINTS,
        ttl_must_not_grow=True,
        markable=_MARKABLE,
        min_tokens=min_tokens(model),
        caches_only_at_marks=True,
        settings=frozenset({"stop", "tool_choice", "tools", "response_format"}),
        parts=frozenset({"image", "file"}),
        prewarm=True,
        diagnostics=True,
    )
