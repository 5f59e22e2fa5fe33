"""`kvsdk bill`: the bill of an engine of one's own, divided among its requests."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kvsdk._text import did_you_mean
from kvsdk.cli.arguments import moment, open_ledger, warn_of_spill
from kvsdk.cli.tables import Column, Format, Row, count, dollars, percent, render, show
from kvsdk.errors import InvalidRequest

if TYPE_CHECKING:
    from kvsdk.cost import Ledger
    from kvsdk.cost.engine.allocation import Allocation, EngineUse, Share, SkippedUse

GROUPS = ("session", "tenant", "model", "backend", "day", "request")
Elsewheres = Mapping[str, Mapping[str, Decimal | None]]
"""By address: what each attempt would have cost there, by its id."""
_TOKENS = ("input_tokens", "cache_read_tokens", "output_tokens")
_DOLLARS = ("prefill_usd", "load_usd", "store_usd", "decode_usd")
_BY = "A line for each of any of session,tenant,model,backend,day,request."
_VERSUS = "Also what the same tokens would have cost on a hosted backend; may be given several times."
_BACKEND = "The scheme of the engine's rows, such as vllm or vllm+http; may be given several times."


def _exactly(value: Decimal) -> str:
    return f"${value:,f}"


def _duration(seconds: float) -> str:
    return f"{seconds:,.3f} s" if seconds < 3600 else f"{seconds / 3600:,.2f} h"


_NUMBERS = (
    Column("requests", "requests", count),
    Column("input_tokens", "input", count),
    Column("cache_read_tokens", "read from cache", count),
    Column("output_tokens", "output", count),
    Column("engine_s", "engine", _duration),
    Column("queue_s", "waited", _duration, rank=1),
    Column("prefill_usd", "prompts", dollars, rank=1),
    Column("load_usd", "loading", dollars, rank=1),
    Column("store_usd", "storing", dollars, rank=1),
    Column("decode_usd", "answers", dollars, rank=1),
    Column("usd", "dollars", _exactly),
    Column("share", "of the bill", percent),
    Column("estimated", "estimated", count),
    Column("cut", "cut", count, rank=1),
)
_SAY_NOTHING_AT_ZERO = ("load_usd", "store_usd", "cache_read_tokens", "queue_s", "estimated", "cut")


def bill_command(
    ledger: Annotated[str, typer.Argument(help="A ledger's file, or its database URL.")],
    usd_per_hour: Annotated[str | None, typer.Option(help="What the whole engine costs an hour.")] = None,
    gpu: Annotated[str | None, typer.Option(help="The GPU's name.")] = None,
    gpus: Annotated[int | None, typer.Option(help="How many GPUs.")] = None,
    usd_per_gpu_hour: Annotated[str | None, typer.Option(help="What one costs.")] = None,
    host_gb: Annotated[str | None, typer.Option(help="Memory of the host that is paid for.")] = None,
    usd_per_host_gb_hour: Annotated[str | None, typer.Option(help="What a gigabyte costs.")] = None,
    storage_gb: Annotated[str | None, typer.Option(help="Storage that is paid for.")] = None,
    usd_per_storage_gb_hour: Annotated[str | None, typer.Option(help="What a gigabyte costs.")] = None,
    since: Annotated[
        str | None, typer.Option(metavar="DATE", help="The period's start (UTC); the first row without one.")
    ] = None,
    until: Annotated[
        str | None, typer.Option(metavar="DATE", help="Its end; the end of the last row without one.")
    ] = None,
    by: Annotated[str, typer.Option(metavar="COLUMN,...", help=_BY)] = "session",
    backend: Annotated[list[str] | None, typer.Option(metavar="SCHEME", help=_BACKEND)] = None,
    versus: Annotated[list[str] | None, typer.Option(metavar="ADDRESS", help=_VERSUS)] = None,
    form: Annotated[Format, typer.Option("--format", help="How to print it.")] = Format.table,
) -> None:
    """Divide the bill of an engine of one's own among its requests; what none of them used is idle."""
    from kvsdk.cost.engine.allocation import EngineBill, allocate, engine_uses

    groups = _groups(by)
    bill = EngineBill(
        usd_per_hour=usd_per_hour,
        gpu=gpu,
        gpus=gpus,
        usd_per_gpu_hour=usd_per_gpu_hour,
        host_gb=host_gb,
        usd_per_host_gb_hour=usd_per_host_gb_hour,
        storage_gb=storage_gb,
        usd_per_storage_gb_hour=usd_per_storage_gb_hour,
    )
    start, end = moment("since", since), moment("until", until)
    if start and end and start >= end:
        raise InvalidRequest(f"--until {until} is not after --since {since}", field="until")
    schemes = tuple(backend or ("vllm",))
    with open_ledger(ledger) as book:
        uses = list(engine_uses(book, backends=schemes, since=start, until=end))
        first, last = _period(uses, start, end, schemes)
        elsewhere = {address: _elsewhere(book, address, schemes, last) for address in versus or ()}
        warn_of_spill(book)
    print_allocation(allocate(uses, bill, start=first, end=last), groups, form, elsewhere)


