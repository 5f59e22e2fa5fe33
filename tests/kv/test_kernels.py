"""Compiled code against torch and numpy: the same bytes, whatever they are."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from kv_oracle import PLACES, number, read, tensors
from kvsdk import InvalidRequest
from kvsdk.kv import KVSpec, Layout, convert, reshard
from kvsdk.kv.layouts.planes import allocate
from kvsdk.kv.moving import fast

SPEC = KVSpec(num_layers=2, num_kv_heads=3, head_dim=8, dtype="float16", block_size=4)
RAW = {1: torch.uint8, 2: torch.int16, 4: torch.int32}
FLOATS = ("float32", "float16", "bfloat16", "float8_e4m3fn")
needs_numba = pytest.mark.skipif(not fast.is_on(), reason="numba is not installed")


def noise(kv: Any) -> Any:
    """Fill a structure with bits of every kind."""
    for tensor in tensors(kv):
        tensor.view(torch.uint8).random_(0, 256)
    return kv


def same_bits(one: Any, other: Any) -> bool:
    """Whether two structures have the same bytes."""
    pairs = zip(tensors(one), tensors(other), strict=True)
    return all(torch.equal(a.view(RAW[a.element_size()]), b.view(RAW[b.element_size()])) for a, b in pairs)


def both(*arguments: Any, **options: Any) -> tuple[Any, Any]:
    """A conversion with compiled code, and without."""
    made = convert(*arguments, **options)
    with fast.off():
        return made, convert(*arguments, **options)


# ---------------------------------------------------------------------- moves


@needs_numba
@pytest.mark.parametrize("stream_bytes", [0, 1 << 40])
@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_both_move_the_same_bytes(stream_bytes: int, data: st.DataObject) -> None:
    """Any two layouts, dtypes and sizes, blocks anywhere; past the cache and through it."""
    src, dst = data.draw(st.sampled_from(sorted(PLACES))), data.draw(st.sampled_from(sorted(PLACES)))
    is_tiled = "vllm/paged-v0" in (src, dst)
    spec = KVSpec(
        num_layers=data.draw(st.integers(1, 3)),
        num_kv_heads=data.draw(st.integers(1, 4)),
        head_dim=data.draw(st.sampled_from([16, 32, 80, 128] if is_tiled else [1, 5, 8, 12, 16, 80, 128])),
        dtype=data.draw(st.sampled_from([*FLOATS, "float8_e5m2"])),
        block_size=data.draw(st.sampled_from([1, 3, 4, 8, 16, 32, 48])),
    )
    sizes = st.sampled_from([spec.block_size, 1, 6, 16, 32])
    new = replace(spec, block_size=data.draw(sizes))
    tokens = data.draw(st.integers(0, 100))
    options: dict[str, Any] = {"num_tokens": tokens, "dst_block_size": new.block_size}
    for side, name, size in (("src", src, spec.block_size), ("dst", dst, new.block_size)):
        if Layout.of(name).is_paged:
            blocks = -(-tokens // size)
            options[f"{side}_blocks"] = data.draw(st.permutations(range(blocks + 2)))[:blocks]
    if "float8_e4m3fn" in spec.dtype:
        options["scales"] = torch.ones(spec.num_layers, 2, spec.num_kv_heads)
    kv = noise(allocate(Layout.of(src), spec, tokens=tokens + 2 * spec.block_size))
    outs = [noise(allocate(Layout.of(dst), new, tokens=tokens + 2 * new.block_size)) for _ in range(2)]
    for one, other in zip(*map(tensors, outs), strict=True):
        other.view(torch.uint8).copy_(one.view(torch.uint8))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fast, "STREAM_BYTES", stream_bytes)
        convert(kv, src, dst, spec, out=outs[0], **options)
    with fast.off():
        convert(kv, src, dst, spec, out=outs[1], **options)
    assert same_bits(*outs)


@needs_numba
@pytest.mark.parametrize("name", sorted(PLACES))
def test_both_cut_heads_alike(name: str) -> None:
    """On two devices and on four."""
    spec = replace(SPEC, num_kv_heads=4, head_dim=16)
    whole = noise(allocate(Layout.of(name), spec, tokens=20))
    shards = reshard([whole], spec, name, to=2)
    again = reshard(shards, spec, name, to=4)
    with fast.off():
        assert same_bits(shards, reshard([whole], spec, name, to=2))
        assert same_bits(again, reshard(shards, spec, name, to=4))


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_a_destination_need_not_be_aligned(dtype: str) -> None:
    """A sequence that begins at the second byte of a line takes what would otherwise pass the cache by."""
    spec = replace(SPEC, num_kv_heads=2, head_dim=32)
    kv = number([(torch.empty(1, 2, 32, 32, dtype=torch.float16),) * 2 for _ in range(2)])
    store = torch.empty(2 * 2 * 32 * 2 * 32 + 1, dtype=getattr(torch, dtype))
    out = store[1:].view(2, 2, 32, 64)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fast, "STREAM_BYTES", 0)
        made = convert(kv, "hf/dynamic", "lmcache/2ltd", spec, out=out, dtype=dtype)
    assert read(made, "lmcache/2ltd", spec, 32, None) == read(kv, "hf/dynamic", spec, 32, None)


@pytest.mark.parametrize(
    ("layout", "shape"),
    [
        ("layer | kv token block head dim", (2, 3, 3, 3, 8)),
        ("layer kv | block head dim/x token x", (3, 3, 2, 4, 8)),
    ],
)
def test_axes_that_the_spec_has_of_another_size_are_refused(layout: str, shape: tuple[int, ...]) -> None:
    """Compiled code looks at no bounds, so short blocks and a tile too many are found before."""
    part = torch.zeros(shape, dtype=torch.float16)
    kv = [[part, part] if "layer kv" in layout else part for _ in range(2)]
    with pytest.raises(InvalidRequest, match="elements, the spec says"):
        convert(kv, layout, "hf/dynamic", SPEC)


# ---------------------------------------------------------------------- casts


def every_bit_pattern(dtype: str, heads: int) -> Any:
    """KV that has every number of a dtype in each head, or many of them."""
    element = getattr(torch, dtype)
    if dtype == "float32":
        numbers = torch.randint(-(1 << 31), 1 << 31, (1 << 16,), dtype=torch.int64).to(torch.int32)
    else:
        bits = 8 * element.itemsize
        numbers = torch.arange(1 << bits, dtype=torch.int32).repeat(1 if bits == 16 else 16)
        numbers = numbers.to(RAW[element.itemsize])
    numbers = numbers.view(element).view(1, 1, -1, 16).expand(1, heads, -1, 16)
    return [tuple(numbers.contiguous() for _ in range(2))]


@needs_numba
@pytest.mark.parametrize(
    ("one", "other"), [pair for pair in product(FLOATS, repeat=2) if pair[0] != pair[1]], ids="-".join
)
@pytest.mark.parametrize("dst", ["hf/dynamic", "vllm/paged-v0", "vllm/0.26+cpu"])
def test_both_cast_every_number_alike(one: str, other: str, dst: str) -> None:
    """NaNs, infinities, subnormals and negative zeros too, scaled where a dtype has scales."""
    torch.manual_seed(2)
    spec = KVSpec(num_layers=1, num_kv_heads=2, head_dim=16, dtype=one, block_size=16)
    kv = every_bit_pattern(one, 2)
    options: dict[str, Any] = {}
    if one == "float8_e4m3fn":
        options["scales"] = torch.tensor([[[0.0123, 1.0], [3.7e-3, 77.7]]])
    made, plain = both(kv, "hf/dynamic", dst, spec, dtype=other, **options)
    if other == "float8_e4m3fn":
        (made, scales), (plain, plain_scales) = made, plain
        assert scales.isnan().all()
        assert same_bits(scales, plain_scales)
    assert same_bits(made, plain)


@needs_numba
@pytest.mark.parametrize("stream_bytes", [0, 1 << 40])
@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_both_cast_the_same_bytes(stream_bytes: int, data: st.DataObject) -> None:
    """Any two layouts, dtypes and sizes, blocks anywhere; numbers of every kind, or finite ones alone."""
    src, dst = data.draw(st.sampled_from(sorted(PLACES))), data.draw(st.sampled_from(sorted(PLACES)))
    one, other = data.draw(st.permutations(FLOATS))[:2]
    is_tiled = "vllm/paged-v0" in (src, dst)
    spec = KVSpec(
        num_layers=data.draw(st.integers(1, 3)),
        num_kv_heads=data.draw(st.integers(1, 4)),
        head_dim=data.draw(st.sampled_from([16, 32, 80, 128] if is_tiled else [1, 5, 8, 12, 16, 80, 128])),
        dtype=one,
        block_size=data.draw(st.sampled_from([1, 3, 4, 8, 16, 32])),
    )
    new = replace(spec, block_size=data.draw(st.sampled_from([spec.block_size, 6, 16])), dtype=other)
    tokens = data.draw(st.integers(0, 70))
    options: dict[str, Any] = {"num_tokens": tokens, "dst_block_size": new.block_size, "dtype": other}
    for side, name, size in (("src", src, spec.block_size), ("dst", dst, new.block_size)):
        if Layout.of(name).is_paged:
            blocks = -(-tokens // size)
            options[f"{side}_blocks"] = data.draw(st.permutations(range(blocks + 2)))[:blocks]
    if one == "float8_e4m3fn":
        options["scales"] = torch.rand(spec.num_layers, 2, spec.num_kv_heads) * 3
    kv = noise(allocate(Layout.of(src), spec, tokens=tokens + 2 * spec.block_size))
    if data.draw(st.booleans()):
        for tensor in tensors(kv):
            tensor.copy_(tensor.to(torch.float32).nan_to_num(0.0, 1.0, -1.0))
    outs = [noise(allocate(Layout.of(dst), new, tokens=tokens + 2 * new.block_size)) for _ in range(2)]
    for first, second in zip(*map(tensors, outs), strict=True):
        second.view(torch.uint8).copy_(first.view(torch.uint8))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fast, "STREAM_BYTES", stream_bytes)
        made = convert(kv, src, dst, spec, out=outs[0], **options)
    with fast.off():
        plain = convert(kv, src, dst, spec, out=outs[1], **options)
    assert same_bits(made, plain)
    assert same_bits(*outs)


@needs_numba
@pytest.mark.parametrize("one", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("size", [1e-30, 1e-4, 1.0, 300.0, 1e30])
@pytest.mark.parametrize("src", ["hf/dynamic", "vllm/0.26+cpu"])
def test_both_quantise_alike(one: str, size: float, src: str) -> None:
    """Numbers of every magnitude and scales, to the bit; a head of zeros, and one with an infinity."""
    torch.manual_seed(3)
    spec = KVSpec(num_layers=2, num_kv_heads=4, head_dim=24, dtype=one, block_size=16)
    made = allocate(Layout.of("hf/dynamic"), spec, tokens=77)
    largest = torch.finfo(getattr(torch, one)).max
    for tensor in tensors(made):
        numbers = torch.randn(tensor.shape, dtype=torch.float64) * size
        tensor.copy_(numbers.clamp(-largest, largest))
        tensor[:, 1] = 0
        tensor[:, 2, 5, 7] = -torch.inf
    kv = convert(made, "hf/dynamic", src, spec)
    (ours, scales), (theirs, plain) = both(kv, src, "trtllm", spec, num_tokens=77, dtype="fp8_e4m3")
    assert torch.equal(scales, plain)
    assert bool((scales[:, :, 1] == 0).all())
    assert bool((scales[:, :, 2] == torch.inf).all())
    assert same_bits(ours, theirs)


@pytest.mark.parametrize("is_fast", [True, False], ids=["compiled", "plain"])
@pytest.mark.parametrize(
    ("dtype", "bits"), [("float16", 0x7E00), ("bfloat16", 0x7FC0), ("float32", 0x7FC00000)]
)
def test_a_cast_has_one_nan(is_fast: bool, dtype: str, bits: int) -> None:
    """Positive and quiet, whatever the sign and payload were."""
    spec = replace(SPEC, dtype="float8_e4m3fn", num_kv_heads=1, num_layers=1)
    numbers = torch.tensor([0x7F, 0xFF, 0x38, 0xB8] * 8, dtype=torch.uint8)
    kv = [tuple(numbers.view(torch.float8_e4m3fn).view(1, 1, 4, 8) for _ in range(2))]
    options: dict[str, Any] = {"dtype": dtype, "scales": torch.ones(1, 2, 1)}
    if is_fast:
        made = convert(kv, "hf/dynamic", "hf/dynamic", spec, **options)
    else:
        with fast.off():
            made = convert(kv, "hf/dynamic", "hf/dynamic", spec, **options)
    found = made[0][0].reshape(-1)
    assert found.view(RAW[found.element_size()])[:2].tolist() == [bits, bits]
    assert found[2:4].tolist() == [1.0, -1.0]


# ---------------------------------------------------------------------- with numba and without


def test_it_is_switched_off_for_this_thread_alone() -> None:
    """And on again behind the block."""
    was, elsewhere = fast.is_on(), []
    with fast.off():
        assert not fast.is_on()
        thread = threading.Thread(target=lambda: elsewhere.append(fast.is_on()))
        thread.start()
        thread.join()
    assert elsewhere == [was]
    assert fast.is_on() == was


def test_the_import_loads_no_library() -> None:
    """Neither numba nor torch nor numpy, before a tensor is touched."""
    heavy = ("numba", "llvmlite", "torch", "numpy")
    code = f"import sys, kvsdk.kv; print([name for name in {heavy} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "[]", done.stderr


CONVERSION = """
import threading, torch
from kvsdk.kv import KVSpec, convert
from kvsdk.kv.moving import fast
spec = KVSpec(num_layers=1, num_kv_heads=2, head_dim=8, dtype="float16", block_size=4)
kv = [torch.arange(2 * 3 * 4 * 2 * 8).reshape(2, 3, 4, 2, 8).to(torch.float16)]
expected = torch.cat([kv[0][0, 2], kv[0][0, 0]]).permute(1, 0, 2)
found = []
def work():
    start.wait()
    made = convert(kv, "vllm/<=0.22", "hf/dynamic", spec, src_blocks=[2, 0], dtype="float32")
    found.append(torch.equal(made[0][0][0], expected.float()))
    made = convert(kv, "vllm/<=0.22", "hf/dynamic", spec, src_blocks=[2, 0])
    found.append(torch.equal(made[0][0][0], expected))
