"""The typed API under two type checkers."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
API = "tests/typing/api.py"


@pytest.mark.parametrize(
    "command",
    [
        ("pyrefly", "check", API),
        (sys.executable, "-m", "mypy", "--strict", "--warn-unused-ignores", API),
    ],
    ids=["pyrefly", "mypy"],
)
def test_the_typed_use_is_understood(command: tuple[str, ...]) -> None:
    """Every call has the types it says, and every wrong one is found."""
    program = str(Path(sys.executable).with_name(command[0])) if command[0] == "pyrefly" else command[0]
    done = subprocess.run([program, *command[1:]], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