def _elsewhere(
    book: Ledger, address: str, schemes: Sequence[str], until: datetime
) -> dict[str, Decimal | None]:
    """What each attempt would have cost elsewhere, by its id; the other cache sees all that came before."""
    from kvsdk.cost import Elsewhere

    other = Elsewhere(address)
    return {row.id: other.cost(row).total for row in book.rows(until=until) if row.backend in schemes}


def _groups(by: str) -> tuple[str, ...]:
    names = tuple(name.strip() for name in by.split(",") if name.strip())
    for name in names:
        if name not in GROUPS:
            raise InvalidRequest(
                f"a bill cannot be divided by {name!r}.{did_you_mean(name, GROUPS)}", field="by"
            )
    if not names:
        raise InvalidRequest(f"--by names at least one of {', '.join(GROUPS)}", field="by")
    return names


def _period(
    uses: Sequence[EngineUse | SkippedUse],
    start: datetime | None,
    end: datetime | None,
    schemes: Sequence[str],
) -> tuple[datetime, datetime]:
    """What was asked for, or from the first use to the end of the last."""
    from kvsdk.cost.engine.allocation import span

    if start is not None and end is not None:
        return start, end
    found = span(uses)
    if found is None:
        raise InvalidRequest(
            f"the ledger has no use of {' or '.join(schemes)} in that time; name the engine's schemes with "
            "--backend, or the whole period with --since and --until",
            field="backend",
        )
    return start or found[0], end or found[1]


# ---------------------------------------------------------------------- printing


def print_allocation(
    allocation: Allocation, by: Sequence[str], form: Format, elsewhere: Elsewheres | None = None
) -> None:
    """Print who had what of the bill, what was idle, and the bill itself. Remarks go to standard error."""
    others = elsewhere or {}
    rows = [*_lines(allocation, by, others), _idle(allocation)]
    total = _total(allocation, rows, others)
    columns = [Column(name, name, is_number=False) for name in by]
    all_numbers = [
        *_NUMBERS,
        *(Column(f"versus_usd:{name}", f"{name} (estimate)", dollars) for name in others),
    ]
    if form in (Format.json, Format.csv):
        head = [Column("line", "line", is_number=False), *columns]
        typer.echo(render([*head, *all_numbers], rows, total, form))
    else:
        rows[-1][by[0]], total[by[0]] = "idle", "total"
        numbers = [column for column in all_numbers if _says_something(column.key, rows)]
        title = _title(allocation)
        if form is Format.md:
            typer.echo(f"{title}\n\n{render([*columns, *numbers], rows, total, form)}")
        else:
            show(title, [*columns, *numbers], rows, total)
    for remark in _remarks(allocation):
        typer.echo(f"kvsdk: {remark}", err=True)


