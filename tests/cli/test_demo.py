"""`kvsdk demo`, as a newcomer runs it: on the real engine, in a process of its own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from kvsdk.cli import main
from kvsdk.cost import Ledger

QUESTIONS = ("Which valve comes first?", "What does lamp E mean?")


@pytest.mark.engine
@pytest.mark.timeout(600)
def test_the_second_question_reads_the_document(tmp_path: Path) -> None:
    """At least 90 % of the second question's input is read, and its first token comes sooner."""
    path = tmp_path / "demo.db"
    command = [sys.executable, "-m", "kvsdk", "demo", "--ledger", str(path), "--max-tokens", "12"]
    for question in QUESTIONS:
        command += ["--question", question]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    for word in (*QUESTIONS, "read from cache", "claude-sonnet-5-5", "gpt-6.1-terra", "cache saved"):
        assert word in done.stdout
    with Ledger(path) as ledger:
        first, second = ledger.rows()
    assert first.usage.input_tokens is not None
    assert first.usage.input_tokens >= 1500
    assert first.usage.cache_read_tokens == 0
    assert second.usage.hit_rate is not None
    assert second.usage.hit_rate >= 0.9
    assert first.ttft_s is not None
    assert second.ttft_s is not None
    assert first.ttft_s > second.ttft_s  # how much sooner is measured, in the README, not tested
    assert second.cost.saved is not None
    assert second.cost.saved > 0


@pytest.mark.parametrize(
    ("content", "reason"), [(None, "cannot be read"), (b"", "is empty"), (b"\xff\xfe\xff", "text")]
)
def test_a_document_that_is_none_is_refused(
    content: bytes | None, reason: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A missing, empty or binary document is told before anything starts."""
    path = tmp_path / "document.txt"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(SystemExit) as ended:
        main(["demo", "--document", str(path)])
    assert ended.value.code == 2
    assert reason in capsys.readouterr().err
