"""`kvsdk rerate`: old rows at corrected prices."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from kvsdk.cli.arguments import moment, open_ledger
from kvsdk.cli.tables import dollars


def rerate_command(
    ledger: Annotated[str, typer.Argument(help="A ledger's file, or its database URL.")],
    prices: Annotated[Path | None, typer.Option(help="A TOML file with prices of your own.")] = None,
    since: Annotated[str | None, typer.Option(help="Only what was sent on this day (UTC) or later.")] = None,
    until: Annotated[str | None, typer.Option(help="Only what was sent before this day.")] = None,
    model: Annotated[str | None, typer.Option(help="Only this model.")] = None,
    dry_run: Annotated[bool, typer.Option(help="Say what would change, and write nothing.")] = False,
) -> None:
    """Price the requests in a ledger anew, each at the prices of its own day. The old figures stay."""
    from kvsdk.cost import PriceBook
    from kvsdk.cost.ledger.rerate import rerate

    filters = {} if model is None else {"model": model}
    with open_ledger(ledger) as book:
        done = rerate(
            book,
            PriceBook(prices),
            since=moment("since", since),
            until=moment("until", until),
            dry_run=dry_run,
            **filters,
        )
    would = "would have" if dry_run else "have"
    typer.echo(f"{done.changed:,} of {done.rows:,} rows {would} another cost")
    if done.changed:
        typer.echo(f"before: {dollars(done.before_usd)}   after: {dollars(done.after_usd)}")
    if done.without_bill:
        typer.echo(f"left as they are, for they say nothing of what was billed: {done.without_bill:,}")
