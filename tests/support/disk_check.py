"""What is in a disk tier's folder, read without the tier."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

from tier_twin import content_of


def query(root: Path, sql: str, *values: Any) -> list[tuple[Any, ...]]:
    """Ask the index."""
    with closing(sqlite3.connect(root / "index.db", timeout=30)) as db, db:
        return db.execute(sql, values).fetchall()


def files_of(root: Path) -> dict[str, Path]:
    """All entries' files, by name."""
    found = (root / "entries").glob("*/*.safetensors")
    return {file.name.removesuffix(".safetensors").replace(".", "/"): file for file in found}


def check_agreement(root: Path, users: int) -> list[str]:
    """Index and files say the same, nothing is half done, and every file is whole; gives the names.

    Args:
        root: The folder.
        users: How many use it now.
    """
    rows = query(root, "SELECT name, bytes, state, owner FROM entries ORDER BY name")
    files = files_of(root)
    assert [(name, state, owner) for name, _, state, owner in rows] == [
        (name, 1, None) for name in sorted(files)
    ]
    for name, size, _, _ in rows:
        assert files[name].read_bytes() == content_of(name, size)
    used, capacity = query(root, "SELECT used_bytes, capacity_bytes FROM totals")[0]
    assert used == sum(size for _, size, _, _ in rows)
    is_pinned = query(root, "SELECT max(is_pinned) FROM entries")[0][0]
    assert capacity is None or used <= capacity or is_pinned
    assert list((root / "tmp").iterdir()) == []
    assert len(list((root / "owners").iterdir())) == users
    return sorted(files)
