"""A report's sums, added up by the database."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

import sqlalchemy as sa
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.functions import FunctionElement

from kvsdk.cost.ledger import schema
from kvsdk.cost.ledger.ledger import Ledger
from kvsdk.cost.ledger.records import at_us
from kvsdk.cost.reports.rows import PRICED
from kvsdk.errors import LedgerError

Prices = Literal["latest", "original"]
Columns = dict[str, sa.ColumnElement[Any]]

DAY_US = 86_400_000_000
PER_REQUEST = ("backend", "model", "session", "tenant")
_HALF = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """Which rows a report is of, and at which prices."""

    since: datetime | None = None
    until: datetime | None = None
    prices: Prices = "latest"

    def conditions(self) -> list[sa.ColumnElement[bool]]:
        """Its bounds as SQL."""
        sent = schema.rows.c.at_us
        bounds = []
        if self.since is not None:
            bounds.append(sent >= at_us(self.since))
        if self.until is not None:
            bounds.append(sent < at_us(self.until))
        return bounds


@dataclass(frozen=True, slots=True)
class Group:
    """One group as the database gives it: its values in the ledger, its calls, its sums."""

    values: tuple[Any, ...]
    requests: int
    figures: dict[str, Any]


def groups(ledger: Ledger, by: Sequence[str], window: Window) -> Iterator[Group]:
    """The sums by these columns, in no order."""
    keys = [_key(name) for name in by]
    return _groups(ledger, keys, keys, window, window.conditions())


def requests(ledger: Ledger, window: Window, latest: int | None) -> Iterator[Group]:
    """The sums of each call, in the order of sending; `latest` keeps those of the last ones only."""
    table = schema.rows.c
    conditions = window.conditions()
    if latest is not None:
        last = sa.select(table.operation_id).where(*conditions).group_by(table.operation_id)
        last = last.order_by(sa.func.min(table.at_us).desc(), table.operation_id.desc()).limit(latest)
        conditions.append(table.operation_id.in_(last))
    sent = sa.func.min(table.at_us)
    keys = [table.operation_id, sent, *(sa.func.max(table[name]) for name in PER_REQUEST)]
    return _groups(ledger, keys, [table.operation_id], window, conditions, [sent, table.operation_id])


def whole(ledger: Ledger, window: Window) -> Group:
    """The sums of everything."""
    (group,) = _groups(ledger, [], [], window, window.conditions())
    return group


def count_requests(ledger: Ledger, window: Window) -> int:
    """How many calls there are."""
    count = sa.func.count(schema.rows.c.operation_id.distinct()).label("requests")
    (found,) = ledger.select(sa.select(count).where(*window.conditions()))
    return int(found["requests"])


def sent_again(ledger: Ledger, window: Window) -> dict[str, int]:
    """Calls with several attempts, and how many."""
    operation, count = schema.rows.c.operation_id, sa.func.count()
    query = sa.select(operation, count.label("attempts")).where(*window.conditions())
    found = ledger.select(query.group_by(operation).having(count > 1))
    return {record["operation_id"]: record["attempts"] for record in found}


def has_nul(ledger: Ledger, window: Window) -> bool:
    """Whether a label has a NUL, which ends a text of SQLite's and is none of PostgreSQL's."""
    labels = schema.rows.c.metadata
    query = sa.select(labels).where(labels.contains("\\u0000", autoescape=True), *window.conditions())
    return bool(ledger.select(query.limit(1)))


def _groups(
    ledger: Ledger,
    keys: Sequence[sa.ColumnElement[Any]],
    group_by: Sequence[sa.ColumnElement[Any]],
    window: Window,
    conditions: Sequence[sa.ColumnElement[bool]],
    order: Sequence[sa.ColumnElement[Any]] = (),
) -> Iterator[Group]:
    columns_of_cost, source = priced(ledger, window.prices)
    operations = sa.func.count(schema.rows.c.operation_id.distinct()).label("requests")
    columns = [key.label(f"key_{number}") for number, key in enumerate(keys)]

    def build(is_split: bool) -> sa.Executable:
        query: Any = sa.select(*columns, operations, *_sums(columns_of_cost, is_split)).select_from(source)
        asked: sa.Executable = query.where(*conditions).group_by(*group_by).order_by(*order)
        return asked

    found = _select(ledger, build)
    labels = list(found[0].keys()) if found else []
    head = len(columns)
    halved = [label.removesuffix("/high") for label in labels if label.endswith("/high")]
    for record in found:
        values: tuple[Any, ...] = tuple(record.values())
        figures = _figures(labels[head + 1 :], values[head + 1 :], halved)
        yield Group(values[:head], int(values[head]), figures)


def _select(ledger: Ledger, build: Callable[[bool], sa.Executable]) -> Sequence[sa.RowMapping]:
    """Ask; where SQLite's sums do not fit into 64 bits, ask for them in two parts."""
    try:
        return ledger.select(build(False))
    except LedgerError as error:
        if "integer overflow" not in str(error.__cause__):
            raise
        return ledger.select(build(True))


