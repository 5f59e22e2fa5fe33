"""Bodies and streams as the Responses API and Chat Completions document them."""

from __future__ import annotations

from typing import Any

MODEL = "gpt-5.6-sol"
OLD_MODEL = "gpt-5.5"

#: 3000 in, of which 2048 read, 900 written; 5 out.
RESPONSES_USAGE: dict[str, Any] = {
    "input_tokens": 3000,
    "input_tokens_details": {
        "cached_tokens": 2048,
        "cache_write_tokens": 900,
        "cache_write_tokens_details": {"ttl_30m_tokens": 400, "ttl_12h_tokens": 500},
    },
    "output_tokens": 5,
    "output_tokens_details": {"reasoning_tokens": 2},
    "total_tokens": 3005,
}
CHAT_USAGE: dict[str, Any] = {
    "prompt_tokens": 3000,
    "completion_tokens": 5,
    "total_tokens": 3005,
    "prompt_tokens_details": {"cached_tokens": 2048, "cache_write_tokens": 900},
    "completion_tokens_details": {"reasoning_tokens": 2},
}

# ---------------------------------------------------------------------- Responses


def output_text(value: str) -> dict[str, Any]:
    content = [{"type": "output_text", "text": value, "annotations": []}]
    return {"type": "message", "id": "m_1", "role": "assistant", "status": "completed", "content": content}


def function_call(call_id: str, name: str, arguments: str) -> dict[str, Any]:
    return {
        "type": "function_call",
        "id": f"fc_{call_id}",
        "call_id": call_id,
        "name": name,
        "arguments": arguments,
        "status": "completed",
    }


def response(*output: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """A whole answer; a text of its own when no output is given."""
    return {
        "id": "resp_1",
        "object": "response",
        "created_at": 1,
        "model": MODEL,
        "status": "completed",
        "output": list(output) or [output_text("Valve A.")],
        "usage": RESPONSES_USAGE,
        "service_tier": "default",
    } | changes


def begun() -> list[dict[str, Any]]:
    """The first events of a stream, before any text."""
    empty = response(status="in_progress", output=[], usage=None)
    item = {"type": "message", "id": "m_1", "role": "assistant", "status": "in_progress", "content": []}
    return [
        {"type": "response.created", "response": empty},
        {"type": "response.in_progress", "response": empty},
        {"type": "response.output_item.added", "output_index": 0, "item": item},
    ]


def text_delta(piece: str) -> dict[str, Any]:
    place = {"item_id": "m_1", "output_index": 0, "content_index": 0}
    return {"type": "response.output_text.delta", **place, "delta": piece, "logprobs": []}


def response_stream(*pieces: str) -> list[dict[str, Any]]:
    """A whole stream of one text."""
    whole = output_text("".join(pieces))
    events = [
        *begun(),
        *(text_delta(piece) for piece in pieces),
        {"type": "response.output_item.done", "output_index": 0, "item": whole},
        {"type": "response.completed", "response": response(whole)},
    ]
    return [event | {"sequence_number": number} for number, event in enumerate(events)]


# ---------------------------------------------------------------------- Chat


def tool_call(id: str, name: str, arguments: str) -> dict[str, Any]:
    return {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}


def completion(content: str | None = "Valve A.", *calls: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """A whole answer."""
    turn: dict[str, Any] = {"role": "assistant", "content": content}
    if calls:
        turn["tool_calls"] = list(calls)
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1,
        "model": MODEL,
        "choices": [{"index": 0, "message": turn, "finish_reason": "tool_calls" if calls else "stop"}],
        "usage": CHAT_USAGE,
    } | changes


def chunk(delta: dict[str, Any] | None, finish: str | None = None, **changes: Any) -> dict[str, Any]:
    choices = [] if delta is None else [{"index": 0, "delta": delta, "finish_reason": finish}]
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion.chunk",
        "created": 1,
        "model": MODEL,
        "choices": choices,
        "usage": None,
    } | changes


def chat_stream(*pieces: str) -> list[dict[str, Any] | str]:
    """A whole stream of one text."""
    return [
        chunk({"role": "assistant", "content": ""}),
        *(chunk({"content": piece}) for piece in pieces),
        chunk({}, "stop"),
        chunk(None, usage=CHAT_USAGE),
        "[DONE]",
    ]


def stream_of(model: str, usage: dict[str, Any], **said: str) -> list[dict[str, Any] | str]:
    """A whole stream of a model: each member said at once, then its usage."""
    return [
        *(chunk({name: value}, model=model) for name, value in said.items()),
        chunk({}, "stop", model=model),
        chunk(None, usage=usage, model=model),
        "[DONE]",
    ]


def details(**counts: int) -> dict[str, Any]:
    """The details of what was read and written."""
    return {"prompt_tokens_details": counts}
