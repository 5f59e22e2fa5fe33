"""`kvsdk convert`, as a user runs it."""

from __future__ import annotations

import csv
import io
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from kv_files import KEY, MLA, forged, made
from kvsdk.cli import main
from kvsdk.cli.app import app
from kvsdk.kv import LAYOUTS, Fingerprint, KVSpec
from kvsdk.kv.files import convert as module
from kvsdk.kv.files.saving import load_manifest, save
from typer.main import get_command

#: 2 layers of 4 heads of 16 float16 numbers: 512 bytes a token.
SPEC = KVSpec(num_layers=2, num_kv_heads=4, head_dim=16, dtype="float16", block_size=16)

OURS = Fingerprint.for_testing(SPEC)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory, with files of 40 tokens: `a`, and `mla`."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a").write_bytes(made("vllm/0.26+", SPEC, 40))
    (tmp_path / "mla").write_bytes(made("vllm/mla", MLA, 40))
    return tmp_path


def run(*arguments: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(("convert", *arguments))
    assert isinstance(ended.value.code, int)
    return ended.value.code


def row(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    found: list[dict[str, Any]] = json.loads(capsys.readouterr().out)["rows"]
    (only,) = found
    return only


def test_three_lines_say_what_was_done(capsys: pytest.CaptureFixture[str]) -> None:
    """Tokens, layers and both layouts; bytes and how fast; and the proof: 40 tokens are 3 blocks of 16."""
    assert run("a", "b", "--to", "hf/dynamic", "--verify") == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    first, second, third = captured.out.splitlines()
    assert first == "40 tokens, 2 layers: vllm/0.26+ (float16, blocks of 16) -> hf/dynamic (float16)"
    # 48 tokens of 512 bytes are 24 KiB, 40 are 20, and a header each
    assert re.fullmatch(r"25\.4 KiB -> 21\.6 KiB in .* \(.* [MG]B/s\)", second)
    assert third == "verified: 3 blocks equal byte for byte"
    assert load_manifest("b").layout == "hf/dynamic"


def test_devices_and_block_sizes_there_and_back(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """1, 2, 4 devices and 1 again, in blocks of 32 and of 16 again: the file is the same to the last byte."""
    assert run("a", "2", "--to", "trtllm", "--tp", "2", "--verify") == 0
    assert "2 ranks" in capsys.readouterr().out
    assert run("2", "4", "--to", "hf/dynamic", "--tp", "4", "--block-size", "32", "--verify") == 0
    arguments = ("--to", "vllm/0.26+", "--tp", "1", "--block-size", "16", "--verify")
    assert run("4", "1", *arguments) == 0
    assert sorted(path.name for path in (folder / "4").iterdir()) == [
        f"rank-{n}.safetensors" for n in range(4)
    ]
    # The first file's payload is random in its last block's rest too, where the new one has zeros.
    assert run("1", "c", "--to", "vllm/0.26+", "--codec", "zstd") == 0
    assert run("c", "d", "--to", "vllm/0.26+", "--codec", "none") == 0
    assert (folder / "d").read_bytes() == (folder / "1").read_bytes()
    assert load_manifest("1").fingerprint == load_manifest("a").fingerprint


def test_another_dtype_says_how_far_off_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    """Instead of a certificate: the scale is 1/256, so steps of 1/8 fit fp8, and 1 + 1/16 is off by 1/16."""
    kv = [tuple(torch.full((1, 4, 40, 16), 1.125, dtype=torch.float16) for _ in range(2)) for _ in range(2)]
    for layer in kv:
        for part in layer:
            part[0, :, 0, 0] = 1.75  # 448 / 256: the scale is exact
    kv[1][1][0, 2, 3, 4] = 1.0625
    save("x", kv, layout="hf/dynamic", spec=SPEC, fingerprint=OURS, num_tokens=40, key=KEY)
    assert run("x", "8", "--to", "hf/dynamic", "--dtype", "fp8_e4m3", "--verify") == 0
    out = capsys.readouterr().out
    assert "hf/dynamic (float16) -> hf/dynamic (float8_e4m3fn)" in out
    assert "\nverified: keys off by at most 0, values off by at most 0.0625, of numbers up to 1.75\n" in out
    assert load_manifest("8").is_lossy
    assert run("8", "b", "--to", "hf/dynamic", "--dtype", "fp16") == 2
    assert "--accept-loss" in capsys.readouterr().err
    assert run("8", "b", "--to", "hf/dynamic", "--dtype", "fp16", "--accept-loss", "--verify") == 0


def test_for_programs(capsys: pytest.CaptureFixture[str]) -> None:
    """JSON and CSV have the same figures; what does not apply is null and empty."""
    assert run("a", "b", "--to", "trtllm", "--tp", "2", "--verify", "--format", "json") == 0
    found = row(capsys)
    expected = {
        "tokens": 40,
        "layers": 2,
        "kv_heads": 4,
        "from_layout": "vllm/0.26+",
        "to_layout": "trtllm",
        "from_ranks": 1,
        "to_ranks": 2,
        "from_dtype": "float16",
        "to_dtype": "float16",
        "codec": None,
        "is_lossy": False,
        "equal_blocks": 3,
        "keys_error": None,
    }
    assert {key: found[key] for key in expected} == expected
    assert found["from_bytes"] == Path("a").stat().st_size
    assert found["to_bytes"] == sum(path.stat().st_size for path in Path("b").iterdir())
    assert found["gb_per_s"] == pytest.approx(found["from_bytes"] / found["seconds"] / 1e9, abs=1e-3)
    assert run(
        "mla", "c", "--to", "layer | token latent", "--dtype", "fp32", "--verify", "--format", "csv"
    ) in (0, 1)
    (line,) = csv.DictReader(io.StringIO(capsys.readouterr().out)) or [{}]
    assert (line["tokens"], line["to_dtype"], line["equal_blocks"], line["latent_error"]) == (
        "40",
        "float32",
        "",
        "0.0",
    )


def test_in_a_pipe(folder: Path) -> None:
    """Plain text, and the status of the process."""
    command = [sys.executable, "-Im", "kvsdk", "convert", "a", "b", "--to", "trtllm"]
    for status, stream, lines in ((0, "stdout", 2), (2, "stderr", 1)):  # the second time it is there already
        done = subprocess.run(command, capture_output=True, text=True, cwd=folder, check=False)
        assert done.returncode == status
        text = getattr(done, stream)
        assert text.count("\n") == lines
        assert "\x1b" not in text


@pytest.mark.parametrize(
    ("arguments", "status", "words"),
    [
        (("none", "b", "--to", "trtllm"), 2, "kvsdk: none cannot be read: No such file or directory\n"),
        (
            ("foreign", "b", "--to", "trtllm"),
            1,
            "foreign: this is no file of kvsdk; kvsdk.kv.save writes one",
        ),
        (("short", "b", "--to", "trtllm"), 1, "short: the file lacks its last 3 bytes"),
        (("corrupt", "b", "--to", "trtllm"), 1, "corrupt: the tensor layer.1 is not what was written"),
        (("newer", "b", "--to", "trtllm"), 1, "newer: written by a newer kvsdk (format 2, here 1)"),
        (("empty", "b", "--to", "trtllm"), 2, "empty has no rank-0.safetensors"),
        (("a", "b", "--to", "trtlm"), 2, "unknown layout 'trtlm'. Did you mean 'trtllm'?"),
        (("a", "b", "--to", "layer | blok"), 2, "is no layout: unknown axis 'blok'. Did you mean 'block'?"),
        (("a", "b", "--to", "vllm/mla"), 2, "'vllm/mla' is a layout of a latent (MLA); this KV is keys"),
        (("a", "b", "--to", "trtllm", "--tp", "3"), 2, "4 KV heads cannot be divided among 3 devices; tp is"),
        (("a", "b", "--to", "trtllm", "--tp", "0"), 2, "tp is a number from 1 to 4096, not 0"),
        (("mla", "b", "--to", "vllm/mla", "--tp", "2"), 2, "MLA's latent is the same on every device"),
        (("a", "b", "--to", "trtllm", "--block-size", "0"), 2, "block_size is a number of at least 1"),
        (("a", "b", "--to", "trtllm", "--block-size", "4000000000"), 2, "there is not enough memory"),
        (("a", "a", "--to", "trtllm", "--force"), 2, "a is what is to be converted"),
        (("a", "mla", "--to", "trtllm"), 2, "mla is there already; force (--force) replaces it"),
        (("a", "no/b", "--to", "trtllm"), 2, "the folder of no/b does not exist"),
    ],
)
def test_what_is_wrong_is_said(
    folder: Path,
    arguments: tuple[str, ...],
    status: int,
    words: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """In one line, with the status of a fault (1) or of wrong use (2), and nothing is written."""
    right = (folder / "a").read_bytes()
    (folder / "foreign").write_bytes(b"a photo of a cat" * 9)
    (folder / "short").write_bytes(right[:-3])
    (folder / "corrupt").write_bytes(right[:-1] + bytes([right[-1] ^ 1]))
    (folder / "newer").write_bytes(forged(right, lambda manifest: manifest.update(format=2)))
    (folder / "empty").mkdir()
    before = sorted(path.name for path in folder.iterdir())
    assert run(*arguments) == status
    captured = capsys.readouterr()
    assert words in captured.err
    assert captured.err.count("\n") == 1
    assert captured.out == ""
    assert sorted(path.name for path in folder.iterdir()) == before


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("a", "b"), "--to"),
        (("a", "--to", "trtllm"), "OUT"),
        (("a", "b", "--to", "trtllm", "--dtype", "int4"), "'int4' is not one of"),
        (("a", "b", "--to", "trtllm", "--codec", "gzip"), "'gzip' is not one of"),
        (("a", "b", "--to", "trtllm", "--tp", "two"), "Invalid value for '--tp'"),
    ],
)
def test_arguments_that_are_none(
    arguments: tuple[str, ...], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The command line's own words, and status 2."""
    assert run(*arguments) == 2
    assert words in capsys.readouterr().err


def test_what_is_not_the_same_is_not_written(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """One element is written wrong: the status is 1, the text says where, and there is no new file."""
    right = module.convert

    def wrong(*arguments: Any, **options: Any) -> Any:
        result = right(*arguments, **options)
        options["out"][1][1][0, 2, 7, 3] = 77.0  # values of layer 1
        return result

    monkeypatch.setattr(module, "convert", wrong)
    assert run("a", "b", "--to", "hf/dynamic", "--verify") == 1
    assert (
        "b was not written: the values differ first at token 7, layer 1, head 2, element 3 of rank 0"
        in capsys.readouterr().err
    )
    assert sorted(path.name for path in folder.iterdir()) == ["a", "mla"]
    assert run("a", "b", "--to", "hf/dynamic") == 0  # nobody asked


def test_the_help_has_every_layout() -> None:
    """Whoever converts needs no other page."""
    (option,) = [each for each in get_command(app).commands["convert"].params if each.name == "to"]  # type: ignore[attr-defined]
    names, _, axes = str(option.help).partition("; or axes, such as ")
    assert names.split(", ") == sorted(LAYOUTS)
    assert axes == f"'{LAYOUTS['trtllm']}'."


@pytest.fixture
def ended(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> signal.Signals:
    """A conversion in the midst of which the process gets a signal."""
    number: signal.Signals = request.param
    right = module.convert

    def ending(*arguments: Any, **options: Any) -> Any:
        os.kill(os.getpid(), number)
        return right(*arguments, **options)

    monkeypatch.setattr(module, "convert", ending)
    return number


@pytest.mark.parametrize("ended", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT], indirect=True)
def test_who_is_ended_leaves_nothing(ended: signal.Signals, folder: Path) -> None:
    """With the status that shells give to such a process."""
    for devices in ("1", "2"):
        assert run("a", "b", "--to", "trtllm", "--tp", devices) == 128 + ended
        assert sorted(path.name for path in folder.iterdir()) == ["a", "mla"]
    if ended is not signal.SIGINT:
        assert signal.getsignal(ended) is signal.SIG_DFL


@pytest.mark.parametrize("ended", [signal.SIGHUP], indirect=True)
def test_nohup_is_heeded(ended: signal.Signals, folder: Path) -> None:
    """A signal that is ignored stays so."""
    before = signal.signal(ended, signal.SIG_IGN)
    try:
        assert run("a", "b", "--to", "trtllm", "--verify") == 0
    finally:
        signal.signal(ended, before)
    assert (folder / "b").is_file()
