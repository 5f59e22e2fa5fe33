"""What a client writes to its ledger."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from anthropic_wire import message
from kvsdk import Client
from kvsdk.cost import Ledger, LedgerRow
from loopback import Loopback

Rows = Callable[[], list[LedgerRow]]


def test_three_answers_with_one_id_are_three_rows(client: Client, loopback: Loopback, rows: Rows) -> None:
    """Some servers repeat their ids; ours are the keys."""
    loopback.script(*[message(id="msg_static")] * 3)
    for _ in range(3):
        client.generate("x")
    assert [row.reply_id for row in rows()] == ["msg_static"] * 3
    assert len({row.id for row in rows()}) == len({row.operation_id for row in rows()}) == 3


def test_a_client_without_a_ledger_writes_none(connect: Callable[..., Client], loopback: Loopback) -> None:
    """The ledger is optional."""
    loopback.script(message())
    client = connect(ledger=None)
    assert client.generate("x").text == "Valve A."
    assert client.ledger is None


def test_a_ledger_of_the_callers_stays_open(
    connect: Callable[..., Client], loopback: Loopback, tmp_path: Path
) -> None:
    """Closing the client writes the rest of a batched ledger and leaves it usable."""
    loopback.script(message())
    with Ledger(tmp_path / "shared.db", durability="batched") as ledger:
        with connect(ledger=ledger) as client:
            client.generate("x")
        assert [row.state for row in ledger.rows()] == ["ok"]


def test_sixteen_threads_share_one_client(
    connect: Callable[..., Client], loopback: Loopback, rows: Rows
) -> None:
    """Calls from many threads each get an answer of their own, and each is a row."""
    loopback.script(*(message(id=f"msg_{number}") for number in range(48)))
    client = connect()
    with ThreadPoolExecutor(16) as pool:
        replies = list(pool.map(lambda number: client.generate(f"question {number}"), range(48)))
    ids = {f"msg_{number}" for number in range(48)}
    assert {reply.id for reply in replies} == ids
    assert {row.reply_id for row in rows()} == ids
    assert {body["messages"][0]["content"][0]["text"] for body in loopback.bodies} == {
        f"question {number}" for number in range(48)
    }


def test_a_ledger_that_fails_does_not_cost_the_answer(
    connect: Callable[..., Client], loopback: Loopback, ledger_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The caller still gets what was paid for, the row is in the spill, and the log says so at ERROR."""
    loopback.script(message())
    client = connect()
    with sqlite3.connect(ledger_path) as connection:
        connection.execute("DROP TABLE kvsdk_ledger")
    connection.close()
    assert client.generate("SECRET-PROMPT").text == "Valve A."
    (record,) = [record for record in caplog.records if record.name == "kvsdk"]
    assert "costs.db.spill.jsonl" in record.getMessage()
    spilled = (ledger_path.parent / "costs.db.spill.jsonl").read_text()
    assert "msg_1" in spilled
    assert "SECRET-PROMPT" not in spilled + record.getMessage()


def test_a_row_that_nothing_takes_is_in_the_log(
    loopback: Loopback, ledger_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Neither the ledger nor the spill (on a full disk): the answer is returned, the row logged whole."""
    loopback.script(message())
    ledger = Ledger(ledger_path, spill="/dev/full")
    options = {"base_url": loopback.url, "api_key": "test", "ledger": ledger}
    with Client("anthropic:claude-sonnet-5-5", **options) as client:
        with sqlite3.connect(ledger_path) as connection:
            connection.execute("DROP TABLE kvsdk_ledger")
        connection.close()
        assert client.generate("SECRET-PROMPT").text == "Valve A."
    (record,) = [record for record in caplog.records if record.name == "kvsdk"]
    assert "msg_1" in record.getMessage()
    assert "SECRET-PROMPT" not in record.getMessage()


def test_a_row_that_no_table_holds_does_not_cost_the_answer(
    connect: Callable[..., Client], loopback: Loopback, rows: Rows, caplog: pytest.LogCaptureFixture
) -> None:
    """A count beyond 64 bits is a server's nonsense: the answer is returned, and the row is in the log."""
    usage = {"input_tokens": 2**64, "output_tokens": 1}
    loopback.script(message(usage={**usage, "cache_read_input_tokens": 0, "cache_creation_input_tokens": 0}))
    assert connect().generate("x").text == "Valve A."
    (record,) = [record for record in caplog.records if record.name == "kvsdk"]
    assert "too large" in record.getMessage()
    assert rows() == []