start = threading.Barrier(3)
threads = [threading.Thread(target=work) for _ in range(3)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
print(fast.is_on(), found == [True] * 6)
"""


def in_a_new_process(code: str, **environment: str) -> tuple[str, str]:
    """What the code prints, and what it complains of."""
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **environment},
    )
    return done.stdout.strip(), done.stderr


@needs_numba
def test_threads_may_be_the_first_ones_together(tmp_path: Path) -> None:
    """Three of them, with nothing compiled yet."""
    printed, errors = in_a_new_process(CONVERSION, NUMBA_CACHE_DIR=str(tmp_path))
    assert printed == "True True", errors
    assert list(tmp_path.rglob("*.nbi"))


@needs_numba
@pytest.mark.parametrize("pattern", ["*.nbi", "*.nbc"])
@pytest.mark.parametrize("length", [0, 100])
def test_compiled_code_that_was_cut_off_on_disk_is_compiled_again(
    tmp_path: Path, pattern: str, length: int
) -> None:
    """A machine that lost power in between costs the time of compiling, no more."""
    in_a_new_process(CONVERSION, NUMBA_CACHE_DIR=str(tmp_path))
    for path in list(tmp_path.rglob(pattern)):
        path.write_bytes(path.read_bytes()[:length])
    printed, errors = in_a_new_process(CONVERSION, NUMBA_CACHE_DIR=str(tmp_path))
    assert printed == "True True", errors


@pytest.mark.parametrize("error", ["ImportError", "OSError", "SystemError", "AttributeError"])
def test_a_numba_that_does_not_load_is_warned_of_and_done_without(tmp_path: Path, error: str) -> None:
    """As with a numpy that is too new for it, or a library that it does not find."""
    (tmp_path / "numba.py").write_text(f"raise {error}('too new')")
    printed, errors = in_a_new_process(CONVERSION, PYTHONPATH=str(tmp_path))
    assert printed == "False True", errors
    assert errors.count("numba does not load, so KV is converted without it, slowly: too new") == 1


def test_numba_need_not_be_installed() -> None:
    """Without it the same conversion is done by torch and numpy, and nothing is said of it."""
    printed, errors = in_a_new_process("import sys; sys.modules['numba'] = None\n" + CONVERSION)
    assert (printed, errors) == ("False True", "")
