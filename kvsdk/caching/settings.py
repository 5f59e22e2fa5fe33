"""The settings of a request that enter a cache's key: two prompts that differ in one share no cache. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from hashlib import sha256
from typing import Any

from kvsdk.prompt import Image, Request, ToolResult

_KEYED: Mapping[str, tuple[str, ...]] = {
    # platform.claude.com/docs: prompt caching, what invalidates the cache (2026-08-21); documented
    "anthropic": ("thinking", "output_config", "speed", "tool_choice"),
    # OpenAI's guide, and the reasons in openai 3.57.0, `types/responses/response.py`; documented
    "openai": (
        "parallel_tool_calls",
        "prompt_cache_key",
        "reasoning.effort",
        "reasoning_effort",
        "response_format",
        "service_tier",
        "text.format",
        "text.verbosity",
        "verbosity",
    ),
    # what the chat template is given changes the prompt itself
    "vllm": ("chat_template_kwargs",),
}
_SECRET = ("prompt_cache_key",)
"""Compared, never shown: such a key may hold a user's name."""


def key_settings(request: Request) -> dict[str, str]:
    """The settings that a request gives, by name, in words; `extra`'s as `extra.SCHEME.NAME`."""
    settings: dict[str, str] = {}
    if request.tool_choice is not None:
        settings["tool_choice"] = request.tool_choice
    if request.response_format is not None:
        shape = request.response_format
        settings["response_format"] = f"{shape.name} ({_digest(dict(shape.schema))})"
    if any(_holds_image(block.kind, block.part) for block in request.blocks()):
        settings["images"] = "in the prompt"
    for scheme, members in request.extra.items():
        settings.update(_keyed(scheme, members))
    return settings


def changed_settings(
    now: Mapping[str, str], before: Mapping[str, str], scheme: str
) -> tuple[tuple[str, str, str], ...]:
    """Name, old and new value of every setting that changed and that this backend reads."""
    return tuple(
        (name, before.get(name) or "unset", now.get(name) or "unset")
        for name in {**before, **now}
        if before.get(name) != now.get(name) and _is_read(name, scheme)
    )


def _is_read(name: str, scheme: str) -> bool:
    """Whether a backend reads a setting; a server that speaks OpenAI's API reads that part of `extra`."""
    if not name.startswith("extra."):
        return True
    own = scheme.partition("+")[0]
    part = name.split(".")[1]
    return part == own or (part == "openai" and own != "anthropic")


def _keyed(scheme: str, members: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for path in (*_KEYED.get(scheme, ()), *(_KEYED["vllm"] if scheme == "openai" else ())):
        value: Any = members
        for name in path.split("."):
            value = value.get(name) if isinstance(value, Mapping) else None
        if isinstance(value, Mapping):
            yield from ((f"extra.{scheme}.{path}.{name}", _word(inner)) for name, inner in value.items())
        elif value is not None:
            secret = path in _SECRET
            yield f"extra.{scheme}.{path}", _digest(value) if secret else _word(value)


def _word(value: Any) -> str:
    """A setting's value, if it is a word or a number; else its digest."""
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, int | float) or (isinstance(value, str) and len(value) <= 40):
        return str(value)
    return _digest(value)


def _digest(value: Any) -> str:
    return sha256(json.dumps(value, default=str).encode()).hexdigest()[:8]


def _holds_image(kind: str, part: object) -> bool:
    if isinstance(part, ToolResult):
        return not isinstance(part.content, str) and any(isinstance(piece, Image) for piece in part.content)
    return kind == "image"
