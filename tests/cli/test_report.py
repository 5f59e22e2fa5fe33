"""`kvsdk report`, as a user runs it."""

from __future__ import annotations

import csv
import io
import json
import subprocess
import sys
from dataclasses import replace
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path

import kvsdk
import pytest
from kvsdk.cli import main
from kvsdk.cost import Ledger, LedgerRow
from kvsdk.reply import Cost
from kvsdk.usage import Usage


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


def test_a_line_per_request(ledger: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Without `--by` each call is a line, its attempts together, and the exact total stands below."""
    assert _run("report", ledger, "--format", "json") == 0
    data = json.loads(capsys.readouterr().out)
    assert [(row["operation_id"], row["attempts"]) for row in data["rows"]] == [
        ("op_1", 1),
        ("op_2", 2),
        ("op_3", 1),
    ]
    assert data["rows"][0]["at"] == "2026-11-28T12:01:00.000Z"
    assert data["total"]["cost_usd"] == "0.300000000001"
    assert data["total"]["unpriced"] == 1


@pytest.mark.parametrize(
    ("by", "groups"),
    [
        ("session", [("anna",), ("ben",)]),
        ("day", [("2026-11-28",), ("2026-11-29",)]),
        ("session,day", [("anna", "2026-11-28"), ("anna", "2026-11-29"), ("ben", "2026-11-28")]),
        ("backend,model,tenant", [("anthropic", "claude-sonnet-5-5", None)]),
    ],
)
def test_groups(
    ledger: str, by: str, groups: list[tuple[str | None, ...]], capsys: pytest.CaptureFixture[str]
) -> None:
    """`--by` groups by any of the columns, in their order."""
    assert _run("report", ledger, "--by", by, "--format", "json") == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert [tuple(row[name] for name in by.split(",")) for row in rows] == groups


def test_every_format_has_the_same_rows(ledger: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Table, Markdown and csv hold the sessions and their sums."""
    for form in ("table", "md", "csv"):
        assert _run("report", ledger, "--by", "session", "--format", form) == 0
        out = capsys.readouterr().out
        assert "anna" in out
        assert "ben" in out
        if form == "csv":
            assert [row["cost_usd"] for row in csv.DictReader(io.StringIO(out))] == ["0.100000000001", "0.2"]
        else:
            assert "90.0%" in out
            assert "total" in out


def test_wrong_use_is_told_and_exits_2(
    ledger: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A missing ledger is not made, and an unknown column is named; both exit with 2."""
    missing = tmp_path / "none.db"
    assert _run("report", str(missing)) == 2
    assert "there is no ledger at" in capsys.readouterr().err
    assert not missing.exists()
    assert _run("report", ledger, "--by", "modle") == 2
    assert "Did you mean 'model'?" in capsys.readouterr().err
    assert _run("report", ledger, "--format", "xml") == 2
    assert _run("reprot") == 2


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--since", "yesterday"], "--since is a day or a time"),
        (["--until", "2026-13-01"], "--until is a day or a time"),
        (["--since", "2026-11-29", "--until", "2026-11-29"], "--until 2026-11-29 is not after --since"),
        (["--by", "tag:"], "names no label"),
        (["--by", "weekday"], "Known are backend, model, session, tenant, day, tag, tag:NAME."),
        (["--versus", "antropic:claude-sonnet-5-5"], "unknown backend 'antropic'"),
        (["--output", "nowhere/report.csv"], "the folder of nowhere/report.csv does not exist"),
    ],
)
def test_a_wrong_argument_is_named(
    ledger: str, arguments: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """With what to write instead; nothing is printed."""
    assert _run("report", ledger, *arguments) == 2
    printed = capsys.readouterr()
    assert told in printed.err
    assert printed.out == ""


def test_a_time_is_asked_for(ledger: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A day begins at midnight UTC and is in `--since`, not in `--until`; an hour may be given."""
    for arguments, expected in (
        (["--since", "2026-11-29"], ["op_3"]),
        (["--until", "2026-11-29"], ["op_1", "op_2"]),
        (["--since", "2026-11-28T12:02", "--until", "2026-11-29T12:03:00Z"], ["op_2"]),
        (["--since", "2026-11-28T14:02+02:00", "--until", "2026-11-30"], ["op_2", "op_3"]),
    ):
        assert _run("report", ledger, *arguments, "--format", "json") == 0
        data = json.loads(capsys.readouterr().out)
        assert [row["operation_id"] for row in data["rows"]] == expected
        assert data["total"]["requests"] == len(expected)


def test_labels_are_grouped_by(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """By one, also with a comma or quotes in its name, and by all together."""
    path = tmp_path / "costs.db"
    labels = {"team": "blue", "a,b": "c", 'say "hi"': "ho"}
    with Ledger(path) as book:
        book.append(replace(_row(1, session="anna", day=28, cost="0.1"), metadata=labels))
    for by, key, value in (
        ("tag:team", "tag:team", "blue"),
        ('"tag:a,b",model', "tag:a,b", "c"),
        ('model, tag:say "hi"', 'tag:say "hi"', "ho"),
        ("tag", "tag", 'a,b=c, say "hi"=ho, team=blue'),
    ):
        assert _run("report", str(path), "--by", by, "--format", "json") == 0
        (row,) = json.loads(capsys.readouterr().out)["rows"]
        assert row[key] == value


def test_corrected_prices_count_unless_the_first_ones_are_asked_for(
    ledger: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """`--prices original` is what the ledger said at first."""
    with Ledger(ledger) as book:
        book.add_ratings([("row_1_1", Cost(total=Decimal(5)))], 1)
    for arguments, expected in (([], "5.200000000001"), (["--prices", "original"], "0.300000000001")):
        for by in ([], ["--by", "model"]):
            assert _run("report", ledger, *by, *arguments, "--format", "json") == 0
            assert json.loads(capsys.readouterr().out)["total"]["cost_usd"] == expected


def test_a_file_that_is_no_ledger_exits_1(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Another file is refused with a reason and left as it was."""
    path = tmp_path / "notes.txt"
    path.write_text("valve " * 1000)
    assert _run("report", str(path)) == 1
    assert "cannot be used as a ledger" in capsys.readouterr().err
    assert path.read_text() == "valve " * 1000


def test_the_version(capsys: pytest.CaptureFixture[str]) -> None:
    """`--version` prints it and exits with 0."""
    assert _run("--version") == 0
    assert capsys.readouterr().out == f"kvsdk {kvsdk.__version__}\n"


def test_python_m_kvsdk(ledger: str) -> None:
    """`python -m kvsdk` is the same command, and prints no colours to a pipe."""
    command = [sys.executable, "-m", "kvsdk", "report", ledger]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "\x1b" not in done.stdout
    assert "anna" in done.stdout
