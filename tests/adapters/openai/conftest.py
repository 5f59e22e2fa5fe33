"""Clients of both OpenAI APIs on loopback."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from kvsdk import Client
from loopback import Loopback
from openai_wire import MODEL


@pytest.fixture
def connect(loopback: Loopback, ledger_path: Path) -> Iterator[Callable[..., Client]]:
    """Makes clients; without retries and with a ledger unless told otherwise."""
    made: list[Client] = []

    def make(model: str = MODEL, **options: Any) -> Client:
        settings = {
            "base_url": f"{loopback.url}/v1",
            "api_key": "sk-test-key",
            "retry": False,
            "ledger": ledger_path,
        }
        client = Client(f"openai:{model}", **(settings | options))
        made.append(client)
        return client

    yield make
    for client in made:
        client.close()


@pytest.fixture
def server(loopback: Loopback, ledger_path: Path) -> Iterator[Callable[..., Client]]:
    """Makes clients of a server that speaks Chat Completions and is not OpenAI."""
    made: list[Client] = []

    def make(model: str = "some-model", **options: Any) -> Client:
        address = f"openai+{loopback.url}/v1#{model}"
        client = Client(address, **({"retry": False, "ledger": ledger_path} | options))
        made.append(client)
        return client

    yield make
    for client in made:
        client.close()


@pytest.fixture
def client(connect: Callable[..., Client]) -> Client:
    return connect()


@pytest.fixture
def chat(connect: Callable[..., Client]) -> Client:
    return connect(api="chat")
