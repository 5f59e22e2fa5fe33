"""`kvsdk bill`, as a user runs it."""

from __future__ import annotations

import csv
import io
import json
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from kvsdk.backend import Bill, EngineTime
from kvsdk.cli import main
from kvsdk.cost import Ledger, LedgerRow, PrefixMark
from kvsdk.cost.prices.machine import machine_cost
from kvsdk.usage import Usage

AT = datetime(2026, 11, 30, 23, 0, tzinfo=UTC)
KINDS = ("prefill_usd", "load_usd", "store_usd", "decode_usd")


def _row(number: int, at_s: float, total_s: float, **changes: Any) -> LedgerRow:
    engine = EngineTime(
        prefill_s=changes.pop("prefill_s", 4.0),
        decode_s=changes.pop("decode_s", 2.0),
        queue_s=1.0,
        usd_per_hour=Decimal("3.6"),
    )
    fields: dict[str, Any] = {
        "id": f"row_{number}",
        "operation_id": f"op_{number}",
        "attempt": 1,
        "at": AT + timedelta(seconds=at_s),
        "state": "ok",
        "backend": "vllm",
        "model": "smol",
        "session": "anna",
        "usage": Usage.of_total(100, read=60, write=40, output=10),
        "cost": machine_cost(engine),
        "bill": Bill(engine=engine),
        "total_s": total_s,
    }
    return LedgerRow(**(fields | changes))


@pytest.fixture
def ledger(tmp_path: Path) -> str:
    """Two calls of one session, one of another that reaches into the next day, and rows beside them."""
    path = tmp_path / "costs.db"
    with Ledger(path) as book:
        book.append(_row(1, 0, 10))
        book.append(_row(2, 10, 10, prefill_s=1.0, decode_s=0.5))
        book.append(_row(3, 3590, 20, session="ben", prefill_s=0.0, decode_s=10.0))
        book.append(_row(4, 30, -5, session="ben"))  # a clock went back
        book.append(_row(5, 40, 10, backend="vllm+http", bill=Bill(unpriced="-"), session="carl"))
        book.append(_row(6, 40, 10, backend="anthropic", bill=Bill()))
    return str(path)


