"""The shape of the repository."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
ADAPTERS = sorted(path.name for path in (ROOT / "adapters").glob("kvsdk_*") if path.is_dir())
SOURCES = sorted(
    path
    for room in ("kvsdk", "adapters")
    for path in (ROOT / room).rglob("*")
    if path.suffix in (".py", ".toml")
)


def test_there_are_adapters() -> None:
    """The tests below look at something."""
    assert len(ADAPTERS) >= 3
    assert len(SOURCES) > 50


@pytest.mark.parametrize("adapter", ADAPTERS)
def test_an_adapter_is_known_wherever_it_must_be(adapter: str) -> None:
    """In the wheel, among the entry points, with an extra of its name, and in the import rules."""
    points = PROJECT["project"]["entry-points"]["kvsdk.backends"].values()
    assert f"adapters/{adapter}" in PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
    assert f"{adapter}:backend" in points
    assert adapter.removeprefix("kvsdk_") in PROJECT["project"]["optional-dependencies"]
    assert adapter in PROJECT["tool"]["importlinter"]["root_packages"]
    assert adapter in PROJECT["tool"]["check-wheel-contents"]["toplevel"]
    assert (ROOT / "adapters" / adapter / "py.typed").exists()


def test_no_file_is_too_long_to_read() -> None:
    """At most 500 lines."""
    lengths = {str(path.relative_to(ROOT)): len(path.read_text("utf-8").splitlines()) for path in SOURCES}
    assert {name: lines for name, lines in lengths.items() if lines > 500} == {}
