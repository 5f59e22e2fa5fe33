"""What `kvsdk report --reconcile` prints."""

from __future__ import annotations

import csv
import io
import json
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from kvsdk.cli import main
from kvsdk.cli.reconcile_print import print_reconciliation
from kvsdk.cli.tables import Format
from kvsdk.cost import Ledger, LedgerRow
from kvsdk.cost.exports.reconcile import Reconciliation, reconcile
from kvsdk.reply import Cost
from kvsdk.usage import Usage


def _row(number: int, cost: str | None, **changes: Any) -> LedgerRow:
    fields: dict[str, Any] = {
        "id": f"row_{number}",
        "operation_id": f"op_{number}",
        "attempt": 1,
        "at": datetime(2026, 11, 28, 12, 0, number % 60, tzinfo=UTC),
        "state": "ok",
        "backend": "openai",
        "model": "gpt-x",
        "usage": Usage.of_parts(fresh=100, read=900, write=0, output=10),
        "cost": Cost(total=None if cost is None else Decimal(cost), reason="no list price"),
    }
    return LedgerRow(**(fields | changes))


def _reconcile(
    tmp_path: Path, rows: list[LedgerRow], *results: dict[str, Any], **page: Any
) -> Reconciliation:
    bucket = {"start_time": 1795824000, "end_time": 1795824000 + 86400, "results": results}
    path = tmp_path / "bill.json"
    path.write_text(json.dumps({"data": [bucket], "has_more": False, **page}))
    with Ledger(tmp_path / "costs.db") as ledger:
        for row in rows:
            ledger.append(row)
        return reconcile(ledger, path)


def _cost(value: float, line_item: str | None = "gpt-x, input") -> dict[str, Any]:
    return {"amount": {"value": value, "currency": "usd"}, "line_item": line_item}


def _usage(**changes: Any) -> dict[str, Any]:
    counts = {"input_tokens": 3000, "input_cached_tokens": 1800, "output_tokens": 30}
    return {"model": "gpt-x", "num_model_requests": 3, **counts, **changes}


ROWS = [_row(1, "0.1"), _row(2, None)]
TWO = (_cost(0.25), _cost(0.5, "gpt-y, input"))


