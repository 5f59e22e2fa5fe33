"""The proof that comes with a conversion: what it finds, and what is written then."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from kept_files import TOKENS, kept, names, noise
from kv_files import KEY
from kvsdk.errors import InvalidFile
from kvsdk.kv.files import convert as module
from kvsdk.kv.files.convert import convert_file
from kvsdk.kv.files.ranks import read_ranks
from kvsdk.kv.files.saving import load, save
from kvsdk.kv.files.shards import load_shards
from kvsdk.kv.files.verify import Deviation, verify_files


def compared(source: Path, target: Path) -> Any:
    files = read_ranks(source)
    return verify_files(files, load_shards(files), read_ranks(target))


def changed(source: Path, target: Path, change: Callable[[Any], None]) -> Path:
    """Another file, whole and right, of KV that is not quite the same."""
    opened = load(source)
    change(opened.kv)
    own = opened.manifest
    same = {name: getattr(own, name) for name in ("key", "parent", "first_token", "num_tokens", "rank")}
    save(
        target,
        opened.kv,
        layout=own.layout,
        spec=own.spec,
        fingerprint=own.fingerprint,
        scales=opened.scales,
        **same,
    )
    return target


def test_the_proof_finds_one_element(tmp_path: Path) -> None:
    """By token, layer, part, head and element."""

    def change(kv: Any) -> None:
        kv[2][1][0, 3, 21, 5] += 1

    source = kept(tmp_path / "a")
    other = changed(source, tmp_path / "b", change)
    assert compared(source, source).fault is None
    assert compared(source, other).fault == (
        "the values differ first at token 21, layer 2, head 3, element 5 of rank 0"
    )


def test_the_proof_finds_a_copy_that_differs(tmp_path: Path) -> None:
    """The second of two devices with one head, which no resharding would read."""

    def change(kv: Any) -> None:
        kv[0][0, 0, 0, 0] += 1

    source = kept(tmp_path / "a")
    convert_file(source, tmp_path / "8", to="trtllm", tp=8)
    one = tmp_path / "8" / "rank-5.safetensors"
    changed(one, one, lambda kv: change([kv[0][0]]))
    assert compared(source, tmp_path / "8").fault == "rank 5 differs from the other ranks that have its head"


def test_the_proof_finds_other_scales(tmp_path: Path) -> None:
    """The same bytes stand for other numbers then."""
    source = noise(tmp_path / "a")
    convert_file(source, tmp_path / "8", to="hf/dynamic", dtype="fp8_e4m3")
    opened = load(tmp_path / "8")
    assert opened.scales is not None
    opened.scales[1, 1, 2] *= 1.5
    own = opened.manifest
    save(
        tmp_path / "b",
        opened.kv,
        layout="hf/dynamic",
        spec=own.spec,
        fingerprint=own.fingerprint,
        num_tokens=TOKENS,
        key=KEY,
        scales=opened.scales,
    )
    assert compared(tmp_path / "8", tmp_path / "b").fault == "the scales of rank 0 differ"
    assert "the values are off" in (compared(source, tmp_path / "b").fault or "")


def test_the_proof_finds_other_tokens(tmp_path: Path) -> None:
    """The same KV under another key."""
    source = kept(tmp_path / "a")
    assert compared(source, kept(tmp_path / "b", key=bytes(32))).fault == "the key differs"
    assert compared(source, kept(tmp_path / "c", parent=bytes(32))).fault == "the parent differs"


def test_the_proof_knows_what_a_cast_may_do(tmp_path: Path) -> None:
    """One step of the last bit more than rounding is a fault; the deviation is the number's own."""

    def change(kv: Any) -> None:
        kv[0][0][0, 0, 0, 0] *= 1 + 2**-6  # two of bfloat16's last bits

    source = noise(tmp_path / "a")
    convert_file(source, tmp_path / "b", to="hf/dynamic", dtype="bf16")
    assert compared(source, tmp_path / "b").fault is None
    found = compared(source, changed(tmp_path / "b", tmp_path / "c", change))
    assert found.fault is not None
    assert "more than bfloat16 rounds" in found.fault
    assert isinstance(found.deviations[0], Deviation)
    assert found.deviations[0].steps > 1 >= found.deviations[1].steps


def test_a_conversion_that_goes_wrong_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A byte that is written wrong is found, and neither a new file nor a temporary one stays."""
    right = module.convert

    def wrong(*arguments: Any, **options: Any) -> Any:
        result = right(*arguments, **options)
        options["out"][0][0, 0, 0, 0] += 1
        return result

    monkeypatch.setattr(module, "convert", wrong)
    source = kept(tmp_path / "a")
    for devices in (1, 2):
        with pytest.raises(
            InvalidFile, match="b was not written: the keys differ first at token 0"
        ) as caught:
            convert_file(source, tmp_path / "b", to="vllm/0.26+", tp=devices, verify=True)
        assert caught.value.kind == "corrupt"
        assert names(tmp_path) == ["a"]
    (tmp_path / "b").write_bytes(b"what was there")
    with pytest.raises(InvalidFile):
        convert_file(source, tmp_path / "b", to="vllm/0.26+", verify=True, force=True)
    assert (tmp_path / "b").read_bytes() == b"what was there"
