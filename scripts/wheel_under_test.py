"""A pytest plugin for scripts/test: refuses to run unless kvsdk comes from the wheel that was just built."""

from __future__ import annotations

import os
from importlib import import_module
from pathlib import Path

import pytest

PACKAGES = ("kvsdk", "kvsdk_anthropic", "kvsdk_openai", "kvsdk_vllm")


def pytest_sessionstart() -> None:
    """Compare where the packages are with `KVSDK_WHEEL`."""
    wheel = Path(os.environ["KVSDK_WHEEL"])
    for name in PACKAGES:
        found = import_module(name).__file__
        if found is None or wheel not in Path(found).parents:
            pytest.exit(f"{name} is {found}, not the wheel in {wheel}", returncode=3)