def priced(ledger: Ledger, prices: Prices) -> tuple[Columns, sa.FromClause]:
    """The columns of a cost, and where they are from: the latest prices only where there are any."""
    rows, ratings = schema.rows, schema.ratings
    names = [*(f"{name}_pico_usd" for name in schema.MONEY), "is_cost_estimated"]
    if prices == "original" or not ledger.select(sa.select(ratings.c.row_id).limit(1)):
        return {name: rows.c[name] for name in names}, rows
    is_rated = ratings.c.row_id.is_not(None)
    columns: Columns = {name: sa.case((is_rated, ratings.c[name]), else_=rows.c[name]) for name in names}
    return columns, rows.outerjoin(ratings, schema.is_latest_rating())


def _sums(priced: Columns, is_split: bool) -> Iterator[sa.ColumnElement[Any]]:
    table = schema.rows.c
    total = priced["total_pico_usd"]
    for name, column in _added(priced).items():
        if is_split:
            # both truncate towards zero, so the parts are exact for negative numbers too
            yield sa.func.sum(column // _HALF).label(f"{name}/high")
            yield sa.func.sum(column % _HALF).label(f"{name}/low")
        else:
            yield sa.func.sum(column).label(name)
    yield sa.func.count().label("attempts")
    yield sa.func.sum(table.ttft_s).label("ttft_s")
    yield sa.func.count(table.ttft_s).label("timed")
    yield sa.func.sum(sa.case((total.is_(None), 1), else_=0)).label("unpriced")
    yield sa.func.sum(sa.case((priced["is_cost_estimated"], 1), else_=0)).label("estimated")


def _added(priced: Columns) -> Columns:
    """What is summed as whole numbers, by its name among the figures."""
    table = schema.rows.c
    added: Columns = {name: table[name] for name in schema.COUNTS}
    added["metered_tokens"] = sa.case((table.cache_read_tokens.is_not(None), table.input_tokens))
    for name, part in PRICED.items():
        added[name] = priced[f"{part}_pico_usd"]
    for name in ("low_usd", "high_usd"):
        added[name] = sa.func.coalesce(added[name], priced["total_pico_usd"])
    return added


def _figures(labels: Sequence[str], sums: Sequence[Any], halved: Sequence[str]) -> dict[str, Any]:
    """The sums by name; those in two parts are put together."""
    figures = dict(zip(labels, sums, strict=True))
    for name in halved:
        high, low = figures.pop(f"{name}/high"), figures.pop(f"{name}/low")
        figures[name] = None if high is None else high * _HALF + low
    return figures


# ---------------------------------------------------------------------- what is grouped by


def _key(name: str) -> sa.ColumnElement[Any]:
    table = schema.rows.c
    if name == "day":
        return table.at_us // DAY_US
    if name == "tag":
        return sa.type_coerce(table.metadata, sa.String)
    if name.startswith("tag:"):
        return _label_value(name.removeprefix("tag:"))
    return table[name]


class _Label(FunctionElement[str]):
    """The label of a name: of the column with the labels, the name, and SQLite's path to it."""

    type = sa.String()
    inherit_cache = True


class _LabelOfAnyName(_Label):
    """The same for a name that a path of SQLite's cannot say: one with quotes, or written with escapes."""

    inherit_cache = True


def _label_value(name: str) -> sa.ColumnElement[Any]:
    column = schema.rows.c.metadata
    is_plain = name.isascii() and name.isprintable() and not set(name) & {'"', "\\"}
    return _Label(column, name, f'$."{name}"') if is_plain else _LabelOfAnyName(column, name)


@compiles(_Label, "sqlite")
def _by_path(element: _Label, compiler: Any, **options: Any) -> str:
    column, _, path = (compiler.process(clause, **options) for clause in element.clauses)
    return f"json_extract({column}, {path})"


@compiles(_LabelOfAnyName, "sqlite")
def _by_search(element: _LabelOfAnyName, compiler: Any, **options: Any) -> str:
    column, name = (compiler.process(clause, **options) for clause in element.clauses)
    return f"(SELECT value FROM json_each({column}) WHERE key = {name})"


@compiles(_Label, "postgresql")
@compiles(_LabelOfAnyName, "postgresql")
def _by_arrow(element: _Label, compiler: Any, **options: Any) -> str:
    column, name, *_ = (compiler.process(clause, **options) for clause in element.clauses)
    return f"(CAST({column} AS json) ->> CAST({name} AS text))"
