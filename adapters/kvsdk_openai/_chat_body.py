"""A request as the body of `POST /chat/completions`. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from kvsdk.errors import UnsupportedSetting
from kvsdk.prompt import File, Image, Message, Part, Request, Text, Thinking, Tool, ToolResult
from kvsdk.prompt.media import data_url

from kvsdk_openai._schema import to_json_schema
from kvsdk_openai._target import Target


def to_chat(request: Request, target: Target, *, stream: bool) -> dict[str, Any]:
    """The body of a Chat Completions call.

    Raises:
        UnsupportedSetting: A part that Chat has no place for; the text says which.
    """
    messages: list[dict[str, Any]] = []
    if request.system:
        messages.append({"role": "system", "content": _content(request.system, target, "system")})
    for number, message in enumerate(request.messages):
        messages.extend(_messages(message, target, f"messages[{number}]"))
    body: dict[str, Any] = {
        "model": target.model,
        "messages": messages,
        target.server.max_tokens: request.max_tokens,
    }
    if request.tools:
        body["tools"] = [_tool(tool, target) for tool in request.tools]
    if request.tool_choice is not None:
        choice = request.tool_choice
        plain = choice in ("auto", "none", "required")
        body["tool_choice"] = choice if plain else {"type": "function", "function": {"name": choice}}
    if request.response_format is not None:
        schema = to_json_schema(request.response_format)
        body["response_format"] = {"type": "json_schema", "json_schema": schema}
    if request.stop:
        body["stop"] = list(request.stop)
    if stream:
        body["stream_options"] = {"include_usage": True}
    return body


def _tool(tool: Tool, target: Target) -> dict[str, Any]:
    function: dict[str, Any] = {
        "name": tool.name,
        "description": tool.description,
        "parameters": tool.json_schema,
    }
    if target.server.strict_tools:
        function["strict"] = True
    return {"type": "function", "function": function, **target.mark(tool)}


def _messages(message: Message, target: Target, where: str) -> Iterator[dict[str, Any]]:
    if message.role == "tool":
        for index, part in enumerate(message.parts):
            assert isinstance(part, ToolResult)
            content = _result(part, target, f"{where}.parts[{index}]")
            yield {"role": "tool", "tool_call_id": part.call_id, "content": content}
        return
    contents = tuple(part for part in message.parts if isinstance(part, Text | Image | File))
    if not contents and not message.tool_calls:
        return  # all of it was another vendor's reasoning
    turn: dict[str, Any] = {"role": message.role}
    if contents:
        turn["content"] = _content(contents, target, where)
    turn |= _reasoning(message.parts, target)
    if message.tool_calls:
        turn["tool_calls"] = [
            {
                "id": call.id,
                "type": "function",
                "function": {"name": call.name, "arguments": call.arguments_json},
            }
            for call in message.tool_calls
        ]
    yield turn


def _reasoning(parts: Sequence[Part], target: Target) -> dict[str, Any]:
    """This server's own reasoning, as it came."""
    member = target.server.reasoning or ""
    for part in parts:
        if isinstance(part, Thinking) and part.vendor == target.server.name and member in part.data:
            return {member: part.data[member]}
    return {}


def _result(part: ToolResult, target: Target, where: str) -> str | list[dict[str, Any]]:
    """A tool's result; Chat takes text only (openai 3.57.0, chat_completion_tool_message_param.py)."""
    if any(isinstance(piece, Image) for piece in part.pieces):
        raise _refusal("a tool's result holds text only in Chat; use api='responses'", target, where)
    mark = target.mark(part)
    return [{"type": "text", "text": part.text, **mark}] if mark else part.text


def _content(parts: Sequence[Text | Image | File], target: Target, where: str) -> str | list[dict[str, Any]]:
    """Plain text where one text says it all: every compatible server takes that."""
    first = parts[0]
    if len(parts) == 1 and isinstance(first, Text) and not target.mark(first):
        return first.text
    return [_piece(part, target, f"{where}.parts[{index}]") for index, part in enumerate(parts)]


def _piece(part: Text | Image | File, target: Target, where: str) -> dict[str, Any]:
    mark = target.mark(part)
    if isinstance(part, Text):
        return {"type": "text", "text": part.text, **mark}
    if isinstance(part, Image):
        detail = {"detail": part.detail} if part.detail else {}
        return {"type": "image_url", "image_url": {"url": part.url or data_url(part), **detail}, **mark}
    if part.url is not None:
        raise _refusal("Chat takes a file's data or id, not its address; use api='responses'", target, where)
    if part.file_id is not None:
        return {"type": "file", "file": {"file_id": part.file_id}, **mark}
    return {"type": "file", "file": {"filename": part.name, "file_data": data_url(part)}, **mark}


def _refusal(why: str, target: Target, where: str) -> UnsupportedSetting:
    return UnsupportedSetting(f"{where}: {why}", field=where, backend=target.scheme, model=target.model)
