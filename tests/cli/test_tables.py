"""How numbers and tables are written."""

from __future__ import annotations

import csv
import io
import json
from decimal import Decimal

import pytest
from kvsdk.cli.tables import Column, Format, dollars, render, words

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
