"""How numbers and tables are written."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Iterator
from decimal import Decimal

import pytest
from kvsdk.cli.tables import Column, Format, count, dollars, render, show, stream, words

COLUMNS = [Column("name", "name", is_number=False), Column("cost", "cost", dollars)]
ROWS = [{"name": "a|b", "cost": Decimal("0.000000012345")}, {"name": "c", "cost": None}]


@pytest.mark.parametrize(
    ("value", "written"),
    [
        ("0", "$0"),
        ("1234.567", "$1,234.57"),
        ("3", "$3.00"),
        ("0.0144961", "$0.0145"),
        ("0.0000000451", "$0.0000000451"),
        ("-0.0012", "-$0.00120"),
    ],
)
def test_dollars_show_three_figures(value: str, written: str) -> None:
    """Small sums keep three figures, large ones their cents."""
    assert dollars(Decimal(value)) == written


def test_unknown_is_a_dash_to_people() -> None:
    """None is never printed as 0."""
    assert words(COLUMNS, ROWS[1]) == ["c", "-"]


def test_markdown_escapes_and_aligns() -> None:
    """A bar inside a cell does not break the row; numbers are right-aligned."""
    lines = render(COLUMNS, ROWS, None, Format.md).splitlines()
    assert lines[1] == "| --- | ---: |"
    assert lines[2] == "| a\\|b | $0.0000000123 |"


def test_programs_get_exact_money() -> None:
    """`csv` and `json` hold every digit of the money, as text, and nothing for unknown."""
    rows = list(csv.DictReader(io.StringIO(render(COLUMNS, ROWS, None, Format.csv))))
    assert [row["cost"] for row in rows] == ["0.000000012345", ""]
    data = json.loads(render(COLUMNS, ROWS, ROWS[0], Format.json))
    assert [row["cost"] for row in data["rows"]] == ["0.000000012345", None]
    assert data["total"]["name"] == "a|b"


@pytest.mark.parametrize("rows", [[], ROWS, [{}], [{"name": "ß\n", "cost": Decimal(0)}] * 3])
@pytest.mark.parametrize("total", [None, ROWS[0], {}])
def test_json_in_pieces_is_the_json_of_the_whole(rows: list[dict[str, object]], total: object) -> None:
    """Byte for byte, as `json.dumps` would write it."""
    text = "".join(stream(COLUMNS, rows, lambda: total, Format.json))  # type: ignore[arg-type, return-value]
    plain = json.loads(text)
    assert text == json.dumps(plain, indent=2, ensure_ascii=False) + "\n"
    assert len(plain["rows"]) == len(rows)
    assert text == render(COLUMNS, rows, total, Format.json) + "\n"  # type: ignore[arg-type]


def test_pieces_come_as_the_rows_do() -> None:
    """The total is asked for when the rows are over."""
    order: list[str] = []

    def rows() -> Iterator[dict[str, object]]:
        for number in range(2):
            order.append(f"row {number}")
            yield {"name": f"n{number}", "cost": None}

    for form in (Format.json, Format.md, Format.csv):
        order.clear()
        for piece in stream(COLUMNS, rows(), lambda: order.append("total"), form):  # type: ignore[func-returns-value]
            order.append("piece") if "n0" in piece else None
        assert order[:3] == ["row 0", "piece", "row 1"]
        assert order[3:] == ([] if form is Format.csv else ["total"])


def test_a_name_is_no_markup_and_moves_no_cursor(capsys: pytest.CaptureFixture[str]) -> None:
    """What users wrote stands as it is; control characters are spelled out for people only."""
    rows = [{"name": "[bold]a[/x]", "cost": None}, {"name": "b\n\x1b[2Jc\u202e", "cost": None}]
    show("[t]", COLUMNS, rows, None)
    out = capsys.readouterr().out
    assert "[t]" in out
    assert "[bold]a[/x]" in out
    assert "b\\n\\x1b[2Jc\\u202e" in out
    assert "\x1b" not in out
    assert len(render(COLUMNS, rows, None, Format.md).splitlines()) == 4
    assert json.loads(render(COLUMNS, rows, None, Format.json))["rows"] == rows


def test_a_narrow_terminal_gets_no_details(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are named below; a wide one and a pipe get all columns."""
    columns = [*COLUMNS, Column("detail", "a detail of some length", rank=1)]
    rows = [{"name": "a", "cost": Decimal(1), "detail": "d"}]
    for name in ("FORCE_COLOR", "NO_COLOR", "TERM", "COLUMNS"):
        monkeypatch.delenv(name, raising=False)
    for is_terminal, width, has_detail in ((True, 18, False), (True, 80, True), (False, 18, True)):
        monkeypatch.setenv("COLUMNS", str(width))
        file = _Terminal() if is_terminal else io.StringIO()
        show("", columns, rows, None, file)
        printed = " ".join(_plain(file.getvalue()).split())
        assert (
            "no room for: a detail of some length; a wider terminal or --format csv has all" in printed
        ) is (not has_detail)


def test_numbers_are_never_broken_in_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """A total is wider than what it sums; long names are folded instead, and columns of rank 0 all stay."""
    columns = [
        Column("name", "a name", is_number=False),
        Column("a", "first", count),
        Column("b", "second", count),
    ]
    rows = [{"name": "claude-sonnet-5-5-20261130", "a": 9_999_999, "b": 1} for _ in range(3)]
    monkeypatch.setenv("COLUMNS", "46")
    file = _Terminal()
    show("", columns, rows, {"name": "total", "a": 29_999_997, "b": 3}, file)
    lines = _plain(file.getvalue()).splitlines()
    assert sum("9,999,999" in line for line in lines) == 3
    assert any("29,999,997" in line for line in lines)
    assert any("claude-sonnet-5-5-20261130" in line for line in lines) is False
    assert "no room" not in file.getvalue()


def _plain(text: str) -> str:
    return re.sub(r"\x1b\[[0-9;]*m", "", text)


class _Terminal(io.StringIO):
    """A file that says it is a terminal."""

    def isatty(self) -> bool:
        return True
