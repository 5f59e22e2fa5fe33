"""How `kvsdk report` writes: columns, files, and what is said beside the data."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path

import pytest
from kvsdk.cli import main
from kvsdk.cost import Ledger, LedgerRow
from kvsdk.reply import Cost
from kvsdk.usage import Usage

PER_REQUEST = ["at", "backend", "model", "session", "tenant"]
NUMBERS = [
    "requests",
    "attempts",
    "input_tokens",
    "cache_read_tokens",
    "cache_write_tokens",
    "fresh_tokens",
    "output_tokens",
    "reasoning_tokens",
    "hit_rate",
    "ttft_s",
    "input_usd",
    "cache_read_usd",
    "cache_write_usd",
    "output_usd",
    "storage_usd",
    "tools_usd",
    "cost_usd",
    "low_usd",
    "high_usd",
    "without_cache_usd",
    "saved_usd",
    "unpriced",
    "estimated",
]


def _row(number: int, *, session: str, day: int, cost: str | None, attempt: int = 1) -> LedgerRow:
    total = None if cost is None else Decimal(cost)
    return LedgerRow(
        id=f"row_{number}_{attempt}",
        operation_id=f"op_{number}",
        attempt=attempt,
        at=datetime(2026, 11, day, 12, number, tzinfo=UTC),
        state="ok" if cost else "failed",
        backend="anthropic",
        model="claude-sonnet-5-5",
        session=session,
        usage=Usage.of_parts(fresh=100, read=900, write=0, output=10) if cost else Usage(),
        cost=Cost(total=total, without_cache=total, saved=total),
        ttft_s=0.25 if cost else None,
    )


@pytest.fixture
def ledger(tmp_path: Path) -> str:
    """Three calls of two sessions on two days, one of them with a failed attempt."""
    path = tmp_path / "costs.db"
    with Ledger(path) as book:
        book.append(_row(1, session="anna", day=28, cost="0.1"))
        book.append(_row(2, session="ben", day=28, cost=None))
        book.append(_row(2, session="ben", day=28, cost="0.2", attempt=2))
        book.append(_row(3, session="anna", day=29, cost="0.000000000001"))
    return str(path)


def _run(*arguments: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert isinstance(ended.value.code, int)
    return ended.value.code


def test_programs_get_every_column(ledger: str, capsys: pytest.CaptureFixture[str]) -> None:
    """`csv` and `json` have the same ones, grouped or not, exact and as text where they are money."""
    versus = ["--versus", "anthropic:claude-sonnet-5-5"]
    for by, names in (("", ["operation_id", *PER_REQUEST]), ("session", ["session"])):
        arguments = ["report", ledger, *(["--by", by] if by else []), *versus]
        assert _run(*arguments, "--format", "csv") == 0
        lines = list(csv.reader(io.StringIO(capsys.readouterr().out)))
        assert _run(*arguments, "--format", "json") == 0
        data = json.loads(capsys.readouterr().out)
        others = [f"versus_{what}:anthropic:claude-sonnet-5-5" for what in ("usd", "unpriced")]
        assert lines[0] == [*names, *NUMBERS, *others]
        assert list(data["rows"][0]) == [*names, *NUMBERS, *others]
        assert list(data["total"]) == [*NUMBERS, *others]
        as_text = [["" if value is None else str(value) for value in row.values()] for row in data["rows"]]
        assert lines[1:] == as_text


def test_people_get_the_columns_that_say_something(ledger: str, capsys: pytest.CaptureFixture[str]) -> None:
    """No column of zeros and dashes, unless it is another backend's, which says that nothing can be said."""
    assert _run("report", ledger, "--by", "session", "--versus", "vllm:m", "--format", "md") == 0
    out = capsys.readouterr().out
    header = out.splitlines()[0].strip("| ").split(" | ")
    assert header == [
        "session",
        "requests",
        "attempts",
        "input",
        "read from cache",
        "written",
        "fresh",
        "output",
        "hit rate",
        "first token",
        "cost",
        "without cache",
        "saved",
        "unpriced",
        "vllm:m (estimate)",
        "vllm:m unpriced",
    ]
    assert "vllm:m: an estimate: list prices of the tokens counted here" in out


def test_a_file_is_written(ledger: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`--output` gets what would have been printed, in every format; a wrong question leaves it alone."""
    path = tmp_path / "report"
    for form in ("table", "md", "csv", "json"):
        for by in ([], ["--by", "day"]):
            assert _run("report", ledger, *by, "--format", form) == 0
            printed = capsys.readouterr().out
            assert _run("report", ledger, *by, "--format", form, "--output", str(path)) == 0
            assert path.read_text("utf-8") == printed
            assert capsys.readouterr().out == ""
    path.write_text("kept")
    assert _run("report", ledger, "--by", "dya", "--output", str(path)) == 2
    assert path.read_text() == "kept"


def test_the_ledger_is_not_written_over(ledger: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A slip in the arguments costs no rows."""
    assert _run("report", ledger, "--format", "csv", "--output", ledger) == 2
    assert "is the ledger itself" in capsys.readouterr().err
    with Ledger(ledger) as book:
        assert len(list(book.rows())) == 4


def test_rows_that_are_still_spilled_are_told(ledger: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Where and how many, on standard error; the data stays data."""
    spill = Path(f"{ledger}.spill.jsonl")
    spill.write_text('{"id": "a"}\n{"id": "b"}\n')  # the table takes no such rows
    assert _run("report", ledger, "--format", "json") == 0
    printed = capsys.readouterr()
    assert json.loads(printed.out)["total"]["requests"] == 3
    assert "kvsdk: 2 row(s) are not in this report" in printed.err
    assert str(spill) in printed.err
    spill.unlink()
    assert _run("report", ledger, "--format", "json") == 0
    assert capsys.readouterr().err == ""


def test_a_table_holds_the_latest_thousand(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It says so, and how to see the others; programs get all."""
    path = tmp_path / "costs.db"
    first = _row(0, session="anna", day=28, cost="0.001")
    with Ledger(path, durability="batched") as book:
        for number in range(1002):
            names = {"id": f"row_{number}", "operation_id": f"op_{number}"}
            book.append(replace(first, **names, at=first.at + timedelta(seconds=number)))
    for form in ("table", "md"):
        assert _run("report", str(path), "--format", form) == 0
        out = capsys.readouterr().out
        assert "The latest 1,000 of 1,002 requests; the total is of all." in out
        assert "--format csv or json" in out
        assert out.count("2026-11-28T12:") == 1000
        assert "2026-11-28T12:00:01.000Z" not in out
        assert "2026-11-28T12:00:02.000Z" in out
        assert "$1.00" in out  # the total: 1,002 times a tenth of a cent
    assert _run("report", str(path), "--format", "csv") == 0
    lines = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert [line["operation_id"] for line in lines] == [f"op_{number}" for number in range(1002)]


def test_an_empty_ledger_is_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing is known and nothing fails, in any format."""
    path = tmp_path / "costs.db"
    Ledger(path).close()
    for by in ([], ["--by", "session"]):
        for form in ("table", "md", "csv", "json"):
            capsys.readouterr()
            assert _run("report", str(path), *by, "--format", form) == 0
        data = json.loads(capsys.readouterr().out)
        assert data["rows"] == []
        assert (data["total"]["requests"], data["total"]["cost_usd"]) == (0, None)
