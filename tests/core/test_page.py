"""The page of a report: what it says is the report's, and nothing in it is anybody's but ours."""

from __future__ import annotations

import dataclasses
import re
import shlex
import sys
import warnings
from collections.abc import Iterator
from datetime import datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import matplotlib
import pytest
from kvsdk import ConfigurationError, InvalidRequest
from kvsdk.cost import Ledger, report
from kvsdk.cost.reports.page import report_page
from kvsdk.cost.reports.page_table import _COLUMNS, page_table
from kvsdk.cost.reports.page_text import dollars, shortened, visible
from kvsdk.cost.reports.rows import ReportRow
from kvsdk.cost.reports.sql import Window
from ledger_rows import row
from page_reader import FIRST, MADE, USAGE, Page, cost, fill, page


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    with Ledger(tmp_path / "costs.db", durability="batched") as made:
        yield made


# ---------------------------------------------------------------------- the page


def test_nothing_in_a_page_is_from_elsewhere(ledger: Ledger) -> None:
    """No script, no address, no source, no handler: what is referred to is in the page itself."""
    fill(ledger)
    made = page(ledger)
    assert "://" not in made.html.replace(ledger.name, "")
    assert not {"script", "link", "img", "iframe", "object", "image"} & {tag for tag, _ in made.elements}
    for _, attributes in made.elements:
        assert not {"src", "srcset", "xlink:href", "data"} & set(attributes)
        assert not [name for name in attributes if name.startswith("on")]
        assert (attributes.get("href") or "#").startswith("#")
    assert set(re.findall(r"url\((.)", made.html)) == {"#"}
    assert "@import" not in made.html


def test_ids_in_a_page_are_its_own(ledger: Ledger) -> None:
    """Four charts in a page share no id, and each reference has its target."""
    fill(ledger)
    made = page(ledger)
    ids = [attributes["id"] for _, attributes in made.elements if "id" in attributes]
    assert len(made.svgs) == 4
    assert len(ids) == len(set(ids)) > 4
    assert set(re.findall(r'(?:url\(|href=")#([^)"]+)', made.html)) <= set(ids)


def test_the_figures_are_the_reports(ledger: Ledger) -> None:
    """Requests, cost, without cache, saved and its share, hit rate, and what they leave out."""
    fill(ledger)
    text = page(ledger).text
    total = report(ledger, by=["session"]).total
    assert (total.cost_usd, total.without_cache_usd) == (Decimal("0.55") + Decimal("0.25") + 5 + 1, 2 + 2 + 1)
    assert total.saved_usd == Decimal("1.45") + Decimal("1.75") - 4
    assert "requests 4 sent 5 times" in text
    assert "cost $6.80 between $6.30 and $6.80" in text
    assert "without cache $5.00 saved -$0.800 -16.0% of the cost without cache" in text  # -0.8 / 5
    assert "hit rate 60.0%" in text
    assert "Attempts without a known cost: 1 of 5." in text
    assert "Attempts with an estimated cost: 1 of 5," in text
    assert f"Costs in {ledger.name}" in text
    assert "requests from 2026-11-01 00:00 UTC to 2026-11-05 00:00 UTC" in text
    assert "Made 2026-12-01 09:30 UTC" in text


def test_the_table_is_the_reports(ledger: Ledger) -> None:
    """One line per group and the total, unknown is a dash; columns that say nothing are left out."""
    fill(ledger)
    titles, *lines = page(ledger).table
    assert titles[:7] == ["session", "requests", "attempts", "cost", "without cache", "saved", "hit rate"]
    assert [line[:7] for line in lines] == [
        ["–", "1", "1", "–", "–", "–", "–"],  # noqa: RUF001
        ["a", "2", "3", "$1.80", "$4.00", "$3.20", "60.0%"],
        ["b", "1", "1", "$5.00", "$1.00", "-$4.00", "–"],  # noqa: RUF001
        ["total", "4", "5", "$6.80", "$5.00", "-$0.800", "60.0%"],
    ]
    assert not {"reasoning", "storage cost", "first token"} & set(titles)


