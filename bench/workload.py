"""The request that every contender sends: a manual, three tools, and a conversation of ten turns."""

from __future__ import annotations

from typing import Any

from kvsdk import CallOptions, Message, Text, Tool, ToolCall

ANTHROPIC_MODEL = "claude-sonnet-5-5"
OPENAI_MODEL = "gpt-5.6"

MANUAL = "".join(
    f"{number}. Before valve {number} is opened, the pressure behind it is read, written down and compared.\n"
    for number in range(1, 400)
)[:20_000]


def _tool(name: str, description: str, *fields: str) -> Tool:
    properties = {field: {"type": "string", "description": f"The {field} of the valve"} for field in fields}
    return Tool(name, description, {"type": "object", "properties": properties, "required": list(fields)})


TOOLS = [
    _tool("read_pressure", "Read the pressure behind a valve.", "valve", "unit"),
    _tool("open_valve", "Open a valve.", "valve", "reason"),
    _tool("find_record", "Find what was written down of a valve on a day.", "valve", "day", "author"),
]


def _turn(number: int) -> list[Message]:
    call = ToolCall(f"call_{number}", "read_pressure", {"valve": str(number), "unit": "bar"})
    return [
        Message.user(f"Turn {number}: what should I do with valve {number} now? " * 3),
        Message.assistant(f"First its pressure has to be read; I do that for valve {number}.", call),
        Message.tool(call.id, '{"pressure": 4.2, "unit": "bar", "stable": true}'),
        Message.assistant(f"It is stable at 4.2 bar, so valve {number} may be opened. " * 4),
    ]


MESSAGES = [message for number in range(1, 10) for message in _turn(number)] + [
    Message.user("And which valve comes first tomorrow?", cache="5m")
]

OPTIONS: CallOptions = {
    "system": [Text(MANUAL, cache="1h")],
    "tools": TOOLS,
    "max_tokens": 300,
    "session": "user-42",
    "tenant": "acme",
}


def for_litellm(*, marks: bool) -> dict[str, Any]:
    """The same request in the shape of Chat Completions, which is litellm's for every vendor."""
    mark = {"cache_control": {"type": "ephemeral"}} if marks else {}
    messages: list[dict[str, Any]] = [
        {"role": "system", "content": [{"type": "text", "text": MANUAL, **mark}]},
        *(_chat_message(message) for message in MESSAGES),
    ]
    tools = [
        {
            "type": "function",
            "function": {"name": tool.name, "description": tool.description, "parameters": tool.json_schema},
        }
        for tool in TOOLS
    ]
    return {"messages": messages, "tools": tools, "max_tokens": 300}


def _chat_message(message: Message) -> dict[str, Any]:
    if message.role == "tool":
        (result,) = message.parts
        return {"role": "tool", "tool_call_id": result.call_id, "content": result.content}  # type: ignore[union-attr]
    calls = [
        {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments_json}}
        for call in message.tool_calls
    ]
    return {"role": message.role, "content": message.text, **({"tool_calls": calls} if calls else {})}
