"""The engine's events as a reply. Pure.

A channel yields dicts: `{"type": "text", "text"}` and `{"type": "tool_call", "id", "name", "arguments"}` as
they come, and at last `{"type": "end"}` with why it ended. Each has `meters`: the counts and times so far, so
that a request which is left early is metered too.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from kvsdk.backend import EngineTime, Outcome
from kvsdk.prompt import Part, Text, ToolCall
from kvsdk.reply import Event, PartEnd, StopReason, TextDelta, ToolCallDelta
from kvsdk.usage import Usage

_REASONS = ("finish_reason", "stop_reason")
_SECONDS = ("prefill_s", "decode_s", "load_s", "store_s", "queue_s", "prefill_s_per_token")


class EngineReader:
    """Builds an outcome from the events of one request."""

    def __init__(self, model: str) -> None:
        self._model = model
        self._text: list[str] = []
        self._calls: list[ToolCall] = []
        self._meters: Mapping[str, Any] = {}
        self._end: Mapping[str, Any] | None = None

    def feed(self, event: Mapping[str, Any]) -> Iterator[Event]:
        """Take in one event."""
        kind = event["type"]
        self._meters = event["meters"]
        if kind == "text":
            self._text.append(event["text"])
            yield TextDelta(event["text"])
        elif kind == "tool_call":
            call = ToolCall.parse(event["id"], event["name"], event["arguments"])
            self._calls.append(call)
            yield ToolCallDelta(call.id, call.name, call.arguments_json)
        elif kind == "end":
            self._end = event
            yield from (PartEnd(part) for part in self._parts())

    def outcome(self) -> Outcome:
        """What has arrived."""
        end, meters = self._end or {}, self._meters
        return Outcome(
            reply_id=meters.get("id"),
            model=self._model,
            parts=self._parts(),
            stop_reason="tool_use" if self._calls else _stop_reason(end),
            usage=_usage(meters),
            raw={**meters, **{name: end[name] for name in _REASONS if name in end}},
            complete=self._end is not None,
            engine=_engine_time(meters),
            ttft_s=meters.get("ttft_s"),
            notes=tuple(end.get("notes", ())),
        )

    def _parts(self) -> tuple[Part, ...]:
        text = "".join(self._text)
        return ((Text(text),) if text else ()) + tuple(self._calls)


def _stop_reason(end: Mapping[str, Any]) -> StopReason:
    if end.get("finish_reason") == "length":
        return "max_tokens"
    if end.get("finish_reason") != "stop":
        return "other"
    return "stop_sequence" if isinstance(end.get("stop_reason"), str) else "end_turn"


def _engine_time(meters: Mapping[str, Any]) -> EngineTime | None:
    if "prefill_s" not in meters:
        return None
    seconds = {name: meters[name] for name in _SECONDS if name in meters}
    return EngineTime(**seconds, cached_tokens=meters.get("cached_tokens"))


def _usage(meters: Mapping[str, Any]) -> Usage:
    """The engine's counts: `cached` were read, `created` newly written to the prefix cache."""
    return Usage.of_total(
        meters.get("prompt_tokens"),
        read=meters.get("cached_tokens"),
        write=meters.get("created_tokens"),
        output=meters.get("output_tokens"),
    )
