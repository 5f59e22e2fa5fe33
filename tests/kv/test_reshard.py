"""Other numbers of devices, and the proof that two caches are the same."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from kv_oracle import PLACES, number, read, tensors
from kvsdk import InvalidRequest
from kvsdk.kv import KVSpec, Layout, convert, reshard, verify_equal
from kvsdk.kv.layouts.planes import allocate

pytestmark = pytest.mark.usefixtures("each_way")

SPEC = KVSpec(num_layers=5, num_kv_heads=8, head_dim=8, dtype="float16", block_size=4)
PAIRS = sorted(PLACES)


def filled(name: str, spec: KVSpec = SPEC, tokens: int = 12) -> Any:
    return number(allocate(Layout.of(name), spec, tokens=tokens))


@pytest.mark.parametrize("name", PAIRS)
def test_heads_are_divided_and_put_together_again(name: str) -> None:
    """TP 1, 2, 8, 1: each shard has its heads, and in the end every byte is where it was."""
    whole = filled(name)
    logical = read(whole, name, SPEC, 12, None)
    shards = [whole]
    for devices in (2, 8, 1):
        shards = reshard(shards, SPEC, name, to=devices)
        own = replace(SPEC, num_kv_heads=8 // devices)
        per_head = SPEC.head_dim
        for rank, shard in enumerate(shards):
            found = read(shard, name, own, 12, None)
            start = rank * own.num_kv_heads * per_head
            rows = range(0, len(logical), 8 * per_head)
            expected = [
                x for row in rows for x in logical[row + start : row + start + own.num_kv_heads * per_head]
            ]
            assert found == expected
    assert verify_equal(shards[0], name, whole, name, SPEC).equal


@pytest.mark.parametrize("name", PAIRS)
def test_heads_are_copied_where_there_are_too_few(name: str) -> None:
    """Two heads on eight devices: four in a row have the same; back again takes one copy of each."""
    spec = replace(SPEC, num_kv_heads=2)
    whole = filled(name, spec)
    shards = reshard([whole], spec, name, to=8)
    one = replace(spec, num_kv_heads=1)
    copies = [read(shard, name, one, 12, None) for shard in shards]
    assert copies[0] == copies[1] == copies[2] == copies[3]
    assert copies[4] == copies[7] != copies[0]
    (back,) = reshard(shards, spec, name, to=1)
    assert verify_equal(back, name, whole, name, spec).equal


@pytest.mark.parametrize("name", PAIRS)
def test_layers_are_divided_as_vllm_does(name: str) -> None:
    """Five layers on three devices: 1, 2, 2 would be even; vLLM gives 2, 2, 1."""
    whole = filled(name)
    shards = reshard([whole], SPEC, name, to=3, axis="pp")
    for shard, layers, start in zip(shards, (2, 2, 1), (0, 2, 4), strict=True):
        own = replace(SPEC, num_layers=layers)
        size = len(read(whole, name, SPEC, 12, None)) // 5
        assert (
            read(shard, name, own, 12, None)
            == read(whole, name, SPEC, 12, None)[start * size :][: layers * size]
        )
    (back,) = reshard(shards, SPEC, name, to=1, axis="pp")
    assert verify_equal(back, name, whole, name, SPEC).equal


def test_layers_in_lists_are_not_copied() -> None:
    """The very tensors change hands."""
    whole = filled("vllm/0.26+")
    shards = reshard([whole], SPEC, "vllm/0.26+", to=2, axis="pp")
    assert shards[0][0] is whole[0]
    assert shards[1][-1] is whole[-1]


def test_an_out_is_written_to() -> None:
    """And nothing new is made."""
    own = replace(SPEC, num_kv_heads=4)
    out = [filled("trtllm", own) for _ in range(2)]
    made = reshard([filled("trtllm")], SPEC, "trtllm", to=2, out=out)
    assert [id(tensor) for shard in made for tensor in tensors(shard)] == [
        id(tensor) for shard in out for tensor in tensors(shard)
    ]


def test_an_out_in_the_memory_of_a_shard_is_refused() -> None:
    """Heads of it, whose place is not where they were."""
    whole = filled("trtllm")
    out = [[layer[:, :, start : start + 4] for layer in whole] for start in (0, 4)]
    with pytest.raises(InvalidRequest, match="out lies in memory that is still to be read"):
        reshard([whole], SPEC, "trtllm", to=2, out=out)


def test_an_out_without_room_and_a_shard_of_fewer_tokens_are_refused() -> None:
    """Before a byte is moved."""
    half = replace(SPEC, num_kv_heads=4)
    short = [filled("trtllm", half, tokens) for tokens in (12, 8)]
    with pytest.raises(InvalidRequest, match="out has room for 8 tokens, not for 12"):
        reshard([filled("trtllm")], SPEC, "trtllm", to=2, out=short)
    with pytest.raises(InvalidRequest, match="shards has room for 8 tokens, not for 12"):
        reshard(short, SPEC, "trtllm", to=1)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"to": 3}, "8 KV heads cannot be divided among 3"),
        ({"to": 12}, "cannot be copied evenly to 12"),
        ({"to": 0}, "at least 1"),
        ({"to": 6, "axis": "pp"}, "5 layers cannot be divided among 6"),
        ({"axis": "cp"}, "'tp' or 'pp'"),
        ({"shards": []}, "no shards"),
        ({"out": []}, "out has 0 shards, not 2"),
        ({"spec": replace(SPEC, num_kv_heads=4)}, "the spec says 4"),
        ({"spec": replace(SPEC, num_layers=6), "axis": "pp"}, "5 layers, the spec says 6"),
        ({"spec": replace(SPEC, kind="mla", num_kv_heads=1)}, "nothing to cut"),
    ],
)
def test_what_cannot_be_divided_is_refused(changes: dict[str, Any], words: str) -> None:
    """With the numbers."""
    arguments: dict[str, Any] = {"shards": [filled("trtllm")], "spec": SPEC, "layout": "trtllm", "to": 2}
    with pytest.raises(InvalidRequest, match=words):
        reshard(**(arguments | changes))


# ---------------------------------------------------------------------- certificates


@pytest.mark.parametrize("name", PAIRS)
def test_the_same_kv_has_the_same_digests_in_every_layout(name: str) -> None:
    """And a certificate says so; the last block is half full."""
    kv = filled("hf/dynamic", tokens=10)
    made = convert(kv, "hf/dynamic", name, SPEC)
    certificate = verify_equal(kv, "hf/dynamic", made, name, SPEC, num_tokens=10)
    assert (certificate.equal, certificate.first_difference) == (True, None)
    assert [len(digest) for digest in certificate.digests] == [16] * 3
    assert verify_equal(made, name, kv, "hf/dynamic", SPEC, num_tokens=10).digests == certificate.digests


@pytest.mark.parametrize(
    ("layer", "part", "token", "head", "dim"),
    [(0, 0, 0, 0, 0), (3, 1, 9, 5, 7), (4, 0, 4, 7, 1), (2, 1, 8, 0, 6)],
)
def test_one_flipped_bit_is_found(layer: int, part: int, token: int, head: int, dim: int) -> None:
    """With its token, layer, keys or values, head and dim."""
    kv = filled("hf/dynamic", tokens=10)
    made = convert(kv, "hf/dynamic", "vllm/0.26+cpu", SPEC)
    kv[layer][part].view(torch.int16)[0, head, token, dim] ^= 1
    found = verify_equal(kv, "hf/dynamic", made, "vllm/0.26+cpu", SPEC, num_tokens=10)
    assert not found.equal
    assert found.first_difference == (token, layer, ("keys", "values")[part], head, dim)


def test_keys_and_values_of_two_sizes_are_compared() -> None:
    """Their elements are found in segments of their own."""
    spec = replace(SPEC, head_dim=6, head_dim_v=4)
    kv = filled("hf/dynamic", spec, tokens=10)
    made = convert(kv, "hf/dynamic", "vllm/0.26+", spec)
    assert verify_equal(kv, "hf/dynamic", made, "vllm/0.26+", spec, num_tokens=10).equal
    kv[1][1].view(torch.int16)[0, 2, 5, 3] ^= 1
    found = verify_equal(kv, "hf/dynamic", made, "vllm/0.26+", spec, num_tokens=10)
    assert found.first_difference == (5, 1, "values", 2, 3)


def test_other_blocks_are_compared_in_logical_order() -> None:
    """Blocks of another size, anywhere."""
    kv = filled("trtllm")
    out = number(allocate(Layout.of("vllm/0.26+"), replace(SPEC, block_size=3), tokens=18))
    made = convert(kv, "trtllm", "vllm/0.26+", SPEC, dst_block_size=3, dst_blocks=[5, 0, 2, 1], out=out)
    found = verify_equal(kv, "trtllm", made, "vllm/0.26+", SPEC, b_blocks=[5, 0, 2, 1], b_block_size=3)
    assert found.equal
    other = verify_equal(kv, "trtllm", made, "vllm/0.26+", SPEC, b_blocks=[0, 5, 2, 1], b_block_size=3)
    assert not other.equal
