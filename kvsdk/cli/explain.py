"""`kvsdk explain`: why the requests in a log missed the cache, what that cost, and what to change."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kvsdk.cli.explain_print import Totals, printer, say_the_rest
from kvsdk.cli.tables import Format
from kvsdk.errors import InvalidRequest

if TYPE_CHECKING:
    from kvsdk.cli.explain_log import ExplainedRequest, LogExplainer


def explain_command(
    file: Annotated[str, typer.Argument(help="Requests, a JSON object a line; '-' reads standard input.")],
    backend: Annotated[
        str | None,
        typer.Option(help="Judge all requests as this backend, such as anthropic:claude-sonnet-5-5."),
    ] = None,
    form: Annotated[Format, typer.Option("--format", help="How to print it.")] = Format.table,
    limit: Annotated[int, typer.Option(min=0, help="Rows of a table; 0 shows all.")] = 200,
    skip_bad: Annotated[bool, typer.Option("--skip-bad", help="Count lines that are no request.")] = False,
) -> None:
    """Say why the requests in a log missed the cache, what that cost, and what to change.

    A line is an Anthropic or an OpenAI body, or the arguments of a call of kvsdk; beside it may stand
    "session", "at" (seconds, or an ISO time) and "usage" (as the vendor reports it). Nothing is sent.
    """
    from kvsdk.backend import backend as find_backend
    from kvsdk.cli.explain_log import LogExplainer

    if backend is not None:
        find_backend(backend)
    if file != "-" and not Path(file).expanduser().is_file():
        raise InvalidRequest(f"there is no log at {file}", field="file")
    explainer, totals = LogExplainer(backend), Totals()
    output = printer(form, limit)
    for row in _rows(file, explainer, totals, skip_bad=skip_bad):
        output.row(row)
    output.end(totals, explainer.findings)
    say_the_rest(totals, explainer.unnamed, skip_bad=skip_bad)
    if totals.misses or len(explainer.findings) or (totals.bad_lines and not skip_bad):
        raise typer.Exit(1)


def _rows(
    file: str, explainer: LogExplainer, totals: Totals, *, skip_bad: bool
) -> Iterator[ExplainedRequest]:
    """Explain a log, one line in memory at a time."""
    from kvsdk.caching.log import BadLine, read_log

    with ExitStack() as stack:
        lines = sys.stdin.buffer if file == "-" else stack.enter_context(Path(file).expanduser().open("rb"))
        for item in read_log(lines):
            bad = item if isinstance(item, BadLine) else None
            if not isinstance(item, BadLine):
                try:
                    row = explainer.explain(item)
                except InvalidRequest as error:
                    bad = BadLine(item.line, str(error))
                else:
                    totals.add(row)
                    yield row
            if bad is None:
                continue
            totals.bad_lines += 1
            if not skip_bad:
                typer.echo(f"kvsdk: {file}, line {bad.line}: {bad.reason}", err=True)
