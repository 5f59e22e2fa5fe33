"""A request as a body of `POST /v1/messages`. Pure."""

from __future__ import annotations

from base64 import b64decode
from typing import Any

from kvsdk.errors import InvalidBreakpoints, InvalidRequest, UnsupportedSetting
from kvsdk.prompt import (
    File,
    Image,
    Message,
    Part,
    Request,
    Text,
    Thinking,
    Tool,
    ToolCall,
    breakpoint_of,
)

from kvsdk_anthropic._facts import DOCUMENT_TYPES, DROPPED_SETTINGS, IMAGE_TYPES, MAX_BREAKPOINTS


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
    if request.response_format is not None:
        schema = dict(request.response_format.schema)
        body["output_config"] = {"format": {"type": "json_schema", "schema": schema}}
    if request.is_prewarm:
        _check_prewarm(request)
        body["max_tokens"] = 0
    _check_extra(request)
    return body


def _check_prewarm(request: Request) -> None:
    """What the vendor answers with 400 (platform.claude.com/docs: prompt caching, 2026-08-21)."""
    refused = []
    if request.tool_choice not in (None, "auto", "none"):
        refused.append("tool_choice")
    if request.response_format is not None:
        refused.append("response_format")
    for field in refused:
        raise UnsupportedSetting(
            f"a pre-warming request cannot have this {field}", field=field, backend="anthropic"
        )


def _check_extra(request: Request) -> None:
    """Refuse what the vendor would refuse of its own settings: dropped ones, and a fifth mark."""
    extra = request.extra.get("anthropic", {})
    for name in DROPPED_SETTINGS:
        if name in extra:
            raise UnsupportedSetting(
                f"anthropic no longer takes {name}; leave it out of extra", field="extra", backend="anthropic"
            )
    if "cache_control" in extra and sum(mark is not None for mark in request.marks()) >= MAX_BREAKPOINTS:
        raise InvalidBreakpoints(
            f"the automatic mark in extra would be one more than {MAX_BREAKPOINTS}",
            field="extra",
            backend="anthropic",
        )


def _turns(messages: tuple[Message, ...]) -> list[dict[str, Any]]:
    """Tool results are user turns here; what follows them from the user belongs to the same turn."""
    turns: list[dict[str, Any]] = []
    for message in messages:
        role = "user" if message.role == "tool" else message.role
        content = [_part(part) for part in message.parts if _is_sent(part)]
        if turns and turns[-1]["role"] == role == "user":
            turns[-1]["content"].extend(content)
        elif content:
            turns.append({"role": role, "content": content})
    return turns


def _is_sent(part: Part) -> bool:
    """Blank texts are refused by the vendor, and other vendors' reasoning is not its own."""
    if isinstance(part, Text):
        return bool(part.text.strip())
    return not isinstance(part, Thinking) or part.vendor == "anthropic"


def _part(part: Part) -> dict[str, Any]:
    if isinstance(part, Thinking):
        return dict(part.data)
    if isinstance(part, Text):
        block: dict[str, Any] = {"type": "text", "text": part.text}
    elif isinstance(part, Image):
        block = {"type": "image", "source": _image_source(part)}
    elif isinstance(part, File):
        block = {"type": "document", "source": _document_source(part), "title": part.name}
    elif isinstance(part, ToolCall):
        block = {"type": "tool_use", "id": part.id, "name": part.name, "input": _input(part)}
    else:
        is_text = isinstance(part.content, str)
        content = part.content if is_text else [_part(piece) for piece in part.pieces if _is_sent(piece)]
        block = {"type": "tool_result", "tool_use_id": part.call_id, "content": content}
        if part.is_error:
            block["is_error"] = True
    return _marked(block, part)


def _input(call: ToolCall) -> dict[str, Any]:
    """The arguments, which must be an object here; text of another model that is none is kept as text."""
    if call.arguments or call.arguments_json.strip() in ("", "{}"):
        return dict(call.arguments)
    return {"arguments_json": call.arguments_json}


def _image_source(image: Image) -> dict[str, Any]:
    """Media types: anthropic 2.14.0, `types/base64_image_source_param.py`."""
    if image.url is not None:
        return {"type": "url", "url": image.url}
    _check_media_type(image.media_type, IMAGE_TYPES, "images")
    return {"type": "base64", "media_type": image.media_type, "data": image.data}


def _document_source(file: File) -> dict[str, Any]:
    """PDFs, plain texts and uploads: anthropic 2.14.0, `types/document_block_param.py`."""
    if file.file_id is not None:
        return {"type": "file", "file_id": file.file_id}
    if file.url is not None:
        return {"type": "url", "url": file.url}
    _check_media_type(file.media_type, DOCUMENT_TYPES, "files")
    if file.media_type == "text/plain":
        text = b64decode(file.data or "").decode("utf-8", "replace")
        return {"type": "text", "media_type": "text/plain", "data": text}
    return {"type": "base64", "media_type": file.media_type, "data": file.data}


def _check_media_type(given: str | None, known: tuple[str, ...], what: str) -> None:
    if given not in known:
        raise InvalidRequest(
            f"anthropic takes {what} of {', '.join(known)}, not {given}",
            field="messages",
            backend="anthropic",
        )


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
