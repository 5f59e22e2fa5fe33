"""Files of KV made into others: what they hold, what they say of themselves, and when nothing is written."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from kept_files import SPEC, TOKENS, kept, logical, names, noise, raw
from kv_files import KEY, MLA, PARENT, made
from kv_oracle import PLACES, number
from kvsdk.errors import InvalidFile, InvalidRequest
from kvsdk.kv import Fingerprint, Layout
from kvsdk.kv.files.convert import convert_file
from kvsdk.kv.files.saving import load, load_manifest, save
from kvsdk.kv.layouts.planes import allocate

# ---------------------------------------------------------------------- layouts and block sizes


@pytest.mark.parametrize("layout", sorted(PLACES))
def test_every_layout_and_back(tmp_path: Path, layout: str) -> None:
    """Each element lies where the oracle says; back again every byte is where it was."""
    source = kept(tmp_path / "a")
    done = convert_file(source, tmp_path / "b", to=layout, verify=True)
    assert done.proof is not None
    assert done.proof.num_blocks == 3  # 37 tokens in blocks of 16
    assert logical(tmp_path / "b") == logical(source)
    convert_file(tmp_path / "b", tmp_path / "c", to="hf/dynamic")
    assert raw(tmp_path / "c") == raw(source)


def test_block_sizes_and_back(tmp_path: Path) -> None:
    """16 to 32 to 16 tokens: 3 blocks, 2 blocks, and 3 blocks of the same bytes."""
    source = kept(tmp_path / "a", "vllm/0.26+")
    convert_file(source, tmp_path / "b", to="vllm/0.26+", block_size=32, verify=True)
    assert load(tmp_path / "b").kv[0].shape == (2, 4, 32, 32)
    assert load_manifest(tmp_path / "b").spec.block_size == 32
    assert logical(tmp_path / "b") == logical(source)
    convert_file(tmp_path / "b", tmp_path / "c", to="vllm/0.26+", block_size=16, verify=True)
    assert raw(tmp_path / "c") == raw(source)


def test_axes_are_a_layout_too(tmp_path: Path) -> None:
    """They are named in the manifest as they are, or by the name that they have."""
    source = kept(tmp_path / "a")
    convert_file(source, tmp_path / "b", to="| layer kv token head dim", verify=True)
    assert load_manifest(tmp_path / "b").layout == "| layer kv token head dim"
    convert_file(source, tmp_path / "c", to="layer | block kv head token dim")
    assert load_manifest(tmp_path / "c").layout == "trtllm"


def test_a_latent(tmp_path: Path) -> None:
    """MLA's KV goes into its own layouts, and into no others."""
    (tmp_path / "a").write_bytes(made("vllm/mla", MLA))
    convert_file(tmp_path / "a", tmp_path / "b", to="layer | token latent", block_size=8, verify=True)
    convert_file(tmp_path / "b", tmp_path / "c", to="vllm/mla", block_size=4, verify=True)
    whole = [each.flatten(0, 1)[:6].view(torch.uint8) for each in load(tmp_path / "a").kv]
    back = [each.flatten(0, 1)[:6].view(torch.uint8) for each in load(tmp_path / "c").kv]
    assert all(torch.equal(one, other) for one, other in zip(whole, back, strict=True))
    with pytest.raises(InvalidRequest, match="a layout of keys and values; this KV is a latent"):
        convert_file(tmp_path / "a", tmp_path / "d", to="hf/dynamic")
    with pytest.raises(InvalidRequest, match=r"a layout of a latent .MLA.; this KV is keys and values"):
        convert_file(kept(tmp_path / "e"), tmp_path / "d", to="vllm/mla")


# ---------------------------------------------------------------------- what the new file says


