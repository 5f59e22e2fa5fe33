"""Conversions that are refused or fail: what is said, and that what was there is there still."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from kept_files import SPEC, kept, names
from kv_files import forged
from kvsdk.errors import ConfigurationError, InvalidFile, InvalidRequest, UnknownLayout
from kvsdk.kv import Fingerprint
from kvsdk.kv.files.convert import convert_file
from kvsdk.kv.files.ranks import read_ranks
from kvsdk.kv.files.replacing import replacing
from kvsdk.kv.files.saving import load_manifest

# ---------------------------------------------------------------------- what is there already


def test_what_is_there_is_replaced_only_by_force(tmp_path: Path) -> None:
    """File by file, file by folder, folder by folder, folder by file."""
    source, target = kept(tmp_path / "a"), tmp_path / "b"
    target.write_bytes(b"what was there")
    with pytest.raises(InvalidRequest, match="b is there already"):
        convert_file(source, target, to="trtllm")
    assert target.read_bytes() == b"what was there"
    for devices, count in ((1, 0), (4, 4), (2, 2), (1, 0)):
        convert_file(source, target, to="trtllm", tp=devices, force=True)
        assert (len(names(target)) if target.is_dir() else 0) == count
        assert read_ranks(target).first.fingerprint.tensor_parallel == devices
    assert names(tmp_path) == ["a", "b"]


def test_a_folder_with_other_things_is_never_replaced(tmp_path: Path) -> None:
    """Whoever names the wrong folder loses nothing."""
    source = kept(tmp_path / "a")
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "thesis.tex").write_text("...")
    for force in (False, True):  # nobody is told to use force, and then that it is of no use
        with pytest.raises(InvalidRequest, match="other things in it, which is never replaced"):
            convert_file(source, tmp_path / "b", to="trtllm", force=force)
    assert names(tmp_path / "b") == ["thesis.tex"]


def test_the_same_file_is_refused(tmp_path: Path) -> None:
    """By whatever name: it would be gone if the work were cut short."""
    source = kept(tmp_path / "a")
    (tmp_path / "link").symlink_to(source)
    (tmp_path / "hard link").hardlink_to(source)
    before = source.read_bytes()
    for target in (source, tmp_path / "." / "a", tmp_path / "link", tmp_path / "hard link"):
        with pytest.raises(InvalidRequest, match="is what is to be converted"):
            convert_file(source, target, to="trtllm", force=True)
    convert_file(source, tmp_path / "2", to="trtllm", tp=2)
    for one, other in (
        (tmp_path / "2", tmp_path / "2" / "b"),
        (tmp_path / "2" / "rank-0.safetensors", tmp_path / "2"),
    ):
        with pytest.raises(InvalidRequest, match="lies in the other"):
            convert_file(one, other, to="trtllm", force=True)
    assert source.read_bytes() == before


# ---------------------------------------------------------------------- what is wrong


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"to": "trtlm"}, UnknownLayout, "Did you mean 'trtllm'"),
        ({"to": "layer | block"}, InvalidRequest, "is no layout"),
        ({"to": "trtllm", "tp": 3}, InvalidRequest, "4 KV heads cannot be divided among 3 devices"),
        ({"to": "trtllm", "tp": 6}, InvalidRequest, "4 KV heads cannot be divided among 6 devices"),
        ({"to": "trtllm", "tp": 0}, InvalidRequest, "tp is a number from 1 to 4096, not 0"),
        ({"to": "trtllm", "tp": True}, InvalidRequest, "tp is a number from 1 to 4096, not True"),
        ({"to": "trtllm", "tp": 4 * 10**8}, InvalidRequest, "tp is a number from 1 to 4096"),
        ({"to": "trtllm", "block_size": 0}, InvalidRequest, "block_size is a number of at least 1"),
        ({"to": "trtllm", "dtype": "fp8"}, InvalidRequest, "there is no dtype 'fp8'. Known: bf16, fp16"),
        ({"to": "trtllm", "codec": "gzip"}, InvalidRequest, "codec is none or zstd"),
    ],
)
def test_arguments_that_do_not_fit(tmp_path: Path, options: dict[str, Any], error: type, words: str) -> None:
    """The text says what does, and nothing is written."""
    source = kept(tmp_path / "a")
    with pytest.raises(error, match=words):
        convert_file(source, tmp_path / "b", **options)
    assert names(tmp_path) == ["a"]


def _cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-9])


def _flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-9] ^= 1
    path.write_bytes(data)


def _newer(path: Path) -> None:
    path.write_bytes(forged(path.read_bytes(), lambda manifest: manifest.update(format=2)))


@pytest.mark.parametrize(
    ("spoil", "kind"),
    [
        (_cut, "truncated"),
        (_flip, "corrupt"),
        (_newer, "newer"),
        (lambda path: path.write_bytes(b"a photo of a cat" * 9), "foreign"),
        (lambda path: path.write_bytes(b""), "truncated"),
    ],
)
def test_files_that_are_no_good(tmp_path: Path, spoil: Callable[[Path], None], kind: str) -> None:
    """Nothing of them is converted, and the error has the file's name."""
    source = kept(tmp_path / "a")
    spoil(source)
    with pytest.raises(InvalidFile, match="a: ") as caught:
        convert_file(source, tmp_path / "b", to="trtllm")
    assert caught.value.kind == kind
    assert names(tmp_path) == ["a"]


