"""The ledger's database: opening it, and bringing its tables to this version."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy import event, exc
from sqlalchemy.schema import CreateColumn

from kvsdk.cost.ledger import schema
from kvsdk.errors import LedgerError, LedgerTooNew

CONNECT_S = 5
"""Seconds to wait for a server, unless the URL says otherwise."""

BUSY_S = 30
"""Seconds that a SQLite file may be held by other processes."""

_LOCK = 0x6B7673646B  # "kvsdk": the key of PostgreSQL's advisory lock


def open_engine(name: str) -> sa.Engine:
    """An engine for a file or a URL; connects to nothing yet.

    Raises:
        LedgerError: The folder is not there, or there is no such database.
    """
    url = _url(name)
    if url.get_backend_name() == "sqlite" and url.database in (None, "", ":memory:"):
        raise LedgerError("a ledger in memory would keep nothing; name a file")
    arguments: dict[str, Any] = {}
    if url.get_backend_name() == "postgresql" and "connect_timeout" not in url.query:
        arguments["connect_timeout"] = CONNECT_S
    try:
        engine = sa.create_engine(url, connect_args=arguments)
    except (exc.ArgumentError, ModuleNotFoundError) as error:
        hint = "; run: pip install 'kvsdk[postgres]'" if url.get_backend_name() == "postgresql" else ""
        raise LedgerError(f"no database for {url.drivername}: {words(error)}{hint}") from error
    if engine.dialect.name == "sqlite":
        event.listen(engine, "connect", _configure_sqlite)
    return engine


def _url(name: str) -> sa.URL:
    if "://" not in name:
        path = Path(name).expanduser()
        if not path.parent.exists():
            raise LedgerError(f"the folder of the ledger {name} does not exist")
        return sa.URL.create("sqlite", database=str(path))
    try:
        url = sa.make_url(name)
    except (exc.ArgumentError, ValueError):
        raise LedgerError("the ledger is no URL of a database; write 'postgresql://host/costs'") from None
    return url.set(drivername="postgresql+psycopg") if url.drivername == "postgresql" else url


def _configure_sqlite(connection: Any, _record: Any) -> None:
    cursor = connection.cursor()
    cursor.execute(f"PRAGMA busy_timeout = {BUSY_S * 1000}")
    cursor.execute("PRAGMA journal_mode = WAL")
    cursor.execute("PRAGMA synchronous = FULL")
    cursor.close()


def prepare(engine: sa.Engine) -> None:
    """Make the tables in an empty database, bring older ones to this version, refuse newer ones.

    One process at a time: SQLite's write lock, or PostgreSQL's advisory lock, is held meanwhile.
    """
    with engine.begin() as connection:
        if engine.dialect.name == "sqlite":
            connection.exec_driver_sql("BEGIN IMMEDIATE")
        else:
            connection.execute(sa.select(sa.func.pg_advisory_xact_lock(_LOCK)))
        found = _version(connection)
        if found > schema.VERSION:
            raise LedgerTooNew(
                f"the ledger has version {found}, this kvsdk knows up to {schema.VERSION}; upgrade kvsdk"
            )
        schema.metadata.create_all(connection)
        for version in range(found + 1, schema.VERSION + 1) if found else ():
            _add(connection, schema.ADDED[version])
        if found < schema.VERSION:
            connection.execute(schema.info.delete().where(schema.info.c.key == "version"))
            connection.execute(schema.info.insert().values(key="version", value=str(schema.VERSION)))


def _version(connection: sa.Connection) -> int:
    """The version of the tables that are there; 0 where there are none."""
    if not sa.inspect(connection).has_table(schema.info.name):
        return 0
    found = connection.scalar(sa.select(schema.info.c.value).where(schema.info.c.key == "version"))
    return int(found or 0)


def _add(connection: sa.Connection, columns: Any) -> None:
    table = connection.dialect.identifier_preparer.format_table(schema.rows)
    for column in columns:
        definition = CreateColumn(column).compile(dialect=connection.dialect)
        connection.exec_driver_sql(f"ALTER TABLE {table} ADD COLUMN {definition}")


def words(error: BaseException) -> str:
    """What the database said, without the SQL and the URL around it."""
    original = getattr(error, "orig", None)
    return str(original or error)
