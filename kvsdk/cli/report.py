"""`kvsdk report`: what a ledger adds up to."""

from __future__ import annotations

import csv
import sys
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, Any

import typer

from kvsdk.cli.arguments import moment, open_ledger, warn_of_spill
from kvsdk.cli.report_print import print_report, stream_requests
from kvsdk.cli.tables import Format
from kvsdk.errors import InvalidRequest

if TYPE_CHECKING:
    from kvsdk.cost import Ledger

MAX_LINES = 1000
"""The most requests in a table for people; all of them are for programs."""


class ReportFormat(StrEnum):
    """How a report is written."""

    table = "table"
    md = "md"
    csv = "csv"
    json = "json"
    html = "html"


class PriceChoice(StrEnum):
    """Which prices count."""

    latest = "latest"
    original = "original"


_BY = (
    "Group by any of backend, model, session, tenant, day, tag, tag:NAME (a label); none: a line per request."
)
_VERSUS = "Also what the same tokens would have cost on another backend; may be given several times."


def report_command(
    ledger: Annotated[str, typer.Argument(help="A ledger's file, or its database URL.")],
    by: Annotated[str, typer.Option(metavar="COLUMN,...", help=_BY)] = "",
    since: Annotated[
        str | None, typer.Option(metavar="DATE", help="Only what was sent on this day (UTC) or later.")
    ] = None,
    until: Annotated[
        str | None, typer.Option(metavar="DATE", help="Only what was sent before this day.")
    ] = None,
    versus: Annotated[list[str] | None, typer.Option(metavar="ADDRESS", help=_VERSUS)] = None,
    prices: Annotated[
        PriceChoice, typer.Option(help="With prices that were corrected later, or as they were at first.")
    ] = PriceChoice.latest,
    form: Annotated[ReportFormat, typer.Option("--format", help="How to write it.")] = ReportFormat.table,
    reconcile: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Hold a vendor's usage or cost export against the ledger instead."),
    ] = None,
    output: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write it to a file instead of standard output.")
    ] = None,
) -> None:
    """Print what the requests in a ledger used, cost and saved."""
    if reconcile is not None:
        _reconcile(ledger, reconcile, form)
        return
    choice: dict[str, Any] = {
        "since": moment("since", since),
        "until": moment("until", until),
        "versus": tuple(versus or ()),
        "prices": prices.value,
    }
    if choice["since"] and choice["until"] and choice["since"] >= choice["until"]:
        raise InvalidRequest(f"--until {until} is not after --since {since}", field="until")
    with open_ledger(ledger) as book:
        _check_output(output, ledger)
        write = _prepare(book, _names(by), choice, form)
        if output is None:
            write(sys.stdout)
        else:
            with output.open("w", encoding="utf-8", newline="") as file:
                write(file)
        warn_of_spill(book)


def _reconcile(ledger: str, export: Path, form: ReportFormat) -> None:
    """Compare, print, and exit with 1 where a line does not match."""
    from kvsdk.cli.reconcile_print import print_reconciliation
    from kvsdk.cost import reconcile

    if form is ReportFormat.html:
        raise InvalidRequest("a comparison is written as table, md, csv or json", field="format")
    with open_ledger(ledger) as book:
        matches = print_reconciliation(reconcile(book, export), Format(form.value))
        warn_of_spill(book)
    if not matches:
        raise typer.Exit(1)


def _names(by: str) -> tuple[str, ...]:
    """The columns of `--by`; one with a comma in it is quoted as in CSV."""
    named = [name.strip() for line in csv.reader([by], skipinitialspace=True) for name in line]
    return tuple(name for name in named if name)


def _check_output(output: Path | None, ledger: str) -> None:
    if output is None:
        return
    if not output.parent.is_dir():
        raise InvalidRequest(f"the folder of {output} does not exist", field="output")
    if output.is_dir():
        raise InvalidRequest(f"{output} is a folder; name a file", field="output")
    if "://" not in ledger and output.exists() and output.samefile(Path(ledger).expanduser()):
        raise InvalidRequest(f"{output} is the ledger itself; name another file", field="output")


def _prepare(
    book: Ledger, by: tuple[str, ...], choice: dict[str, Any], form: ReportFormat
) -> Callable[[IO[str]], object]:
    """What writes the report to a file; whatever is wrong with the question is told before one is opened."""
    from kvsdk.cost import report, report_page, request_lines

    if not by and form in (ReportFormat.csv, ReportFormat.json):
        pieces = stream_requests(request_lines(book, **choice), Format(form.value))
        return lambda file: file.writelines(pieces)
    result = report(book, by=by, latest=None if by else MAX_LINES, **choice)
    if form is ReportFormat.html:
        window = {name: choice[name] for name in ("since", "until", "prices")}
        page = report_page(book, result, **window)
        return lambda file: file.write(page)
    return lambda file: print_report(result, Format(form.value), file)
