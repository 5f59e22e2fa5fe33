"""A ledger as one HTML page, to read on a screen and to print: no script, and nothing from elsewhere."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from importlib.util import find_spec
from typing import Any

from kvsdk.cost.ledger.ledger import Ledger
from kvsdk.cost.reports import charts
from kvsdk.cost.reports.chart_data import ChartData, Distribution, Extent
from kvsdk.cost.reports.charts import Saving, Span
from kvsdk.cost.reports.page_table import page_table
from kvsdk.cost.reports.page_text import cell, dollars, moment_in_words, visible
from kvsdk.cost.reports.rows import Report, ReportRow
from kvsdk.cost.reports.sql import Prices, Window
from kvsdk.errors import ConfigurationError, InvalidRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """A number that the page begins with."""

    name: str
    value: str
    about: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChartBox:
    """A chart and what is said of it in words; without a chart, why there is none."""

    title: str
    svg: str | None
    words: str


def report_page(
    ledger: Ledger,
    report: Report,
    *,
    since: datetime | None = None,
    until: datetime | None = None,
    prices: Prices = "latest",
    made_at: datetime | None = None,
) -> str:
    """A ledger as one self-contained HTML page: key figures, charts, and the report's table.

    The figures and the table are the report's; the charts are of the same period of the ledger, added up in
    the database. The same input makes the same page.

    Args:
        ledger: Where the rows are.
        report: What `kvsdk.cost.report` made of it, with these bounds and prices.
        since: Only what was sent then or later.
        until: Only what was sent before.
        prices: As in `kvsdk.cost.report`.
        made_at: The moment that the page names as its own; now by default.

    Raises:
        ConfigurationError: jinja2 or matplotlib is not installed.
        InvalidRequest: A time has no time zone, or the period ends before it begins.
        LedgerError: The ledger cannot be read.
    """
    _require_libraries()
    made_at = made_at or datetime.now(UTC)
    _check_period(since=since, until=until, made_at=made_at)
    window = Window(since=since, until=until, prices=prices)
    data = ChartData(ledger, window)
    extent, costs = data.extent(), data.distribution()
    return _render(
        ledger_name=visible(ledger.name),
        made_at=moment_in_words(made_at),
        period=_period(since, until),
        extent=extent and _between(extent),
        figures=_figures(report.total),
        caveats=_caveats(report.total, costs.requests),
        charts=_charts(data, extent, costs) if extent else [],
        by=", ".join(visible(name) for name in report.by),
        table=page_table(ledger.name, report, window),
    )


def _require_libraries() -> None:
    for package in ("jinja2", "matplotlib"):
        if find_spec(package) is None:
            raise ConfigurationError(f"a page needs {package}; run: pip install 'kvsdk[reports]'")


def _check_period(*, since: datetime | None, until: datetime | None, made_at: datetime) -> None:
    for name, moment in (("since", since), ("until", until), ("made_at", made_at)):
        if moment is not None and moment.tzinfo is None:
            raise InvalidRequest(f"{name} has no time zone; write datetime.now(UTC)", field=name)
    if since is not None and until is not None and until <= since:
        raise InvalidRequest(f"the period ends ({until}) before it begins ({since})", field="until")


def _render(**content: Any) -> str:
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("kvsdk.cost.reports"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    return environment.get_template("report.html.jinja").render(content)


# ---------------------------------------------------------------------- key figures


def _figures(total: ReportRow) -> list[Figure]:
    sent = f"sent {total.attempts:,} times" if total.attempts != total.requests else ""
    bounds = f"between {cell('low_usd', total.low_usd)} and {cell('high_usd', total.high_usd)}"
    without = cell("without_cache_usd", total.without_cache_usd)
    is_metered = total.hit_rate is not None
    return [
        Figure(name="requests", value=cell("requests", total.requests), about=sent),
        Figure(
            name="cost",
            value=cell("cost_usd", total.cost_usd),
            about=bounds if total.low_usd is not None else "",
        ),
        Figure(name="without cache", value=without),
        Figure(name="saved", value=cell("saved_usd", total.saved_usd), about=_saved_share(total)),
        Figure(
            name="hit rate",
            value=cell("hit_rate", total.hit_rate),
            about="of input tokens" if is_metered else "",
        ),
    ]


def _saved_share(total: ReportRow) -> str:
    if total.saved_usd is None or not total.without_cache_usd:
        return ""
    return f"{total.saved_usd / total.without_cache_usd:.1%} of the cost without cache"


def _caveats(total: ReportRow, drawn: int) -> list[str]:
    """What the figures leave out, and whether the charts are of the same requests."""
    found = []
    if total.unpriced:
        found.append(
            f"Attempts without a known cost: {total.unpriced:,} of {total.attempts:,}. They are missing from "
            "every sum of dollars here, so what was spent may be more."
        )
    if total.estimated:
        found.append(
            f"Attempts with an estimated cost: {total.estimated:,} of {total.attempts:,}, because a count "
            "that matters was not reported. Their upper bound is added up, so what was spent may be less."
        )
    if drawn != total.requests:
        found.append(
            f"The charts are of {_counted(drawn)}, the figures and the table of "
            f"{_counted(total.requests)}: the report is of another period, or rows have come since."
        )
    return found


def _counted(requests: int) -> str:
    return f"{requests:,} request" + ("" if requests == 1 else "s")


# ---------------------------------------------------------------------- charts


def _charts(data: ChartData, extent: Extent, costs: Distribution) -> list[ChartBox]:
    by_cost_step, by_hit_step = data.spans(extent)
    return [
        _cost_box(by_cost_step, extent),
        _hit_box(by_hit_step, extent),
        _saved_box(data.savings()),
        _distribution_box(costs),
    ]


def _cost_box(spans: list[Span], extent: Extent) -> ChartBox:
    step = extent.cost_step
    title = f"Cost by {step.name}, by what it was spent on"
    sums = {name: sum(span.cost_usd[name] for span in spans) for name in charts.CLASSES}
    if not any(sums.values()):
        return ChartBox(title=title, svg=None, words="No request has a known cost above zero.")
    words = ", ".join(f"{name} {dollars(Decimal(usd))}" for name, usd in sums.items() if usd)
    svg = charts.cost_chart(spans, title=f"{title}: {words}", step=step.name, form=step.form)
    about = " Other is storage, tools, and what is known only as a whole." if sums["other"] else ""
    return ChartBox(title=title, svg=svg, words=f"In all: {words}.{about}")


def _saved_box(savings: list[Saving]) -> ChartBox:
    title = "Saved by session, against no cache at all"
    if not savings:
        return ChartBox(title=title, svg=None, words="What was saved is not known for any request.")
    if not any(saving.saved_usd for saving in savings):
        return ChartBox(title=title, svg=None, words="No session has saved or lost anything.")
    has_loss = any(saving.saved_usd < 0 for saving in savings)
    words = "The sessions that saved or lost the most."
    if has_loss:
        words += " Below zero, writing to the cache cost more than reading from it saved."
    return ChartBox(title=title, svg=charts.saved_chart(savings, title=title), words=words)


def _hit_box(spans: list[Span], extent: Extent) -> ChartBox:
    step = extent.hit_step
    title = f"Hit rate by {step.name}"
    known = [span.hit_rate for span in spans if span.hit_rate is not None]
    if not known:
        return ChartBox(title=title, svg=None, words="No backend said what it read from a cache.")
    low, high = f"{min(known):.1%}", f"{max(known):.1%}"
    words = f"Tokens read from a cache, of all input tokens: {low}" + ("." if low == high else f" to {high}.")
    if len(known) < len(spans):
        words += " A gap is a time without a request whose backend says what it read."
    svg = charts.hit_chart(spans, title=f"{title}. {words}", step=step.name, form=step.form)
    return ChartBox(title=title, svg=svg, words=words)


def _distribution_box(found: Distribution) -> ChartBox:
    title = "Requests by what one cost"
    count = sum(bin.requests for bin in found.bins)
    parts = [
        (found.free, "cost nothing"),
        (found.unpriced, "without a known cost"),
        (found.partial, "counted with the known part of their cost"),
    ]
    beside = ", ".join(f"{number:,} {text}" for number, text in parts if number)
    if not found.bins:
        return ChartBox(title=title, svg=None, words=f"No request has a known cost above zero: {beside}.")
    words = _counted(count) + (f"; {beside}" if beside else "") + ". A request is all of its attempts."
    svg = charts.distribution_chart(found.bins, title=f"{title}: {words}")
    return ChartBox(title=title, svg=svg, words=words)


# ---------------------------------------------------------------------- words


def _period(since: datetime | None, until: datetime | None) -> str:
    begin = "" if since is None else f"from {moment_in_words(since)}"
    end = "" if until is None else f"until {moment_in_words(until)}"
    return " ".join(part for part in (begin, end) if part) or "everything in the ledger"


def _between(extent: Extent) -> str:
    first, last = moment_in_words(extent.first), moment_in_words(extent.last)
    return f"requests of {first}" if first == last else f"requests from {first} to {last}"
