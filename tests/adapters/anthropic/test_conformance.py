"""The standard tests, for the Messages API."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import anthropic_wire as wire
import pytest
from kvsdk.testing import API_KEY, BackendConformance
from loopback import Loopback, Scripted, sse

REQUEST_ID = {"request-id": "req_1"}


class MessagesServer:
    """Speaks the Messages API."""

    def __init__(self, loopback: Loopback) -> None:
        self._loopback = loopback

    @property
    def bodies(self) -> list[dict[str, Any]]:
        return self._loopback.bodies

    def whole(self, text: str) -> None:
        self._answer(wire.message(wire.text(text)))

    def streamed(self, *pieces: str) -> None:
        self._loopback.script(sse(wire.stream(*pieces), **REQUEST_ID))

    def tool_call(self, name: str, arguments: Mapping[str, Any]) -> None:
        thinking = {"type": "thinking", "thinking": "Look first.", "signature": "c2ln"}
        self._answer(
            wire.message(thinking, wire.tool_use("toolu_1", name, **arguments), stop_reason="tool_use")
        )

    def without_usage(self, text: str) -> None:
        body = wire.message(wire.text(text))
        del body["usage"]
        self._answer(body)

    def cut(self, *pieces: str) -> None:
        self._loopback.script(sse([wire.start(), *wire.text_block(0, *pieces)[:-1]], **REQUEST_ID))

    def rate_limited(self, message: str) -> None:
        self._refuse(429, "rate_limit_error", message)

    def failed(self, message: str) -> None:
        self._refuse(529, "overloaded_error", message)

    def _answer(self, body: Any, status: int = 200) -> None:
        self._loopback.script(Scripted(body, status, REQUEST_ID))

    def _refuse(self, status: int, kind: str, message: str) -> None:
        self._answer({"type": "error", "error": {"type": kind, "message": message}}, status)


class TestMessages(BackendConformance):
    """Anthropic's Messages API."""

    @pytest.fixture
    def backend_address(self) -> str:
        return f"anthropic:{wire.MODEL}"

    @pytest.fixture
    def backend_options(self, loopback: Loopback) -> dict[str, Any]:
        return {"base_url": loopback.url, "api_key": API_KEY}

    @pytest.fixture
    def vendor_server(self, loopback: Loopback) -> MessagesServer:
        return MessagesServer(loopback)
