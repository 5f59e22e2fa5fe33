"""The commands put together."""

from __future__ import annotations

import typer

from kvsdk.cli import demo, report

app = typer.Typer(
    name="kvsdk",
    help="One client for prompt caching, hosted or self-hosted.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.command("demo")(demo.demo)
app.command("report")(report.report_command)


@app.callback()
def _root() -> None:
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
