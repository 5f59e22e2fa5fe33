"""Every example runs, against a vendor's server on loopback and, where it is about both, a real engine."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import anthropic_wire as wire
import pytest
from kvsdk.cli.demo_model import ensure_demo_model
from loopback import Loopback

FOLDER = Path(__file__).parents[2] / "examples"
HOSTED = f"anthropic:{wire.MODEL}"
PROSE = {"usage": wire.USAGE}


def _load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"example_{name}", FOLDER / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def hosted(loopback: Loopback, monkeypatch: pytest.MonkeyPatch) -> Loopback:
    """The vendor's address and key where an application has them: in the environment."""
    monkeypatch.setenv("ANTHROPIC_BASE_URL", loopback.url)
    monkeypatch.setenv("ANTHROPIC_API_KEY", "test")
    return loopback


def test_no_example_is_left_out() -> None:
    """The folder holds the examples tested here and no other."""
    assert sorted(path.stem for path in FOLDER.glob("*.py")) == ["ask", "costs", "keep_kv", "tools"]


def test_ask_hosted(hosted: Loopback, capsys: pytest.CaptureFixture[str]) -> None:
    """Two questions in a session, each with the manual marked for an hour."""
    hosted.script(wire.message(), wire.message())
    _load("ask").main(HOSTED)
    assert "12000 of 13507 tokens read" in capsys.readouterr().out
    marks = [body["system"][0]["cache_control"] for body in hosted.bodies]
    assert marks == [{"type": "ephemeral", "ttl": "1h"}] * 2


def test_tools_hosted(hosted: Loopback, capsys: pytest.CaptureFixture[str]) -> None:
    """The call is answered, its result goes back, and the model's last word is printed."""
    call = wire.tool_use("toolu_1", "valve_state", number=3)
    hosted.script(wire.message(call, stop_reason="tool_use"), wire.message(wire.text("It is closed.")))
    _load("tools").main(HOSTED)
    assert capsys.readouterr().out.splitlines() == ['valve_state({"number":3}) -> closed', "It is closed."]
    assert hosted.bodies[1]["messages"][2]["content"][0]["content"] == "closed"


def test_costs_hosted(hosted: Loopback, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Four calls in two sessions give a line per session."""
    hosted.script(*(wire.message() for _ in range(4)))
    _load("costs").main(HOSTED, str(tmp_path / "costs.db"))
    out = capsys.readouterr().out
    assert "anna: 2 requests, hit rate 89%" in out
    assert "ben: 2 requests, hit rate 89%" in out


@pytest.mark.engine
@pytest.mark.timeout(600)
@pytest.mark.filterwarnings("ignore:max_rollback_tokens is deprecated")  # vLLM's use of xgrammar
def test_ask_and_tools_on_the_local_engine(capsys: pytest.CaptureFixture[str]) -> None:
    """The same lines run on a local engine: the second question reads the manual, the tool is called."""
    from kvsdk.cli.demo_model import ensure_demo_model

    address = f"vllm:{ensure_demo_model()}"
    _load("ask").main(address)
    reads = [line for line in capsys.readouterr().out.splitlines() if "tokens read" in line]
    assert reads[0].startswith("  0 of")
    assert not reads[1].startswith("  0 of")
    _load("tools").main(address)
    assert "valve_state(" in capsys.readouterr().out


@pytest.mark.engine
def test_keep_kv(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The second run takes the manual from disk, and says the same."""
    example, model = _load("keep_kv"), str(ensure_demo_model())
    example.main(model, str(tmp_path))
    example.main(model, str(tmp_path))
    first, second = (line.split(";") for line in capsys.readouterr().out.splitlines())
    assert first[0].startswith("0 of ")
    stored, total = (int(word) for word in second[0].split() if word.isdigit())
    assert total - 20 < stored < total
    assert first[2] == second[2] == " to the left"
