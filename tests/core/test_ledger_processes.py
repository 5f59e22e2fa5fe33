"""One ledger, many writers, and writers that die."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from kvsdk.cost import Ledger

WRITER = """
import sys
from datetime import UTC, datetime
from kvsdk.cost import Ledger, LedgerRow

path, name, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
with Ledger(path, durability=sys.argv[4]) as ledger:
    for number in range(count):
        key = f"{name}-{number}"
        ledger.append(
            LedgerRow(
                id=key, operation_id=key, attempt=1, at=datetime.now(UTC), state="ok", backend="b", model="m"
            )
        )
        print(key, flush=True)
"""


def writer(path: Path, name: str, count: int, durability: str = "commit") -> subprocess.Popen[str]:
    arguments = [sys.executable, "-c", WRITER, str(path), name, str(count), durability]
    return subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.mark.parametrize("durability", ["commit", "batched"])
def test_processes_share_one_file(tmp_path: Path, durability: str) -> None:
    """Four processes open a ledger that does not exist yet and lose nothing."""
    path = tmp_path / "costs.db"
    writers = [writer(path, f"p{number}", 25, durability) for number in range(4)]
    for one in writers:
        _, errors = one.communicate(timeout=60)
        assert one.returncode == 0, errors
    with Ledger(path) as ledger:
        ids = {row.id for row in ledger.rows()}
    assert ids == {f"p{number}-{row}" for number in range(4) for row in range(25)}


def test_a_killed_writer_loses_no_row_that_was_acknowledged(tmp_path: Path) -> None:
    """`kill -9` between two rows: every row whose `append` had returned is there."""
    path = tmp_path / "costs.db"
    one = writer(path, "p", 100_000)
    assert one.stdout is not None
    assert one.stderr is not None
    acknowledged = [one.stdout.readline().strip() for _ in range(20)]
    assert acknowledged[-1], one.stderr.read()
    one.send_signal(signal.SIGKILL)
    acknowledged += [line.strip() for line in one.stdout if line.endswith("\n")]
    one.wait(timeout=60)
    one.stdout.close()
    one.stderr.close()
    with Ledger(path) as ledger:
        ids = {row.id for row in ledger.rows()}
    assert len(acknowledged) >= 20
    assert set(acknowledged) <= ids


def test_a_killed_batched_writer_loses_its_open_batch_at_most(tmp_path: Path) -> None:
    """`kill -9` at any moment: what is missing is the end of what was appended, 256 rows of it at most."""
    path = tmp_path / "costs.db"
    one = writer(path, "p", 100_000, "batched")
    assert one.stdout is not None
    assert one.stderr is not None
    appended = [one.stdout.readline().strip() for _ in range(2_000)]
    assert appended[-1], one.stderr.read()
    one.send_signal(signal.SIGKILL)
    appended += [line.strip() for line in one.stdout if line.endswith("\n")]
    one.wait(timeout=60)
    one.stdout.close()
    one.stderr.close()
    with Ledger(path) as ledger:
        ids = [row.id for row in ledger.rows()]
    assert len(appended) - 256 <= len(ids)
    assert ids[: len(appended)] == appended[: len(ids)]


FORK = """
import os, sys
from datetime import UTC, datetime
from kvsdk.cost import Ledger, LedgerRow


def row(key):
    return LedgerRow(
        id=key, operation_id=key, attempt=1, at=datetime.now(UTC), state="ok", backend="b", model="m"
    )


with Ledger(sys.argv[1], durability=sys.argv[2]) as ledger:
    ledger.append(row("parent-1"))
    child = os.fork()
    if child == 0:
        ledger.append(row("child"))
        ledger.flush()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    ledger.append(row("parent-2"))
"""


@pytest.mark.parametrize("durability", ["commit", "batched"])
def test_a_process_that_forks_goes_on_with_its_ledger(tmp_path: Path, durability: str) -> None:
    """Parent and child write to the one they share, as the workers of an application server do."""
    path = tmp_path / "costs.db"
    command = [sys.executable, "-W", "ignore", "-c", FORK, str(path), durability]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    with Ledger(path) as ledger:
        assert {row.id for row in ledger.rows()} == {"parent-1", "child", "parent-2"}


def test_a_batched_ledger_is_written_at_exit(tmp_path: Path) -> None:
    """Also when nobody closes it."""
    code = WRITER.replace(
        "with Ledger(path, durability=sys.argv[4]) as ledger:",
        "ledger = Ledger(path, durability=sys.argv[4])\nif True:",
    )
    path = tmp_path / "costs.db"
    done = subprocess.run(
        [sys.executable, "-c", code, str(path), "p", "10", "batched"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    with Ledger(path) as ledger:
        assert sum(1 for _ in ledger.rows()) == 10


def test_threads_share_one_ledger(tmp_path: Path) -> None:
    """Eight threads append to one instance."""
    from datetime import UTC, datetime

    from kvsdk.cost import LedgerRow

    with Ledger(tmp_path / "costs.db", durability="batched") as ledger:

        def write(name: int) -> None:
            for number in range(25):
                key = f"{name}-{number}"
                ledger.append(
                    LedgerRow(
                        id=key,
                        operation_id=key,
                        attempt=1,
                        at=datetime.now(UTC),
                        state="ok",
                        backend="b",
                        model="m",
                    )
                )

        threads = [threading.Thread(target=write, args=(name,)) for name in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sum(1 for _ in ledger.rows()) == 8 * 25
