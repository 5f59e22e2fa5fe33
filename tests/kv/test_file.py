"""Files of KV: what goes in comes out, whatever the layout, and any reader of safetensors can open them."""

from __future__ import annotations

import mmap
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import safetensors
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from kv_files import KEY, MLA, PARENT, SPEC, made, split
from kv_oracle import ONE_SIZE, PLACES, number, read, tensors
from kvsdk import ConfigurationError, InvalidFile, InvalidRequest, UnknownLayout
from kvsdk.kv import LAYOUTS, Fingerprint, KVSpec, Layout, convert
from kvsdk.kv.files.file import (
    NO_KEY,
    check_file,
    compress,
    decompress,
    file_bytes,
    open_file,
    plan_file,
    read_manifest,
)
from kvsdk.kv.files.saving import load, load_manifest, save
from kvsdk.kv.layouts.planes import allocate

FP8 = replace(SPEC, dtype="float8_e4m3fn", head_dim=16)


def spec_of(layout: str) -> KVSpec:
    return MLA if layout == "vllm/mla" else SPEC


def plan_of(layout: str = "trtllm", spec: KVSpec = SPEC, num_tokens: int = 6, **more: Any) -> Any:
    return plan_file(
        fingerprint=Fingerprint.for_testing(spec), spec=spec, layout=layout, num_tokens=num_tokens, **more
    )


def raw(kv: Any) -> list[bytes]:
    """Every tensor's bytes."""
    return [bytes(tensor.contiguous().view(torch.uint8).numpy().reshape(-1)) for tensor in tensors(kv)]


# ---------------------------------------------------------------------- round trips


@pytest.mark.parametrize("layout", sorted(PLACES))
def test_every_layout_comes_back_as_it_went_in(layout: str) -> None:
    """Ten tokens in blocks of four: each element at its place, and the last block's rest is zero."""
    kv = number(allocate(Layout.of(layout), SPEC, tokens=10))
    plan = plan_of(layout, num_tokens=10)
    view = memoryview(bytearray(b"\xff" * plan.total_bytes))
    out, scales = plan.tensors(view)
    convert(kv, layout, layout, SPEC, num_tokens=10, out=out)
    sealed = plan.seal(view, key=KEY, first_token=10)
    opened = open_file(view)
    assert opened.manifest == sealed
    assert scales is opened.scales is None
    assert read(opened.kv, layout, SPEC, 10, None) == read(kv, layout, SPEC, 10, None)
    if Layout.of(layout).is_paged:
        behind = convert(opened.kv, layout, "hf/dynamic", SPEC, num_tokens=12)
        assert all(not part[:, :, 10:].any() and part[:, :, :10].any() for part in tensors(behind))


def test_a_latent_comes_back() -> None:
    """MLA has one tensor per layer, for keys and values both."""
    kv = number([torch.empty(2, 4, 6, dtype=torch.bfloat16) for _ in range(2)])
    plan = plan_of("vllm/mla", MLA)
    view = memoryview(bytearray(plan.total_bytes))
    for ours, theirs in zip(plan.tensors(view)[0], kv, strict=True):
        ours.copy_(theirs)
    plan.seal(view, key=KEY)
    assert [piece.name for piece in plan.pieces] == ["layer.0", "layer.1"]
    assert raw(open_file(view).kv) == raw(kv)


@pytest.mark.parametrize("layout", sorted(PLACES))
def test_quantised_kv_comes_back_with_its_scales(layout: str) -> None:
    """float32, `(layers, parts, heads)`, as the last tensor."""
    torch.manual_seed(1)
    kv = [tuple(torch.randn(1, 2, 6, 16, dtype=torch.float16) for _ in range(2)) for _ in range(2)]
    plan = plan_of(layout, FP8)
    view = memoryview(bytearray(plan.total_bytes))
    out, place = plan.tensors(view)
    spec = replace(FP8, dtype="float16")
    _, scales = convert(kv, "hf/dynamic", layout, spec, num_tokens=6, dtype="fp8_e4m3", out=out)
    place.copy_(scales)
    plan.seal(view, key=KEY)
    opened = open_file(view)
    assert plan.pieces[-1].name == "scales"
    assert torch.equal(opened.scales, scales)
    assert raw(opened.kv) == raw(convert(kv, "hf/dynamic", layout, spec, num_tokens=6, dtype="fp8_e4m3")[0])


