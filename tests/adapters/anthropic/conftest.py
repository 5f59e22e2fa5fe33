"""Clients of the Messages API on loopback."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from anthropic_wire import MODEL
from kvsdk import Client
from loopback import Loopback


@pytest.fixture
def connect(loopback: Loopback, ledger_path: Path) -> Iterator[Callable[..., Client]]:
    """Makes clients; without retries and with a ledger unless told otherwise."""
    made: list[Client] = []

    def make(model: str = MODEL, **options: Any) -> Client:
        settings = {"base_url": loopback.url, "api_key": "sk-ant-test", "retry": False, "ledger": ledger_path}
        client = Client(f"anthropic:{model}", **(settings | options))
        made.append(client)
        return client

    yield make
    for client in made:
        client.close()


@pytest.fixture
def client(connect: Callable[..., Client]) -> Client:
    return connect()
