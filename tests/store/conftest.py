"""Stores on every kind of tier."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from disk_using import Opener
from kv_samples import SPEC
from kvsdk.kv import Fingerprint
from kvsdk.store import Disk, KVStore, Memory, Object
from kvsdk.store.tiers.buffers import BufferPool
from object_server import ObjectServer
from store_makers import StoreMaker


@pytest.fixture
def make_store() -> Iterator[StoreMaker]:
    """Makes stores of the sample model, closed at the end."""
    made: list[KVStore] = []

    def make(*tiers: Any, **options: Any) -> KVStore:
        options.setdefault("fingerprint", Fingerprint.for_testing(SPEC))
        made.append(KVStore(list(tiers), **options))
        return made[-1]

    yield make
    for store in made:
        store.close()


@pytest.fixture(params=["memory", "disk", "object", "memory and disk", "all"])
def tiers(request: pytest.FixtureRequest, tmp_path: Path) -> list[Any]:
    """One store's tiers, in several combinations; the object tier is a folder here."""
    kinds = {
        "memory": lambda: Memory("64MiB"),
        "disk": lambda: Disk(tmp_path / "disk", "64MiB"),
        "object": lambda: Object((tmp_path / "objects").as_uri()),
    }
    wanted = {"memory and disk": ("memory", "disk"), "all": tuple(kinds)}.get(request.param, (request.param,))
    (tmp_path / "objects").mkdir()
    return [kinds[kind]() for kind in wanted]


@pytest.fixture
def pool() -> Iterator[BufferPool]:
    """A pool that has all its memory back at the end, whatever a test does."""
    one = BufferPool()
    yield one
    assert one.used_bytes == 0


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "store"


@pytest.fixture
def opened(root: Path) -> Iterator[Opener]:
    """Opens disk tiers on one folder."""
    with Opener(root) as opener:
        yield opener


@pytest.fixture(scope="session")
def object_server() -> Iterator[ObjectServer]:
    """A real S3 server on the loopback."""
    server = ObjectServer()
    yield server
    server.close()