def test_a_manifest_says_what_is_in_the_file(tmp_path: Path) -> None:
    """Layout, block size and devices are new; tokens and keys are what they were, and so is the rest."""
    source = kept(tmp_path / "a")
    convert_file(source, tmp_path / "b", to="trtllm", block_size=32, tp=2)
    old = load_manifest(source)
    for rank in range(2):
        new = load_manifest(tmp_path / "b" / f"rank-{rank}.safetensors")
        assert new.rank == rank
        assert new.layout == "trtllm"
        assert new.spec == replace(SPEC, num_kv_heads=2, block_size=32)
        assert (new.key, new.parent, new.first_token, new.num_tokens) == (KEY, PARENT, 256, TOKENS)
        changed = {"layout_era": "trtllm", "block_size": 32, "tensor_parallel": 2}
        assert new.fingerprint == replace(old.fingerprint, **changed)
        assert new.fingerprint.digest() == old.fingerprint.digest()
        assert not new.is_lossy


def test_compression_is_kept_unless_asked_otherwise(tmp_path: Path) -> None:
    """zstd stays zstd, `none` undoes it, and the KV is the same."""
    source = kept(tmp_path / "a", codec="zstd")
    for number_, (codec, expected) in enumerate([(None, "zstd"), ("none", None), ("zstd", "zstd")]):
        target = tmp_path / f"b{number_}"
        convert_file(source, target, to="trtllm", codec=codec, verify=True)
        assert load_manifest(target).codec == expected
        assert logical(target) == logical(source)
    convert_file(tmp_path / "b1", tmp_path / "c", to="trtllm")
    assert load_manifest(tmp_path / "c").codec is None


def test_what_was_done_is_told(tmp_path: Path) -> None:
    """Files, bytes and time: the clock is read before and after, 2 s apart."""
    source = kept(tmp_path / "a")
    ticks = itertools.count(step=2)
    done = convert_file(source, tmp_path / "b", to="trtllm", tp=2, clock=lambda: float(next(ticks)))
    assert (done.source_ranks, done.target_ranks, done.num_kv_heads, done.proof) == (1, 2, 4, None)
    assert done.source_bytes == source.stat().st_size
    assert done.target_bytes == sum(path.stat().st_size for path in (tmp_path / "b").iterdir())
    assert done.seconds == 2.0
    assert done.bytes_per_s == source.stat().st_size / 2
    assert done.source == load_manifest(source)
    assert done.target == load_manifest(tmp_path / "b" / "rank-0.safetensors")


# ---------------------------------------------------------------------- devices


