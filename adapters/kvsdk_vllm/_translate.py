"""A request as what a chat template takes, and as sampling settings. Pure."""

from __future__ import annotations

from typing import Any

from kvsdk.prompt import Message, Request, Text, ToolResult


def to_template(request: Request) -> list[dict[str, Any]]:
    """The messages of a chat template. Breakpoints and reasoning never enter a prompt."""
    messages: list[dict[str, Any]] = []
    if request.system:
        messages.append({"role": "system", "content": "\n\n".join(text.text for text in request.system)})
    for message in request.messages:
        messages.extend(_turns(message))
    return messages


def _turns(message: Message) -> list[dict[str, Any]]:
    if message.role == "tool":
        results = [part for part in message.parts if isinstance(part, ToolResult)]
        return [{"role": "tool", "tool_call_id": part.call_id, "content": part.content} for part in results]
    content = "".join(part.text for part in message.parts if isinstance(part, Text))
    turn: dict[str, Any] = {"role": message.role, "content": content}
    if message.tool_calls:
        turn["tool_calls"] = [
            {
                "id": call.id,
                "type": "function",
                "function": {"name": call.name, "arguments": dict(call.arguments)},
            }
            for call in message.tool_calls
        ]
    return [turn]


def to_tools(request: Request) -> list[dict[str, Any]]:
    """The tools of a chat template; none when the model must not call any."""
    if request.tool_choice == "none":
        return []
    return [
        {
            "type": "function",
            "function": {"name": tool.name, "description": tool.description, "parameters": tool.json_schema},
        }
        for tool in request.tools
    ]


def to_call_schema(request: Request) -> dict[str, Any] | None:
    """The JSON schema that the answer must have when a tool must be called: its name and arguments."""
    if request.tool_choice in (None, "auto", "none"):
        return None
    tools = [tool for tool in request.tools if request.tool_choice in ("required", tool.name)]
    calls = [
        {
            "type": "object",
            "properties": {"name": {"const": tool.name}, "arguments": tool.json_schema},
            "required": ["name", "arguments"],
            "additionalProperties": False,
        }
        for tool in tools
    ]
    return calls[0] if len(calls) == 1 else {"anyOf": calls}
