"""A request as a body of `POST /responses` or `POST /chat/completions`. Pure.

Where a model takes breakpoints, a request that has some goes out in explicit mode: its changing tail is
then not written at the write rate. `prompt_cache_key` is a partition there and carries the tenant; on older
models it is a routing hint and carries the session
(developers.openai.com/api/docs/guides/prompt-caching, 2026-10-02).
"""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import sha256
from typing import Any

from kvsdk.prompt import Message, Request, Text, Thinking, Tool, ToolCall, ToolResult, breakpoint_of

from kvsdk_openai._facts import Profile, takes_marks

_KEY_LIMIT = 64


def to_responses(request: Request, model: str, server: Profile) -> dict[str, Any]:
    """The body of a Responses call. System texts lead the input, where they can carry marks."""
    items: list[dict[str, Any]] = []
    if request.system:
        items.append(
            {"role": "developer", "content": [_content(text, "input_text") for text in request.system]}
        )
    for message in request.messages:
        items.extend(_items(message))
    body: dict[str, Any] = {"model": model, "input": items, "max_output_tokens": request.max_tokens}
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
    return body | _common(request, model, server)


def to_chat(request: Request, model: str, server: Profile, *, stream: bool) -> dict[str, Any]:
    """The body of a Chat Completions call."""
    messages: list[dict[str, Any]] = []
    if request.system:
        messages.append({"role": "system", "content": _chat_content(request.system)})
    for message in request.messages:
        messages.extend(_chat_messages(message))
    body: dict[str, Any] = {"model": model, "messages": messages, server.max_tokens: request.max_tokens}
    if request.tools:
        body["tools"] = [_chat_tool(tool, server) for tool in request.tools]
    if request.tool_choice is not None:
        choice = request.tool_choice
        plain = choice in ("auto", "none", "required")
        body["tool_choice"] = choice if plain else {"type": "function", "function": {"name": choice}}
    if request.stop:
        body["stop"] = list(request.stop)
    if stream:
        body["stream_options"] = {"include_usage": True}
    return body | _common(request, model, server)


def _common(request: Request, model: str, server: Profile) -> dict[str, Any]:
    members: dict[str, Any] = {}
    if request.temperature is not None:
        members["temperature"] = request.temperature
    if any(breakpoint_of(block.part) for block in request.blocks()):
        members["prompt_cache_options"] = {"mode": "explicit"}
    if server.cache_key:
        key = request.tenant if takes_marks(model, server) else request.session or request.tenant
        if key:
            members["prompt_cache_key"] = _short(key)
    return members


def _short(key: str) -> str:
    return key if len(key) <= _KEY_LIMIT and key.isascii() else sha256(key.encode()).hexdigest()


# ---------------------------------------------------------------------- Responses


def _items(message: Message) -> Iterator[dict[str, Any]]:
    """A message's items: text of one role together, tool calls, results and reasoning on their own."""
    role = "developer" if message.role == "system" else message.role
    texts: list[dict[str, Any]] = []
    for part in message.parts:
        if isinstance(part, Text):
            texts.append(_content(part, "output_text" if role == "assistant" else "input_text"))
            continue
        if texts:
            yield {"role": role, "content": texts}
            texts = []
        if isinstance(part, ToolCall):
            yield {
                "type": "function_call",
                "call_id": part.id,
                "name": part.name,
                "arguments": part.arguments_json,
            }
        elif isinstance(part, ToolResult):
            output = [_content(part, "input_text")] if breakpoint_of(part) else part.content
            yield {"type": "function_call_output", "call_id": part.call_id, "output": output}
        elif isinstance(part, Thinking) and part.vendor == "openai":
            yield dict(part.data)
    if texts:
        yield {"role": role, "content": texts}


def _content(part: Text | ToolResult, kind: str) -> dict[str, Any]:
    text = part.text if isinstance(part, Text) else part.content
    content: dict[str, Any] = {"type": kind, "text": text}
    mark = breakpoint_of(part)
    if mark is not None:
        content["prompt_cache_breakpoint"] = {"mode": "explicit", "ttl": mark.ttl or "30m"}
    return content


# ---------------------------------------------------------------------- Chat


def _chat_tool(tool: Tool, server: Profile) -> dict[str, Any]:
    function: dict[str, Any] = {
        "name": tool.name,
        "description": tool.description,
        "parameters": tool.json_schema,
    }
    if server.strict_tools:
        function["strict"] = True
    return {"type": "function", "function": function}


def _chat_messages(message: Message) -> Iterator[dict[str, Any]]:
    if message.role == "tool":
        for part in message.parts:
            assert isinstance(part, ToolResult)
            yield {"role": "tool", "tool_call_id": part.call_id, "content": _chat_content((part,))}
        return
    texts = tuple(part for part in message.parts if isinstance(part, Text))
    if not texts and not message.tool_calls:
        return  # all of it was another vendor's reasoning
    turn: dict[str, Any] = {"role": message.role}
    if texts:
        turn["content"] = _chat_content(texts)
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


def _chat_content(parts: tuple[Text | ToolResult, ...]) -> str | list[dict[str, Any]]:
    """Plain text where one text says it all: every compatible server takes that."""
    if len(parts) == 1 and not breakpoint_of(parts[0]):
        return parts[0].text if isinstance(parts[0], Text) else parts[0].content
    contents = []
    for part in parts:
        content = _content(part, "text")
        if "prompt_cache_breakpoint" in content:
            content["prompt_cache_breakpoint"] = {"mode": "explicit"}
        contents.append(content)
    return contents