def test_places_that_are_none(tmp_path: Path) -> None:
    """No file to read, no folder to write to, a name that is too long."""
    source = kept(tmp_path / "a")
    with pytest.raises(ConfigurationError, match="none cannot be read"):
        convert_file(tmp_path / "none", tmp_path / "b", to="trtllm")
    with pytest.raises(ConfigurationError, match="cannot be read"):
        convert_file(tmp_path / ("x" * 300), tmp_path / "b", to="trtllm")
    with pytest.raises(InvalidRequest, match=r"the folder of .*none/b does not exist"):
        convert_file(source, tmp_path / "none" / "b", to="trtllm")
    with pytest.raises(ConfigurationError, match="cannot be written"):
        convert_file(source, tmp_path / ("x" * 300), to="trtllm")
    assert names(tmp_path) == ["a"]


def test_blocks_that_no_memory_has_room_for(tmp_path: Path) -> None:
    """One block of 4,000,000,000 tokens of 1 KiB: 4 TB."""
    source = kept(tmp_path / "a")
    with pytest.raises(ConfigurationError, match=r"not enough memory .* in blocks of 4000000000$"):
        convert_file(source, tmp_path / "b", to="trtllm", block_size=4 * 10**9)
    assert names(tmp_path) == ["a"]


def test_what_a_killed_process_leaves_says_what_it_was(tmp_path: Path) -> None:
    """The one file that has another name; names of any length have room for it."""
    for target in ("b", "ä" * 120):  # 240 bytes
        with replacing(tmp_path / target) as place:
            place.write_bytes(b"half of it")
            (left,) = names(tmp_path)
            assert left.startswith(f".{target[:50]}.tmp_")
        assert names(tmp_path) == [target]
        (tmp_path / target).unlink()


def test_ranks_that_do_not_belong_together(tmp_path: Path) -> None:
    """One lacks, one is called by another's number, one is of another prompt, or there are none."""
    convert_file(kept(tmp_path / "a"), tmp_path / "4", to="trtllm", tp=4)
    one, two = (tmp_path / "4" / f"rank-{rank}.safetensors" for rank in (1, 2))

    def refused(words: str, error: type = InvalidRequest) -> None:
        with pytest.raises(error, match=words):
            convert_file(tmp_path / "4", tmp_path / "b", to="trtllm", tp=1)

    right = one.read_bytes()
    one.unlink()
    refused("4 lacks rank-1.safetensors")
    one.write_bytes(two.read_bytes())
    refused("rank-1.safetensors says that it is rank 2", InvalidFile)
    spec = load_manifest(two).spec
    fingerprint = load_manifest(two).fingerprint
    kept(one, "trtllm", spec, fingerprint=fingerprint, rank=1, key=bytes(32))
    refused("rank-1.safetensors does not belong to .*rank-0.safetensors: its key differs")
    one.write_bytes(right)
    (tmp_path / "4" / "rank-3.safetensors").unlink()
    refused("has 3 of the 4 ranks")
    (tmp_path / "none").mkdir()
    with pytest.raises(InvalidRequest, match=r"none has no rank-0\.safetensors"):
        convert_file(tmp_path / "none", tmp_path / "b", to="trtllm")


def test_stages_are_not_put_together(tmp_path: Path) -> None:
    """Each has layers of its own."""
    staged = replace(Fingerprint.for_testing(SPEC), pipeline_parallel=2)
    (tmp_path / "2").mkdir()
    for rank in range(2):
        kept(tmp_path / "2" / f"rank-{rank}.safetensors", fingerprint=staged, rank=rank)
    with pytest.raises(InvalidRequest, match="divided among 2 stages"):
        convert_file(tmp_path / "2", tmp_path / "b", to="trtllm")
    with pytest.raises(InvalidRequest, match="rank 0 of several"):
        convert_file(tmp_path / "2" / "rank-0.safetensors", tmp_path / "b", to="trtllm", tp=2)
    convert_file(tmp_path / "2" / "rank-1.safetensors", tmp_path / "b", to="trtllm", verify=True)
    assert load_manifest(tmp_path / "b").rank == 1
