"""The standard tests, for both of OpenAI's APIs and for a server that speaks one of them."""

from __future__ import annotations

from typing import Any

import openai_wire as wire
import pytest
from kvsdk.testing import API_KEY, BackendConformance
from loopback import Loopback
from openai_servers import ChatServer, ResponsesServer


class TestResponses(BackendConformance):
    """The Responses API, on a model that takes marks."""

    @pytest.fixture
    def backend_address(self) -> str:
        return f"openai:{wire.MODEL}"

    @pytest.fixture
    def backend_options(self, loopback: Loopback) -> dict[str, Any]:
        return {"base_url": f"{loopback.url}/v1", "api_key": API_KEY}

    @pytest.fixture
    def vendor_server(self, loopback: Loopback) -> ResponsesServer:
        return ResponsesServer(loopback)


class TestChat(BackendConformance):
    """Chat Completions, on a model that takes none."""

    @pytest.fixture
    def backend_address(self) -> str:
        return f"openai:{wire.OLD_MODEL}"

    @pytest.fixture
    def backend_options(self, loopback: Loopback) -> dict[str, Any]:
        return {"base_url": f"{loopback.url}/v1", "api_key": API_KEY, "api": "chat"}

    @pytest.fixture
    def vendor_server(self, loopback: Loopback) -> ChatServer:
        return ChatServer(loopback)


class TestCompatible(BackendConformance):
    """A server that is not OpenAI, of which nothing is known."""

    @pytest.fixture
    def backend_address(self, loopback: Loopback) -> str:
        return f"openai+{loopback.url}/v1#some-model"

    @pytest.fixture
    def backend_options(self) -> dict[str, Any]:
        return {"api_key": API_KEY}

    @pytest.fixture
    def vendor_server(self, loopback: Loopback) -> ChatServer:
        return ChatServer(loopback)


class TestAzure(BackendConformance):
    """A deployment that names its model."""

    @pytest.fixture
    def backend_address(self) -> str:
        return "azure:valves"

    @pytest.fixture
    def backend_options(self, loopback: Loopback) -> dict[str, Any]:
        return {"base_url": f"{loopback.url}/openai/v1/", "api_key": API_KEY, "model": wire.MODEL}

    @pytest.fixture
    def vendor_server(self, loopback: Loopback) -> ResponsesServer:
        return ResponsesServer(loopback)


class TestOpenRouter(TestCompatible):
    """A gateway that takes Anthropic's marks in Chat's parts."""

    @pytest.fixture
    def backend_options(self) -> dict[str, Any]:
        return {"api_key": API_KEY, "profile": "openrouter"}


class TestDeepSeek(TestCompatible):
    """A vendor whose reasoning has to come back."""

    @pytest.fixture
    def backend_options(self) -> dict[str, Any]:
        return {"api_key": API_KEY, "profile": "deepseek"}
