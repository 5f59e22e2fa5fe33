"""A request as the body of `POST /responses`. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from kvsdk.prompt import File, Image, Message, Request, Text, Thinking, ToolCall, ToolResult
from kvsdk.prompt.media import data_url

from kvsdk_openai._schema import to_json_schema
from kvsdk_openai._target import Target

PHASE = "message_phase"
"""`type` of the opaque part that stands before an assistant's text and keeps its `phase`."""


def to_responses(request: Request, target: Target) -> dict[str, Any]:
    """The body of a Responses call. System texts lead the input, where they can carry marks."""
    items: list[dict[str, Any]] = []
    if request.system:
        contents = [_content(text, "input_text", target) for text in request.system]
        items.append({"role": "developer", "content": contents})
    for message in request.messages:
        items.extend(_items(message, target))
    body: dict[str, Any] = {
        "model": target.model,
        "input": items,
        "max_output_tokens": request.max_tokens,
    }
    if request.tools:
        body["tools"] = [
            {
                "type": "function",
                "name": tool.name,
                "description": tool.description,
                "parameters": tool.json_schema,
                "strict": False,
            }
            for tool in request.tools
        ]
    if request.tool_choice is not None:
        choice = request.tool_choice
        plain = choice in ("auto", "none", "required")
        body["tool_choice"] = choice if plain else {"type": "function", "name": choice}
    if request.response_format is not None:
        body["text"] = {"format": {"type": "json_schema", **to_json_schema(request.response_format)}}
    return body


def _items(message: Message, target: Target) -> Iterator[dict[str, Any]]:
    """A message's items: contents of one role together, tool calls, results and reasoning on their own."""
    role = "developer" if message.role == "system" else message.role
    kind = "output_text" if role == "assistant" else "input_text"
    contents: list[dict[str, Any]] = []
    phase: dict[str, Any] = {}
    for part in message.parts:
        if isinstance(part, Text | Image | File):
            contents.append(_content(part, kind, target))
            continue
        if contents:
            yield {"role": role, "content": contents, **phase}
            contents = list[dict[str, Any]]()
            phase = dict[str, Any]()
        if isinstance(part, ToolCall):
            yield {
                "type": "function_call",
                "call_id": part.id,
                "name": part.name,
                "arguments": part.arguments_json,
            }
        elif isinstance(part, ToolResult):
            yield {"type": "function_call_output", "call_id": part.call_id, "output": _output(part, target)}
        elif part.vendor == target.server.name and part.data.get("type") == PHASE:
            phase = {"phase": part.data["phase"]}
        elif isinstance(part, Thinking) and part.vendor == target.server.name:
            yield dict(part.data)
    if contents:
        yield {"role": role, "content": contents, **phase}


def _output(part: ToolResult, target: Target) -> str | list[dict[str, Any]]:
    """A tool's result: text as it is; a list where it has images or a mark, which ends its last piece."""
    mark = target.mark(part)
    if not any(isinstance(piece, Image) for piece in part.pieces):
        return [{"type": "input_text", "text": part.text, **mark}] if mark else part.text
    output = [_content(piece, "input_text", target, inside=True) for piece in part.pieces]
    output[-1] |= mark
    return output


def _content(part: Text | Image | File, kind: str, target: Target, *, inside: bool = False) -> dict[str, Any]:
    """One piece of content; one inside a tool's result carries no mark of its own."""
    mark = {} if inside else target.mark(part)
    if isinstance(part, Text):
        return {"type": kind, "text": part.text, **mark}
    if isinstance(part, Image):
        url = part.url or data_url(part)
        return {"type": "input_image", "image_url": url, "detail": part.detail or "auto", **mark}
    if part.file_id is not None:
        return {"type": "input_file", "file_id": part.file_id, **mark}
    if part.url is not None:
        return {"type": "input_file", "file_url": part.url, **mark}
    return {"type": "input_file", "filename": part.name, "file_data": data_url(part), **mark}