def _title(allocation: Allocation) -> str:
    start, end = (moment.isoformat(sep=" ") for moment in (allocation.start, allocation.end))
    return f"{allocation.bill.words}, from {start} to {end}: {_duration(allocation.period_s)}"


def _lines(allocation: Allocation, by: Sequence[str], others: Elsewheres) -> list[dict[str, Any]]:
    groups: dict[tuple[str | None, ...], list[Share]] = {}
    for share in allocation.shares:
        groups.setdefault(tuple(_group(share, name) for name in by), []).append(share)
    ordered = groups.items() if "request" in by else sorted(groups.items(), key=_in_order)
    return [
        {"line": "requests", **dict(zip(by, names, strict=True)), **_sums(shares, allocation, others)}
        for names, shares in ordered
    ]


def _group(share: Share, name: str) -> str | None:
    use = share.use
    if name == "day":
        return use.at.date().isoformat()
    if name == "request":
        return use.operation_id
    names = {"session": use.session, "tenant": use.tenant, "model": use.model, "backend": use.backend}
    return names[name]


def _in_order(group: tuple[tuple[str | None, ...], object]) -> list[tuple[bool, str]]:
    return [(name is None, name or "") for name in group[0]]


def _sums(shares: Sequence[Share], allocation: Allocation, others: Elsewheres) -> dict[str, Any]:
    usd = sum((share.total_usd for share in shares), Decimal(0))
    return {
        "requests": len({share.use.operation_id for share in shares}),
        **{name: _known_sum(getattr(share.use.usage, name) for share in shares) for name in _TOKENS},
        "engine_s": sum(share.busy_s for share in shares),
        "queue_s": _known_sum(share.queue_s for share in shares),
        **{name: sum((getattr(share, name) for share in shares), Decimal(0)) for name in _DOLLARS},
        "usd": usd,
        "share": _part(usd, allocation),
        "estimated": sum(share.is_estimated for share in shares),
        "cut": sum(share.is_cut for share in shares),
        **{
            f"versus_usd:{name}": _known_sum(costs.get(share.use.id) for share in shares)
            for name, costs in others.items()
        },
    }


def _known_sum(values: Iterable[Any]) -> Any:
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def _part(usd: Decimal, allocation: Allocation) -> float | None:
    return float(usd / allocation.total_usd) if allocation.total_usd else None


def _idle(allocation: Allocation) -> dict[str, Any]:
    return {
        "line": "idle",
        "engine_s": allocation.idle_s,
        "usd": allocation.idle_usd,
        "share": _part(allocation.idle_usd, allocation),
    }


def _total(allocation: Allocation, rows: Sequence[Row], others: Elsewheres) -> dict[str, Any]:
    sums = _sums(allocation.shares, allocation, others)
    return {
        "line": "total",
        **sums,
        "engine_s": allocation.period_s,
        "usd": sum((row["usd"] for row in rows), Decimal(0)),
        "share": None if allocation.total_usd == 0 else 1.0,
        "bill": allocation.bill.words,
        "usd_per_hour": allocation.bill.usd_per_hour,
        "since": allocation.start.isoformat(),
        "until": allocation.end.isoformat(),
        "skipped": len(allocation.skipped),
        "is_scaled": allocation.is_scaled,
    }


def _says_something(key: str, rows: Sequence[Row]) -> bool:
    values = [row.get(key) for row in rows]
    return any(values) if key in _SAY_NOTHING_AT_ZERO else any(value is not None for value in values)


def _remarks(allocation: Allocation) -> list[str]:
    remarks = [
        f"{number} row(s) were not counted: {reason}"
        for reason, number in sorted(Counter(use.reason for use in allocation.skipped).items())
    ]
    estimated = sum(share.is_estimated for share in allocation.shares)
    if estimated:
        remarks.append(f"{estimated} of {len(allocation.shares)} shares go by tokens and are estimates")
    if allocation.is_scaled:
        remarks.append("the requests took more seconds than the period has; their shares were scaled down")
    return remarks
