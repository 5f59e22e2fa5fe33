"""`kvsdk prices` and `kvsdk rerate`, as a user runs them."""

from __future__ import annotations

import json
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest
from kvsdk import Usage
from kvsdk.backend import Bill, BillLine, Tariff
from kvsdk.cli import main
from kvsdk.cost import Ledger, rate
from ledger_rows import row

OWN = """
version = "v3"
[[prices]]
provider = "openai"
models = ["gpt-6.1-terra"]
terms = { service_tier = ["flex", "priority"] }
factor = "0.5"
source = "contract 4711"
date = 2026-11-20
[[prices]]
provider = "openai"
models = ["gpt-6.1-terra"]
input_usd_per_mtok = "0.80"
cache_read_usd_per_mtok = "0.04"
cache_write_usd_per_mtok = { 30m = "1.00" }
output_usd_per_mtok = "4.00"
source = "contract 4711"
date = 2026-11-20
"""


@pytest.fixture
def own(tmp_path: Path) -> str:
    path = tmp_path / "own.toml"
    path.write_text(OWN)
    return str(path)


def run(*arguments: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert isinstance(ended.value.code, int)
    return ended.value.code


def read(capsys: pytest.CaptureFixture[str]) -> list[dict[str, str]]:
    found: list[dict[str, str]] = json.loads(capsys.readouterr().out)["rows"]
    return found


def test_a_models_rates_by_size_of_prompt(capsys: pytest.CaptureFixture[str]) -> None:
    """Both tiers, exact, with where they are from."""
    assert run("prices", "openai:gpt-6.1-sol", "--format", "json") == 0
    small, large = read(capsys)
    assert (small["input"], small["read"], small["write 30m"], small["write 12h"], small["output"]) == (
        "2",
        "0.1",
        "2.5",
        "5",
        "10",
    )
    assert (large["above"], large["input"], large["output"]) == (272_000, "4", "15")
    assert "genai-prices" in small["source"]


def test_at_a_time_and_on_terms(capsys: pytest.CaptureFixture[str]) -> None:
    """DeepSeek's peak on a Monday, OpenAI's flex."""
    address = "openai+https://api.deepseek.com#deepseek-v4-pro"
    assert run("prices", address, "--at", "2026-11-30T08:00", "--format", "json") == 0
    assert read(capsys)[0]["input"] == "1.32"
    assert run("prices", "openai:gpt-6.1-sol", "--term", "service_tier=flex", "--format", "json") == 0
    assert read(capsys)[0]["input"] == "1"


def test_prices_of_ones_own(own: str, capsys: pytest.CaptureFixture[str]) -> None:
    """They win, and the rules list them with their source."""
    assert run("prices", "openai:gpt-6.1-terra", "--prices", own, "--format", "json") == 0
    assert (read(capsys)[0]["input"]) == "0.8"
    assert run("prices", "--prices", own, "--format", "json") == 0
    rules = read(capsys)
    assert rules[-2] == {
        "vendor": "openai",
        "models": "gpt-6.1-terra",
        "when": "service_tier=flex|priority",
        "effect": "factor=0.5",
        "source": "own.toml v3: contract 4711",
        "date": "2026-11-20",
    }
    assert {rule["vendor"] for rule in rules} >= {"anthropic", "openai", "deepseek", "google"}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("openai:gpt-6.1-sol", "--at", "tomorrow"), "--at is a day or a time"),
        (("openai:gpt-6.1-sol", "--term", "flex"), "--term is NAME=VALUE"),
        (("openai:gpt-6.1-sol", "--term", "service_tier=scale"), "service_tier=scale"),
        (("openai:gpt-unheard-of",), "gpt-unheard-of"),
        (("vllm+http://127.0.0.1:8000#m",), "no list price"),
        (("nobody:x",), "unknown backend"),
        (("--prices", "none.toml"), "none.toml"),
    ],
)
def test_what_is_wrong_is_said(
    arguments: tuple[str, ...], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """In one line, and the status is that of wrong use."""
    assert run("prices", *arguments) == 2
    captured = capsys.readouterr()
    assert words in captured.err
    assert captured.err.count("\n") == 1


def test_old_rows_at_corrected_prices(own: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """First what would change, then the change; the second time there is none."""
    path = str(tmp_path / "costs.db")
    usage = Usage.of_total(200_000, read=0, write=0, output=0)
    tariff = Tariff(model="gpt-6.1-terra", provider="openai", default_ttl="30m")
    bill = Bill(lines=(BillLine(usage=usage, tariff=tariff),))
    at = datetime(2026, 11, 30, tzinfo=UTC)
    with Ledger(path) as ledger:
        ledger.append(row(1, model="gpt-6.1-terra", usage=usage, bill=bill, cost=rate(bill, at=at), at=at))
        ledger.append(row(2))
    assert run("rerate", path, "--prices", own, "--dry-run") == 0
    out = capsys.readouterr().out
    assert "1 of 2 rows would have another cost" in out
    assert "before: $0.200   after: $0.160" in out
    assert "nothing of what was billed: 1" in out
    assert run("rerate", path, "--prices", own, "--model", "gpt-6.1-terra") == 0
    assert "1 of 1 rows have another cost" in capsys.readouterr().out
    assert run("rerate", path, "--prices", own) == 0
    assert "0 of 2 rows have another cost" in capsys.readouterr().out
    assert run("rerate", str(tmp_path / "none.db")) == 2


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="the system has no /dev/full")
@pytest.mark.parametrize("arguments", [["prices"], ["prices", "--help"], ["prices", "--format", "csv"]])
def test_output_that_nothing_takes_is_said_in_a_line(arguments: list[str]) -> None:
    """A full disk behind a pipe or a file: status 1, and no traceback."""
    command = [sys.executable, "-m", "kvsdk", *arguments]
    with open("/dev/full", "w") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr == "kvsdk: the output cannot be written: No space left on device\n"
