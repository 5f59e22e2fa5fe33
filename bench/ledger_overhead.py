"""What the ledger costs: rows written one after another and by eight processes, and reports over a million.

    scripts/bench-ledger [--rows N] [--report-rows N]

Beside each figure stands its floor in the same run: a plain loop of INSERTs of the same columns through
Python's sqlite3, with the same durability, or the report's sums as one plain query.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import random
import resource
import sqlite3
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

from kvsdk import Usage
from kvsdk.backend import Bill, BillLine, Tariff
from kvsdk.cost import Ledger, LedgerRow, rate, report
from kvsdk.cost.ledger import schema
from kvsdk.cost.ledger.records import to_record
from kvsdk.cost.ledger.row import PrefixMark

ROUNDS = 5
AT = datetime(2026, 11, 1, tzinfo=UTC)
MODELS = ("claude-sonnet-5-5", "claude-opus-5-5", "claude-haiku-5-5", "claude-opus-4-8", "claude-sonnet-4-5")
COLUMNS = tuple(schema.rows.c.keys())
INSERT = f"INSERT OR IGNORE INTO kvsdk_ledger ({', '.join(COLUMNS)}) VALUES ({', '.join('?' * len(COLUMNS))})"


def make_row(number: int, name: str = "r") -> LedgerRow:
    """A row as a call of an application writes it."""
    draw = random.Random(number)
    model = draw.choice(MODELS)
    usage = Usage.of_parts(
        fresh=draw.randrange(500),
        read=draw.randrange(20_000),
        write=(written := draw.randrange(3_000)),
        output=draw.randrange(800),
        write_by_ttl={"5m": written},
    )
    bill = Bill(
        lines=(BillLine(usage=usage, tariff=Tariff(model=model, provider="anthropic", asked_ttls=("5m",))),)
    )
    at = AT + timedelta(seconds=2.592 * number)
    return LedgerRow(
        id=f"row_{name}{number:030x}",
        operation_id=f"op_{name}{number:031x}",
        attempt=1,
        at=at,
        state="ok",
        backend="anthropic",
        model=model,
        session=f"user-{draw.randrange(100_000)}",
        tenant=f"tenant-{draw.randrange(50)}",
        reply_id=f"msg_{number:024x}",
        request_id=f"req_{number:024x}",
        stop_reason="end_turn",
        usage=usage,
        cost=rate(bill, at=at),
        bill=bill,
        prefix=(PrefixMark(12_000, "0123456789abcdef", "5m"), PrefixMark(15_000, "fedcba9876543210", "")),
        ttft_s=0.5,
        total_s=1.5,
        metadata={"team": f"team-{draw.randrange(8)}"},
    )


def values(row: LedgerRow) -> tuple[Any, ...]:
    record = to_record(row)
    return tuple(record[name] for name in COLUMNS)


# ---------------------------------------------------------------------- one after another


def plain_commit(path: Path, rows: list[LedgerRow]) -> None:
    """The floor of `commit`: an INSERT and a commit for each row."""
    with _plain(path) as connection:
        for row in [values(row) for row in rows]:
            connection.execute(INSERT, row)
            connection.commit()


def plain_batches(path: Path, rows: list[LedgerRow]) -> None:
    """The floor of `batched`: 256 rows a transaction."""
    with _plain(path) as connection:
        for start in range(0, len(rows), 256):
            connection.executemany(INSERT, [values(row) for row in rows[start : start + 256]])
            connection.commit()


class _plain:
    def __init__(self, path: Path) -> None:
        self._connection = sqlite3.connect(path, timeout=30)
        self._connection.execute("PRAGMA journal_mode = WAL")
        self._connection.execute("PRAGMA synchronous = FULL")

    def __enter__(self) -> sqlite3.Connection:
        return self._connection

    def __exit__(self, *_: object) -> None:
        self._connection.close()


def ours(durability: Any) -> Callable[[Path, list[LedgerRow]], None]:
    def write(path: Path, rows: list[LedgerRow]) -> None:
        with Ledger(path, durability=durability) as ledger:
            for row in rows:
                ledger.append(row)

    return write


def seconds(write: Callable[[Path, list[LedgerRow]], None], rows: list[LedgerRow]) -> float:
    """One round on a new file whose tables are there."""
    with tempfile.TemporaryDirectory(dir=".") as folder:
        path = Path(folder) / "costs.db"
        Ledger(path).close()
        started_s = time.perf_counter()
        write(path, rows)
        return time.perf_counter() - started_s


def one_after_another(count: int) -> list[str]:
    rows = [make_row(number) for number in range(count)]
    pairs = {"commit": (plain_commit, ours("commit")), "batched": (plain_batches, ours("batched"))}
    lines = ["| | µs per row | rows per second | times the plain loop |", "|---|---|---|---|"]
    for durability, (floor, write) in pairs.items():
        taken = [(seconds(floor, rows), seconds(write, rows)) for _ in range(ROUNDS)]
        floor_s, ours_s = (statistics.median(column) for column in zip(*taken, strict=True))
        ratio = statistics.median(ours_s / floor_s for floor_s, ours_s in taken)
        lines.append(
            f"| plain INSERTs, {durability} | {floor_s / count * 1e6:.0f} | {count / floor_s:,.0f} | 1.00 |"
        )
        lines.append(
            f"| kvsdk, {durability} | {ours_s / count * 1e6:.0f} | {count / ours_s:,.0f} | {ratio:.2f} |"
        )
    return lines


# ---------------------------------------------------------------------- eight processes


def _process(path: str, name: str, count: int, how: str, ready: Any) -> None:
    rows = [make_row(number, name) for number in range(count)]
    write = plain_commit if how == "plain" else plain_batches if how == "plain batches" else ours(how)
    ready.wait()
    write(Path(path), rows)


def in_processes(count: int, processes: int = 8) -> list[str]:
    lines = [
        f"| {processes} processes, {count} rows each | rows per second | times the plain loops | rows lost |",
        "|---|---|---|---|",
    ]
    for durability, floor in (("commit", "plain"), ("batched", "plain batches")):
        floor_s = None
        for how in (floor, durability):
            taken_s, lost = _race(processes, count, how)
            floor_s = floor_s or taken_s
            name = f"kvsdk, {how}" if how == durability else f"plain INSERTs, {durability}"
            lines.append(
                f"| {name} | {processes * count / taken_s:,.0f} | {taken_s / floor_s:.2f} | {lost} |"
            )
    return lines


def _race(processes: int, count: int, how: str) -> tuple[float, int]:
    spawn = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory(dir=".") as folder:
        path = str(Path(folder) / "costs.db")
        Ledger(path).close()
        ready = spawn.Barrier(processes + 1)
        workers = [
            spawn.Process(target=_process, args=(path, f"p{number}-", count, how, ready))
            for number in range(processes)
        ]
        for worker in workers:
            worker.start()
        ready.wait()
        started_s = time.perf_counter()
        for worker in workers:
            worker.join()
        taken_s = time.perf_counter() - started_s
        with _plain(Path(path)) as connection:
            (there,) = connection.execute("SELECT count(*) FROM kvsdk_ledger").fetchone()
    return taken_s, processes * count - int(there)


# ---------------------------------------------------------------------- a million rows

QUERY = """
SELECT {keys}, count(*), count(DISTINCT operation_id), sum(input_tokens), sum(cache_read_tokens),
       sum(cache_write_tokens), sum(fresh_tokens), sum(output_tokens), sum(total_pico_usd),
       sum(without_cache_pico_usd), sum(saved_pico_usd)
