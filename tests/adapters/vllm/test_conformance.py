"""The standard tests, for a vLLM server's words and for the engine in process."""

from __future__ import annotations

from typing import Any, ClassVar

import kvsdk
import pytest
from kvsdk.testing import API_KEY, BackendConformance
from loopback import Loopback
from openai_servers import ChatServer


class TestServer(BackendConformance):
    """What a `vllm serve` is sent and says, without one."""

    @pytest.fixture
    def backend_address(self, loopback: Loopback) -> str:
        return f"vllm+{loopback.url}#smol"

    @pytest.fixture
    def backend_options(self) -> dict[str, Any]:
        return {"api_key": API_KEY}

    @pytest.fixture
    def vendor_server(self, loopback: Loopback) -> ChatServer:
        return ChatServer(loopback)


@pytest.mark.engine
@pytest.mark.timeout(600)
class TestEngine(BackendConformance):
    """The engine itself; what it answers cannot be scripted."""

    call_options: ClassVar[dict[str, Any]] = {"max_tokens": 8, "temperature": 0}

    @pytest.fixture
    def backend_address(self, address: str) -> str:
        return address

    @pytest.fixture
    def backend_options(self, engine_options: dict[str, Any], local: kvsdk.Client) -> dict[str, Any]:
        """Those of the engine that all tests share, and that `local` keeps alive."""
        return engine_options
