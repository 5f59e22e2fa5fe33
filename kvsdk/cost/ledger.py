"""The ledger: every attempt that may have been billed, in SQL."""

from __future__ import annotations

import atexit
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

import sqlalchemy as sa
from sqlalchemy import event, exc
from sqlalchemy.dialects import postgresql, sqlite

from kvsdk._text import did_you_mean
from kvsdk.cost import schema
from kvsdk.cost.row import LedgerRow
from kvsdk.errors import ConfigurationError, InvalidRequest, LedgerError, LedgerTooNew

Durability = Literal["commit", "batched"]
_FILTERS = ("operation_id", "state", "backend", "model", "session", "tenant", "reply_id")


class Ledger:
    """An append-only table of `LedgerRow`s, in a SQLite file or behind a database URL. Thread-safe.

    A row's id is ours, so writing it again changes nothing and a vendor's repeated response ids lose nothing.

    Args:
        path_or_url: A file, such as `"costs.db"`, or a URL, such as `"postgresql://host/costs"`.
        durability: `commit`: a row is on disk when `append` returns. `batched`: a background writer commits
            at most 200 ms or 256 rows behind; the rest is written by `flush`, `close` and at exit.

    Raises:
        LedgerTooNew: It was written by a newer kvsdk.
        LedgerError: It cannot be opened, or is no ledger.
    """

    def __init__(self, path_or_url: str | Path, *, durability: Durability = "commit") -> None:
        if durability not in ("commit", "batched"):
            raise ConfigurationError(f"durability is 'commit' or 'batched', not {durability!r}")
        self._engine = _engine(str(path_or_url))
        is_url = "://" in str(path_or_url)
        self.name = self._engine.url.render_as_string() if is_url else str(path_or_url)  # hides a password
        dialect = postgresql if self._engine.dialect.name == "postgresql" else sqlite
        self._insert = dialect.insert(schema.rows).on_conflict_do_nothing()
        try:
            _prepare(self._engine)
        except exc.SQLAlchemyError as error:
            self._engine.dispose()
            raise LedgerError(f"{self.name} cannot be used as a ledger: {_words(error)}") from error
        except LedgerTooNew:
            self._engine.dispose()
            raise
        # One that is forgotten closes its connections all the same; Python 3.13 warns of those left open.
        self._finalizer = weakref.finalize(self, self._engine.dispose)
        self._writer = _Writer(self._write) if durability == "batched" else None

    @property
    def is_batched(self) -> bool:
        """Whether `append` returns before the row is on disk."""
        return self._writer is not None

    def append(self, row: LedgerRow) -> None:
        """Add a row; a row whose id is there already is left as it is.

        Raises:
            LedgerError: It could not be written (with `batched`: an earlier batch could not).
        """
        record = schema.to_record(row)
        if self._writer is not None:
            self._writer.put(record)
        else:
            self._write([record])

    def rows(self, **filters: str | None) -> Iterator[LedgerRow]:
        """Rows in the order in which they were sent.

        Args:
            **filters: Columns that must be equal: operation_id, state, backend, model, session, tenant,
                reply_id.
        """
        self.flush()
        query = sa.select(schema.rows)
        for name, value in filters.items():
            if name not in _FILTERS:
                raise InvalidRequest(f"rows cannot be filtered by {name!r}.{did_you_mean(name, _FILTERS)}")
            query = query.where(schema.rows.c[name] == value)
        query = query.order_by(schema.rows.c.at_us, schema.rows.c.id)
        with self._engine.connect() as connection:
            for record in connection.execution_options(yield_per=1000).execute(query).mappings():
                yield schema.to_row(record)

    def select(self, query: sa.Executable) -> Sequence[sa.RowMapping]:
        """Run a query of ours over the table, such as a report's."""
        self.flush()
        with self._engine.connect() as connection:
            return connection.execute(query).mappings().all()

    def flush(self) -> None:
        """Return when every appended row is on disk."""
        if self._writer is not None:
            self._writer.flush()

    def close(self) -> None:
        """Write what is left and close. May be called twice."""
        try:
            if self._writer is not None:
                self._writer.close()
        finally:
            self._engine.dispose()

    def __enter__(self) -> Ledger:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _write(self, records: Sequence[dict[str, Any]]) -> None:
        try:
            with self._engine.begin() as connection:
                connection.execute(self._insert, records)
        except exc.SQLAlchemyError as error:
            raise LedgerError(f"{self.name}: {len(records)} row(s) not written: {_words(error)}") from error


