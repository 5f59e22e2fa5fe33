"""How `kvsdk store` writes what it found."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import typer

from kvsdk.cli.tables import Column, Format, Row, count, render, show
from kvsdk.cli.units import many, size
from kvsdk.errors import ConfigurationError

if TYPE_CHECKING:
    from kvsdk.kv import Fingerprint
    from kvsdk.store.entries.identity import Identity
    from kvsdk.store.listing import ListedChunk
    from kvsdk.store.scrub import ScrubReport


def _short(digest: str) -> str:
    return digest[:12]


def _short_name(name: str) -> str:
    """A name in a table: its digests' starts."""
    return "/".join("-".join(_short(part) for part in word.split("-")) for word in name.split("/"))


def _kind(problem: str) -> str:
    """A problem in a table: in one word. `kvsdk store verify` has all of it."""
    return problem.partition(":")[0]


def _yes(value: bool) -> str:
    return "yes" if value else "no"


_AMOUNTS = (
    Column("chunks", "chunks", count),
    Column("tokens", "tokens", count),
    Column("bytes", "size", size),
)
_FORM = (
    Column("model", "model", _short, is_number=False),
    Column("fingerprint", "fingerprint", _short, is_number=False, rank=2),
    Column("dtype", "dtype", is_number=False, rank=1),
    Column("is_lossy", "lossy", _yes, is_number=False, rank=2),  # the dtype says most of it
    Column("codec", "codec", is_number=False, rank=1),
    Column("layout", "layout", is_number=False, rank=1),
    Column("block_size", "block", count, rank=1),
    Column("tp", "tp", count, rank=1),
    Column("pp", "pp", count, rank=1),
    Column("rank", "rank", count, rank=1),
)
_CHUNKS = (
    *_FORM,
    Column("first_token", "depth", count),
    Column("tokens", "tokens", count),
    Column("bytes", "size", size),
    Column("key", "key", _short, is_number=False, rank=1),
    Column("problem", "problem", _kind, is_number=False),
    Column("name", "name", is_number=False),
)
_PROBLEMS = (
    Column("name", "entry", _short_name, is_number=False),
    Column("kind", "kind", is_number=False),
    Column("detail", "what is wrong", is_number=False),
    Column("is_removed", "removed", _yes, is_number=False),
)
_FREED = (
    Column("removed_entries", "removed", count),
    Column("freed_bytes", "freed", size),
    Column("entries", "entries", count),
    Column("bytes", "size", size),
    Column("capacity_bytes", "quota", size),
)
_SAY_NOTHING = {
    "is_lossy": False,
    "codec": None,
    "tp": 1,
    "pp": 1,
    "rank": 0,
    "problem": None,
    "is_removed": False,
}
"""Columns that people are spared where all rows have this, besides those where they have nothing."""


_KEPT = ("newer", "unreadable")
"""What is never removed."""


def print_groups(chunks: Sequence[ListedChunk], identities: Iterable[Identity], form: Format) -> None:
    """A line for each model and form of storing, the largest first."""
    groups: dict[tuple[Any, ...], dict[str, Any]] = {}
    for chunk in chunks:
        said = _of_chunk(chunk)
        row = groups.setdefault(tuple(said.values()), {**said, "chunks": 0, "tokens": 0, "bytes": 0})
        row["chunks"] += 1
        row["tokens"] += chunk.tokens or 0
        row["bytes"] += chunk.num_bytes
    rows = sorted(groups.values(), key=lambda row: -row["bytes"])
    has_manifests = any(chunk.manifest is not None for chunk in chunks)
    rows += _without_chunks(rows, identities, are_none=has_manifests or not chunks)
    total = {column.key: sum(row[column.key] or 0 for row in rows) for column in _AMOUNTS}
    _print((*_FORM, *_AMOUNTS), rows, total, form)


def _of_chunk(chunk: ListedChunk) -> dict[str, Any]:
    """What sets a chunk apart from those of other lines; nothing where its header was not read."""
    own = chunk.manifest
    if own is None:
        return {column.key: None for column in _FORM}
    form = {"dtype": own.spec.dtype, "is_lossy": own.is_lossy, "codec": own.codec}
    place = {"layout": own.layout, "block_size": own.spec.block_size}
    return {**_of_model(own.fingerprint), **form, **place, **_of_rank(own.fingerprint, own.rank)}


def _of_model(fingerprint: Fingerprint) -> dict[str, Any]:
    return {"model": fingerprint.weights_digest, "fingerprint": _digest(fingerprint)}


def _of_rank(fingerprint: Fingerprint, rank: int) -> dict[str, Any]:
    return {"tp": fingerprint.tensor_parallel, "pp": fingerprint.pipeline_parallel, "rank": rank}


def _digest(fingerprint: Fingerprint) -> str | None:
    try:
        return fingerprint.digest().hex()
    except ConfigurationError:  # a field is unknown, so that it has no keys
        return None


