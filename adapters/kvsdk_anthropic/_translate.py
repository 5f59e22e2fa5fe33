"""A request as a body of `POST /v1/messages`. Pure."""

from __future__ import annotations

from typing import Any

from kvsdk.prompt import Message, Part, Request, Text, Thinking, Tool, ToolCall, breakpoint_of


def to_body(request: Request, model: str) -> dict[str, Any]:
    """The body, with `cache_control` exactly where the request has breakpoints."""
    body: dict[str, Any] = {
        "model": model,
        "max_tokens": request.max_tokens,
        "messages": _turns(request.messages),
    }
    if request.system:
        body["system"] = [_part(text) for text in request.system]
    if request.tools:
        body["tools"] = [_tool(tool) for tool in request.tools]
    if request.tool_choice is not None:
        body["tool_choice"] = _tool_choice(request.tool_choice)
    if request.stop:
        body["stop_sequences"] = list(request.stop)
    return body


def _turns(messages: tuple[Message, ...]) -> list[dict[str, Any]]:
    """Tool results are user turns here; what follows them from the user belongs to the same turn."""
    turns: list[dict[str, Any]] = []
    for message in messages:
        role = "user" if message.role == "tool" else message.role
        content = [_part(part) for part in message.parts if _is_ours(part)]
        if turns and turns[-1]["role"] == role == "user":
            turns[-1]["content"].extend(content)
        elif content:
            turns.append({"role": role, "content": content})
    return turns


def _is_ours(part: Part) -> bool:
    return not isinstance(part, Thinking) or part.vendor == "anthropic"


def _part(part: Part) -> dict[str, Any]:
    if isinstance(part, Thinking):
        return dict(part.data)
    if isinstance(part, Text):
        block: dict[str, Any] = {"type": "text", "text": part.text}
    elif isinstance(part, ToolCall):
        block = {"type": "tool_use", "id": part.id, "name": part.name, "input": dict(part.arguments)}
    else:
        block = {"type": "tool_result", "tool_use_id": part.call_id, "content": part.content}
        if part.is_error:
            block["is_error"] = True
    return _marked(block, part)


def _tool(tool: Tool) -> dict[str, Any]:
    block = {"name": tool.name, "description": tool.description, "input_schema": tool.json_schema}
    return _marked(block, tool)


def _marked(block: dict[str, Any], piece: Part | Tool) -> dict[str, Any]:
    mark = breakpoint_of(piece)
    if mark is not None:
        block["cache_control"] = {"type": "ephemeral", "ttl": mark.ttl or "5m"}
    return block


def _tool_choice(choice: str) -> dict[str, str]:
    kinds = {"auto": "auto", "none": "none", "required": "any"}
    return {"type": kinds[choice]} if choice in kinds else {"type": "tool", "name": choice}
