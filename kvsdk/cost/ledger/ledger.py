"""The ledger: every attempt that may have been billed, in SQL."""

from __future__ import annotations

import logging
import os
import time
import weakref
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

import sqlalchemy as sa
from sqlalchemy import exc
from sqlalchemy.dialects import postgresql, sqlite

from kvsdk._text import did_you_mean
from kvsdk.cost.ledger import schema
from kvsdk.cost.ledger.database import open_engine, prepare, words
from kvsdk.cost.ledger.records import at_us, cost_columns, to_record, to_row
from kvsdk.cost.ledger.row import LedgerRow
from kvsdk.cost.ledger.spill import Spill
from kvsdk.cost.ledger.writer import BatchWriter, CommitWriter, Record, Writer
from kvsdk.errors import CircuitOpen, ConfigurationError, InvalidRequest, LedgerError, LedgerTooNew
from kvsdk.reply import Cost
from kvsdk.resilience import CircuitBreaker

logger = logging.getLogger("kvsdk")

Durability = Literal["commit", "batched"]
_FILTERS = ("id", "operation_id", "state", "backend", "model", "session", "tenant", "reply_id")
_COLUMNS = tuple(schema.rows.c.keys())
_REST_S = 5.0
"""Seconds after a failure in which the database is not asked again; rows are spilled at once."""