def _without_chunks(
    rows: Sequence[Row], identities: Iterable[Identity], *, are_none: bool
) -> list[dict[str, Any]]:
    """Identities that no line is of: they have no chunks, or it is not known which."""
    from kvsdk.kv.models.spec import SHORT_DTYPES

    found = []
    amount = 0 if are_none else None
    for identity in identities:
        own = identity.fingerprint
        said = {
            **_of_model(own),
            "is_lossy": identity.dtype is not None,
            "codec": identity.codec,
            **_of_rank(own, identity.rank),
        }
        if any(all(row[key] == value for key, value in said.items()) for row in rows):
            continue
        dtype = SHORT_DTYPES.get(identity.dtype or "", identity.dtype) or own.kv_dtype
        said |= {"dtype": dtype, "layout": None, "block_size": None}
        said |= {column.key: amount for column in _AMOUNTS}
        found.append({column.key: said[column.key] for column in (*_FORM, *_AMOUNTS)})
    return found


def print_chunks(chunks: Iterable[ListedChunk], form: Format) -> None:
    """A line for each chunk, each prompt's in order as far as that is known."""
    rows: list[dict[str, Any]] = [
        {
            **_of_chunk(chunk),
            "first_token": None if chunk.manifest is None else chunk.manifest.first_token,
            "tokens": chunk.tokens,
            "bytes": chunk.num_bytes,
            "key": chunk.name.rpartition("-")[2],
            "problem": chunk.problem,
            "name": chunk.name,
        }
        for chunk in chunks
    ]
    rows.sort(key=_order)
    columns = _CHUNKS if form in (Format.json, Format.csv) else _CHUNKS[:-1]
    total = {"tokens": sum(row["tokens"] or 0 for row in rows), "bytes": sum(row["bytes"] for row in rows)}
    _print(columns, rows, total, form)


def _order(row: Row) -> tuple[list[str], int, str]:
    return [str(row[column.key]) for column in _FORM], row["first_token"] or 0, row["name"]


def print_scrub(report: ScrubReport, form: Format, *, is_removing: bool) -> None:
    """A line for each problem, what was checked, and what could be done about it."""
    rows = [
        {"name": each.name, "kind": each.kind, "detail": each.detail, "is_removed": each.is_removed}
        for each in report.problems
    ]
    total = {
        "entries": report.entries,
        "bytes": report.read_bytes,
        "problems": len(report.problems),
        "removed": len(report.removed),
    }
    if form in (Format.json, Format.csv):
        typer.echo(render(_PROBLEMS, rows, total, form))
        return
    if rows:
        _print(_PROBLEMS, rows, None, form)
    checked = f"{many(report.entries, 'entry', 'entries')}, {size(report.read_bytes)} checked"
    if not rows:
        typer.echo(f"{checked}: all are what was written")
        return
    removed = f", {len(report.removed):,} removed" if report.removed else ""
    typer.echo(f"{checked}: {many(len(rows), 'problem')}{removed}")
    bad = sum(each.kind not in _KEPT for each in report.problems)
    if bad and not is_removing:
        typer.echo(f"--remove removes {bad:,} of them")


def print_freed(
    before: tuple[int, int], after: tuple[int, int], capacity_bytes: int | None, form: Format
) -> None:
    """What has gone, and what is left; entries and bytes of both."""
    removed, freed = (max(0, old - new) for old, new in zip(before, after, strict=True))
    if form is not Format.table:
        row = {
            "removed_entries": removed,
            "freed_bytes": freed,
            "entries": after[0],
            "bytes": after[1],
            "capacity_bytes": capacity_bytes,
        }
        typer.echo(render(_FREED, [row], None, form))
        return
    quota = "" if capacity_bytes is None else f" of a quota of {size(capacity_bytes)}"
    typer.echo(
        f"{many(removed, 'entry', 'entries')} removed, {size(freed)} freed; "
        f"{many(after[0], 'entry', 'entries')} left, {size(after[1])}{quota}"
    )


def _print(columns: Sequence[Column], rows: Sequence[Row], total: Row | None, form: Format) -> None:
    if form in (Format.json, Format.csv):
        typer.echo(render(columns, rows, total, form))
        return
    kept = [_ranked(column, rows) for column in columns if _says_something(column.key, rows)]
    if total is not None:
        total = {kept[0].key: "total", **total}
    if form is Format.md:
        typer.echo(render(kept, rows, total, form))
    else:
        show("", kept, rows, total)


def _says_something(key: str, rows: Sequence[Row]) -> bool:
    return not rows or any(row[key] not in (None, _SAY_NOTHING.get(key)) for row in rows)


def _ranked(column: Column, rows: Sequence[Row]) -> Column:
    """Where there is no room for all columns, those go first in which all that could be read is alike."""
    is_alike = len({row[column.key] for row in rows if row.get("model") is not None}) < 2
    return replace(column, rank=column.rank + 1) if column.rank and is_alike else column
