"""The same answer as a stream of each API, as their references document it: 200 pieces of text."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

PIECES = [f"word{number} " for number in range(200)]
TEXT = "".join(PIECES)


def of_messages(message: dict[str, Any]) -> list[dict[str, Any]]:
    """The events of Anthropic's Messages API."""
    usage = {**message["usage"], "output_tokens": 1}
    begun = {**message, "content": [], "stop_reason": None, "usage": usage}
    delta = {"stop_reason": "end_turn", "stop_sequence": None}
    return [
        {"type": "message_start", "message": begun},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
        {"type": "ping"},
        *(
            {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": piece}}
            for piece in PIECES
        ),
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": delta, "usage": {"output_tokens": 400}},
        {"type": "message_stop"},
    ]


def of_responses(response: dict[str, Any]) -> list[dict[str, Any]]:
    """The events of OpenAI's Responses API."""
    begun = {**response, "status": "in_progress", "output": [], "usage": None}
    part = {"type": "output_text", "text": TEXT, "annotations": []}
    item = {"id": "msg_01", "type": "message", "role": "assistant", "status": "completed", "content": [part]}
    place = {"item_id": "msg_01", "output_index": 0, "content_index": 0}
    events: list[dict[str, Any]] = [
        {"type": "response.created", "response": begun},
        {"type": "response.in_progress", "response": begun},
        {
            "type": "response.output_item.added",
            "output_index": 0,
            "item": {**item, "status": "in_progress", "content": []},
        },
        {"type": "response.content_part.added", **place, "part": {**part, "text": ""}},
        *(
            {"type": "response.output_text.delta", **place, "delta": piece, "logprobs": []}
            for piece in PIECES
        ),
        {"type": "response.output_text.done", **place, "text": TEXT, "logprobs": []},
        {"type": "response.content_part.done", **place, "part": part},
        {"type": "response.output_item.done", "output_index": 0, "item": item},
        {"type": "response.completed", "response": {**response, "output": [item]}},
    ]
    return [{**event, "sequence_number": number} for number, event in enumerate(events)]


def of_chat(completion: dict[str, Any]) -> list[dict[str, Any] | str]:
    """The chunks of Chat Completions."""
    head = {**completion, "object": "chat.completion.chunk", "usage": None}

    def chunk(delta: dict[str, Any], finish: str | None = None) -> dict[str, Any]:
        return {**head, "choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}

    return [
        chunk({"role": "assistant", "content": ""}),
        *(chunk({"content": piece}) for piece in PIECES),
        chunk({}, "stop"),
        {**head, "choices": [], "usage": completion["usage"]},
        "[DONE]",
    ]


def chunked(events: Iterable[dict[str, Any] | str]) -> bytes:
    """A whole HTTP answer of server-sent events, each in an HTTP chunk of its own."""
    head = (
        b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n"
        b"request-id: req_01\r\nx-request-id: req_01\r\ntransfer-encoding: chunked\r\n\r\n"
    )
    chunks = (b"%x\r\n%s\r\n" % (len(event), event) for event in map(_event, events))
    return head + b"".join(chunks) + b"0\r\n\r\n"


def _event(event: dict[str, Any] | str) -> bytes:
    if isinstance(event, str):
        return f"data: {event}\n\n".encode()
    name = f"event: {event['type']}\n" if "type" in event else ""
    return f"{name}data: {json.dumps(event)}\n\n".encode()
