"""What a folder holds, looked at from outside while others use it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from kv_samples import kv_of, prompt
from kvsdk.store import Disk
from kvsdk.store.listing import DiskPlace
from store_makers import StoreMaker


@pytest.fixture
def folder(make_store: StoreMaker, tmp_path: Path) -> Path:
    """With a chunk and the record of whose it is."""
    with make_store(Disk(tmp_path / "store")) as store:
        store.put(prompt(20), kv_of(prompt(20)))
    return tmp_path / "store"


def test_a_file_that_is_moved_meanwhile_counts_for_nothing(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who writes it is done with it between the listing and the look at it."""
    place = DiskPlace(folder)
    before = place.occupied()
    (folder / "tmp" / "own.1").write_bytes(b"12345")
    assert place.occupied() == (before[0], before[1] + 5)
    listed = Path.iterdir

    def moved(path: Path) -> Iterator[Path]:
        for file in list(listed(path)):
            file.unlink()
            yield file

    monkeypatch.setattr(Path, "iterdir", moved)
    monkeypatch.setattr(Path, "is_file", lambda path: True)
    assert place.occupied() == before
