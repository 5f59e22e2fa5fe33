"""Conversions: every ordered pair of layouts, against places written out by hand."""

from __future__ import annotations

from collections.abc import Iterator
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
from kvsdk.kv.moving import fast

SPEC = KVSpec(num_layers=2, num_kv_heads=3, head_dim=8, dtype="float16", block_size=4)


@pytest.fixture(autouse=True, scope="module", params=["compiled", "plain"])
def _way(request: pytest.FixtureRequest) -> Iterator[None]:
    """All of it with compiled code, and again with torch and numpy alone."""
    if request.param == "compiled":
        if not fast.is_on():
            pytest.skip("numba is not installed")
        yield
    else:
        with fast.off():
            yield


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
    ({"spec": replace(SPEC, dtype="float8_e4m3fn")}, "needs scales"),
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


def test_an_unknown_name_is_its_own_error() -> None:
    """With the nearest known one."""
    with pytest.raises(UnknownLayout, match="trtllm"):
        convert([], "trtlm", "hf/dynamic", SPEC)