def _run(*arguments: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert isinstance(ended.value.code, int)
    return ended.value.code


def _json(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    assert _run("bill", *arguments, "--format", "json") == 0
    data = json.loads(capsys.readouterr().out)
    assert sum(Decimal(row["usd"]) for row in data["rows"]) == Decimal(data["total"]["usd"])
    return data["rows"], data["total"]


def test_lines_and_idle_are_the_bill(ledger: str, capsys: pytest.CaptureFixture[str]) -> None:
    """From the first row to the end of the last: 3610 s at a tenth of a cent; 6 + 1.5 and 10 s were used."""
    rows, total = _json(capsys, ledger, "--usd-per-hour", "3.6")
    assert [(row["line"], row.get("session"), row["usd"]) for row in rows] == [
        ("requests", "anna", "0.0075"),
        ("requests", "ben", "0.01"),
        ("idle", None, "3.5925"),  # 3610 - 17.5 s
    ]
    assert total["usd"] == "3.61"
    assert (total["since"], total["until"]) == ("2026-11-30T23:00:00+00:00", "2026-12-01T00:00:10+00:00")
    assert (total["requests"], total["engine_s"], total["skipped"], total["is_scaled"]) == (3, 3610, 1, False)
    assert (rows[0]["requests"], rows[0]["input_tokens"], rows[0]["output_tokens"]) == (2, 200, 20)
    assert (rows[0]["engine_s"], rows[0]["queue_s"]) == (7.5, 2.0)
    assert [rows[0][kind] for kind in KINDS] == ["0.005", "0", "0", "0.0025"]
    assert rows[2]["engine_s"] == 3610 - 17.5


def test_a_period_cuts_what_reaches_out_of_it(ledger: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The next day has 10 of the 19 seconds of the last answer, which waited until 23:59:51."""
    rows, total = _json(
        capsys, ledger, "--usd-per-hour", "3.6", "--since", "2026-12-01", "--until", "2026-12-02"
    )
    assert [row["line"] for row in rows] == ["requests", "idle"]
    assert rows[0]["cut"] == 1
    assert abs(rows[0]["engine_s"] - 10 * 10 / 19) < 1e-9
    assert total["usd"] == "86.4"


@pytest.mark.parametrize(
    ("by", "lines"),
    [
        ("session", [("anna",), ("ben",)]),
        ("request", [("op_1",), ("op_2",), ("op_3",)]),
        ("day", [("2026-11-30",)]),
        ("model,session", [("smol", "anna"), ("smol", "ben")]),
        ("tenant", [(None,)]),
    ],
)
def test_groups(
    ledger: str, by: str, lines: list[tuple[str | None, ...]], capsys: pytest.CaptureFixture[str]
) -> None:
    """`--by` names the lines; whatever they are, they and the idle line are the bill."""
    rows, total = _json(capsys, ledger, "--usd-per-hour", "3.6", "--by", by)
    assert [tuple(row[name] for name in by.split(",")) for row in rows[:-1]] == lines
    assert total["usd"] == "3.61"


def test_rows_of_a_server_go_by_tokens(ledger: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A server does not say how long it was busy: alone, its request has all of its ten seconds."""
    arguments = ("bill", ledger, "--usd-per-hour", "3.6", "--backend", "vllm+http")
    assert _run(*arguments, "--format", "csv") == 0
    printed = capsys.readouterr()
    carl, idle = csv.DictReader(io.StringIO(printed.out))
    assert (carl["line"], carl["session"], carl["estimated"]) == ("requests", "carl", "1")
    assert Decimal("0.01") - Decimal(carl["usd"]) <= Decimal("2e-12")
    assert Decimal(carl["usd"]) + Decimal(idle["usd"]) == Decimal("0.01")
    assert "1 of 1 shares go by tokens and are estimates" in printed.err
    rows, _ = _json(capsys, ledger, "--usd-per-hour", "1", "--backend", "vllm", "--backend", "vllm+http")
    assert [row.get("session") for row in rows] == ["anna", "ben", "carl", None]


def test_people_see_the_bill_and_what_was_left_out(ledger: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The table has the parts of the price, exact dollars, idle hours and a total; remarks stand apart."""
    parts = ("--gpu", "H100", "--gpus", "2", "--usd-per-gpu-hour", "1.5", "--host-gb", "100")
    for form in ("table", "md"):
        assert _run("bill", ledger, *parts, "--usd-per-host-gb-hour", "0.006", "--format", form) == 0
        printed = capsys.readouterr()
        assert "2 H100 at $1.5 + 100 GB of memory at $0.006 = $3.6 an hour" in printed.out
        assert "$3.610000000000" in printed.out
        assert "$0.007500000000" in printed.out
        assert "99.5%" in printed.out  # 3592.5 of 3610
        assert "1.00 h" in printed.out
        assert "loading" not in printed.out  # nothing was loaded
        assert printed.err == "kvsdk: 1 row(s) were not counted: it ends 5.0 s before it starts" + "\n"


def test_more_than_the_period_has_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Twelve seconds of the engine in ten: the line has the whole bill, and a remark says why."""
    path = str(tmp_path / "costs.db")
    with Ledger(path) as book:
        book.append(_row(1, 0, 10, prefill_s=8.0, decode_s=4.0))
    assert _run("bill", path, "--usd-per-hour", "3.6", "--format", "csv") == 0
    printed = capsys.readouterr()
    assert [row["engine_s"] for row in csv.DictReader(io.StringIO(printed.out))] == ["10.0", "0.0"]
    assert "scaled down" in printed.err


def test_a_period_without_a_request_is_idle(ledger: str, capsys: pytest.CaptureFixture[str]) -> None:
    """With both ends given, an empty month costs what it costs."""
    period = ("--since", "2026-10-01", "--until", "2026-10-31")
    rows, total = _json(capsys, ledger, "--usd-per-hour", "2", *period)
    assert [(row["line"], row["usd"]) for row in rows] == [("idle", "1440")]  # 30 * 24 * 2
    assert total["requests"] == 0


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ([], "say what the engine costs"),
        (["--usd-per-hour", "cheap"], "usd_per_hour is 'cheap'"),
        (["--gpus", "8"], "usd_per_gpu_hour"),
        (["--usd-per-hour", "1", "--by", "sesion"], "Did you mean 'session'?"),
        (["--usd-per-hour", "1", "--by", ","], "--by names at least one"),
        (["--usd-per-hour", "1", "--since", "yesterday"], "--since"),
        (["--usd-per-hour", "1", "--since", "2026-12-02", "--until", "2026-12-01"], "is not after"),
        (["--usd-per-hour", "1", "--backend", "sglang"], "no use of sglang"),
        (["--usd-per-hour", "1", "--since", "2027-01-01"], "no use of vllm"),
    ],
)
def test_wrong_use_is_told_and_exits_2(
    ledger: str, arguments: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing is printed but what is wrong."""
    assert _run("bill", ledger, *arguments) == 2
    printed = capsys.readouterr()
    assert told in printed.err
    assert printed.out == ""


def test_a_missing_ledger_is_not_made(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A wrong path is told."""
    assert _run("bill", str(tmp_path / "none.db"), "--usd-per-hour", "1") == 2
    assert "there is no ledger at" in capsys.readouterr().err
    assert not (tmp_path / "none.db").exists()


def test_what_the_tokens_would_have_cost_elsewhere(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The other cache writes the prefix at the first request and reads it at the second."""
    path = str(tmp_path / "costs.db")
    usage = Usage.of_total(2000, read=0, write=2000, output=10)
    marks = (PrefixMark(1900, "aa", "1h"), PrefixMark(2000, "bb", ""))
    with Ledger(path) as book:
        for number in (1, 2):
            book.append(_row(number, 20 * number, 10, usage=usage, prefix=marks, session=f"s{number}"))
    address = "anthropic:claude-sonnet-5-5"
    arguments = ("--usd-per-hour", "3.6", "--by", "session", "--versus", address)
    rows, total = _json(capsys, path, *arguments)
    written = (Decimal(4) * 1900 + Decimal(2) * 100 + Decimal(10) * 10) / 1_000_000
    read = (Decimal("0.1") * 1900 + Decimal(2) * 100 + Decimal(10) * 10) / 1_000_000
    found = {row.get("session"): row.get(f"versus_usd:{address}") for row in rows if row["line"] != "idle"}
    assert {name: Decimal(str(usd)) for name, usd in found.items()} == {"s1": written, "s2": read}
    assert Decimal(str(total[f"versus_usd:{address}"])) == written + read
    assert _run("bill", path, *arguments) == 0
    assert f"{address} (estimate)" in " ".join(capsys.readouterr().out.split())
