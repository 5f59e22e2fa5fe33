"""What a session keeps of each piece beside its digest, to say later how the piece changed. Pure.

Digests only, and the names of tools: no text of a prompt can be read back. A session's next request mostly
repeats its last one, so only what is new in it is looked at.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from hashlib import sha256
from typing import Any, NamedTuple

from kvsdk.caching.prefix import Prefix, content_of
from kvsdk.caching.volatile import Shape, shape
from kvsdk.prompt import Part, Request, Text, Tool, ToolCall, ToolResult


class Trait(NamedTuple):
    """One piece: its name (a tool's), digests of its aspects, and the shape of its text.

    `aspects` are such as `("description", ...)`; an aspect `"x, sorted"` is `"x"` with its keys sorted.
    """

    name: str
    aspects: tuple[tuple[str, bytes], ...]
    shape: Shape | None

    def differing(self, other: Trait) -> tuple[str, ...]:
        """The aspects in which two pieces of one kind differ, those with sorted keys included."""
        theirs = dict(other.aspects)
        return tuple(name for name, value in self.aspects if theirs.get(name) != value)


def traits(request: Request, prefix: Prefix, known: Mapping[bytes, Trait]) -> tuple[Trait, ...]:
    """The traits of a request's pieces; those that are known, by digest, are not made again."""
    return tuple(
        known.get(piece.digest) or _trait(block.part)
        for piece, block in zip(prefix.blocks, request.blocks(), strict=True)
    )


def _trait(part: Part | Tool) -> Trait:
    if isinstance(part, Tool):
        schema = part.json_schema
        aspects = {"description": _short(part.description), **_both("schema", schema)}
        return Trait(part.name, tuple(aspects.items()), shape(part.description))
    if isinstance(part, ToolCall):
        aspects = {"id": _short(part.id), "name": _short(part.name), **_arguments(part)}
        return Trait(part.name, tuple(aspects.items()), None)
    if isinstance(part, ToolResult):
        aspects = {"id": _short(part.call_id), "error flag": _short(part.is_error)}
        aspects["content"] = _short([content_of(piece) for piece in part.pieces])
        return Trait("", tuple(aspects.items()), shape(part.text))
    return Trait("", (), shape(part.text) if isinstance(part, Text) else None)


def _arguments(call: ToolCall) -> dict[str, bytes]:
    """As written by the model, and with sorted keys; arguments that are no object have no other form."""
    canonical = _sorted(call.arguments) if call.arguments else ""
    written = _short(call.arguments_json)
    return {"arguments": written, "arguments, sorted": _short(canonical) if canonical else written}


def _both(name: str, value: Mapping[str, Any]) -> dict[str, bytes]:
    return {name: _short(json.dumps(value, default=str)), f"{name}, sorted": _short(_sorted(value))}


def _sorted(value: Mapping[str, Any]) -> str:
    try:
        return json.dumps(value, sort_keys=True, default=str)
    except TypeError:  # keys of several types have no order
        return json.dumps(value, default=str)


def _short(value: Any) -> bytes:
    text = value if isinstance(value, str) else json.dumps(value)
    return sha256(text.encode("utf-8", "surrogatepass")).digest()[:8]