def test_every_field_of_a_report_has_a_column() -> None:
    """A field that is added to the report is described on the page."""
    fields = {field.name for field in dataclasses.fields(ReportRow)}
    assert fields - {"group", "versus"} == set(_COLUMNS)


def test_other_backends_are_columns(ledger: Ledger) -> None:
    """Each address that the report was compared with, with what the same tokens would have cost there."""
    ledger.append(row(cost=cost("1"), usage=USAGE))
    versus = ["anthropic:claude-sonnet-5-5"]
    compared = report(ledger, by=["session"], versus=versus)
    made = Page(report_page(ledger, compared, made_at=MADE))
    place = made.table[0].index("versus anthropic:claude-sonnet-5-5")
    there = compared.total.versus[versus[0]].cost_usd
    assert there is not None
    assert made.table[-1][place] == dollars(there)


HOSTILE = (
    "</text></svg><script>alert(1)</script>",
    "$x^2$",
    "$x^2$ costs $5 \\frac{1}{0}",
    "a\x01b\u202ec\nd\x0b\ufffe",
    "&lt;b&gt; \"'><img src=x onerror=alert(1)>",
    "{{ 7 * 7 }}{% raw %}",
    "会话" * 20 + "👩‍👧",
    "x" * 5000,
    "",
)


def test_names_are_text(ledger: Ledger) -> None:
    """Markup, formulas, templates and control characters in names are shown, and do nothing."""
    for number, name in enumerate(HOSTILE):
        ledger.append(row(number, session=name, model=name, cost=cost("1"), usage=USAGE))
    for by in (("session",), ("model", "session"), ()):
        made = page(ledger, by)
        assert not {"script", "img", "b"} & {tag for tag, _ in made.elements}
        cells = {cell for line in made.table for cell in line}
        assert {visible(name) or "(empty)" for name in HOSTILE} <= cells
        assert not re.search(r"[\x00-\x08\x0b-\x1f\u202e\ufffe]", made.html)
    labels = [
        "".join(element.itertext()).strip()
        for svg in made.svgs
        for element in ElementTree.fromstring(svg).iter()
    ]
    assert {shortened(visible(name)) or "(empty)" for name in HOSTILE} <= set(labels)


def test_a_long_name_keeps_its_start_and_its_end() -> None:
    """Beside a bar there is room for 26 letters, or half as many wide ones."""
    assert shortened("a" * 26) == "a" * 26
    assert shortened("start" + "a" * 40 + "end") == "start" + "a" * 12 + "…" + "a" * 5 + "end"
    assert shortened("会" * 14) == "会" * 6 + "…" + "会" * 6


def test_an_empty_ledger_says_so(ledger: Ledger) -> None:
    """No chart, no table, and dashes for what is unknown."""
    made = page(ledger)
    assert (made.svgs, made.table) == ([], [])
    assert "There are no requests in this period" in made.text
    assert "requests 0 cost – without cache – saved – hit rate –" in made.text  # noqa: RUF001


def test_what_is_all_unknown_has_no_chart(ledger: Ledger) -> None:
    """Only requests without a price: a sentence in each chart's place."""
    ledger.append(row(session="s"))
    made = page(ledger)
    assert made.svgs == []
    assert made.text.count("No request has a known cost above zero") == 2
    assert "No request has a known cost above zero: 1 without a known cost." in made.text
    assert "What was saved is not known for any request." in made.text
    assert "No backend said what it read from a cache." in made.text


def test_what_costs_nothing_has_no_chart(ledger: Ledger) -> None:
    """A server of one's own at no price: only the hit rate is drawn."""
    ledger.append(row(cost=cost("0", without="0"), usage=USAGE))
    made = page(ledger)
    assert len(made.svgs) == 1
    assert "No session has saved or lost anything." in made.text
    assert "No request has a known cost above zero: 1 cost nothing." in made.text


def test_each_chart_is_named(ledger: Ledger) -> None:
    """For those who do not see it: a role, a label and a title with what it shows."""
    fill(ledger)
    made = page(ledger)
    for svg, start in zip(
        made.svgs, ("Cost by day", "Hit rate by day", "Saved by session", "Requests by what"), strict=True
    ):
        root = ElementTree.fromstring(svg)
        assert root.get("role") == "img"
        assert (root.get("aria-label") or "").startswith(start)
        assert root[0].tag == "title"
        assert root[0].text == root.get("aria-label")
        assert not {"width", "height"} & set(root.attrib)  # it is as wide as the page has room
        assert not list(root.iter("style"))  # it would be the whole page's


