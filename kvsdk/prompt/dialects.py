"""Messages as callers write them: a string, `Message`s, or dicts in the OpenAI or the Anthropic shape.

The marks of either vendor (`cache_control`, `prompt_cache_breakpoint`) become breakpoints.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

from kvsdk._text import did_you_mean
from kvsdk.errors import InvalidRequest
from kvsdk.prompt.media import MEDIA_KINDS, read_media
from kvsdk.prompt.messages import Message
from kvsdk.prompt.parts import (
    KINDS,
    Breakpoint,
    Image,
    Part,
    Text,
    Thinking,
    ToolCall,
    ToolResult,
    breakpoint_of,
    with_breakpoint,
)
from kvsdk.prompt.tools import Tool

MessagesLike: TypeAlias = str | Message | Sequence[Message | Mapping[str, Any]]
SystemLike: TypeAlias = str | Text | Sequence[str | Text | Mapping[str, Any]] | None
ToolsLike: TypeAlias = Sequence[Tool | Mapping[str, Any] | Callable[..., Any]] | None

_MARKS = ("cache_control", "prompt_cache_breakpoint")


def read_messages(value: MessagesLike) -> tuple[Message, ...]:
    """Messages in our own form.

    Raises:
        InvalidRequest: Empty, or something that is no message; the text has its place.
    """
    if isinstance(value, str):
        messages = [Message.user(value)] if value else []
    elif isinstance(value, Message):
        messages = [value]
    elif isinstance(value, Mapping) or not isinstance(value, Iterable):
        raise InvalidRequest(
            f"messages is a string or a list of messages, not {type(value).__name__}", field="messages"
        )
    else:
        messages = []
        for number, item in enumerate(value):
            where = f"messages[{number}]"
            if isinstance(item, Message):
                messages.append(item)
            elif isinstance(item, Mapping):
                messages.extend(_read_message(item, where))
            else:
                raise InvalidRequest(
                    f"{where} is a {type(item).__name__}; use Message.user(...) or a dict", field=where
                )
    if not any(message.parts for message in messages):
        raise InvalidRequest("messages is empty; nothing to send", field="messages")
    for number, message in enumerate(messages):
        if not message.parts:
            raise InvalidRequest(f"messages[{number}] has no content", field=f"messages[{number}]")
    return tuple(messages)


def read_system(value: SystemLike) -> tuple[Text, ...]:
    """System texts in our own form."""
    if value is None:
        return ()
    texts = []
    items = (value,) if isinstance(value, (str, Text, Mapping)) else value
    for number, item in enumerate(_listed(items, "system")):
        part = _read_part(item, f"system[{number}]")
        if not isinstance(part, Text):
            raise InvalidRequest(f"system[{number}] is not a text", field=f"system[{number}]")
        texts.append(part)
    return tuple(texts)


def hoist_system(
    messages: tuple[Message, ...], system: tuple[Text, ...]
) -> tuple[tuple[Message, ...], tuple[Text, ...]]:
    """The messages without the system messages they begin with, and the system texts with those."""
    while messages and messages[0].role == "system":
        system += tuple(part for part in messages[0].parts if isinstance(part, Text))
        messages = messages[1:]
    return messages, system


def read_tools(value: ToolsLike) -> tuple[Tool, ...]:
    """Tools in our own form; names must be unique."""
    tools: list[Tool] = []
    for number, item in enumerate(_listed(value or (), "tools")):
        if isinstance(item, Tool):
            tools.append(item)
        elif isinstance(item, Mapping):
            tools.append(_read_tool(item, f"tools[{number}]"))
        elif callable(item):
            tools.append(Tool.from_function(item))
        else:
            raise InvalidRequest(f"tools[{number}] is a {type(item).__name__}, not a Tool", field="tools")
    seen: set[str] = set()
    for tool in tools:
        if tool.name in seen:
            raise InvalidRequest(f"two tools are called {tool.name!r}", field="tools")
        seen.add(tool.name)
    return tuple(tools)


def _read_tool(item: Mapping[str, Any], where: str) -> Tool:
    """A tool of Chat Completions (`function` inside), Responses (flat) or Anthropic (`input_schema`)."""
    inner = item.get("function", item)
    if not isinstance(inner, Mapping) or "name" not in inner:
        raise InvalidRequest(f"{where} has no name", field=where)
    schema = inner.get("input_schema", inner.get("parameters", {"type": "object", "properties": {}}))
    return Tool(str(inner["name"]), str(inner.get("description", "")), schema, _mark_of(item, where))


def _read_message(item: Mapping[str, Any], where: str) -> list[Message]:
    """One dict; an Anthropic user turn with tool results becomes tool messages and the rest."""
    role = item.get("role")
    content = item.get("content")
    if role == "tool":
        return [_read_tool_message(item, where)]
    if role == "developer":
        role = "system"
    if role not in ("user", "assistant", "system"):
        raise InvalidRequest(
            f"{where} has role {role!r}.{did_you_mean(str(role), ('user', 'assistant', 'system', 'tool'))}",
            field=f"{where}.role",
        )
    parts = _read_content(content, f"{where}.content") if content is not None else []
    for number, call in enumerate(_listed(item.get("tool_calls") or (), f"{where}.tool_calls")):
        parts.append(_read_openai_call(call, f"{where}.tool_calls[{number}]"))
    if not parts:
        raise InvalidRequest(f"{where} has no content", field=f"{where}.content")
    results = tuple(part for part in parts if isinstance(part, ToolResult))
    if not results:
        return [Message(role, tuple(parts))]
    rest = tuple(part for part in parts if not isinstance(part, ToolResult))
    return [Message("tool", results), *([Message(role, rest)] if rest else [])]


def _read_tool_message(item: Mapping[str, Any], where: str) -> Message:
    if "tool_call_id" not in item:
        raise InvalidRequest(f"{where} has role 'tool' and no tool_call_id", field=f"{where}.tool_call_id")
    content, mark = _result_content(item.get("content", ""), f"{where}.content")
    return Message("tool", (ToolResult(str(item["tool_call_id"]), content, False, mark),))


def _read_content(content: Any, where: str) -> list[Part]:
    if isinstance(content, str):
        return [Text(content)]
    if isinstance(content, Mapping) or not isinstance(content, Iterable):
        raise InvalidRequest(
            f"{where} is a string or a list of parts, not {type(content).__name__}", field=where
        )
    return [_read_part(part, f"{where}[{number}]") for number, part in enumerate(content)]


def _read_part(item: Any, where: str) -> Part:
    if isinstance(item, str):
        return Text(item)
    if type(item) in KINDS:
        part: Part = item
        return part
    if not isinstance(item, Mapping):
        raise InvalidRequest(f"{where} is a {type(item).__name__}, not a part", field=where)
    kind = item.get("type")
    if kind in MEDIA_KINDS:
        return read_media(kind, item, where, _mark_of(item, where))
    reader = _READERS.get(str(kind))
    if reader is None:
        known = did_you_mean(str(kind), (*_READERS, *MEDIA_KINDS))
        raise InvalidRequest(
            f"{where} has type {kind!r}, which kvsdk cannot carry.{known}",
            field=f"{where}.type",
        )
    return reader(item, where)


def _listed(value: Any, where: str) -> Iterable[Any]:
    if isinstance(value, Mapping) or not isinstance(value, Iterable):
        raise InvalidRequest(f"{where} is a list, not {type(value).__name__}", field=where)
    return value


def _field(item: Any, name: str, where: str) -> Any:
    if not isinstance(item, Mapping):
        raise InvalidRequest(f"{where} is an object, not {type(item).__name__}", field=where)
    if name not in item:
        raise InvalidRequest(f"{where} has no {name!r}", field=f"{where}.{name}")
    return item[name]


def _mark_of(item: Mapping[str, Any], where: str) -> Breakpoint | None:
    """The breakpoint in a vendor's own mark, whichever vendor's it is."""
    mark = next((item[name] for name in _MARKS if item.get(name) is not None), None)
    if mark is None:
        return None
    if not isinstance(mark, Mapping):
        raise InvalidRequest(f"{where}: a cache mark is an object, not {type(mark).__name__}", field=where)
    return Breakpoint(ttl=mark.get("ttl"))


def _read_text(item: Mapping[str, Any], where: str) -> Part:
    return Text(_field(item, "text", where), _mark_of(item, where))


def _read_anthropic_call(item: Mapping[str, Any], where: str) -> Part:
    arguments = _field(item, "input", where)
    return ToolCall(
        str(_field(item, "id", where)),
        str(_field(item, "name", where)),
        arguments,
        cache=_mark_of(item, where),
    )


def _read_openai_call(item: Any, where: str) -> ToolCall:
    function, inside = _field(item, "function", where), f"{where}.function"
    name = str(_field(function, "name", inside))
    arguments = function.get("arguments", "{}")
    if not isinstance(arguments, str):
        raise InvalidRequest(
            f"{inside}.arguments is JSON text, not {type(arguments).__name__}", field=f"{inside}.arguments"
        )
    return ToolCall.parse(str(_field(item, "id", where)), name, arguments)


def _read_result(item: Mapping[str, Any], where: str) -> Part:
    content, inner = _result_content(item.get("content", ""), f"{where}.content")
    return ToolResult(
        str(_field(item, "tool_use_id", where)),
        content,
        bool(item.get("is_error", False)),
        _mark_of(item, where) or inner,
    )


def _result_content(content: Any, where: str) -> tuple[str | tuple[Text | Image, ...], Breakpoint | None]:
    """A tool's result, as text where it is only that, and a mark that stood on its last inner part."""
    if content is None:
        return "", None
    pieces: list[Text | Image] = []
    for number, part in enumerate(_read_content(content, where)):
        if not isinstance(part, Text | Image):
            raise InvalidRequest(f"{where}[{number}] is no text or image", field=where)
        pieces.append(part)
    mark = breakpoint_of(pieces[-1]) if pieces else None
    texts = [piece.text for piece in pieces if isinstance(piece, Text)]
    if len(texts) == len(pieces):
        return "".join(texts), mark
    return tuple(with_breakpoint(piece, None) for piece in pieces), mark


def _read_thinking(item: Mapping[str, Any], where: str) -> Part:
    block = {name: value for name, value in item.items() if name not in _MARKS}
    return Thinking(str(item.get("thinking", "")), "anthropic", block, _mark_of(item, where))


_READERS: Mapping[str, Callable[[Mapping[str, Any], str], Part]] = {
    "text": _read_text,
    "input_text": _read_text,
    "output_text": _read_text,
    "tool_use": _read_anthropic_call,
    "tool_result": _read_result,
    "thinking": _read_thinking,
    "redacted_thinking": _read_thinking,
}
