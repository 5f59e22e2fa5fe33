"""What every test may use: a scripted server, a raw one, a ledger, and an environment without keys."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from kvsdk.cost import Ledger, LedgerRow
from loopback import Loopback
from pytest_httpserver import HTTPServer
from rawserver import RawServer


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    """Async tests run on asyncio: the vendors' SDKs are made for it."""
    return "asyncio"


@pytest.fixture(autouse=True)
def _no_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in tuple(os.environ):
        if name.startswith(("ANTHROPIC_", "OPENAI_", "AZURE_")):
            monkeypatch.delenv(name)


@pytest.fixture(scope="session")
def _vendor_server() -> Iterator[HTTPServer]:
    server = HTTPServer(host="127.0.0.1", port=0, threaded=True)
    server.start()
    yield server
    server.stop()


@pytest.fixture
def loopback(_vendor_server: HTTPServer) -> Iterator[Loopback]:
    """A vendor's server that answers what the test scripts."""
    _vendor_server.clear()
    server = Loopback(_vendor_server)
    yield server
    server.released.set()
    server.check_prefixes()


@pytest.fixture
def ledger_path(tmp_path: Path) -> Path:
    return tmp_path / "costs.db"


@pytest.fixture
def rows(ledger_path: Path) -> Callable[[], list[LedgerRow]]:
    """What is in the ledger now."""

    def read() -> list[LedgerRow]:
        with Ledger(ledger_path) as ledger:
            return list(ledger.rows())

    return read


@pytest.fixture
def raw_server() -> Iterator[RawServer]:
    """A server that may break a stream off."""
    server = RawServer()
    yield server
    server.close()
