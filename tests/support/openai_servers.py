"""Servers of OpenAI's two APIs for the conformance suite."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import openai_wire as wire
from loopback import Loopback, Scripted, sse

REQUEST_ID = {"x-request-id": "req_1"}


class OpenAIServer:
    """What both APIs have in common."""

    def __init__(self, loopback: Loopback) -> None:
        self._loopback = loopback

    @property
    def bodies(self) -> list[dict[str, Any]]:
        return self._loopback.bodies

    def rate_limited(self, message: str) -> None:
        self._answer({"error": {"message": message, "type": "requests", "code": "rate_limit_exceeded"}}, 429)

    def failed(self, message: str) -> None:
        self._answer({"error": {"message": message, "type": "server_error", "code": None}}, 500)

    def _answer(self, body: Any, status: int = 200) -> None:
        self._loopback.script(Scripted(body, status, REQUEST_ID))


class ResponsesServer(OpenAIServer):
    """Speaks the Responses API."""

    def whole(self, text: str) -> None:
        self._answer(wire.response(wire.output_text(text)))

    def streamed(self, *pieces: str) -> None:
        self._loopback.script(sse(wire.response_stream(*pieces), **REQUEST_ID))

    def tool_call(self, name: str, arguments: Mapping[str, Any]) -> None:
        reasoning = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "b3BhcXVl"}
        call = wire.function_call("call_1", name, json.dumps(arguments))
        self._answer(wire.response(reasoning, call))

    def without_usage(self, text: str) -> None:
        self._answer(wire.response(wire.output_text(text), usage=None))

    def cut(self, *pieces: str) -> None:
        deltas = [wire.text_delta(piece) for piece in pieces]
        self._loopback.script(sse([*wire.begun(), *deltas], **REQUEST_ID))


class ChatServer(OpenAIServer):
    """Speaks Chat Completions."""

    def whole(self, text: str) -> None:
        self._answer(wire.completion(text))

    def streamed(self, *pieces: str) -> None:
        self._loopback.script(sse(wire.chat_stream(*pieces), **REQUEST_ID))

    def tool_call(self, name: str, arguments: Mapping[str, Any]) -> None:
        self._answer(wire.completion(None, wire.tool_call("call_1", name, json.dumps(arguments))))

    def without_usage(self, text: str) -> None:
        self._answer(wire.completion(text, usage=None))

    def cut(self, *pieces: str) -> None:
        chunks = [wire.chunk({"role": "assistant", "content": ""})]
        chunks += [wire.chunk({"content": piece}) for piece in pieces]
        self._loopback.script(sse(chunks, **REQUEST_ID))
