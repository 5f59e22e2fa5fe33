"""Conversions: every ordered pair of layouts, against places written out by hand."""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations, product
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from kv_oracle import ONE_SIZE, PLACES, number, read, tensors
from kvsdk import InvalidRequest, UnknownLayout
from kvsdk.kv import LAYOUTS, KVSpec, Layout, convert
from kvsdk.kv.layouts.planes import allocate

pytestmark = pytest.mark.usefixtures("each_way")

SPEC = KVSpec(num_layers=2, num_kv_heads=3, head_dim=8, dtype="float16", block_size=4)


def filled(name: str, spec: KVSpec, tokens: int, room: int = 0) -> Any:
    """KV of a layout with numbers in it, and blocks to spare."""
    layout = Layout.of(name)
    extra = room * spec.block_size if layout.is_paged else 0
    return number(allocate(layout, spec, tokens=tokens + extra))


def scattered(draw: Any, blocks: int, room: int) -> list[int]:
    ids: list[int] = draw(st.permutations(range(blocks + room)))
    return ids[:blocks]


def test_the_oracle_knows_every_layout() -> None:
    """All of the registry but MLA's, which has no keys and values."""
    assert set(PLACES) == set(LAYOUTS) - {"vllm/mla"}


@pytest.mark.parametrize(("src", "dst"), list(permutations(PLACES, 2)))
def test_every_ordered_pair(src: str, dst: str) -> None:
    """Ten tokens in blocks of four: the last one is half full, and zero behind."""
    kv = filled(src, SPEC, 10)
    made = convert(kv, src, dst, SPEC, num_tokens=10)
    assert read(made, dst, SPEC, 10, None) == read(kv, src, SPEC, 10, None)
    if Layout.of(dst).is_paged:
        whole = read(made, dst, SPEC, 12, None)
        per_token = SPEC.num_kv_heads * SPEC.head_dim
        for plane in range(4):
            start = plane * 12 * per_token
            assert set(whole[start + 10 * per_token : start + 12 * per_token]) == {0.0}


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_odd_sizes_and_scattered_blocks(data: st.DataObject) -> None:
    """Any sizes, block ids in any order, blocks of another size, keys and values of different ones."""
    src, dst = data.draw(st.sampled_from(sorted(PLACES))), data.draw(st.sampled_from(sorted(PLACES)))
    is_tiled = "vllm/paged-v0" in (src, dst)
    may_differ = not {src, dst} & set(ONE_SIZE)
    dim = data.draw(st.sampled_from([8, 16] if is_tiled else [1, 3, 8]))
    spec = KVSpec(
        num_layers=data.draw(st.integers(1, 3)),
        num_kv_heads=data.draw(st.integers(1, 3)),
        head_dim=dim,
        head_dim_v=data.draw(st.sampled_from([5, dim])) if may_differ else None,
        dtype=data.draw(st.sampled_from(["float16", "bfloat16"])),
        block_size=data.draw(st.integers(1, 6)),
    )
    new = replace(spec, block_size=data.draw(st.one_of(st.just(spec.block_size), st.integers(1, 6))))
    tokens = data.draw(st.integers(1, 17))
    src_ids = dst_ids = None
    kv = filled(src, spec, tokens, room=2)
    if Layout.of(src).is_paged:
        src_ids = scattered(data.draw, -(-tokens // spec.block_size), 2)
    out = filled(dst, new, tokens, room=2)
    if Layout.of(dst).is_paged:
        dst_ids = scattered(data.draw, -(-tokens // new.block_size), 2)
    made = convert(
        kv,
        src,
        dst,
        spec,
        dst_block_size=new.block_size,
        num_tokens=tokens,
        src_blocks=src_ids,
        dst_blocks=dst_ids,
        out=out,
    )
    assert made is out
    assert read(made, dst, new, tokens, dst_ids) == read(kv, src, spec, tokens, src_ids)
    if dst_ids is not None:
        untouched = sorted(set(range(-(-tokens // new.block_size) + 2)) - set(dst_ids))
        old = filled(dst, new, tokens, room=2)
        for block in untouched:
            ids = [block]
            assert read(made, dst, new, new.block_size, ids) == read(old, dst, new, new.block_size, ids)


def test_sources_need_not_be_contiguous() -> None:
    """Layers as views of one strided store, and a sequence cut out of a longer one."""
    shape = (5, SPEC.num_kv_heads, SPEC.block_size, 2 * SPEC.head_dim)
    store = number(torch.empty(shape[0], 2, *shape[1:], dtype=torch.float16))
    layers = [store[:, layer] for layer in range(2)]
    assert not layers[0].is_contiguous()
    made = convert(layers, "vllm/0.26+", "hf/dynamic", SPEC, num_tokens=9, src_blocks=[4, 0, 2])
    assert read(made, "hf/dynamic", SPEC, 9, None) == read(layers, "vllm/0.26+", SPEC, 9, [4, 0, 2])
    long = number([(torch.empty(1, 3, 20, 8, dtype=torch.float16),) * 2 for _ in range(2)])
    short = [tuple(part[:, :, 5:12] for part in layer) for layer in long]
    made = convert(short, "hf/dynamic", "trtllm", SPEC)
    assert read(made, "trtllm", SPEC, 7, None) == read(short, "hf/dynamic", SPEC, 7, None)


def test_the_cpu_layout_comes_as_the_engine_has_it() -> None:
    """`[block, head, token, 2 * dim]`, whose last two axes are one packed one."""
    kv = [number(torch.empty(3, 3, 4, 16, dtype=torch.float16)) for _ in range(2)]
    made = convert(kv, "vllm/0.26+cpu", "hf/dynamic", SPEC, num_tokens=11)
    assert read(made, "hf/dynamic", SPEC, 11, None) == read(kv, "vllm/0.26+cpu", SPEC, 11, None)


@pytest.mark.parametrize(("mine", "theirs"), [(2, 8), (8, 4), (4, 4)])
def test_tiles_of_two_sizes_fit(mine: int, theirs: int) -> None:
    """Each in whole ones of the other: an element is `[head, dim // x, token, dim % x]`."""
    spec = replace(SPEC, num_layers=1)
    layout = "layer kv | block head dim/x token x"
    kv, out = (
        [[number(torch.empty(3, 3, 8 // x, 4, x, dtype=torch.float16)) for _ in range(2)]]
        for x in (mine, theirs)
    )
    convert(kv, layout, layout, spec, src_blocks=[2, 0, 1], out=out)
    for ours, before in zip(out[0], kv[0], strict=True):
        plain = [tensor.transpose(2, 3).reshape(3, 3, 4, 8) for tensor in (ours, before)]
        assert torch.equal(plain[0], plain[1][[2, 0, 1]])


def test_mla_moves_between_block_sizes() -> None:
    """One latent per token, whatever the blocks."""
    spec = KVSpec(num_layers=2, num_kv_heads=1, head_dim=6, dtype="bfloat16", block_size=4, kind="mla")
    kv = number([torch.empty(3, 4, 6, dtype=torch.bfloat16) for _ in range(2)])
    made = convert(kv, "vllm/mla", "vllm/mla", spec, dst_block_size=3, num_tokens=10, src_blocks=[2, 0, 1])
    for layer in range(2):
        source = torch.cat([kv[layer][2], kv[layer][0], kv[layer][1]])[:10]
        assert torch.equal(made[layer].reshape(-1, 6)[:10], source)
        assert made[layer].reshape(-1, 6)[10:].abs().sum() == 0


@pytest.mark.parametrize(("one", "other"), list(product(("float16", "bfloat16", "float32"), repeat=2)))
def test_dtypes_are_cast_as_torch_does(one: str, other: str) -> None:
    """Each element to the nearest of the other dtype."""
    spec = replace(SPEC, dtype=one)
    kv = filled("hf/dynamic", spec, 10)
    made = convert(kv, "hf/dynamic", "trtllm", spec, dtype=other)
    back = convert(made, "trtllm", "hf/dynamic", replace(spec, dtype=other), num_tokens=10)
    for ours, theirs in zip(tensors(back), tensors(kv), strict=True):
        assert torch.equal(ours, theirs.to(getattr(torch, other)))


@pytest.mark.parametrize("dst", sorted(PLACES))
def test_fp8_comes_with_scales_and_goes_back(dst: str) -> None:
    """A scale per layer, part and head; back within half a step of three mantissa bits."""
    torch.manual_seed(1)
    spec = replace(SPEC, head_dim=16)
    kv = [tuple(torch.randn(1, 3, 10, 16, dtype=torch.float16) * 3 for _ in range(2)) for _ in range(2)]
    made, scales = convert(kv, "hf/dynamic", dst, spec, dtype="fp8_e4m3")
    assert scales.shape == (2, 2, 3)
    small = replace(spec, dtype="float8_e4m3fn")
    back = convert(made, dst, "hf/dynamic", small, num_tokens=10, dtype="float16", scales=scales)
    for ours, theirs in zip(tensors(back), tensors(kv), strict=True):
        largest = theirs.abs().amax((0, 2, 3), keepdim=True)
        error = (ours.float() - theirs.float()).abs()
        assert bool((error <= theirs.float().abs() / 16 + largest / 448 / 512 + 1e-3).all())
    again, same = convert(made, dst, "hf/dynamic", small, num_tokens=10, scales=scales)
    assert torch.equal(same, scales)
    assert tensors(again)[0].dtype == torch.float8_e4m3fn


@pytest.mark.parametrize("dst", ["hf/dynamic", "trtllm", "lmcache/2ltd", "vllm/paged-v0"])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float8_e4m3fn"])
def test_no_tokens_become_none(dst: str, dtype: str) -> None:
    """Scales of nothing are 0, and a destination stays as it was."""
    spec = replace(SPEC, head_dim=16)
    out = filled(dst, replace(spec, dtype=dtype), 4)
    before = [tensor.to(torch.float32) for tensor in tensors(out)]
    kv = filled("hf/dynamic", spec, 4)
    made = convert(kv, "hf/dynamic", dst, spec, num_tokens=0, dtype=dtype, out=out)
    if dtype == "float8_e4m3fn":
        made, scales = made
        assert torch.equal(scales, torch.zeros(2, 2, 3))
    for ours, theirs in zip(tensors(made), before, strict=True):
        assert torch.equal(ours.to(torch.float32), theirs)


def test_a_head_of_zeros_has_a_scale_of_zero() -> None:
    """And comes back as zeros, never as NaN."""
    kv = [tuple(torch.zeros(1, 3, 4, 8, dtype=torch.float16) for _ in range(2)) for _ in range(2)]
    made, scales = convert(kv, "hf/dynamic", "trtllm", SPEC, dtype="fp8_e4m3")
    assert scales.abs().sum() == 0
    spec = replace(SPEC, dtype="float8_e4m3fn")
    back = convert(made, "trtllm", "hf/dynamic", spec, dtype="float16", scales=scales)
    assert all(not tensor.any() for tensor in tensors(back))


def test_bits_are_moved_not_numbers() -> None:
    """NaNs with a payload, infinities and negative zeros come out as they went in."""
    bits = torch.tensor([0x7E01, 0x7C00, 0xFC00, 0x8000, 0x0001, 0xFE55, 0x3C00, 0x7BFF], dtype=torch.int32)
    odd = bits.to(torch.int16).view(torch.float16)
    kv = [tuple(odd.repeat(1, 3, 4, 1) for _ in range(2)) for _ in range(2)]
    back = convert(convert(kv, "hf/dynamic", "vllm/paged-v0", SPEC), "vllm/paged-v0", "hf/dynamic", SPEC)
    for ours, theirs in zip(tensors(back), tensors(kv), strict=True):
        assert torch.equal(ours.view(torch.int16), theirs.view(torch.int16))


# ---------------------------------------------------------------------- what is wrong

WRONG: list[tuple[dict[str, Any], str]] = [
    ({"dst_layout": "vllm/0.99"}, "unknown layout 'vllm/0.99'"),
    ({"dst_layout": "layer | kv block token head"}, "no head or no dim"),
    ({"num_tokens": 13}, "room for 12 tokens, not for 13"),
    ({"num_tokens": -1}, "num_tokens"),
    ({"src_blocks": [0, 3, 1]}, r"src_blocks\[1\] is 3; there are blocks 0 to 2"),
    ({"src_blocks": [0, -1, 1]}, r"src_blocks\[1\] is -1"),
    ({"src_blocks": [0]}, "room for 4 tokens"),
    ({"dst_layout": "hf/dynamic", "dst_blocks": [0]}, "has no blocks to name"),
    ({"dtype": "int8"}, "dtype is one of"),
    ({"scales": torch.ones(2, 2, 3)}, "has no scales"),
    ({"spec": replace(SPEC, num_kv_heads=4)}, "the axis head has 3 elements, the spec says 4"),
    ({"spec": replace(SPEC, num_layers=3)}, "no sequence by layer with an entry 2"),
    ({"spec": replace(SPEC, dtype="bfloat16")}, "tensor is torch.float16, the spec says torch.bfloat16"),
    ({"spec": replace(SPEC, dtype="float32")}, "tensor is torch.float16, the spec says torch.float32"),
    ({"spec": replace(SPEC, kind="mla", num_kv_heads=1)}, "latent"),
    ({"src_layout": "vllm/paged-v0"}, "axes"),
    ({"src_layout": 5}, "a layout is a name"),
]


@pytest.mark.parametrize(("changes", "words"), WRONG)
def test_what_does_not_fit_is_refused(changes: dict[str, Any], words: str) -> None:
    """Before a byte is moved, with what does not fit."""
    arguments: dict[str, Any] = {
        "src_layout": "trtllm",
        "dst_layout": "vllm/0.26+",
        "spec": SPEC,
        "num_tokens": 10,
    }
    arguments |= changes
    kv = filled("trtllm", SPEC, 12)
    with pytest.raises(InvalidRequest, match=words):
        convert(kv, **arguments)


@pytest.mark.parametrize("scales", [None, torch.ones(2, 3)])
def test_fp8_without_a_scale_for_each_head_is_refused(scales: torch.Tensor | None) -> None:
    """With the shape that they have."""
    spec = replace(SPEC, dtype="float8_e4m3fn")
    kv = allocate(Layout.of("trtllm"), spec, tokens=4)
    with pytest.raises(InvalidRequest, match=r"needs scales of shape \(2, 2, 3\)"):
        convert(kv, "trtllm", "hf/dynamic", spec, scales=scales)


def test_a_destination_of_another_dtype_is_refused() -> None:
    """Nothing is cast that was not asked for."""
    out = allocate(Layout.of("hf/dynamic"), replace(SPEC, dtype="float32"), tokens=12)
    with pytest.raises(InvalidRequest, match=r"tensor is torch.float32, the spec says torch.float16"):
        convert(filled("trtllm", SPEC, 12), "trtllm", "hf/dynamic", SPEC, out=out)


# ---------------------------------------------------------------------- memory that is shared


def test_a_conversion_in_place_is_refused() -> None:
    """Whole or in part, in one layout and from one into another; nothing was written."""
    memory = number(torch.empty(2 * 6 * 2 * 4 * 3 * 8, dtype=torch.float16))
    before = memory.clone()
    kv = list(memory.view(2, 6, 2, 4, 3, 8))
    other = list(memory.view(2, 6, 2, 3, 4, 8))
    shifted = list(memory[2 * 4 * 3 * 8 :][: 2 * 5 * 2 * 4 * 3 * 8].view(2, 5, 2, 4, 3, 8))
    for layout, out, ids in (
        ("vllm/0.23-0.25", kv, [1, 2, 0]),
        ("trtllm", other, [3, 4, 5]),
        ("vllm/0.23-0.25", shifted, [3, 4, 2]),
    ):
        with pytest.raises(InvalidRequest, match="out lies in memory that is still to be read"):
            convert(kv, "vllm/0.23-0.25", layout, SPEC, src_blocks=[0, 1, 2], dst_blocks=ids, out=out)
    assert torch.equal(memory, before)


def test_a_cast_in_place_is_refused() -> None:
    """Though elements have one size."""
    memory = number(torch.empty(2, 3, 2, 3, 4, 8, dtype=torch.float16))
    out = list(memory.view(torch.bfloat16))
    with pytest.raises(InvalidRequest, match="out lies in memory"):
        convert(list(memory), "trtllm", "trtllm", SPEC, dtype="bfloat16", out=out)


def test_blocks_of_a_pool_may_be_copied_to_others_of_it() -> None:
    """The source's are as before."""
    kv, old = filled("vllm/0.26+", SPEC, 24), filled("vllm/0.26+", SPEC, 24)
    convert(kv, "vllm/0.26+", "vllm/0.26+", SPEC, src_blocks=[4, 1], dst_blocks=[0, 5], out=kv)
    for ours, theirs in zip(kv, old, strict=True):
        assert torch.equal(ours, theirs[[4, 1, 2, 3, 4, 1]])


def test_memory_side_by_side_is_not_shared() -> None:
    """Source and destination may be halves of one tensor."""
    memory = number(torch.empty(2, 2, 3, 2, 3, 4, 8, dtype=torch.float16))
    convert(list(memory[0]), "trtllm", "trtllm", SPEC, src_blocks=[1, 2, 0], out=list(memory[1]))
    assert torch.equal(memory[1], memory[0][:, [1, 2, 0]])


def test_a_block_is_not_written_twice() -> None:
    """It would have what came last; a source's block may be read twice."""
    kv, out = filled("trtllm", SPEC, 12), filled("trtllm", SPEC, 12)
    with pytest.raises(InvalidRequest, match="dst_blocks has block 2 more than once"):
        convert(kv, "trtllm", "trtllm", SPEC, dst_blocks=[2, 0, 2], out=out)
    convert(kv, "trtllm", "trtllm", SPEC, src_blocks=[1, 1, 0], dst_blocks=[2, 0, 1], out=out)
    assert torch.equal(out[0], kv[0][[1, 0, 1]])


# ---------------------------------------------------------------------- tensors as engines have them


def test_fp8_that_an_engine_keeps_in_bytes_is_fp8() -> None:
    """The bytes are the same numbers, moved and cast."""
    spec = replace(SPEC, dtype="float8_e4m3fn")
    kv = [torch.randn(3, 2, 3, 4, 8).to(torch.float8_e4m3fn) for _ in range(2)]
    raw = [tensor.view(torch.uint8) for tensor in kv]
    scales = torch.rand(2, 2, 3)
    for dtype in ("float16", None):
        made = convert(raw, "trtllm", "hf/dynamic", spec, scales=scales, dtype=dtype)
        wanted = convert(kv, "trtllm", "hf/dynamic", spec, scales=scales, dtype=dtype)
        made, wanted = (made, wanted) if dtype else (made[0], wanted[0])
        for ours, theirs in zip(tensors(made), tensors(wanted), strict=True):
            assert torch.equal(ours.to(torch.float32), theirs.to(torch.float32))


@pytest.mark.parametrize("dtype", [None, "bfloat16"])
def test_kv_of_a_model_that_is_trained_is_copied_without_its_gradient(dtype: str | None) -> None:
    """As it comes out of a forward pass without `no_grad`."""
    kv = [tensor.requires_grad_() for tensor in filled("trtllm", SPEC, 12)]
    made = convert(kv, "trtllm", "hf/dynamic", SPEC, src_blocks=[2, 0, 1], dtype=dtype)
    assert not any(tensor.requires_grad for tensor in tensors(made))
    assert torch.equal(made[0][0][0, :, :4], kv[0][2, 0].detach().to(made[0][0].dtype))


def test_an_unknown_name_is_its_own_error() -> None:
    """With the nearest known one."""
    with pytest.raises(UnknownLayout, match="trtllm"):
        convert([], "trtlm", "hf/dynamic", SPEC)