class Ledger:
    """An append-only table of `LedgerRow`s, in a SQLite file or behind a database URL. Thread-safe.

    A row's id is ours, so writing it again changes nothing and a vendor's repeated response ids lose nothing.
    A row that the database does not take (a full disk, a server that is away, a corrupt file) goes to a spill
    file, with a line in the log at ERROR, and is written when the database takes rows again, at the latest
    when the ledger is next opened. Processes may share a ledger, and a process that forks may go on with it.

    Args:
        path_or_url: A file, such as `"costs.db"`, or a URL, such as `"postgresql://host/costs"`.
        durability: `commit`: a row is on disk when `append` returns. `batched`: a background writer commits
            at most 200 ms or 256 rows behind; the rest is written by `flush`, `close` and at exit.
        spill: The file for rows that the database does not take. By default beside the ledger's file
            (`costs.db.spill.jsonl`), else in the cache folder or the one for temporary files.

    Raises:
        LedgerTooNew: It was written by a newer kvsdk.
        LedgerError: It cannot be opened, or is no ledger.
    """

    def __init__(
        self, path_or_url: str | Path, *, durability: Durability = "commit", spill: str | Path | None = None
    ) -> None:
        if durability not in ("commit", "batched"):
            raise ConfigurationError(f"durability is 'commit' or 'batched', not {durability!r}")
        self._durability = durability
        self._engine = open_engine(str(path_or_url))
        is_url = "://" in str(path_or_url)
        self.name = self._engine.url.render_as_string() if is_url else str(path_or_url)  # hides a password
        self._spill = Spill((Path(spill),)) if spill is not None else Spill.beside(str(path_or_url))
        self._insert = _Insert(self._engine.dialect)
        self._breaker = CircuitBreaker(f"the ledger {self.name}", time.monotonic, failures=1, rest_s=_REST_S)
        try:
            prepare(self._engine)
            self._replay()
        except exc.SQLAlchemyError as error:
            self._engine.dispose()
            raise LedgerError(
                f"{self.name} cannot be used as a ledger: {words(error)}{self._kept()}"
            ) from error
        except LedgerTooNew:
            self._engine.dispose()
            raise
        # One that is forgotten closes its connections all the same; Python 3.13 warns of those left open.
        self._finalizer = weakref.finalize(self, self._engine.dispose)
        self._process = os.getpid()
        self._writer = self._make_writer()

    @property
    def is_batched(self) -> bool:
        """Whether `append` returns before the row is on disk."""
        return self._durability == "batched"

    @property
    def spill_files(self) -> tuple[Path, ...]:
        """Files with rows that are not in the database yet; none when all is well."""
        return self._spill.files

    def append(self, row: LedgerRow) -> None:
        """Add a row; a row whose id is there already is left as it is.

        Raises:
            LedgerError: It could be written neither to the database nor to a spill file (with `batched`: an
                earlier batch could not).
            InvalidRequest: A number is too large for the table.
        """
        record = to_record(row)
        if os.getpid() != self._process:
            self._begin_in_fork()
        self._writer.put(record)

    def rows(
        self, *, since: datetime | None = None, until: datetime | None = None, **filters: str | None
    ) -> Iterator[LedgerRow]:
        """Rows in the order in which they were sent.

        Args:
            since: Only rows that were sent then or later.
            until: Only rows that were sent before.
            **filters: Columns that must be equal: id, operation_id, state, backend, model, session, tenant,
                reply_id.
        """
        self.flush()
        table = schema.rows.c
        query = _with_latest_rating().order_by(table.at_us, table.id)
        for name, value in filters.items():
            if name not in _FILTERS:
                raise InvalidRequest(f"rows cannot be filtered by {name!r}.{did_you_mean(name, _FILTERS)}")
            query = query.where(table[name] == value)
        if since is not None:
            query = query.where(table.at_us >= at_us(since))
        if until is not None:
            query = query.where(table.at_us < at_us(until))
        with self._reading() as connection:
            for record in connection.execution_options(yield_per=1000).execute(query):
                split = len(schema.rows.c)
                row = dict(zip(schema.rows.c.keys(), record[:split], strict=True))
                rating = dict(zip(schema.ratings.c.keys(), record[split:], strict=True))
                yield to_row(row, None if rating["row_id"] is None else rating)

    def select(self, query: sa.Executable) -> Sequence[sa.RowMapping]:
        """Run a query of ours over the tables, such as a report's."""
        self.flush()
        with self._reading() as connection:
            return connection.execute(query).mappings().all()

    def add_ratings(self, costs: Sequence[tuple[str, Cost]], rating: int) -> None:
        """Write later prices of rows beside their own; see `kvsdk.cost.ledger.rerate`."""
        records = [{"row_id": row_id, "rating": rating, **cost_columns(cost)} for row_id, cost in costs]
        try:
            with self._engine.begin() as connection:
                connection.execute(schema.ratings.insert(), records)
        except exc.SQLAlchemyError as error:
            raise LedgerError(f"{self.name}: {len(records)} price(s) not written: {words(error)}") from error

    def flush(self) -> None:
        """Return when every appended row is on disk."""
        self._writer.flush()

    def close(self) -> None:
        """Write what is left and close. May be called twice."""
        try:
            self._writer.close()
        finally:
            self._engine.dispose()

    def __enter__(self) -> Ledger:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # ------------------------------------------------------------------ writing

    def _make_writer(self) -> Writer:
        return BatchWriter(self._write) if self.is_batched else CommitWriter(self._write)

    def _begin_in_fork(self) -> None:
        """A child has none of its parent's threads and rows, and must not touch its connections."""
        self._abandoned = self._engine.pool  # kept: SQLite must not even close a parent's connection
        self._engine.dispose(close=False)
        self._process = os.getpid()
        self._writer = self._make_writer()

    def _write(self, records: Sequence[Record]) -> None:
        """To the database, or where it takes none, to the spill."""
        try:
            self._breaker.check()
            self._insert_all(records)
        except CircuitOpen as error:
            self._keep(records, str(error))
        except exc.SQLAlchemyError as error:
            self._breaker.fail()
            self._keep(records, words(error))
        else:
            self._breaker.succeed()
            if self._spill.files:
                self._replay()

    def _insert_all(self, records: Sequence[Record]) -> None:
        """Insert, once more where a connection of the pool had gone stale; ids make that harmless."""
        try:
            self._insert.run(self._engine, records)
        except exc.DBAPIError as error:
            if not error.connection_invalidated:
                raise
            self._insert.run(self._engine, records)

    def _keep(self, records: Sequence[Record], why: str) -> None:
        try:
            place = self._spill.keep(records)
        except OSError as error:
            raise LedgerError(
                f"{self.name}: {len(records)} row(s) not written ({why}), nor spilled ({error})"
            ) from error
        logger.error(
            "%s: %d row(s) not written (%s); they are kept in %s", self.name, len(records), why, place
        )

    def _replay(self) -> None:
        """Write what was spilled; what still fails stays there."""
        try:
            count = self._spill.replay(lambda records: self._insert_all([_whole(each) for each in records]))
        except (exc.SQLAlchemyError, OSError) as error:
            logger.error("%s: spilled rows could not be written yet: %s", self.name, words(error))
            return
        if count:
            logger.warning("%s: %d row(s) that had been spilled are written now", self.name, count)

    # ------------------------------------------------------------------ reading

    @contextmanager
    def _reading(self) -> Generator[sa.Connection]:
        try:
            with self._engine.connect() as connection:
                yield connection
        except exc.DBAPIError as error:
            raise LedgerError(f"{self.name} cannot be read: {words(error)}{self._kept()}") from error

    def _kept(self) -> str:
        files = ", ".join(str(file) for file in self._spill.files)
        return f"; rows that it did not take are in {files}" if files else ""


def _whole(record: Record) -> Record:
    """A spilled record with every column; one that was spilled by an earlier version has fewer."""
    return {name: record.get(name) for name in _COLUMNS}


class _Insert:
    """The INSERT, compiled once: that saves half of what the library needs for a row."""

    def __init__(self, dialect: sa.Dialect) -> None:
        module = postgresql if dialect.name == "postgresql" else sqlite
        compiled = module.insert(schema.rows).on_conflict_do_nothing().compile(dialect=dialect)
        self._sql = str(compiled)
        self._order: Sequence[str] | None = getattr(compiled, "positiontup", None)

    def run(self, engine: sa.Engine, records: Sequence[Record]) -> None:
        """Insert in a transaction; a row whose id is there is left as it is."""
        values: list[Any] = list(records)
        if self._order is not None:
            values = [tuple([record[name] for name in self._order]) for record in records]
        with engine.begin() as connection:
            connection.exec_driver_sql(self._sql, values)


def _with_latest_rating() -> Any:
    """Rows, each beside the latest of its later prices, if any."""
    rows, ratings = schema.rows, schema.ratings
    return sa.select(*rows.c, *ratings.c).select_from(rows.outerjoin(ratings, schema.is_latest_rating()))
