"""The commands put together."""

from __future__ import annotations

from typing import Annotated

import typer

import kvsdk
from kvsdk.cli import bill, convert, demo, explain, prices, report, rerate, store

app = typer.Typer(
    name="kvsdk",
    help="One client for prompt caching, hosted or self-hosted.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.command("bill")(bill.bill_command)
app.command("convert")(convert.convert_command)
app.command("demo")(demo.demo)
app.command("explain")(explain.explain_command)
app.command("prices")(prices.prices_command)
app.command("report")(report.report_command)
app.command("rerate")(rerate.rerate_command)
app.add_typer(store.app, name="store")


def _print_version(is_asked: bool) -> None:
    if is_asked:
        typer.echo(f"kvsdk {kvsdk.__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """One client for prompt caching, hosted or self-hosted."""


def usage_error(error: Exception) -> int | None:
    """Show an error of the command line's own and give its status; None when it is another kind of error."""
    show = getattr(error, "show", None)
    status = getattr(error, "exit_code", None)
    if status is None:
        return None
    if show is not None:
        show()
    return int(status)
