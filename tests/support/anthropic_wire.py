"""Bodies and streams as the Messages API documents them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

MODEL = "claude-sonnet-5-5"

#: 7 fresh, 12000 read, 500 written for 5m and 1000 for 1h, 200 out.
USAGE: dict[str, Any] = {
    "input_tokens": 7,
    "cache_creation_input_tokens": 1500,
    "cache_read_input_tokens": 12000,
    "cache_creation": {"ephemeral_5m_input_tokens": 500, "ephemeral_1h_input_tokens": 1000},
    "output_tokens": 200,
    "service_tier": "standard",
}


def text(value: str) -> dict[str, Any]:
    return {"type": "text", "text": value}


def tool_use(id: str, name: str, **arguments: Any) -> dict[str, Any]:
    return {"type": "tool_use", "id": id, "name": name, "input": arguments}


def message(*content: dict[str, Any], stop_reason: str = "end_turn", **changes: Any) -> dict[str, Any]:
    """A whole answer; a text of its own when no content is given."""
    return {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": MODEL,
        "content": list(content) or [text("Valve A.")],
        "stop_reason": stop_reason,
        "stop_sequence": None,
        "usage": USAGE,
    } | changes


def start(usage: dict[str, Any] | None = None, **changes: Any) -> dict[str, Any]:
    """The first event of a stream; its usage has one output token, as the vendor's does."""
    body = message(**changes) | {
        "content": [],
        "stop_reason": None,
        "usage": usage or USAGE | {"output_tokens": 1},
    }
    return {"type": "message_start", "message": body}


def block(index: int, first: dict[str, Any], deltas: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The events of one content block."""
    return [
        {"type": "content_block_start", "index": index, "content_block": first},
        *({"type": "content_block_delta", "index": index, "delta": delta} for delta in deltas),
        {"type": "content_block_stop", "index": index},
    ]


def text_block(index: int, *pieces: str) -> list[dict[str, Any]]:
    return block(index, text(""), [{"type": "text_delta", "text": piece} for piece in pieces])


def end(stop_reason: str = "end_turn", **usage: Any) -> list[dict[str, Any]]:
    """The last two events of a stream."""
    delta = {"stop_reason": stop_reason, "stop_sequence": None}
    return [
        {"type": "message_delta", "delta": delta, "usage": usage or {"output_tokens": 200}},
        {"type": "message_stop"},
    ]


def stream(*pieces: str) -> list[dict[str, Any]]:
    """A whole stream of one text."""
    return [start(), {"type": "ping"}, *text_block(0, *(pieces or ("Valve", " A."))), *end()]
