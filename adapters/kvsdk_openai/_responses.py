"""Answers of the Responses API, whole and streamed, as outcomes. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from kvsdk.backend import Outcome
from kvsdk.errors import BackendProtocolError
from kvsdk.prompt import Part, Text, Thinking, ToolCall
from kvsdk.reply import Event, PartEnd, StopReason, TextDelta, ThinkingDelta, ToolCallDelta

from kvsdk_openai._bill import to_calls, to_terms
from kvsdk_openai._diagnostics import diagnose
from kvsdk_openai._errors import from_code
from kvsdk_openai._profiles import Profile
from kvsdk_openai._responses_body import PHASE
from kvsdk_openai._usage import of_responses

_INCOMPLETE: Mapping[str, StopReason] = {
    "max_output_tokens": "max_tokens",
    "content_filter": "refusal",
    "steered": "paused",  # by a `response.steer` event; another response goes on with it
}


def to_outcome(body: Any, server: Profile, *, complete: bool = True) -> Outcome:
    """Read a response.

    Raises:
        BackendProtocolError: It is none.
        BackendError: Its status is `failed`.
    """
    if not isinstance(body, Mapping) or not isinstance(body.get("output"), list):
        raise BackendProtocolError(f"not a response: {str(body)[:200]}", backend="openai")
    if body.get("status") == "failed":
        error = body.get("error") or {}
        raise from_code(error.get("code"), error.get("message") or "the response failed")
    parts = tuple(part for item in body["output"] for part in _parts(item, server))
    diagnosis, notes = diagnose(body)
    return Outcome(
        reply_id=body.get("id"),
        model=str(body.get("model", "")),
        parts=parts,
        stop_reason=_stop_reason(body, parts),
        usage=of_responses(body.get("usage"), server),
        raw=body,
        complete=complete,
        terms=to_terms(body),
        calls=to_calls(body),
        diagnosis=diagnosis,
        notes=notes,
    )


def _parts(item: Mapping[str, Any], server: Profile) -> Iterator[Part]:
    """An item's parts.

    A message's `phase` has to come back with it (openai 3.57.0, `types/responses/
    response_output_message_param.py`, 2026-11-19): it stands before the text, as an opaque part.
    """
    kind = item.get("type")
    if kind == "message":
        if item.get("phase"):
            yield Thinking("", server.name, {"type": PHASE, "phase": item["phase"]})
        for content in item.get("content") or ():
            yield Text(content.get("text") or content.get("refusal") or "")
    elif kind == "function_call":
        yield ToolCall.parse(item["call_id"], item["name"], item.get("arguments") or "")
    else:  # reasoning and the items of built-in tools: opaque, passed back unchanged
        summary = "".join(piece.get("text", "") for piece in item.get("summary") or ())
        yield Thinking(summary, server.name, item)


def _stop_reason(body: Mapping[str, Any], parts: tuple[Part, ...]) -> StopReason:
    if body.get("status") == "incomplete":
        reason = (body.get("incomplete_details") or {}).get("reason")
        return _INCOMPLETE.get(str(reason), "other")
    if body.get("status") == "cancelled":
        return "other"
    if any(isinstance(part, ToolCall) for part in parts):
        return "tool_use"
    contents = [content for item in body["output"] for content in item.get("content") or ()]
    return "refusal" if any(content.get("type") == "refusal" for content in contents) else "end_turn"


class ResponseReader:
    """Builds a response from the events of a stream (`response.created` … `response.completed`)."""

    def __init__(self, server: Profile) -> None:
        self._server = server
        self._body: dict[str, Any] = {"output": []}
        self._items: dict[int, dict[str, Any]] = {}
        self._complete = False

    def feed(self, event: Mapping[str, Any]) -> Iterator[Event]:
        """Take in one event. Events of unknown types change nothing."""
        kind = event.get("type")
        if kind in ("response.output_text.delta", "response.refusal.delta"):
            self._append(event, "text" if kind == "response.output_text.delta" else "refusal")
            yield TextDelta(event["delta"])
        elif kind == "response.function_call_arguments.delta":
            item = self._items[event["output_index"]]
            item["arguments"] = (item.get("arguments") or "") + event["delta"]
            yield ToolCallDelta(item["call_id"], item["name"], event["delta"])
        elif kind in ("response.reasoning_summary_text.delta", "response.reasoning_text.delta"):
            yield ThinkingDelta(event["delta"])
        elif kind == "response.output_item.added":
            self._items[event["output_index"]] = dict(event["item"])
        elif kind == "response.output_item.done":
            self._items[event["output_index"]] = dict(event["item"])
            for part in _parts(event["item"], self._server):
                yield PartEnd(part)
        elif kind in ("response.completed", "response.incomplete", "response.failed"):
            self._body = event["response"]
            self._complete = True
            to_outcome(self._body, self._server)  # raises when it failed
        elif kind in ("response.created", "response.in_progress"):
            self._body = event["response"]
        elif kind == "error":
            raise from_code(event.get("code"), event.get("message") or "the stream reports an error")

    def outcome(self) -> Outcome:
        """What has arrived."""
        if self._complete and self._body.get("status") != "failed":
            return to_outcome(self._body, self._server)
        output = [self._items[index] for index in sorted(self._items)]
        body = {**self._body, "output": output, "status": "in_progress"}
        return to_outcome(body, self._server, complete=False)

    def _append(self, event: Mapping[str, Any], name: str) -> None:
        contents = self._items[event["output_index"]].setdefault("content", [])
        while len(contents) <= event["content_index"]:
            contents.append({"type": "output_text" if name == "text" else "refusal", name: ""})
        contents[event["content_index"]][name] += event["delta"]
