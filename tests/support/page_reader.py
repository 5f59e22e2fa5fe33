"""A page taken apart, and rows for it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from html.parser import HTMLParser
from typing import Any

from kvsdk import Cost, Usage
from kvsdk.cost import Ledger, report
from kvsdk.cost.reports.page import report_page
from ledger_rows import row

FIRST = datetime(2026, 11, 1, tzinfo=UTC)
MADE = datetime(2026, 12, 1, 9, 30, tzinfo=UTC)
PARTS = ("0.10", "0.02", "0.03", "0.40")
USAGE = Usage.of_parts(fresh=10, read=60, write=30, output=5)
VOID = {"meta", "br", "path", "use", "rect"}


def cost(total: str | Decimal, *, without: str = "2", parts: Sequence[str] = ()) -> Cost:
    named = dict(zip(("input", "cache_read", "cache_write", "output"), map(Decimal, parts), strict=False))
    saved = Decimal(without) - Decimal(total)
    return Cost(total=Decimal(total), without_cache=Decimal(without), saved=saved, **named)


class Page(HTMLParser):
    """A page taken apart: its elements, its text outside of styles, and its table."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.html = html
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.table: list[list[str]] = []
        self._open: list[str] = []
        self.feed(html)
        self.close()
        assert self._open == []

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())

    @property
    def svgs(self) -> list[str]:
        return re.findall(r"<svg.*?</svg>", self.html, re.DOTALL)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self._open.append(tag)
        if tag == "tr":
            self.table.append([])
        if tag in ("td", "th"):
            self.table[-1].append("")

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID:
            assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        if "style" in self._open:
            return
        self.words.append(data)
        if {"td", "th"} & set(self._open):
            self.table[-1][-1] += data


def page(ledger: Ledger, by: Sequence[str] = ("session",), **window: Any) -> Page:
    return Page(report_page(ledger, report(ledger, by=by, **window), made_at=MADE, **window))


def fill(ledger: Ledger) -> None:
    """Four requests on three days, one of them sent twice, one without a known cost."""
    for number, (days, session, changes) in enumerate(
        (
            (0, "a", {"cost": cost("0.55", parts=PARTS), "usage": USAGE}),
            (0, "a", {"cost": cost("0.25"), "usage": USAGE, "operation_id": "op_0", "attempt": 2}),
            (1, "b", {"cost": cost("5", without="1")}),
            (4, None, {"cost": Cost(reason="no price")}),
            (4, "a", {"cost": Cost(total=Decimal(1), estimated=True, low=Decimal("0.5"), high=Decimal(1))}),
        )
    ):
        ledger.append(row(number, at=FIRST + timedelta(days=days), session=session, **changes))
