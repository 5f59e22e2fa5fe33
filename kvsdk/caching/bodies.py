"""A logged body as a request: OpenAI's Chat and Responses, Anthropic's Messages, or our own words. Pure.

Lenient where a vendor's body holds what kvsdk does not carry: such a piece counts as opaque text, because
what matters here is whether it is the same in the next request.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from kvsdk.errors import InvalidRequest
from kvsdk.prompt import (
    Breakpoint,
    File,
    Image,
    Message,
    Part,
    Request,
    ResponseFormat,
    Text,
    Thinking,
    Tool,
    ToolCall,
    breakpoint_of,
    hoist_system,
    read_messages,
    read_system,
    read_tools,
    with_breakpoint,
)
from kvsdk.prompt.media import MEDIA_KINDS

_TEXTS = ("text", "input_text", "output_text")
_KNOWN = frozenset({*_TEXTS, "tool_use", "tool_result", "thinking", "redacted_thinking", *MEDIA_KINDS})
_IN_RESULTS = frozenset({*_TEXTS, "image", "image_url", "input_image"})
_MARKS = ("cache_control", "prompt_cache_breakpoint")
_SCHEMAS = ("input_schema", "parameters", "schema")
_TOOL_FIELDS = ("name", "description", *_SCHEMAS)
_SETTINGS = (
    *("thinking", "output_config", "speed"),
    *("parallel_tool_calls", "prompt_cache_key", "reasoning", "reasoning_effort", "service_tier", "text"),
    *("verbosity", "chat_template_kwargs"),
)


def read_body(body: Mapping[str, Any], vendor: str) -> Request:
    """The request in a body; `vendor` is the part of `extra` that the body's own settings go to.

    Raises:
        InvalidRequest: No request can be made of it; the text has the place.
    """
    messages, system = hoist_system(
        read_messages(list(_turns(body))), read_system(_texts(body.get("system", body.get("instructions"))))
    )
    request = Request(
        messages=messages,
        system=system,
        tools=read_tools([_tool(item) for item in _items(body.get("tools") or (), "tools")]),
        tool_choice=_tool_choice(body.get("tool_choice")),
        response_format=_response_format(body.get("response_format")),
        auto_cache=body.get("cache") == "auto",
        extra=_extra(body, vendor),
    )
    return _marked_at_end(request) if isinstance(body.get("cache_control"), Mapping) else request


def _items(value: Any, where: str) -> Iterable[Any]:
    if isinstance(value, str) or not isinstance(value, Sequence):
        raise InvalidRequest(f"{where} is a list, not {type(value).__name__}", field=where)
    return value


# ---------------------------------------------------------------------- messages


def _turns(body: Mapping[str, Any]) -> Iterator[Message | Mapping[str, Any]]:
    value = body.get("messages", body.get("input"))
    if value is None:
        raise InvalidRequest("the line has neither messages nor input", field="messages")
    if isinstance(value, str):
        yield Message.user(value)
        return
    for number, item in enumerate(_items(value, "messages")):
        if not isinstance(item, Mapping):
            raise InvalidRequest(f"messages[{number}] is a {type(item).__name__}, not an object")
        yield from _turn(item)


def _turn(item: Mapping[str, Any]) -> Iterator[Message | Mapping[str, Any]]:
    kind = item.get("type", "message")
    if "role" in item and kind == "message":
        content = item.get("content", item.get("parts"))
        inner = _inner if "tool_call_id" in item else _part
        if isinstance(content, list):
            content = [inner(part) for part in content]
        if not content and not item.get("tool_calls"):
            content = ""  # an empty turn keeps its number
        is_own = item["role"] == "tool" and "tool_call_id" not in item  # its results name their calls
        yield {**item, "role": "user" if is_own else item["role"], "content": content}
    elif kind == "function_call":
        call = {"name": item.get("name", ""), "arguments": item.get("arguments") or "{}"}
        yield {"role": "assistant", "tool_calls": [{"id": item.get("call_id", ""), "function": call}]}
    elif kind == "function_call_output":
        output = item.get("output", "")
        if not isinstance(output, str):
            output = [_inner(part) for part in _items(output, "output")]
        yield {"role": "tool", "tool_call_id": item.get("call_id", ""), "content": output}
    elif kind == "reasoning":
        yield Message.assistant(Thinking("", "openai", dict(item)))
    elif "type" in item:
        yield Message("user" if str(kind).endswith("_output") else "assistant", (_opaque(item),))
    else:
        yield item  # without a role: the reader of messages says so


def _texts(value: Any) -> Any:
    if value is None or isinstance(value, str):
        return value
    items = [value] if isinstance(value, Mapping) else _items(value, "system")
    return [_part(item) for item in items]


def _part(item: Any) -> Any:
    """A part that `read_messages` takes, with our own `cache` as a mark."""
    if not isinstance(item, Mapping):
        return item
    item = _with_mark(item)
    own = _OWN.get(item.get("type") or _guess(item))
    part = own(item) if own is not None else None
    if part is not None:
        return with_breakpoint(part, _mark(item))
    if "call_id" in item:
        item = {**item, "type": "tool_result", "tool_use_id": item["call_id"]}
    if item.get("type") == "tool_result" and not isinstance(item.get("content"), str | None):
        return {**item, "content": [_inner(part) for part in _items(item["content"], "content")]}
    return item if item.get("type") in _KNOWN else _opaque(item)


def _inner(item: Any) -> Any:
    """A part of a tool's result: text or an image."""
    part = _part(item)
    is_fit = (
        part.get("type") in _IN_RESULTS if isinstance(part, Mapping) else isinstance(part, str | Text | Image)
    )
    return part if is_fit else _opaque(item)


