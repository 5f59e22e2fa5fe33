"""Rows that the database does not take: kept in a file, loudly, and written later."""

from __future__ import annotations

import json
import logging
import sqlite3
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from kvsdk import LedgerError
from kvsdk.cost import Ledger
from kvsdk.cost.ledger.spill import Spill
from ledger_rows import BILLS, FULL_V1, PREFIX, row


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("KVSDK_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "costs.db"


def run_sql(path: Path, *statements: str) -> None:
    connection = sqlite3.connect(path)
    with connection:
        for statement in statements:
            connection.execute(statement)
    connection.close()


HIDE = "ALTER TABLE kvsdk_ledger RENAME TO hidden"
SHOW = "ALTER TABLE hidden RENAME TO kvsdk_ledger"


@pytest.mark.parametrize("durability", ["commit", "batched"])
def test_a_row_that_is_not_taken_is_spilled_and_written_later(
    path: Path, durability: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The call goes on, the log says at ERROR where the row is, and opening the ledger again writes it."""
    whole = row(5, usage=FULL_V1.usage, cost=FULL_V1.cost, bill=BILLS[1], prefix=PREFIX, metadata={"ü": "é"})
    with Ledger(path, durability=durability) as ledger:  # type: ignore[arg-type]
        ledger.append(row(1))
        ledger.flush()
        run_sql(path, HIDE)
        ledger.append(whole)
        ledger.append(row(6))
        ledger.flush()
        (spilled,) = ledger.spill_files
    assert spilled == path.with_name("costs.db.spill.jsonl")
    assert [json.loads(line)["id"] for line in spilled.read_text().splitlines()] == ["row_5", "row_6"]
    errors = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
    assert all(str(spilled) in error and "no such table" in error for error in errors[:1])
    assert len(errors) >= 1
    run_sql(path, SHOW)
    with Ledger(path) as ledger:
        assert list(ledger.rows()) == [row(1), whole, row(6)]
        assert ledger.spill_files == ()
    assert not spilled.exists()


def test_a_database_that_takes_rows_again_gets_the_spilled_ones(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without being opened anew: after a rest the next row is tried, and the others follow it."""
    from kvsdk.cost.ledger import ledger as room

    monkeypatch.setattr(room, "_REST_S", 0.0)
    with Ledger(path) as ledger:
        run_sql(path, HIDE)
        ledger.append(row(1))
        run_sql(path, SHOW)
        ledger.append(row(2))
        assert [read.id for read in ledger.rows()] == ["row_1", "row_2"]
        assert ledger.spill_files == ()


def test_a_database_that_failed_is_left_in_peace_for_a_while(path: Path) -> None:
    """Rows are spilled at once then, so that no call waits for a server that is away."""
    with Ledger(path) as ledger:
        run_sql(path, HIDE)
        ledger.append(row(1))
        run_sql(path, SHOW)
        ledger.append(row(2))
        assert list(ledger.rows()) == []
    with Ledger(path) as ledger:
        assert [read.id for read in ledger.rows()] == ["row_1", "row_2"]


def test_a_row_that_is_in_both_is_one(path: Path) -> None:
    """A crash between writing a spilled row and removing the file doubles nothing."""
    with Ledger(path) as ledger:
        run_sql(path, HIDE)
        ledger.append(row(1))
    spilled = path.with_name("costs.db.spill.jsonl")
    line = spilled.read_text()
    run_sql(path, SHOW)
    Ledger(path).close()
    spilled.write_text(line + line)
    with Ledger(path) as ledger:
        assert [read.id for read in ledger.rows()] == ["row_1"]


def test_a_line_that_was_cut_short_is_set_aside(path: Path) -> None:
    """The rows around it are written, and the piece is kept for whoever wants to look at it."""
    with Ledger(path) as ledger:
        run_sql(path, HIDE)
        ledger.append(row(1))
    run_sql(path, SHOW)
    spilled = path.with_name("costs.db.spill.jsonl")
    with spilled.open("a") as file:
        file.write('{"id": "row_2", "opera')
    with Ledger(path) as ledger:
        assert [read.id for read in ledger.rows()] == ["row_1"]
    assert spilled.with_name("costs.db.spill.jsonl.rejected").read_text() == '{"id": "row_2", "opera'


def test_a_spill_of_an_earlier_version_is_written(path: Path) -> None:
    """A line without the columns that came later; what it does not say is unknown."""
    with Ledger(path) as ledger:
        run_sql(path, HIDE)
        ledger.append(row(1, bill=BILLS[0], usage=FULL_V1.usage))
    run_sql(path, SHOW)
    spilled = path.with_name("costs.db.spill.jsonl")
    record = json.loads(spilled.read_text())
    spilled.write_text(json.dumps({k: v for k, v in record.items() if k not in ("bill", "prefix")}) + "\n5\n")
    with Ledger(path) as ledger:
        assert list(ledger.rows()) == [row(1, usage=FULL_V1.usage)]
    assert spilled.with_name("costs.db.spill.jsonl.rejected").read_text() == "5\n"


def test_a_row_that_nothing_takes_is_an_error(path: Path) -> None:
    """`/dev/full` is a file on a full disk: the error says that the row is in neither place, and why."""
    with Ledger(path, spill="/dev/full") as ledger:
        run_sql(path, HIDE)
        with pytest.raises(LedgerError, match=r"no such table.*nor spilled.*No space left"):
            ledger.append(row(1))
        run_sql(path, SHOW)


def test_another_place_is_used_where_the_first_is_full(tmp_path: Path) -> None:
    """A ledger and the file beside it are mostly on the same disk."""
    spill = Spill([Path("/dev/full"), tmp_path / "new" / "spill.jsonl"])
    assert spill.keep([{"id": "row_1"}]) == tmp_path / "new" / "spill.jsonl"
    got: list[object] = []
    assert spill.replay(got.extend) == 1
    assert got == [{"id": "row_1"}]


FULL_DISK = """
import resource, sys
from kvsdk.cost import Ledger
sys.path.insert(0, sys.argv[2])
from ledger_rows import row

ledger = Ledger(sys.argv[1])
resource.setrlimit(resource.RLIMIT_FSIZE, (150_000, resource.RLIM_INFINITY))
for number in range(100):
    ledger.append(row(number, metadata={"filling": "x" * 500}))
print(len(ledger.spill_files))
"""


def test_a_disk_that_fills_up_loses_no_row(path: Path) -> None:
    """Files may not grow beyond 150 kB: some rows are in the database, the rest beside it, none twice."""
    support = str(Path(__file__).parent.parent / "support")
    command = [sys.executable, "-c", FULL_DISK, str(path), support]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "1\n"
    assert "disk" in done.stderr or "I/O" in done.stderr
    with Ledger(path) as ledger:
        assert [read.id for read in ledger.rows()] == [f"row_{number}" for number in range(100)]


def test_threads_and_replays_share_one_spill(tmp_path: Path) -> None:
    """Four threads append while others empty it: every record comes out once."""
    place = tmp_path / "spill.jsonl"
    got: list[int] = []

    def append(base: int) -> None:
        for number in range(50):
            Spill([place]).keep([{"number": base + number}])

    def empty() -> None:
        for _ in range(50):
            Spill([place]).replay(lambda records: got.extend(record["number"] for record in records))

    threads = [threading.Thread(target=append, args=(base,)) for base in (0, 100, 200, 300)]
    threads += [threading.Thread(target=empty) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    empty()
    assert sorted(got) == sorted(base + number for base in (0, 100, 200, 300) for number in range(50))


def test_a_replay_that_fails_keeps_the_file(tmp_path: Path) -> None:
    """Nothing is removed before the database has it."""
    spill = Spill([tmp_path / "spill.jsonl"])
    spill.keep([{"id": "row_1"}])

    def refuse(_: object) -> None:
        raise OSError("away")

    with pytest.raises(OSError, match="away"):
        spill.replay(refuse)
    assert len(spill.files) == 1


def test_a_corrupt_ledger_is_refused_and_the_spill_named(path: Path) -> None:
    """Its pages are overwritten: rows go to the spill, reading and opening say so, and where they are."""
    with Ledger(path) as ledger:
        for number in range(200):
            ledger.append(row(number))
    content = bytearray(path.read_bytes())
    content[100:] = b"\xa5" * (len(content) - 100)
    path.write_bytes(content)
    with pytest.raises(LedgerError, match=r"costs\.db cannot be used as a ledger: .*malformed"):
        Ledger(path)
    Spill.beside(str(path)).keep([{"id": "row_1"}])
    with pytest.raises(LedgerError, match=r"malformed.*costs\.db\.spill\.jsonl"):
        Ledger(path)
    assert path.read_bytes() == bytes(content)


def test_a_ledger_that_goes_bad_under_a_reader_is_an_error(path: Path) -> None:
    """Of our tree, with the ledger's name and the spilled rows' place."""
    with Ledger(path) as ledger:
        ledger.append(row(1))
        run_sql(path, HIDE)
        ledger.append(row(2))
        with pytest.raises(LedgerError, match=r"costs\.db cannot be read: no such table.*spill\.jsonl"):
            list(ledger.rows())
        run_sql(path, SHOW)