def test_scales_need_not_be_aligned() -> None:
    """3 tokens, 1 head and 3 elements in 1 byte each: the scales begin at byte 2 * 9 = 18."""
    spec = replace(FP8, num_layers=1, num_kv_heads=1, head_dim=3)
    plan = plan_of("hf/dynamic", spec, 3)
    view = memoryview(bytearray(plan.total_bytes))
    plan.tensors(view)[1].copy_(torch.tensor([[[1.5], [0.25]]]))
    plan.seal(view, key=KEY)
    assert plan.pieces[-1].start == 18
    assert open_file(view).scales.flatten().tolist() == [1.5, 0.25]


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_any_bytes_come_back(data: st.DataObject) -> None:
    """Any sizes, dtype and layout; the file's tensors are the payload cut at the header's own offsets."""
    layout = data.draw(st.sampled_from(sorted(LAYOUTS)))
    is_mla, may_differ = layout == "vllm/mla", layout not in (*ONE_SIZE, "vllm/mla")
    dim = data.draw(st.sampled_from([16, 32] if layout == "vllm/paged-v0" else [1, 3, 8]))
    spec = KVSpec(
        num_layers=data.draw(st.integers(1, 3)),
        num_kv_heads=1 if is_mla else data.draw(st.integers(1, 3)),
        head_dim=dim,
        head_dim_v=data.draw(st.sampled_from([None, 5])) if may_differ else None,
        dtype=data.draw(st.sampled_from(["float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2"])),
        block_size=data.draw(st.integers(1, 6)),
        kind="mla" if is_mla else "mha",
    )
    tokens = data.draw(st.integers(1, 13))
    first = data.draw(st.integers(0, 2**32 - tokens))
    file = made(layout, spec, tokens, seed=first, first_token=first)
    header, payload = split(file)
    offsets = [each["data_offsets"] for name, each in header.items() if name != "__metadata__"]
    opened = open_file(file)
    flat = raw(opened.kv) if opened.scales is None else [*raw(opened.kv), *raw(opened.scales)]
    expected = [payload[start:end] for start, end in offsets]
    if Layout.of(layout).left == ("kv", "layer"):  # keys of all layers before all values: a list of each
        count = spec.num_layers
        flat[: 2 * count] = [flat[part * count + layer] for layer in range(count) for part in range(2)]
    assert flat == expected
    assert b"".join(expected) == payload
    assert decompress(compress(file)) == file
    assert raw(open_file(compress(file)).kv) == raw(opened.kv)


@pytest.mark.parametrize("layout", sorted(LAYOUTS))
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "float8_e5m2", "float8_e4m3fn"])
def test_any_reader_of_safetensors_opens_it(layout: str, dtype: str, tmp_path: Path) -> None:
    """Names, shapes, dtypes and bytes, by the library of that name."""
    spec = replace(spec_of(layout), dtype=dtype, head_dim=16)
    file = made(layout, spec)
    path = tmp_path / "chunk.safetensors"
    path.write_bytes(file)
    opened = open_file(file)
    with safetensors.safe_open(path, framework="pt") as found:
        theirs = {name: found.get_tensor(name) for name in found.keys()}  # noqa: SIM118 - it is no mapping
        assert set(found.metadata()) == {"kvsdk", "kvsdk.sha256"}
    scales = theirs.pop("scales", None)
    assert (scales is None) == (dtype != "float8_e4m3fn")
    if scales is not None:
        assert raw(scales) == raw(opened.scales)
    ours = dict(zip(NAMES[Layout.of(layout).left], tensors(opened.kv), strict=True))
    assert ours.keys() == theirs.keys()
    for name, tensor in ours.items():
        assert (tensor.shape, tensor.dtype) == (theirs[name].shape, getattr(torch, dtype))
        assert raw(tensor) == raw(theirs[name])


NAMES = {
    ("layer",): ["layer.0", "layer.1"],
    ("layer", "kv"): ["layer.0.keys", "layer.0.values", "layer.1.keys", "layer.1.values"],
    ("kv", "layer"): ["layer.0.keys", "layer.1.keys", "layer.0.values", "layer.1.values"],
    ("kv",): ["keys", "values"],
    (): ["kv"],
}


# ---------------------------------------------------------------------- headers and plans


