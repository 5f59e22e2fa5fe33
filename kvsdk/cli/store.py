"""`kvsdk store`: what a folder or bucket holds, whether it is sound, and making room in it."""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from typing import Annotated, Any

import typer

from kvsdk.cli.tables import Format
from kvsdk.errors import ConfigurationError, InvalidRequest

app = typer.Typer(help="Look into a store of KV, verify it, or make room in it.", no_args_is_help=True)

_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}
_AGE = re.compile(r"([0-9]+(?:\.[0-9]+)?)([smhdw])")

_Place = Annotated[
    str, typer.Argument(metavar="PLACE", help="A disk tier's folder, or an object tier's URL.")
]
_Options = Annotated[
    list[str] | None,
    typer.Option(
        "--option",
        metavar="NAME=VALUE",
        help="Of the object tier, such as region=eu-west-1; may be given several times.",
    ),
]
_Form = Annotated[Format, typer.Option("--format", help="How to print it.")]


@app.command("ls")
def ls_command(
    place: _Place,
    chunks: Annotated[bool, typer.Option("--chunks", help="A line for each chunk.")] = False,
    option: _Options = None,
    form: _Form = Format.table,
) -> None:
    """Print what a store holds: whose KV, in which form, how much."""
    from kvsdk.cli.store_print import print_chunks, print_groups
    from kvsdk.store.listing import find_place

    found = find_place(place, _options(option))
    with _readable(place):
        listed, identities = list(found.chunks()), None if chunks else found.identities()
    if identities is None:
        print_chunks(listed, form)
    else:
        print_groups(listed, identities, form)
    if not found.reads_headers:
        typer.echo(
            "kvsdk: an object tier's chunks are not read here, so only their names and sizes are known",
            err=True,
        )
    if damaged := sum(chunk.problem is not None for chunk in listed):
        typer.echo(f"kvsdk: {damaged:,} of them cannot be read; see `kvsdk store verify {place}`", err=True)


@app.command("verify")
def verify_command(
    place: _Place,
    remove: Annotated[
        bool,
        typer.Option("--remove", help="Remove what is damaged or not ours; never what a newer kvsdk wrote."),
    ] = False,
    option: _Options = None,
    form: _Form = Format.table,
) -> None:
    """Read every entry and check every byte; the status is 1 where something is wrong."""
    from kvsdk.cli.store_print import print_scrub
    from kvsdk.store.listing import find_place
    from kvsdk.store.scrub import scrub

    with _opened(find_place(place, _options(option)).tier()) as tier, _bar("verifying") as progress:
        report = scrub(tier, remove=remove, progress=progress)
    print_scrub(report, form, is_removing=remove)
    if report.problems:
        raise typer.Exit(1)


@app.command("gc")
def gc_command(
    place: _Place,
    size: Annotated[
        str | None,
        typer.Option(metavar="SIZE", help="A folder's new quota, such as 50GiB; what is too much goes."),
    ] = None,
    older_than: Annotated[
        str | None,
        typer.Option(
            metavar="AGE", help="Of an object tier: what was written longer ago, such as 30d, goes."
        ),
    ] = None,
    option: _Options = None,
    form: _Form = Format.table,
) -> None:
    """Remove what has expired, what nobody finished, and what is over the quota."""
    from kvsdk.cli.store_print import print_freed
    from kvsdk.store.listing import DiskPlace, find_place
    from kvsdk.store.tiers.tier import parse_size

    quota = None if size is None else parse_size(size, "--size")
    age_s = None if older_than is None else _age_s(older_than)
    found = find_place(place, _options(option))
    _check_gc(isinstance(found, DiskPlace), size, older_than)
    with _readable(place):
        before = found.occupied()
        with _opened(found.tier() if isinstance(found, DiskPlace) else found.tier(max_age_s=age_s)) as tier:
            tier.collect()
            if quota is not None:
                tier.resize(quota)
            capacity = tier.stats().capacity_bytes
        after = found.occupied()
    print_freed(before, after, capacity, form)


def _check_gc(is_disk: bool, size: str | None, older_than: str | None) -> None:
    if is_disk and older_than is not None:
        raise InvalidRequest(
            "--older-than is for object tiers; in a folder entries have their own time, and --size evicts "
            "what was not used for the longest time",
            field="older_than",
        )
    if not is_disk and size is not None:
        raise InvalidRequest("--size is for folders; an object tier has no quota", field="size")
    if not is_disk and older_than is None:
        raise InvalidRequest(
            "an object tier has no expiry and no quota; say what goes with --older-than, such as 30d",
            field="older_than",
        )


def _age_s(text: str) -> float:
    found = _AGE.fullmatch(text)
    if found is None or float(found[1]) == 0:
        raise InvalidRequest(f"--older-than is an age such as 12h or 30d, not {text!r}", field="older_than")
    return float(found[1]) * _SECONDS[found[2]]


def _options(given: Iterable[str] | None) -> dict[str, str]:
    options = {}
    for word in given or ():
        name, mark, value = word.partition("=")
        if not mark or not name or not value:
            raise InvalidRequest(
                f"--option is NAME=VALUE, such as region=eu-west-1, not {word!r}", field="option"
            )
        options[name] = value
    return options


@contextmanager
def _readable(place: str) -> Generator[None]:
    try:
        yield
    except OSError as error:
        where = "" if error.filename is None else f": {error.filename}"
        raise ConfigurationError(f"{place} cannot be read{where}: {error.strerror or error}") from error


@contextmanager
def _opened(tier: Any) -> Generator[Any]:
    try:
        tier.open()
        yield tier
    finally:
        tier.close()


@contextmanager
def _bar(title: str) -> Generator[Callable[[int, int], None] | None]:
    """A bar on a terminal's standard error; nothing elsewhere."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    if not console.is_terminal:
        yield None
        return
    columns = (TextColumn(title), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as shown:
        task = shown.add_task(title, total=None)
        yield lambda done, total: shown.update(task, completed=done, total=total)
