"""Answers of the Messages API, whole and streamed, as outcomes. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any

from kvsdk.backend import Outcome
from kvsdk.errors import BackendProtocolError
from kvsdk.prompt import Part, Text, Thinking, ToolCall
from kvsdk.reply import Event, PartEnd, StopReason, TextDelta, ThinkingDelta, ToolCallDelta

from kvsdk_anthropic._bill import to_calls, to_terms
from kvsdk_anthropic._diagnostics import read_diagnostics
from kvsdk_anthropic._usage import merge, to_usage

_STOP_REASONS: Mapping[str, StopReason] = {
    "end_turn": "end_turn",
    "max_tokens": "max_tokens",
    "tool_use": "tool_use",
    "stop_sequence": "stop_sequence",
    "refusal": "refusal",
    "pause_turn": "paused",
}


def to_outcome(body: Any, *, complete: bool = True) -> Outcome:
    """Read a message."""
    if not isinstance(body, Mapping) or not isinstance(body.get("content"), list):
        raise BackendProtocolError(f"not a message: {str(body)[:200]}", backend="anthropic")
    usage = body.get("usage") or {}
    diagnosis, notes = read_diagnostics(body)
    parts = tuple(_part(block) for block in body["content"])
    return Outcome(
        reply_id=body.get("id"),
        model=str(body.get("model", "")),
        parts=parts,
        stop_reason=_STOP_REASONS.get(str(body.get("stop_reason")), "other"),
        usage=to_usage(usage),
        raw=body,
        complete=complete,
        terms=to_terms(usage),
        calls=to_calls(usage),
        diagnosis=diagnosis,
        notes=notes,
    )


def _part(block: Mapping[str, Any]) -> Part:
    kind = block.get("type")
    if kind == "text":
        return Text(block.get("text", ""))
    if kind == "tool_use":
        return ToolCall(block["id"], block["name"], block.get("input") or {})
    if kind in ("thinking", "redacted_thinking"):
        return Thinking(block.get("thinking", ""), "anthropic", block)
    return Thinking("", "anthropic", block)  # a block of a server tool: opaque, passed back unchanged


class MessageReader:
    """Builds a message from the events of a stream (`message_start` … `message_stop`)."""

    def __init__(self) -> None:
        self._body: dict[str, Any] = {"content": [], "usage": {}}
        self._json: dict[int, list[str]] = {}
        self._complete = False

    def feed(self, event: Mapping[str, Any]) -> Iterator[Event]:
        """Take in one event. Events of unknown types change nothing."""
        kind = event.get("type")
        if kind == "content_block_delta":
            yield from self._delta(event["index"], event["delta"])
        elif kind == "content_block_start":
            self._body["content"].append(dict(event["content_block"]))
        elif kind == "content_block_stop":
            yield from self._stop_block(event["index"])
        elif kind == "message_start":
            self._body = {
                **event["message"],
                "content": [],
                "usage": dict(event["message"].get("usage") or {}),
            }
        elif kind == "message_delta":
            self._body.update({name: value for name, value in event["delta"].items() if value is not None})
            merge(self._body["usage"], event.get("usage") or {})
        elif kind == "message_stop":
            self._complete = True

    def outcome(self) -> Outcome:
        """What has arrived."""
        for index in list(self._json):
            self._close_json(index)
        return to_outcome(self._body, complete=self._complete)

    def _delta(self, index: int, delta: Mapping[str, Any]) -> Iterator[Event]:
        block = self._body["content"][index]
        kind = delta.get("type")
        if kind == "text_delta":
            block["text"] += delta["text"]
            yield TextDelta(delta["text"])
        elif kind == "input_json_delta":
            self._json.setdefault(index, []).append(delta["partial_json"])
            if block["type"] == "tool_use":
                yield ToolCallDelta(block["id"], block["name"], delta["partial_json"])
        elif kind == "thinking_delta":
            block["thinking"] = block.get("thinking", "") + delta["thinking"]
            yield ThinkingDelta(delta["thinking"])
        elif kind == "signature_delta":
            block["signature"] = delta["signature"]
        elif kind == "citations_delta":
            block.setdefault("citations", []).append(delta["citation"])

    def _stop_block(self, index: int) -> Iterator[Event]:
        self._close_json(index)
        yield PartEnd(_part(self._body["content"][index]))

    def _close_json(self, index: int) -> None:
        pieces = self._json.pop(index, None)
        if pieces is None:
            return
        arguments: dict[str, Any] = {}
        with suppress(json.JSONDecodeError):  # the stream broke inside the arguments
            arguments = json.loads("".join(pieces) or "{}")
        self._body["content"][index]["input"] = arguments