def test_one_two_four_one_devices(tmp_path: Path) -> None:
    """Each has its own heads, and in the end every byte is where it was, and the manifest too."""
    source = kept(tmp_path / "a", "vllm/0.26+")
    whole = load(source).kv
    convert_file(source, tmp_path / "2", to="vllm/0.26+", tp=2, verify=True)
    convert_file(tmp_path / "2", tmp_path / "4", to="vllm/0.26+", tp=4, verify=True)
    for folder, each in ((tmp_path / "2", 2), (tmp_path / "4", 1)):
        for rank in range(4 // each):
            shard = load(folder / f"rank-{rank}.safetensors").kv
            heads = slice(rank * each, (rank + 1) * each)
            assert all(torch.equal(own, layer[:, heads]) for own, layer in zip(shard, whole, strict=True))
    convert_file(tmp_path / "4", tmp_path / "1", to="vllm/0.26+", tp=1, verify=True)
    assert (tmp_path / "1").read_bytes() == source.read_bytes()


def test_more_devices_than_heads_have_copies(tmp_path: Path) -> None:
    """8 devices of 4 heads: two in a row have the same, and back again there are 4 heads."""
    source = kept(tmp_path / "a", "vllm/0.26+")
    done = convert_file(source, tmp_path / "8", to="vllm/0.26+", tp=8, verify=True)
    assert done.num_kv_heads == 4
    shards = [raw(tmp_path / "8" / f"rank-{rank}.safetensors") for rank in range(8)]
    assert [shards.index(shard) for shard in shards] == [0, 0, 2, 2, 4, 4, 6, 6]
    convert_file(tmp_path / "8", tmp_path / "1", to="vllm/0.26+", tp=1, verify=True)
    assert (tmp_path / "1").read_bytes() == source.read_bytes()


def test_a_folder_stays_a_folder(tmp_path: Path) -> None:
    """Without a number of devices each rank is converted for itself."""
    convert_file(kept(tmp_path / "a"), tmp_path / "2", to="trtllm", tp=2)
    convert_file(tmp_path / "2", tmp_path / "b", to="hf/dynamic", verify=True)
    assert names(tmp_path / "b") == ["rank-0.safetensors", "rank-1.safetensors"]
    manifest = load_manifest(tmp_path / "b" / "rank-1.safetensors")
    assert (manifest.rank, manifest.fingerprint.tensor_parallel, manifest.layout) == (1, 2, "hf/dynamic")


def test_one_rank_alone_keeps_its_rank(tmp_path: Path) -> None:
    """It can have another layout, but its heads cannot be divided without the others."""
    convert_file(kept(tmp_path / "a"), tmp_path / "2", to="trtllm", tp=2)
    one = tmp_path / "2" / "rank-1.safetensors"
    convert_file(one, tmp_path / "b", to="hf/dynamic", verify=True)
    manifest = load_manifest(tmp_path / "b")
    assert (manifest.rank, manifest.fingerprint.tensor_parallel) == (1, 2)
    for devices in (1, 2, 4):
        with pytest.raises(InvalidRequest, match=r"rank 1 of several; .*name the folder"):
            convert_file(one, tmp_path / "c", to="hf/dynamic", tp=devices)


def test_ranks_of_a_latent_are_not_divided(tmp_path: Path) -> None:
    """Every device has all of it."""
    (tmp_path / "a").write_bytes(made("vllm/mla", MLA))
    with pytest.raises(InvalidRequest, match="MLA's latent is the same on every device"):
        convert_file(tmp_path / "a", tmp_path / "b", to="vllm/mla", tp=2)
    two = replace(Fingerprint.for_testing(MLA), tensor_parallel=2)
    (tmp_path / "2").mkdir()
    for rank in range(2):
        kv = load(tmp_path / "a").kv
        path = tmp_path / "2" / f"rank-{rank}.safetensors"
        save(path, kv, layout="vllm/mla", spec=MLA, fingerprint=two, num_tokens=6, key=KEY, rank=rank)
    convert_file(tmp_path / "2", tmp_path / "b", to="layer | token latent", verify=True)
    assert names(tmp_path / "b") == ["rank-0.safetensors", "rank-1.safetensors"]


# ---------------------------------------------------------------------- dtypes


def test_fp8_and_back_within_the_casts_error(tmp_path: Path) -> None:
    """3 bits of mantissa: off by half of 1/8 of the number, or of the smallest step of the head's scale."""
    source = noise(tmp_path / "a")
    done = convert_file(source, tmp_path / "8", to="trtllm", dtype="fp8_e4m3", verify=True)
    small = load_manifest(tmp_path / "8")
    assert (small.spec.dtype, small.fingerprint.kv_dtype, small.is_lossy) == (
        "float8_e4m3fn",
        "float16",
        True,
    )
    convert_file(tmp_path / "8", tmp_path / "b", to="hf/dynamic", dtype="fp16", accept_loss=True)
    assert done.proof is not None
    for part, deviation in enumerate(done.proof.deviations):
        largest = 0.0
        for before, after in zip(load(source).kv, load(tmp_path / "b").kv, strict=True):
            a, b = before[part].float(), after[part].float()
            allowed = torch.maximum(a.abs() / 16, a.abs().amax((0, 2, 3), keepdim=True) / 448 / 2**10)
            # and half of float16's own step, 11 bits, on the way back
            assert bool(((a - b).abs() <= allowed * 1.001 + a.abs() / 2**11).all())
            largest = max(largest, float((a - b).abs().max()))
        assert deviation.part == ("keys", "values")[part]
        assert deviation.error == pytest.approx(largest, rel=0.02)
        assert 0.9 < deviation.steps <= 1


def test_scales_go_with_their_heads(tmp_path: Path) -> None:
    """fp8 on two and on eight devices is the same fp8, with the same scales, when it is whole again."""
    source = noise(tmp_path / "a")
    convert_file(source, tmp_path / "1", to="hf/dynamic", dtype="fp8_e4m3")
    convert_file(source, tmp_path / "2", to="trtllm", dtype="fp8_e4m3", tp=2, verify=True)
    convert_file(tmp_path / "2", tmp_path / "8", to="vllm/0.26+", tp=8, verify=True)
    convert_file(tmp_path / "8", tmp_path / "b", to="hf/dynamic", tp=1, verify=True)
    scales = load(tmp_path / "1").scales
    assert scales is not None
    assert torch.equal(load(tmp_path / "2" / "rank-1.safetensors").scales, scales[:, :, 2:])
    assert torch.equal(load(tmp_path / "8" / "rank-5.safetensors").scales, scales[:, :, 2:3])
    assert (tmp_path / "b").read_bytes() == (tmp_path / "1").read_bytes()


@pytest.mark.parametrize(("dtype", "bits"), [("bf16", 8), ("fp32", 24)])
def test_other_dtypes(tmp_path: Path, dtype: str, bits: int) -> None:
    """bfloat16 keeps 8 bits: off by half of 1/128 of the number at most; float32 has all that float16 has."""
    done = convert_file(noise(tmp_path / "a"), tmp_path / "b", to="hf/dynamic", dtype=dtype, verify=True)
    assert load_manifest(tmp_path / "b").is_lossy
    assert done.proof is not None
    assert done.proof.num_blocks is None
    for deviation in done.proof.deviations:
        assert deviation.error <= deviation.magnitude / 2**bits
        assert (deviation.error == 0) == (dtype == "fp32")


def test_kv_that_lost_something_is_not_passed_off_as_whole(tmp_path: Path) -> None:
    """In the model's own dtype nothing would say so any more: that has to be asked for."""
    convert_file(noise(tmp_path / "a"), tmp_path / "8", to="trtllm", dtype="fp8_e4m3")
    with pytest.raises(InvalidRequest, match="only nearly what the model made"):
        convert_file(tmp_path / "8", tmp_path / "b", to="trtllm", dtype="fp16")
    convert_file(tmp_path / "8", tmp_path / "b", to="trtllm", dtype="fp32", verify=True)
    assert load_manifest(tmp_path / "b").is_lossy
    convert_file(tmp_path / "8", tmp_path / "c", to="trtllm", dtype="fp16", accept_loss=True)
    assert not load_manifest(tmp_path / "c").is_lossy


def test_numbers_that_a_dtype_has_no_room_for(tmp_path: Path) -> None:
    """100,000 is above float16's 65,504: the proof finds it, and nothing is written."""
    spec = replace(SPEC, dtype="bfloat16")
    kv = number(allocate(Layout.of("hf/dynamic"), spec, tokens=TOKENS))
    kv[1][1][0, 2, 3, 4] = 100_000.0
    fingerprint = Fingerprint.for_testing(spec)
    save(
        tmp_path / "a",
        kv,
        layout="hf/dynamic",
        spec=spec,
        fingerprint=fingerprint,
        num_tokens=TOKENS,
        key=KEY,
    )
    with pytest.raises(InvalidFile, match="the values are off by up to inf, more than float16 rounds"):
        convert_file(tmp_path / "a", tmp_path / "b", to="hf/dynamic", dtype="fp16", verify=True)
    assert names(tmp_path) == ["a"]


def test_an_engines_quantised_kv_has_no_numbers_without_its_scales(tmp_path: Path) -> None:
    """Scales of 1 are those of KV whose scales the engine has: layouts may change, the dtype may not."""
    spec = replace(SPEC, dtype="float8_e4m3fn")
    kept(tmp_path / "a", spec=spec, scales=torch.ones(3, 2, 4))
    convert_file(tmp_path / "a", tmp_path / "b", to="trtllm", tp=2, verify=True)
    with pytest.raises(InvalidRequest, match="scales of this float8_e4m3fn KV are not in the file"):
        convert_file(tmp_path / "a", tmp_path / "c", to="trtllm", dtype="fp16")
    kept(tmp_path / "d", spec=spec, scales=torch.full((3, 2, 4), 0.5))
    convert_file(tmp_path / "d", tmp_path / "e", to="hf/dynamic", dtype="fp16", verify=True)
    assert logical(tmp_path / "e") == [value / 2 for value in logical(tmp_path / "d")]
