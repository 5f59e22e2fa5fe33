"""Files of KV made into others: what they hold, what they say of themselves, and when nothing is written."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from kv_files import KEY, MLA, PARENT, forged, made
from kv_oracle import PLACES, number, read, tensors
from kvsdk.errors import ConfigurationError, InvalidFile, InvalidRequest, UnknownLayout
from kvsdk.kv import Fingerprint, KVSpec, Layout
from kvsdk.kv.files import convert as module
from kvsdk.kv.files.convert import convert_file
from kvsdk.kv.files.ranks import read_ranks
from kvsdk.kv.files.saving import load, load_manifest, save
from kvsdk.kv.files.verify import Deviation, verify_files
from kvsdk.kv.layouts.planes import allocate

#: 4 heads of 16: 1, 2 and 4 devices have whole heads, 8 have copies.
SPEC = KVSpec(num_layers=3, num_kv_heads=4, head_dim=16, dtype="float16", block_size=16)
TOKENS = 37


def kept(path: Path, layout: str = "hf/dynamic", spec: KVSpec = SPEC, **more: Any) -> Path:
    """A file of numbered KV."""
    kv = number(allocate(Layout.of(layout), spec, tokens=TOKENS))
    given = {"fingerprint": Fingerprint.for_testing(spec), "num_tokens": TOKENS, "key": KEY, "parent": PARENT}
    save(path, kv, layout=layout, spec=spec, first_token=256, **{**given, **more})
    return path


def noise(path: Path, spec: KVSpec = SPEC, seed: int = 0) -> Path:
    """A file of KV as models have it: small numbers of either sign."""
    torch.manual_seed(seed)
    kv = [
        tuple(
            torch.randn(1, spec.num_kv_heads, TOKENS, spec.head_dim).to(getattr(torch, spec.dtype))
            for _ in "kv"
        )
        for _ in range(spec.num_layers)
    ]
    fingerprint = Fingerprint.for_testing(spec)
    save(path, kv, layout="hf/dynamic", spec=spec, fingerprint=fingerprint, num_tokens=TOKENS, key=KEY)
    return path


def raw(path: Path) -> list[bytes]:
    """Every tensor's bytes."""
    return [bytes(each.contiguous().view(torch.uint8).numpy().reshape(-1)) for each in tensors(load(path).kv)]


def logical(path: Path) -> list[float]:
    """Every element in logical order, by the oracle's own hand."""
    found = load(path)
    return read(found.kv, found.manifest.layout, found.manifest.spec, TOKENS, None)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


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


# ---------------------------------------------------------------------- the proof


def compared(source: Path, target: Path) -> Any:
    files = read_ranks(source)
    opened = [load(path) for path in files.paths]
    kv, scales = [each.kv for each in opened], [each.scales for each in opened]
    return verify_files(files, kv, scales, read_ranks(target))


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
    with pytest.raises(InvalidRequest, match="other things"):
        convert_file(source, tmp_path / "b", to="trtllm", force=True)
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
        ({"to": "trtllm", "tp": 0}, InvalidRequest, "tp is a number of at least 1"),
        ({"to": "trtllm", "tp": True}, InvalidRequest, "tp is a number of at least 1"),
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