FROM kvsdk_ledger GROUP BY {keys} ORDER BY {keys}
"""
REPORTS = {("model", "day"): "model, at_us / 86400000000", ("session",): "session"}


def reports(count: int) -> list[str]:
    lines = [
        f"| {count:,} rows | seconds | a plain query of the same sums | times | peak memory |",
        "|---|---|---|---|---|",
    ]
    with tempfile.TemporaryDirectory(dir=".") as folder:
        path = Path(folder) / "costs.db"
        Ledger(path).close()
        with _plain(path) as connection:
            connection.execute("PRAGMA synchronous = OFF")
            connection.executemany(INSERT, _many(count))
            connection.commit()
        for by, keys in REPORTS.items():
            found = _in_process(str(path), by, keys)
            lines.append(
                f"| by {' and '.join(by)} ({found['lines']:,} lines) | {found['ours_s']:.2f} "
                f"| {found['plain_s']:.2f} | {found['ours_s'] / found['plain_s']:.2f} "
                f"| {found['peak_mb']:.0f} MB |"
            )
    return lines


def _many(count: int) -> Iterator[tuple[Any, ...]]:
    """Rows like one another but for what a report groups by; making each in full would take minutes."""
    base = dict(zip(COLUMNS, values(make_row(0)), strict=True))
    draw = random.Random(0)
    for number in range(count):
        tokens = draw.randrange(20_000)
        base |= {
            "id": f"row_{number:031x}",
            "operation_id": f"op_{number:031x}",
            "at_us": int(AT.timestamp() * 1e6) + number * 2_592_000,
            "model": draw.choice(MODELS),
            "session": f"user-{draw.randrange(100_000)}",
            "cache_read_tokens": tokens,
            "total_pico_usd": tokens * 100_000,
        }
        yield tuple(base[name] for name in COLUMNS)


def _in_process(path: str, by: tuple[str, ...], keys: str) -> dict[str, Any]:
    """In a process of its own, so that its peak of memory is the report's."""
    spawn = multiprocessing.get_context("spawn")
    receiver, sender = spawn.Pipe(duplex=False)
    worker = spawn.Process(target=_measure, args=(path, by, keys, sender))
    worker.start()
    found: dict[str, Any] = json.loads(receiver.recv())
    worker.join()
    return found


def _measure(path: str, by: tuple[str, ...], keys: str, answer: Any) -> None:
    taken: dict[str, list[float]] = {"plain_s": [], "ours_s": []}
    with Ledger(path) as ledger, _plain(Path(path)) as connection:
        for _ in range(3):
            started_s = time.perf_counter()
            result = report(ledger, by=by)
            taken["ours_s"].append(time.perf_counter() - started_s)
            peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
            size = len(result.rows)
            assert isinstance(result.total.cost_usd, Decimal)
            del result
            started_s = time.perf_counter()
            connection.execute(QUERY.format(keys=keys)).fetchall()
            taken["plain_s"].append(time.perf_counter() - started_s)
    medians = {name: statistics.median(values) for name, values in taken.items()}
    answer.send(json.dumps({**medians, "lines": size, "peak_mb": peak}))


def main() -> None:
    """Measure and print the tables."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    options.add_argument("--rows", type=int, default=2000)
    options.add_argument("--report-rows", type=int, default=1_000_000)
    arguments = options.parse_args()
    for lines in (
        one_after_another(arguments.rows),
        in_processes(arguments.rows // 8),
        reports(arguments.report_rows),
    ):
        print(*lines, "", sep="\n", flush=True)
    print(f"Python {sys.version.split()[0]}, SQLite {sqlite3.sqlite_version}")


if __name__ == "__main__":
    main()
