"""The fixtures of the conformance suite; an adapter's class overrides the first three."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest

from kvsdk.backend import Capabilities, backend
from kvsdk.client import AsyncClient, Client
from kvsdk.cost import Ledger, LedgerRow
from kvsdk.testing.server import VendorServer

API_KEY = "kvsdk-conformance-key"
"""The key for `backend_options`, where an adapter takes one: the suite looks for it where it must not be."""


class Fixtures:
    """What a standard test may ask for."""

    #: Settings of every call of the suite; for a model of one's own, such that it answers the same again.
    call_options: ClassVar[dict[str, Any]] = {"max_tokens": 64}

    @pytest.fixture
    def backend_address(self) -> str:
        """`"scheme:target"`. To be overridden."""
        raise NotImplementedError("override the fixture `backend_address`")

    @pytest.fixture
    def backend_options(self) -> dict[str, Any]:
        """Options of the client: address of the scripted server, `api_key=API_KEY`. To be overridden."""
        return {}

    @pytest.fixture
    def vendor_server(self) -> VendorServer | None:
        """The scripted server behind the address, or None for an engine that answers as it likes."""
        return None

    # ------------------------------------------------------------------ not to be overridden

    @pytest.fixture
    def scripted(self, vendor_server: VendorServer | None) -> VendorServer:
        """The scripted server, for tests that make no sense without one."""
        if vendor_server is None:
            pytest.skip("this backend's answers cannot be scripted")
        return vendor_server

    @pytest.fixture
    def capabilities(self, backend_address: str, backend_options: dict[str, Any]) -> Capabilities:
        """What the backend says it can do."""
        return backend(backend_address, **backend_options).capabilities

    @pytest.fixture
    def ledger_path(self, tmp_path: Path) -> Path:
        """The ledger's file, alone in its folder."""
        folder = tmp_path / "ledger"
        folder.mkdir()
        return folder / "costs.db"

    @pytest.fixture
    def connect(
        self, backend_address: str, backend_options: dict[str, Any], ledger_path: Path
    ) -> Iterator[Callable[..., Client]]:
        """Makes clients with a ledger and, unless told otherwise, without retries."""
        made: list[Client] = []

        def make(**changes: Any) -> Client:
            settings: dict[str, Any] = {"retry": False, "ledger": ledger_path}
            made.append(Client(backend_address, **{**settings, **backend_options, **changes}))
            return made[-1]

        yield make
        for client in made:
            client.close()

    @pytest.fixture
    def client(self, connect: Callable[..., Client]) -> Client:
        """A client with a ledger and without retries."""
        return connect()

    @pytest.fixture
    def aclient(self, backend_address: str, backend_options: dict[str, Any]) -> Callable[[], AsyncClient]:
        """Makes an async client; the test closes it, in the loop that it was used in."""
        settings: dict[str, Any] = {"retry": False, **backend_options}
        return lambda: AsyncClient(backend_address, **settings)

    @pytest.fixture
    def rows(self, ledger_path: Path) -> Callable[[], list[LedgerRow]]:
        """What is in the ledger now."""

        def read() -> list[LedgerRow]:
            with Ledger(ledger_path) as ledger:
                return list(ledger.rows())

        return read


def script(server: VendorServer | None, text: str = "Valve A.", *, streams: bool = False) -> None:
    """Have the next answer be a text, where answers can be scripted."""
    if server is None:
        return
    if streams:
        server.streamed(text[:3], text[3:])
    else:
        server.whole(text)
