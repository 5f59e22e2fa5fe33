"""What several commands take as arguments."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from kvsdk.errors import InvalidRequest

if TYPE_CHECKING:
    from kvsdk.cost import Ledger


def open_ledger(address: str) -> Ledger:
    """The ledger of a file or a database URL; a file that is not there is not made.

    Raises:
        InvalidRequest: There is no such file.
        LedgerError: It is no ledger, or its server is away.
    """
    from kvsdk.cost import Ledger

    if "://" not in address and not Path(address).expanduser().is_file():
        raise InvalidRequest(f"there is no ledger at {address}", field="ledger")
    return Ledger(address)


def moment(option: str, text: str | None) -> datetime | None:
    """A day, or a time, as people write it; UTC unless it says otherwise.

    Raises:
        InvalidRequest: It is neither.
    """
    if text is None:
        return None
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise InvalidRequest(
            f"--{option} is a day or a time, such as 2026-11-30 or 2026-11-30T12:00, not {text!r}",
            field=option,
        ) from None
    return found if found.tzinfo else found.replace(tzinfo=UTC)


def warn_of_spill(book: Ledger) -> None:
    """Say on standard error which rows the database has not taken yet: no report has them."""
    files = book.spill_files
    if files:
        names = ", ".join(str(file) for file in files)
        rows = sum(_rows(file) for file in files)
        typer.echo(
            f"kvsdk: {rows} row(s) are not in this report: the ledger has not taken them yet, "
            f"and they are kept in {names}",
            err=True,
        )


def _rows(file: Path) -> int:
    try:
        with file.open("rb") as opened:
            return sum(1 for line in opened if line.strip())
    except FileNotFoundError:  # they were written to the ledger meanwhile
        return 0
