"""Answers of Chat Completions, whole and streamed, as outcomes. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from kvsdk.backend import Outcome
from kvsdk.errors import BackendProtocolError
from kvsdk.prompt import Part, Text, Thinking, ToolCall
from kvsdk.reply import Event, PartEnd, StopReason, TextDelta, ThinkingDelta, ToolCallDelta

from kvsdk_openai._bill import to_terms
from kvsdk_openai._profiles import Profile
from kvsdk_openai._usage import of_chat

_STOP_REASONS: Mapping[str, StopReason] = {
    "stop": "end_turn",
    "eos": "end_turn",
    "length": "max_tokens",
    "model_length": "max_tokens",  # Mistral: the context is full
    "tool_calls": "tool_use",
    "function_call": "tool_use",
    "content_filter": "refusal",
}


def to_outcome(body: Any, server: Profile, *, complete: bool = True) -> Outcome:
    """Read a completion: its first choice.

    Raises:
        BackendProtocolError: It is none.
    """
    choices = body.get("choices") if isinstance(body, Mapping) else None
    if not isinstance(choices, list) or not choices or not isinstance(choices[0].get("message"), Mapping):
        raise BackendProtocolError(f"not a chat completion: {str(body)[:200]}", backend="openai")
    choice = choices[0]
    parts = tuple(_parts(choice["message"], server))
    reason: StopReason = _STOP_REASONS.get(str(choice.get("finish_reason")), "other")
    if reason == "end_turn" and any(isinstance(part, ToolCall) for part in parts):
        reason = "tool_use"  # a forced tool ends with "stop"
    if reason == "end_turn" and choice["message"].get("refusal"):
        reason = "refusal"
    usage = of_chat(body.get("usage"), server)
    is_silent = complete and usage.cache_read_tokens is None
    return Outcome(
        reply_id=body.get("id"),
        model=str(body.get("model", "")),
        parts=parts,
        stop_reason=reason,
        usage=usage,
        raw=body,
        complete=complete,
        terms=to_terms(body),
        notes=(server.unreported,) if is_silent and server.unreported else (),
    )


def _parts(message: Mapping[str, Any], server: Profile) -> Iterator[Part]:
    calls = message.get("tool_calls") or ()
    member = server.reasoning or ""
    thought = message.get(member)
    if isinstance(thought, str) and (thought or calls):  # DeepSeek wants an empty one back too
        yield Thinking(thought, server.name, {member: thought})
    text = _text(message.get("content")) or message.get("refusal")
    if text:
        yield Text(text)
    for call in calls:
        yield ToolCall.parse(call["id"], call["function"]["name"], call["function"].get("arguments") or "")


def _text(content: Any) -> Any:
    """A message's text; Mistral's reasoning models give a list of pieces, of which texts are the answer."""
    if not isinstance(content, list):
        return content
    return "".join(piece["text"] for piece in content if piece.get("type") == "text")


class ChatReader:
    """Builds a completion from the chunks of a stream."""

    def __init__(self, server: Profile) -> None:
        self._server = server
        self._body: dict[str, Any] = {"usage": None}
        self._said: dict[str, str] = {}
        self._calls: dict[int, dict[str, Any]] = {}
        self._finish: str | None = None

    def feed(self, chunk: Mapping[str, Any]) -> Iterator[Event]:
        """Take in one chunk."""
        for name in ("id", "model", "created", "service_tier", "usage"):
            if chunk.get(name) is not None:
                self._body[name] = chunk[name]
        for choice in chunk.get("choices") or ():
            if choice.get("usage") is not None and chunk.get("usage") is None:
                self._body["usage"] = choice["usage"]  # Moonshot's older place
            if choice.get("index", 0) == 0:
                yield from self._delta(choice.get("delta") or {})
                if choice.get("finish_reason"):
                    self._finish = choice["finish_reason"]
                    yield from (PartEnd(part) for part in _parts(self._message(), self._server))

    def outcome(self) -> Outcome:
        """What has arrived; complete once a choice has said why it ended."""
        choice = {"index": 0, "message": self._message(), "finish_reason": self._finish}
        body = {**self._body, "object": "chat.completion", "choices": [choice]}
        return to_outcome(body, self._server, complete=self._finish is not None)

    def _message(self) -> dict[str, Any]:
        message: dict[str, Any] = {"role": "assistant", "content": "", **self._said}
        if self._calls:
            message["tool_calls"] = [self._calls[index] for index in sorted(self._calls)]
        return message

    def _delta(self, delta: Mapping[str, Any]) -> Iterator[Event]:
        for name in ("content", "refusal"):
            text = _text(delta.get(name))
            if text:
                self._said[name] = self._said.get(name, "") + text
                yield TextDelta(text)
        for name in ("reasoning_content", "reasoning"):
            thought = delta.get(name)
            if isinstance(thought, str):
                self._said[name] = self._said.get(name, "") + thought
                if thought:
                    yield ThinkingDelta(thought)
        for piece in delta.get("tool_calls") or ():
            empty = {"id": "", "type": "function", "function": {"name": "", "arguments": ""}}
            call = self._calls.setdefault(piece.get("index", 0), empty)
            function = piece.get("function") or {}
            call["id"] = piece.get("id") or call["id"]
            call["function"]["name"] = function.get("name") or call["function"]["name"]
            arguments = function.get("arguments") or ""
            call["function"]["arguments"] += arguments
            yield ToolCallDelta(call["id"], call["function"]["name"], arguments)