def test_the_header_is_as_long_for_every_chunk() -> None:
    """Whatever the key and the first token; the payload begins at a multiple of 64."""
    plan = plan_of()
    for first in (0, 9, 10, 12_345, 2**32 - 6):
        view = memoryview(bytearray(plan.total_bytes + 100))
        sealed = plan.seal(view, key=KEY, parent=PARENT, first_token=first)
        assert read_manifest(view) == sealed
        assert (sealed.first_token, sealed.key, sealed.parent) == (first, KEY, PARENT)
        assert file_bytes(sealed) == plan.total_bytes
    assert plan.header_bytes % 64 == 0
    assert plan_of() is plan


def test_the_manifest_says_all_that_went_in() -> None:
    """Fields that have no say in the tensors too."""
    spec = replace(SPEC, layer_kinds=("full", "none", "sliding"), window=128)
    fingerprint = replace(
        Fingerprint.for_testing(spec), kv_dtype="bfloat16", engine_build='a "q"\n\u2028\ud800'
    )
    plan = plan_file(fingerprint=fingerprint, spec=spec, layout="trtllm", num_tokens=5, rank=3)
    view = memoryview(bytearray(plan.total_bytes))
    plan.seal(view, key=KEY)
    found = check_file(bytes(view))
    assert (found.fingerprint, found.spec, found.layout, found.rank) == (fingerprint, spec, "trtllm", 3)
    assert (found.num_tokens, found.first_token, found.parent, found.codec) == (5, 0, NO_KEY, None)
    assert found.is_lossy
    assert not check_file(made()).is_lossy


@pytest.mark.parametrize(
    ("layout", "name"),
    [
        ("layer  |  block kv head token dim", "trtllm"),
        (Layout.of("vllm/0.26+"), "vllm/0.26+"),
        ("layer |  kv block (token head) dim", "layer | kv block (token head) dim"),
    ],
)
def test_a_layout_has_one_name_in_a_file(layout: Layout | str, name: str) -> None:
    """That of the registry where it has one, else its axes in their normal form."""
    plan = plan_of(layout)  # type: ignore[arg-type]
    view = memoryview(bytearray(plan.total_bytes))
    plan.seal(view, key=KEY)
    assert check_file(view).layout == name


def test_tensors_lie_in_the_files_memory() -> None:
    """Nothing is copied: what is written to the memory afterwards is seen in the tensors."""
    file = bytearray(made("hf/dynamic"))
    opened = open_file(file)
    file[-2:] = b"\x00\x3c"
    assert opened.kv[-1][1].flatten()[-1] == 1


def test_memory_that_cannot_be_written_is_copied(tmp_path: Path) -> None:
    """Writing to a tensor of it neither faults nor changes the file."""
    path = tmp_path / "chunk"
    path.write_bytes(made())
    with path.open("rb") as file:
        view = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    open_file(view).kv[0].zero_()
    assert path.read_bytes() == made()


def test_a_manifest_is_read_without_torch(tmp_path: Path) -> None:
    """By `kvsdk.kv.files.saving.load_manifest`, from the header alone."""
    path = tmp_path / "chunk"
    path.write_bytes(made()[:-1])
    code = (
        "import sys; from kvsdk.kv.files.saving import load_manifest; "
        f"print(load_manifest({str(path)!r}).num_tokens, 'torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout == "6 False\n", done.stderr


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"num_tokens": 0}, "num_tokens"),
    ({"num_tokens": True}, "num_tokens"),
    ({"num_tokens": 2**32 + 1}, "num_tokens"),
    ({"rank": -1}, "rank"),
    ({"layout": "vllm/mla"}, "layout"),
    ({"layout": "layer | () kv block token head dim"}, "layout"),
    ({"layout": "layer | kv block (head slot) dim"}, "layout"),
    ({"layout": "layer | kv head token dim " + " " * 200}, None),
    ({"layout": 5}, "layout"),
    ({"spec": replace(SPEC, head_dim=2**32)}, "spec.head_dim"),
    ({"spec": replace(SPEC, head_dim=2**31, num_kv_heads=2**31)}, "spec"),
    ({"spec": replace(SPEC, head_dim_v=4)}, "layout"),
    ({"spec": replace(SPEC, num_layers=200_000)}, "spec"),
]


@pytest.mark.parametrize(("changes", "field"), WRONG)
def test_what_makes_no_file_is_refused(changes: dict[str, Any], field: str | None) -> None:
    """By name; spaces in a layout do not count."""
    arguments = {
        "fingerprint": Fingerprint.for_testing(SPEC),
        "spec": SPEC,
        "layout": "trtllm",
        "num_tokens": 6,
    }
    if field is None:
        assert plan_file(**(arguments | changes)).layout == "layer | kv head token dim"
        return
    with pytest.raises(InvalidRequest) as caught:
        plan_file(**(arguments | changes))
    assert caught.value.field == field