def test_a_report_that_matches(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One line, which matches, and nothing to explain."""
    result = _reconcile(tmp_path, ROWS, _cost(0.1))
    assert print_reconciliation(result, Format.table)
    out, err = capsys.readouterr()
    assert "yes" in out
    assert "may explain" not in out
    assert out.endswith(f"Every line of {tmp_path}/bill.json matches the ledger (1 in all).\n")
    assert err == ""


@pytest.mark.parametrize("form", [Format.table, Format.md])
def test_a_report_that_does_not_match(
    form: Format, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Both sides, the difference, the row without a price, and the sum: 0.1 - 0.75."""
    result = _reconcile(tmp_path, ROWS, *TWO)
    assert not print_reconciliation(result, form)
    out = capsys.readouterr().out
    lines = [[cell.strip() for cell in line.strip("|").split("|")] for line in out.splitlines()]
    assert ["2026-11-28", "gpt-x", "cost", "$0.250", "$0.100", "-$0.150", "no"] in lines
    assert ["2026-11-28", "gpt-y", "cost", "$0.500", "$0", "-$0.500", "no"] in lines
    assert ["total", "", "cost", "$0.750", "$0.100", "-$0.650", "no"] in lines
    explaining = ["2026-11-28T12:00:02.000Z", "row_2", "ok", "-", "cost unknown: no list price"]
    assert ["2026-11-28", "gpt-x", *explaining] in lines
    assert "2026-11-28, gpt-y: no row of the ledger explains it.\n" in out
    assert out.endswith(
        f"2 of 2 lines of {tmp_path}/bill.json do not match the ledger, which has $0.650 less in all.\n"
    )


def test_only_figures_that_the_report_has_are_lines(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A usage report has counts and no dollars; one of its requests is not in the ledger."""
    result = _reconcile(tmp_path, ROWS, _usage())
    assert not print_reconciliation(result, Format.table)
    out = capsys.readouterr().out
    lines = [[cell.strip() for cell in line.strip("|").split("|")] for line in out.splitlines()]
    assert ["2026-11-28", "gpt-x", "requests", "3", "2", "-1", "no"] in lines
    assert ["", "", "input tokens", "3,000", "2,000", "-1,000", ""] in lines
    assert ["", "", "read from cache", "1,800", "1,800", "0", ""] in lines
    assert "written" not in out
    assert "$" not in out
    assert "2026-11-28, gpt-x: 1 request did not go through this ledger.\n" in out


def test_other_rows_are_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """25 rows without a price: 20 are shown."""
    result = _reconcile(tmp_path, [_row(number, None) for number in range(25)], _cost(1))
    print_reconciliation(result, Format.table)
    out = capsys.readouterr().out
    assert out.count("cost unknown: no list price") == 20
    assert "2026-11-28, gpt-x: 5 more rows may explain it (in all: unpriced 25).\n" in out


def test_json_has_everything_exactly(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Money is text; unknown is null; the rows stand in their line."""
    result = _reconcile(tmp_path, [*ROWS, _row(3, "0.000000000001")], *TWO, has_more=True)
    assert not print_reconciliation(result, Format.json)
    out, err = capsys.readouterr()
    data = json.loads(out)
    assert (data["vendor"], data["matches"], data["is_complete"], data["is_by_model"]) == (
        "openai",
        False,
        False,
        True,
    )
    first, second = data["rows"]
    assert (first["day"], first["model"], first["matches"]) == ("2026-11-28", "gpt-x", False)
    assert first["vendor"]["cost_usd"] == "0.25"
    assert first["ledger"]["cost_usd"] == "0.100000000001"
    assert first["difference"]["cost_usd"] == "-0.149999999999"
    assert (first["vendor"]["input_tokens"], first["ledger"]["input_tokens"]) == (None, 3 * 1000)
    assert (first["causes"], first["more_rows"], first["unlogged_requests"]) == ({"unpriced": 1}, 0, None)
    assert first["explaining_rows"] == [
        {
            "at": "2026-11-28T12:00:02.000Z",
            "id": "row_2",
            "operation_id": "op_2",
            "ledger_model": "gpt-x",
            "state": "ok",
            "cost_usd": None,
            "why": "cost unknown: no list price",
            "causes": ["unpriced"],
        }
    ]
    assert second["ledger"]["cost_usd"] == "0"
    assert data["total"]["difference"]["cost_usd"] == "-0.649999999999"
    assert data["notes"] == list(result.notes)
    assert err == f"kvsdk: {result.notes[0]}\n"
    assert "not complete" in err


def test_csv_has_a_line_per_day_and_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With both sides and the difference of each figure; notes go beside it."""
    result = _reconcile(tmp_path, ROWS, *TWO, has_more=True)
    assert not print_reconciliation(result, Format.csv)
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert [(row["day"], row["model"], row["difference_cost_usd"], row["matches"]) for row in rows] == [
        ("2026-11-28", "gpt-x", "-0.15", "false"),
        ("2026-11-28", "gpt-y", "-0.5", "false"),
    ]
    assert [row["explaining_rows"] for row in rows] == ["1", "0"]
    assert (rows[0]["vendor_requests"], rows[0]["ledger_requests"]) == ("", "2")


def test_lines_without_a_model_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A whole day is `(all)`; what belongs to no model is `(no model)`."""
    print_reconciliation(_reconcile(tmp_path, ROWS, _cost(0.1, None)), Format.md)
    assert "| 2026-11-28 | (all) | cost | $0.100 | $0.100 | $0 | yes |" in capsys.readouterr().out
    search = _cost(0.5, "web search tool calls")
    print_reconciliation(_reconcile(tmp_path, ROWS, _cost(0.1), search), Format.md)
    assert "| 2026-11-28 | (no model) | cost | $0.500 | $0 | -$0.500 | no |" in capsys.readouterr().out


def test_a_report_of_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Neither side has anything: that matches, in every format."""
    result = _reconcile(tmp_path, [])
    for form in Format:
        assert print_reconciliation(result, form)
        out = capsys.readouterr().out
        assert out.startswith("Neither ") == (form in (Format.table, Format.md))


def test_brackets_in_names_are_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A table's markup is not taken from a report."""
    result = _reconcile(tmp_path, [], {**_usage(), "model": "gpt[/x][red]"})
    print_reconciliation(result, Format.table)
    assert "gpt[/x][red]" in capsys.readouterr().out


def test_a_cost_that_the_report_does_not_say(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Its line has no figure, and does not match."""
    result = _reconcile(tmp_path, ROWS, {"amount": None, "line_item": "gpt-x, input"})
    assert not print_reconciliation(result, Format.md)
    assert "| 2026-11-28 | gpt-x | not said | - | - | - | no |" in capsys.readouterr().out


def _run(*arguments: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert isinstance(ended.value.code, int)
    return ended.value.code


@pytest.mark.parametrize(("dollars", "status"), [(0.1, 0), (0.25, 1)])
def test_the_command_says_by_its_status_whether_all_matches(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], dollars: float, status: int
) -> None:
    """0 where the export and the ledger agree, 1 where they do not."""
    _reconcile(tmp_path, ROWS, _cost(dollars))
    ledger, export = str(tmp_path / "costs.db"), str(tmp_path / "bill.json")
    assert _run("report", ledger, "--reconcile", export, "--format", "json") == status
    (line,) = json.loads(capsys.readouterr().out)["rows"]
    assert line["matches"] is (status == 0)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [(("none.json",), "none.json"), (("bill.json", "--format", "html"), "table, md, csv or json")],
)
def test_the_command_refuses_what_it_cannot_compare(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], words: str
) -> None:
    """Wrong use is 2, and said in a line."""
    _reconcile(tmp_path, ROWS, _cost(0.1))
    export, *rest = arguments
    assert _run("report", str(tmp_path / "costs.db"), "--reconcile", str(tmp_path / export), *rest) == 2
    assert words in capsys.readouterr().err
