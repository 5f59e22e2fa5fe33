"""What the ledger costs: rows written one after another and by eight processes, and reports over a million.

    scripts/bench, or: python bench/ledger_overhead.py [--rows N] [--report-rows N]

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
from contextlib import closing, contextmanager
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from functools import partial
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


# ---------------------------------------------------------------------- ways to write rows


class Plain:
    """The floor: INSERTs through Python's sqlite3, `size` rows a transaction, values made beforehand."""

    def __init__(self, path: Path, size: int) -> None:
        self._connection = connect(path)
        self._size = size

    def prepare(self, rows: list[LedgerRow]) -> list[Any]:
        return [values(row) for row in rows]

    def write(self, rows: list[Any]) -> None:
        for start in range(0, len(rows), self._size):
            self._connection.executemany(INSERT, rows[start : start + self._size])
            self._connection.commit()

    def close(self) -> None:
        self._connection.close()


class Ours:
    """The ledger; what a batched one has left to write is written within the time."""

    def __init__(self, path: Path, durability: Any) -> None:
        self._ledger = Ledger(path, durability=durability)

    def prepare(self, rows: list[LedgerRow]) -> list[Any]:
        return rows

    def write(self, rows: list[Any]) -> None:
        for row in rows:
            self._ledger.append(row)
        self._ledger.flush()

    def close(self) -> None:
        self._ledger.close()


Way = Callable[[Path], "Plain | Ours"]
WAYS: dict[str, Way] = {
    "plain INSERTs, a commit for each": partial(Plain, size=1),
    "kvsdk, commit": partial(Ours, durability="commit"),
    "plain INSERTs, 256 a commit": partial(Plain, size=256),
    "kvsdk, batched": partial(Ours, durability="batched"),
}
PAIRS = tuple(zip(list(WAYS)[::2], list(WAYS)[1::2], strict=True))


def connect(path: Path) -> sqlite3.Connection:
    """As durable as the ledger's own connections."""
    connection = sqlite3.connect(path, timeout=30)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")
    return connection


@contextmanager
def new_ledger() -> Iterator[Path]:
    """A file whose tables are there, on the disk of the working folder (`/tmp` may be memory)."""
    with tempfile.TemporaryDirectory(dir=".") as folder:
        path = Path(folder) / "costs.db"
        Ledger(path).close()
        yield path


# ---------------------------------------------------------------------- one after another


def one_after_another(count: int) -> list[str]:
    """Rows of one thread."""
    rows = [make_row(number) for number in range(count)]
    lines = ["| one thread | µs per row | rows per second | times the plain loop |", "|---|---|---|---|"]
    for floor, ours in PAIRS:
        taken = [(_seconds(WAYS[floor], rows), _seconds(WAYS[ours], rows)) for _ in range(ROUNDS)]
        medians = [statistics.median(column) for column in zip(*taken, strict=True)]
        ratios = 1.0, statistics.median(ours_s / floor_s for floor_s, ours_s in taken)
        for name, median_s, ratio in zip((floor, ours), medians, ratios, strict=True):
            lines.append(f"| {name} | {median_s / count * 1e6:.0f} | {count / median_s:,.0f} | {ratio:.2f} |")
    return lines


def _seconds(way: Way, rows: list[LedgerRow]) -> float:
    with new_ledger() as path:
        writer = way(path)
        items = writer.prepare(rows)
        started_s = time.perf_counter()
        writer.write(items)
        taken_s = time.perf_counter() - started_s
        writer.close()
        return taken_s


# ---------------------------------------------------------------------- eight processes


def in_processes(count: int, processes: int = 8) -> list[str]:
    """Rows of several processes into one file, and whether all are there."""
    lines = [
        f"| {processes} processes, {count:,} rows each | rows per second | times the plain loops | lost |",
        "|---|---|---|---|",
    ]
    for pair in PAIRS:
        floor_s = None
        for name in pair:
            taken_s, lost = _race(processes, count, name)
            floor_s = floor_s or taken_s
            lines.append(
                f"| {name} | {processes * count / taken_s:,.0f} | {taken_s / floor_s:.2f} | {lost} |"
            )
    return lines


def _race(processes: int, count: int, name: str) -> tuple[float, int]:
    spawn = multiprocessing.get_context("spawn")
    with new_ledger() as path:
        start, end = spawn.Barrier(processes + 1), spawn.Barrier(processes + 1)
        workers = [
            spawn.Process(target=_work, args=(str(path), name, f"p{number}-", count, start, end))
            for number in range(processes)
        ]
        for worker in workers:
            worker.start()
        start.wait()
        started_s = time.perf_counter()
        end.wait()
        taken_s = time.perf_counter() - started_s
        for worker in workers:
            worker.join()
        connection = connect(path)
        (there,) = connection.execute("SELECT count(*) FROM kvsdk_ledger").fetchone()
        connection.close()
    return taken_s, processes * count - int(there)


def _work(path: str, name: str, prefix: str, count: int, start: Any, end: Any) -> None:
    writer = WAYS[name](Path(path))
    items = writer.prepare([make_row(number, prefix) for number in range(count)])
    start.wait()
    writer.write(items)
    end.wait()
    writer.close()


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
    with new_ledger() as path:
        connection = connect(path)
        connection.execute("PRAGMA synchronous = OFF")
        connection.executemany(INSERT, _many(count))
        connection.commit()
        connection.close()
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
    with Ledger(path) as ledger, closing(connect(Path(path))) as connection:
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
    options.add_argument("--rows", type=int, default=4000)
    options.add_argument("--report-rows", type=int, default=1_000_000)
    arguments = options.parse_args()
    for lines in (
        one_after_another(arguments.rows),
        in_processes(arguments.rows // 4),
        reports(arguments.report_rows),
    ):
        print(*lines, "", sep="\n", flush=True)
    print(f"Python {sys.version.split()[0]}, SQLite {sqlite3.sqlite_version}")


if __name__ == "__main__":
    main()