def _opaque(item: Any) -> Text:
    """A piece that kvsdk does not carry, as the text of its JSON."""
    if not isinstance(item, Mapping):
        return Text(json.dumps(item, ensure_ascii=False, default=str))
    rest = {name: value for name, value in item.items() if name not in _MARKS}
    return Text(json.dumps(rest, ensure_ascii=False, default=str), _mark(item))


def _with_mark(item: Mapping[str, Any]) -> Mapping[str, Any]:
    """`cache`, as our own parts have it, as a vendor's mark."""
    mark = Breakpoint.of(item["cache"]) if isinstance(item.get("cache"), str | bool) else item.get("cache")
    rest = {name: value for name, value in item.items() if name != "cache"}
    if mark is None:
        return rest
    ttl = mark.ttl if isinstance(mark, Breakpoint) else mark.get("ttl")
    return {**rest, "cache_control": {"ttl": ttl}}


def _mark(item: Mapping[str, Any]) -> Breakpoint | None:
    mark = next((item[name] for name in _MARKS if item.get(name) is not None), None)
    if mark is not None and not isinstance(mark, Mapping):
        raise InvalidRequest(f"a cache mark is an object, not {type(mark).__name__}", field="cache_control")
    return None if mark is None else Breakpoint(mark.get("ttl"))


def _guess(item: Mapping[str, Any]) -> str | None:
    """The kind of a part of ours that was written without its type."""
    keys = {"text": "text", "arguments": "tool_call", "arguments_json": "tool_call"}
    keys = {"vendor": "thinking", **keys, "file_id": "file", "media_type": "image", "url": "image"}
    return next((kind for key, kind in keys.items() if key in item), None)


def _own_call(item: Mapping[str, Any]) -> ToolCall:
    written = item.get("arguments_json") or json.dumps(item.get("arguments") or {}, ensure_ascii=False)
    return ToolCall.parse(str(item.get("id", "")), str(item.get("name", "")), written)


def _own_thinking(item: Mapping[str, Any]) -> Thinking | None:
    if not isinstance(item.get("data"), Mapping):
        return None
    return Thinking(str(item.get("text", "")), str(item.get("vendor", "")), item["data"])


def _own_image(item: Mapping[str, Any]) -> Image | None:
    if "url" not in item and "data" not in item:
        return None
    return Image(item.get("url"), item.get("data"), item.get("media_type"), item.get("detail"))


def _own_file(item: Mapping[str, Any]) -> File | None:
    if "name" not in item:
        return None
    sources = {name: item.get(name) for name in ("url", "data", "file_id", "media_type")}
    return File(str(item["name"]), **sources)


def _own_text(item: Mapping[str, Any]) -> Text | None:
    return Text(item["text"]) if isinstance(item.get("text"), str) else None


_OWN: Mapping[str | None, Callable[[Mapping[str, Any]], Part | None]] = {
    "text": _own_text,
    "tool_call": _own_call,
    "thinking": _own_thinking,
    "image": _own_image,
    "file": _own_file,
}


# ---------------------------------------------------------------------- tools and settings


def _tool(item: Any) -> Any:
    """A tool that `read_tools` takes; a vendor's own, without a name or a schema, is named by its type."""
    if not isinstance(item, Mapping):
        return item
    item = _with_mark(item)
    inner = item["function"] if isinstance(item.get("function"), Mapping) else item
    rest = {name: value for name, value in inner.items() if name not in (*_TOOL_FIELDS, *_MARKS)}
    schema = next((inner[name] for name in _SCHEMAS if isinstance(inner.get(name), Mapping)), rest)
    name = inner.get("name") or ":".join(
        str(inner[key]) for key in ("type", "server_label") if inner.get(key)
    )
    tool = Tool(str(name), str(inner.get("description") or ""), schema)
    return with_breakpoint(tool, _mark(item) or _mark(inner))


def _tool_choice(value: Any) -> str | None:
    if value is None or isinstance(value, str):
        return value
    if not isinstance(value, Mapping):
        raise InvalidRequest(f"tool_choice is a name or an object, not {value!r}", field="tool_choice")
    function = value.get("function")
    name = function.get("name") if isinstance(function, Mapping) else value.get("name")
    kind = str(value.get("type"))
    return str(name) if name else {"any": "required"}.get(kind, kind)


def _response_format(value: Any) -> ResponseFormat | None:
    if not isinstance(value, Mapping):
        return None
    inner = value.get("json_schema")
    if isinstance(inner, Mapping):
        return ResponseFormat(str(inner.get("name", "answer")), inner.get("schema") or {})
    if value.get("type") == "object":
        return ResponseFormat.of(value)
    return ResponseFormat(str(value.get("type", "answer")), {})


def _extra(body: Mapping[str, Any], vendor: str) -> dict[str, dict[str, Any]]:
    given = body.get("extra")
    parts = given.items() if isinstance(given, Mapping) else ()
    extra = {str(name): dict(part) for name, part in parts if isinstance(part, Mapping)}
    own = {name: body[name] for name in _SETTINGS if body.get(name) is not None}
    choice = body.get("tool_choice")
    if isinstance(choice, Mapping) and choice.get("disable_parallel_tool_use") is not None:
        own["tool_choice"] = {"disable_parallel_tool_use": choice["disable_parallel_tool_use"]}
    if own:
        extra[vendor] = {**own, **extra.get(vendor, {})}
    return extra


def _marked_at_end(request: Request) -> Request:
    """A mark of the whole request stands on its last piece that can carry one."""
    if not request.messages:
        return request
    *before, last = request.messages
    parts = list(last.parts)
    if isinstance(parts[-1], Thinking):
        return request
    parts[-1] = with_breakpoint(parts[-1], breakpoint_of(parts[-1]) or Breakpoint())
    return replace(request, messages=(*before, Message(last.role, tuple(parts))))