def test_the_same_input_makes_the_same_page(ledger: Ledger) -> None:
    """Byte by byte, whatever settings of its own a program has made in matplotlib, which stay."""
    fill(ledger)
    first = page(ledger).html
    with matplotlib.rc_context({"font.size": 40, "svg.fonttype": "path", "text.color": "red"}):
        assert page(ledger).html == first
        assert matplotlib.rcParams["font.size"] == 40


def test_no_warning_is_left_to_the_caller(ledger: Ledger) -> None:
    """A letter that our font lacks is the reader's font's business, and later warnings are still heard."""
    ledger.append(row(session="会话", cost=cost("1")))
    page(ledger)
    with pytest.warns(UserWarning, match="Glyph"):
        warnings.warn("Glyph 1", stacklevel=1)


@pytest.mark.parametrize("library", ["jinja2", "matplotlib"])
def test_a_missing_library_is_named(ledger: Ledger, monkeypatch: pytest.MonkeyPatch, library: str) -> None:
    """With what to run."""
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(ConfigurationError, match=rf"{library}; run: pip install 'kvsdk\[reports\]'"):
        page(ledger)


@pytest.mark.parametrize("field", ["since", "until", "made_at"])
def test_times_need_a_zone(ledger: Ledger, field: str) -> None:
    """A time without one could be anybody's."""
    times: dict[str, Any] = {field: datetime(2026, 11, 1)}
    with pytest.raises(InvalidRequest, match=f"{field} has no time zone") as raised:
        report_page(ledger, report(ledger), **times)
    assert raised.value.field == field


def test_a_period_cannot_end_before_it_begins(ledger: Ledger) -> None:
    """Nor where it begins."""
    with pytest.raises(InvalidRequest, match="before it begins"):
        report_page(ledger, report(ledger), since=FIRST, until=FIRST)


# ---------------------------------------------------------------------- what does not fit


def test_a_table_has_at_most_500_lines(ledger: Ledger) -> None:
    """Then it says how many more, and what prints them all."""
    for number in range(503):
        ledger.append(row(number, session=f"s{number:03}", metadata={"a,b": "x"}))
    made = page(ledger, ["session", "tag:a,b"])
    assert len(made.table) == 1 + 500 + 1
    assert "The first 500 lines; 3 more are not shown." in made.text
    table = page_table("my costs.db", report(ledger, by=["session", "tag:a,b"]), Window())
    assert shlex.split(table.command) == [
        *("kvsdk", "report", "my costs.db", "--by", 'session,"tag:a,b"', "--format", "csv")
    ]


def test_the_last_requests_are_shown(ledger: Ledger) -> None:
    """Also where the report itself holds only some of them; the command has the report's own choices."""
    for number in range(503):
        ledger.append(row(number, session=f"s{number:03}"))
    for latest in (None, 501):
        table = page_table("l", report(ledger, latest=latest), Window(since=FIRST, prices="original"))
        assert (len(table.lines), table.more, table.is_tail) == (500, 3, True)
        assert [table.lines[place][0][3] for place in (0, -1)] == ["s003", "s502"]
        assert table.command == ("kvsdk report l --since 2026-11-01T00:00:00Z --prices original --format csv")


def test_charts_keep_to_the_period(ledger: Ledger) -> None:
    """Rows before and after are in none of them."""
    fill(ledger)
    made = page(ledger, since=FIRST + timedelta(days=1), until=FIRST + timedelta(days=4))
    assert "In all: other $5.00." in made.text
    assert "Period: from 2026-11-02 00:00 UTC until 2026-11-05 00:00 UTC; requests of 2026-11-02" in made.text
    assert "The charts are of" not in made.text
    late = report_page(ledger, report(ledger), since=FIRST + timedelta(days=1), made_at=MADE)
    assert "The charts are of 3 requests, the figures and the table of 4 requests" in Page(late).text