def test_wrong_places_are_refused() -> None:
    """An unknown layout, a key of another length, memory that is too small or read-only."""
    plan = plan_of()
    view = memoryview(bytearray(plan.total_bytes))
    with pytest.raises(UnknownLayout, match="trtllm"):
        plan_of("trtlm")
    for where in ({"key": b"short"}, {"key": KEY, "parent": None}, {"key": KEY, "first_token": 2**32 - 5}):
        with pytest.raises(InvalidRequest):
            plan.seal(view, **where)
    for wrong in (view[:-1], memoryview(bytes(view))):
        with pytest.raises(InvalidRequest, match=f"{plan.total_bytes} bytes"):
            plan.seal(wrong, key=KEY)
        with pytest.raises(InvalidRequest, match=f"{plan.total_bytes} bytes"):
            plan.tensors(wrong)
    assert not any(view)


# ---------------------------------------------------------------------- compression


def gaussian(dtype: str) -> bytes:
    """What real KV resembles most: numbers whose exponents are much alike."""
    spec = replace(SPEC, dtype=dtype, head_dim=64)
    plan = plan_of("vllm/0.26+", spec, 256)
    view = memoryview(bytearray(plan.total_bytes))
    torch.manual_seed(0)
    for tensor in plan.tensors(view)[0]:
        tensor.copy_(torch.randn(tensor.shape))
    plan.seal(view, key=KEY, parent=PARENT, first_token=512)
    return bytes(view)


@pytest.mark.parametrize(("dtype", "least"), [("bfloat16", 1.42), ("float16", 1.1), ("float32", 1.15)])
def test_compression_saves_the_exponents(dtype: str, least: float) -> None:
    """Normal numbers have some 2.5 bits of information in their exponent; sign and mantissa cannot be saved.

    bfloat16: 16 / (1 + 2.5 + 7) = 1.52, float16: 16 / (1 + 2.5 + 10) = 1.19,
    float32: 32 / (1 + 2.5 + 23) = 1.21. Whole bits of a code, and the header, cost some of it.
    """
    file = gaussian(dtype)
    small = compress(file)
    assert len(file) / len(small) > least
    manifest = check_file(small)
    assert manifest.codec == "zstd"
    assert file_bytes(manifest) == len(small)
    assert replace(manifest, codec=None, stored_bytes=(), checksums=()) == replace(
        check_file(file), checksums=()
    )
    assert decompress(small) == file


def test_compressed_tensors_are_bytes_to_other_readers(tmp_path: Path) -> None:
    """One-dimensional U8 under the same names."""
    path = tmp_path / "chunk"
    path.write_bytes(compress(made()))
    with safetensors.safe_open(path, framework="pt") as found:
        assert sorted(found.keys()) == ["layer.0", "layer.1"]
        assert {(found.get_tensor(name).dtype, found.get_tensor(name).dim()) for name in found.keys()} == {  # noqa: SIM118
            (torch.uint8, 1)
        }


def test_memory_is_the_callers() -> None:
    """It is asked for once, for exactly what is needed, and may be larger."""
    file, asked = made(), list[int]()

    def alloc(size: int) -> memoryview:
        asked.append(size)
        return memoryview(bytearray(size + 77))

    small = compress(file, alloc=alloc)
    assert decompress(small, alloc=alloc) == file
    open_file(small, alloc=alloc)
    assert asked == [len(small), len(file), len(file)]


def test_no_file_is_compressed_twice() -> None:
    """Nor one decompressed that is not compressed; and a fault gets no new checksum."""
    file = made()
    with pytest.raises(InvalidRequest, match="already"):
        compress(compress(file))
    with pytest.raises(InvalidRequest, match="not compressed"):
        decompress(file)
    for step in (compress, decompress):
        with pytest.raises(InvalidFile, match=r"layer\.1"):
            step(file[:-1] + bytes((file[-1] ^ 1,)))


