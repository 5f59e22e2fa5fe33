"""Tool calls in what a model writes, found by vLLM's own parsers."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

from kvsdk._ids import new_id
from kvsdk._text import did_you_mean
from kvsdk.errors import ConfigurationError

TEMPLATE_PARSER = "hermes"
"""The parser that reads what `templates/chatml_tools.jinja` asks for."""


class PlainText:
    """Passes text on as it comes."""

    def feed(self, text: str) -> Iterator[dict[str, Any]]:
        if text:
            yield {"type": "text", "text": text}

    def finish(self) -> Iterator[dict[str, Any]]:
        yield from ()


class ForcedCall:
    """The whole text is one call, as JSON with its name and arguments (the engine was held to that)."""

    def __init__(self) -> None:
        self._text: list[str] = []

    def feed(self, text: str) -> Iterator[dict[str, Any]]:
        self._text.append(text)
        yield from ()

    def finish(self) -> Iterator[dict[str, Any]]:
        text = "".join(self._text)
        try:
            call = json.loads(text)
        except json.JSONDecodeError:  # cut off by max_tokens
            yield {"type": "text", "text": text}
            return
        yield _call(call["name"], json.dumps(call["arguments"], ensure_ascii=False))


class ParsedText:
    """Text that may hold calls: passed on until a call may begin, the rest is parsed at the end."""

    def __init__(self, parser: Any, tools: Sequence[dict[str, Any]]) -> None:
        self._parser = parser
        self._tools = tools
        self._start: str | None = getattr(parser, "tool_call_start_token", None)
        self._held = ""

    def feed(self, text: str) -> Iterator[dict[str, Any]]:
        self._held += text
        sendable = 0 if self._start is None else _before(self._held, self._start)
        if sendable:
            yield {"type": "text", "text": self._held[:sendable]}
            self._held = self._held[sendable:]

    def finish(self) -> Iterator[dict[str, Any]]:
        from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest

        request = ChatCompletionRequest(model="", messages=[], tools=list(self._tools))
        found = self._parser.extract_tool_calls(self._held, request)
        if found.content:
            yield {"type": "text", "text": found.content}
        for call in found.tool_calls:
            yield _call(call.function.name, call.function.arguments)


def make_parser(name: str, tokenizer: Any) -> Any:
    """vLLM's parser of this name.

    Raises:
        ConfigurationError: vLLM has none.
    """
    from vllm.tool_parsers import ToolParserManager

    try:
        return ToolParserManager.get_tool_parser(name)(tokenizer)
    except KeyError as error:
        known = (*ToolParserManager.lazy_parsers, *ToolParserManager.tool_parsers)
        raise ConfigurationError(
            f"vLLM has no tool parser {name!r}.{did_you_mean(name, known)}", backend="vllm"
        ) from error


def _call(name: str, arguments: str) -> dict[str, Any]:
    return {"type": "tool_call", "id": new_id("call"), "name": name, "arguments": arguments}


def _before(text: str, token: str) -> int:
    """How much of a text stands certainly before a token that may begin at its end."""
    found = text.find(token)
    if found >= 0:
        return found
    for length in range(min(len(token) - 1, len(text)), 0, -1):
        if text.endswith(token[:length]):
            return len(text) - length
    return len(text)
