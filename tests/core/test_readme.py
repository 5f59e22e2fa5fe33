"""The README's Python runs as it stands, in the order in which it is read."""

from __future__ import annotations

import json
import re
from pathlib import Path

import anthropic_wire as wire
import pytest
import torch
from capability_table import table
from kvsdk.kv import LAYOUTS, to_dynamic_cache
from loopback import Loopback, sse

README = Path(__file__).parents[2] / "README.md"
BLOCKS = re.findall(r"```python\n(.*?)```", README.read_text("utf-8"), re.DOTALL)


def test_the_python_blocks_run(
    loopback: Loopback, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every block runs against a vendor's server on loopback, and prints what it says it does."""
    monkeypatch.setenv("ANTHROPIC_BASE_URL", loopback.url)
    monkeypatch.setenv("ANTHROPIC_API_KEY", "test")
    monkeypatch.chdir(tmp_path)
    call = wire.tool_use("toolu_1", "valve_state", number=3)
    loopback.script(
        wire.message(),
        sse(wire.stream("All about", " valves.")),
        wire.message(call, stop_reason="tool_use"),
        wire.message(wire.text("Hello.")),
    )
    names: dict[str, object] = {"__name__": "readme", **a_models_kv(tmp_path)}
    for block in BLOCKS:
        exec(compile(block, str(README), "exec"), names)
    out = capsys.readouterr().out
    assert "Valve A. 12000" in out
    assert "1 ok 13507" in out
    assert "All about valves." in out
    lines = out.splitlines()
    at = lines.index("Hello.")
    assert lines[at : at + 4] == ["Hello.", "0 0", "60 3000", "400 0"]
    assert lines[at + 4 : at + 6] == [
        "300 {'memory': 300} nothing is stored for these tokens",
        "0 nothing is stored for these tokens",
    ]
    assert lines[at + 6] == "honoured"
    assert lines[at + 7].startswith("PYTHONHASHSEED=0 vllm serve my/model ")
    assert lines[at + 8] == f"True {len(LAYOUTS)}"
    assert lines[at + 9].startswith("left: 100")
    assert len(loopback.bodies) == 4


def a_models_kv(folder: Path) -> dict[str, object]:
    """A checkpoint of a small model, a prompt, and the cache that transformers has after it."""
    checkpoint = folder / "checkpoint"
    checkpoint.mkdir()
    sizes = {"num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16}
    config = {"model_type": "llama", "hidden_size": 64, "vocab_size": 100, "dtype": "float32", **sizes}
    (checkpoint / "config.json").write_text(json.dumps(config))
    (checkpoint / "tokenizer.json").write_text("{}")
    (checkpoint / "model.safetensors").write_bytes(b"weights")
    cache = to_dynamic_cache([tuple(torch.randn(2, 1, 2, 300, 16)) for _ in range(2)])
    return {"checkpoint": checkpoint, "tokens": list(range(300)), "past_key_values": cache}


def test_the_capability_table_is_what_the_code_does() -> None:
    """The README's table equals the one made from the backends: print it anew when this fails."""
    written = README.read_text("utf-8").split("<!-- capabilities -->\n")[1].split("\n<!-- end -->")[0]
    assert written == table()


def test_the_first_example_is_ten_lines() -> None:
    """The example at the top stays as short as it promises to be: ten statements' lines, no more."""
    code = [line for line in BLOCKS[0].splitlines() if line.strip()]
    assert len(code) <= 12