def test_a_missing_library_has_its_pip_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files without compression need none."""
    small = compress(made())
    monkeypatch.setitem(sys.modules, "zstandard", None)
    for step, file in ((compress, made()), (decompress, small), (open_file, small)):
        with pytest.raises(ConfigurationError, match=r'pip install "kvsdk\[zstd\]"'):
            step(file)  # type: ignore[operator]
    assert open_file(made()).manifest.codec is None


# ---------------------------------------------------------------------- on a disk


def saved(path: Path, **changes: Any) -> Any:
    """Blocks 3, 0 and 2 of a paged cache, ten tokens."""
    kv = number(allocate(Layout.of("vllm/0.26+"), SPEC, tokens=16))
    arguments = {"layout": "vllm/0.26+", "spec": SPEC, "num_tokens": 10, "key": KEY, "blocks": [3, 0, 2]}
    return kv, save(path, kv, fingerprint=Fingerprint.for_testing(SPEC), **(arguments | changes))


@pytest.mark.parametrize("codec", [None, "zstd"])
def test_what_is_saved_is_loaded(codec: str | None, tmp_path: Path) -> None:
    """Scattered blocks lie in order afterwards; nothing else is in the folder."""
    path = tmp_path / "chunk.safetensors"
    path.write_bytes(b"an older file")
    kv, manifest = saved(path, codec=codec, parent=PARENT, first_token=20)
    opened = load(path)
    assert opened.manifest == manifest == load_manifest(path)
    assert (manifest.codec, manifest.first_token) == (codec, 20)
    assert read(opened.kv, "vllm/0.26+", SPEC, 10, None) == read(kv, "vllm/0.26+", SPEC, 10, [3, 0, 2])
    assert [entry.name for entry in tmp_path.iterdir()] == ["chunk.safetensors"]


def test_quantised_kv_is_saved_with_its_scales(tmp_path: Path) -> None:
    """And not without."""
    kv, scales = number(allocate(Layout.of("trtllm"), FP8, tokens=8)), torch.rand(2, 2, 2)
    arguments: dict[str, Any] = {"layout": "trtllm", "spec": FP8, "num_tokens": 8, "key": KEY}
    arguments["fingerprint"] = Fingerprint.for_testing(FP8)
    save(tmp_path / "chunk", kv, scales=scales, **arguments)
    opened = load(tmp_path / "chunk")
    assert torch.equal(opened.scales, scales)
    assert raw(opened.kv) == raw(kv)
    with pytest.raises(InvalidRequest, match="scales"):
        save(tmp_path / "other", kv, **arguments)
    assert not (tmp_path / "other").exists()


def test_a_file_that_cannot_be_replaced_leaves_nothing_behind(tmp_path: Path) -> None:
    """Here a folder is in its place."""
    (tmp_path / "chunk").mkdir()
    with pytest.raises(ConfigurationError, match="chunk cannot be written"):
        saved(tmp_path / "chunk")
    with pytest.raises(ConfigurationError, match="cannot be written"):
        saved(tmp_path / "nowhere" / "chunk")
    assert [entry.name for entry in tmp_path.iterdir()] == ["chunk"]
    assert (tmp_path / "chunk").is_dir()
    with pytest.raises(InvalidRequest, match="codec is None or one of zstd, not 'lz4'"):
        saved(tmp_path / "other", codec="lz4")


@pytest.mark.parametrize("read_it", [load, load_manifest])
def test_a_bad_file_is_named(read_it: Any, tmp_path: Path) -> None:
    """With its path and what is wrong."""
    path = tmp_path / "chunk"
    for content, kind in (
        (b"", "truncated"),
        (b"some text of nobody", "foreign"),
        (made()[:99], "truncated"),
    ):
        path.write_bytes(content)
        with pytest.raises(InvalidFile, match=r"chunk: .*file") as caught:
            read_it(path)
        assert caught.value.kind == kind
    with pytest.raises(ConfigurationError, match=r"absent cannot be read: No such file or directory$"):
        read_it(tmp_path / "absent")
    with pytest.raises(ConfigurationError, match="cannot be read"):
        read_it(tmp_path)


@pytest.mark.parametrize(("cut", "extra", "kind"), [(1, b"", "truncated"), (0, b"x" * 5000, "corrupt")])
def test_a_file_of_another_size_is_not_loaded(cut: int, extra: bytes, kind: str, tmp_path: Path) -> None:
    """Shorter or longer than its header says."""
    path = tmp_path / "chunk"
    path.write_bytes(made()[: len(made()) - cut] + extra)
    with pytest.raises(InvalidFile) as caught:
        load(path)
    assert caught.value.kind == kind
