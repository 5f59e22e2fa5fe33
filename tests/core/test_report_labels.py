"""Reports by the labels of rows."""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path

import pytest
from kvsdk import InvalidRequest
from kvsdk.cost import Ledger, report
from report_rows import row


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    with Ledger(tmp_path / "costs.db") as made:
        yield made


def test_labels_together_are_a_group(ledger: Ledger) -> None:
    """All of a row's, in the order of their names; rows without any are a group too."""
    ledger.append(row("r1", "1", metadata={"team": "blue", "feature": "handbook"}))
    ledger.append(row("r2", "2", metadata={"feature": "handbook", "team": "blue"}))
    ledger.append(row("r3", "4", metadata={"feature": "handbook"}))
    ledger.append(row("r4", "8"))
    assert [(line.group["tag"], line.cost_usd) for line in report(ledger, by=["tag"]).rows] == [
        (None, Decimal(8)),
        ("feature=handbook", Decimal(4)),
        ("feature=handbook, team=blue", Decimal(1 + 2)),
    ]


LABELS = (
    "feature",
    "a.b",
    "a b",
    "$.a",
    "$",
    "a[0]",
    "0",
    "",
    'say "hi"',
    '"',
    "it's",
    "back\\slash",
    "größe",
    "名前",
    "🌵",
    "a\nb",
    "%s :x",
)


@pytest.mark.parametrize("name", [name for name in LABELS if name])
def test_a_label_of_any_name_is_grouped_by(ledger: Ledger, name: str) -> None:
    """Quotes, dots, paths of SQLite's and other scripts; neighbours with such names do not interfere."""
    others = {other: "other" for other in LABELS if other != name}
    ledger.append(row("r1", "1", metadata={name: "Größe 1", **others}))
    ledger.append(row("r2", "2", metadata={name: "null"}))
    ledger.append(row("r3", "4", metadata=others))
    ledger.append(row("r4", "8"))
    key = f"tag:{name}"
    grouped = report(ledger, by=[key])
    assert {line.group[key]: line.cost_usd for line in grouped.rows} == {
        None: Decimal(4 + 8),
        "Größe 1": Decimal(1),
        "null": Decimal(2),
    }
    assert grouped.total.cost_usd == 15


@pytest.mark.parametrize("text", ["a\x00b", "half \ud800"])
def test_a_label_that_is_no_text_to_a_database_is_grouped_by(ledger: Ledger, text: str) -> None:
    """What a database cannot take apart is added up row by row."""
    ledger.append(row("r1", "1", metadata={"feature": text}))
    ledger.append(row("r2", "2", metadata={"feature": text}, model="n"))
    assert [(line.group, line.cost_usd) for line in report(ledger, by=["tag:feature", "model"]).rows] == [
        ({"tag:feature": text, "model": "m"}, Decimal(1)),
        ({"tag:feature": text, "model": "n"}, Decimal(2)),
    ]


@pytest.mark.parametrize("name", ["tag:", "tag:NAME", "tags", "TAG:feature"])
def test_a_label_without_a_name_is_refused(ledger: Ledger, name: str) -> None:
    """Also one that was copied from the help."""
    with pytest.raises(InvalidRequest) as caught:
        report(ledger, by=[name])
    assert caught.value.field == "by"
