"""Waiting for a real vLLM server on the loopback."""

from __future__ import annotations

import socket
import subprocess
import time
import urllib.request
from pathlib import Path

import pytest


def free_port() -> int:
    """A port that nobody has at the moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def wait_until_up(port: int, process: subprocess.Popen[bytes], log: Path, *, within_s: float) -> None:
    """Until it answers; fails with the end of its log where it stops, or time is up."""
    ends_s = time.monotonic() + within_s
    while time.monotonic() < ends_s:
        if process.poll() is not None:
            pytest.fail(f"the server stopped: {log.read_text()[-2000:]}")
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5):
                return
        except OSError:
            time.sleep(0.2)
    pytest.fail(f"the server did not start in {within_s} s: {log.read_text()[-2000:]}")