class _Writer:
    """Commits rows in batches on a thread of its own.

    That thread is woken for the first row of a batch and for the one that fills it, not for each: waking a
    thread costs a caller more than writing down a row.
    """

    BATCH_ROWS = 256
    BATCH_S = 0.2

    def __init__(self, write: Callable[[Sequence[dict[str, Any]]], None]) -> None:
        self._write = write
        self._rows: list[dict[str, Any]] = []
        self._added = self._done = 0
        self._changed = threading.Condition()
        self._is_urgent = False
        self._closed = False
        self._error: LedgerError | None = None
        self._thread = threading.Thread(target=self._run, name="kvsdk-ledger", daemon=True)
        self._thread.start()
        atexit.register(self.close)

    def put(self, record: dict[str, Any]) -> None:
        with self._changed:
            self._raise_pending()
            if self._closed:
                raise LedgerError("the ledger is closed")
            self._rows.append(record)
            self._added += 1
            if len(self._rows) in (1, self.BATCH_ROWS):
                self._changed.notify_all()

    def flush(self) -> None:
        with self._changed:
            added = self._added
            self._is_urgent = self._done < added
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._done >= added)
            self._raise_pending()

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._thread.join()
        atexit.unregister(self.close)
        self._raise_pending()

    def _raise_pending(self) -> None:
        error, self._error = self._error, None
        if error is not None:
            raise error

    def _run(self) -> None:
        while batch := self._next_batch():
            failure: LedgerError | None = None
            try:
                self._write(batch)
            except LedgerError as error:
                failure = error
            except Exception as error:  # noqa: BLE001  the thread must live on, or flush waits for ever
                failure = LedgerError(f"{len(batch)} row(s) not written: {error}")
            with self._changed:
                self._error = failure or self._error
                self._done += len(batch)
                self._changed.notify_all()

    def _next_batch(self) -> list[dict[str, Any]]:
        """The rows of the next `BATCH_S` seconds, or what there is when it is urgent; none at the end."""
        with self._changed:
            self._changed.wait_for(lambda: self._rows or self._closed)
            self._changed.wait_for(self._is_due, timeout=self.BATCH_S)
            batch, self._rows = self._rows, list[dict[str, Any]]()
            self._is_urgent = False
            return batch

    def _is_due(self) -> bool:
        return self._is_urgent or self._closed or len(self._rows) >= self.BATCH_ROWS


def _engine(name: str) -> sa.Engine:
    if "://" not in name:
        path = Path(name).expanduser()
        if not path.parent.exists():
            raise LedgerError(f"the folder of the ledger {name} does not exist")
        url = sa.URL.create("sqlite", database=str(path))
    else:
        try:
            url = sa.make_url(name)
        except (exc.ArgumentError, ValueError):
            raise LedgerError("the ledger is no URL of a database; write 'postgresql://host/costs'") from None
        if url.drivername == "postgresql":
            url = url.set(drivername="postgresql+psycopg")
    try:
        engine = sa.create_engine(url)
    except (exc.ArgumentError, ModuleNotFoundError) as error:
        raise LedgerError(f"no database for {url.drivername}: {_words(error)}") from error
    if engine.dialect.name == "sqlite":
        event.listen(engine, "connect", _configure_sqlite)
    return engine


def _configure_sqlite(connection: Any, _record: Any) -> None:
    cursor = connection.cursor()
    cursor.execute("PRAGMA busy_timeout = 30000")
    cursor.execute("PRAGMA journal_mode = WAL")
    cursor.execute("PRAGMA synchronous = FULL")
    cursor.close()


def _prepare(engine: sa.Engine) -> None:
    """Make the tables in an empty database; refuse one that is newer than this code."""
    with engine.begin() as connection:
        if engine.dialect.name == "sqlite":
            connection.exec_driver_sql("BEGIN IMMEDIATE")
        schema.metadata.create_all(connection)
        found = connection.scalar(sa.select(schema.info.c.value).where(schema.info.c.key == "version"))
        if found is None:
            connection.execute(schema.info.insert().values(key="version", value=str(schema.VERSION)))
        elif int(found) > schema.VERSION:
            raise LedgerTooNew(
                f"the ledger has version {found}, this kvsdk knows up to {schema.VERSION}; upgrade kvsdk"
            )


def _words(error: BaseException) -> str:
    original = getattr(error, "orig", None)
    return str(original or error)
