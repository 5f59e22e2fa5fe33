"""Tensors that would give wrong KV, though each alone has the right shape, are refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from kv_samples import is_equal, kv_of, prompt
from kvsdk.errors import InvalidRequest
from kvsdk.store import Hit, KVStore, Memory
from store_makers import StoreMaker

TOKENS = prompt(300)
KV = kv_of(TOKENS)
PAGED = "vllm/0.26+"
#: 300 tokens are 19 blocks of 16.
BLOCKS = 19


@pytest.fixture
def store(make_store: StoreMaker) -> KVStore:
    """A store that has the prompt."""
    store = make_store(Memory("64MiB"))
    store.put(TOKENS, KV)
    return store


def changed(layer: int, part: int, change: Callable[[torch.Tensor], Any]) -> list[tuple[Any, ...]]:
    """The KV in memory of its own, one tensor of it changed."""
    own: list[list[Any]] = [[tensor.clone() for tensor in layer] for layer in KV]
    own[layer][part] = change(own[layer][part])
    return [tuple(layer) for layer in own]


CHANGES: list[tuple[int, int, Callable[[torch.Tensor], Any], str]] = [
    (0, 1, lambda tensor: tensor.bfloat16(), "tensors of bfloat16 and float16"),
    (3, 0, lambda tensor: tensor.bfloat16(), "tensors of bfloat16 and float16"),
    (2, 0, lambda tensor: tensor.float(), "tensors of float16 and float32"),
    (0, 0, lambda tensor: tensor.to("meta"), "a meta tensor"),
    (1, 1, lambda tensor: tensor.to_sparse(), "a sparse_coo tensor"),
    (3, 1, lambda tensor: tensor[:, :, :290], "layer 3 of (kv|out) has 290 tokens, not 300"),
    (3, 1, lambda tensor: tensor[:, :1], "the axis head has 1 elements, the spec says 2"),
    (2, 0, lambda tensor: tensor.numpy(), "not in a ndarray"),
    (2, 0, lambda tensor: None, "not in a NoneType"),
]


@pytest.mark.parametrize(("layer", "part", "change", "says"), CHANGES)
def test_tensors_that_do_not_fit_each_other(
    store: KVStore, layer: int, part: int, change: Callable[[torch.Tensor], Any], says: str
) -> None:
    """Of a put and of a get: bytes are moved, so another dtype of the same size would come out as numbers."""
    store.remove(TOKENS)
    with pytest.raises(InvalidRequest, match=says):
        store.put(TOKENS, changed(layer, part, change))
    assert not store.get(TOKENS)
    store.put(TOKENS, KV)
    with pytest.raises(InvalidRequest, match=says):
        store.get(TOKENS, out=changed(layer, part, change))


def test_a_place_for_two_layers(store: KVStore) -> None:
    """The last one written would be served as all of them."""
    one = torch.zeros_like(KV[0][0])
    with pytest.raises(InvalidRequest, match="two tensors in the same memory"):
        store.get(TOKENS, out=[(one, torch.zeros_like(one))] * 4)
    own = torch.zeros_like(one)
    with pytest.raises(InvalidRequest, match="two tensors in the same memory"):
        store.get(TOKENS, out=[(own, own), *changed(0, 0, torch.clone)[1:]])


def test_a_place_for_two_heads(store: KVStore) -> None:
    """An expanded tensor has the memory of one of them."""
    wide = changed(1, 0, lambda tensor: tensor[:, :1].expand(tensor.shape))
    with pytest.raises(InvalidRequest, match="out has a tensor that was expanded"):
        store.get(TOKENS, out=wide)


@pytest.mark.parametrize("blocks", [[0] * BLOCKS, [*range(16), 0, 1, 2], [*range(18), 5]])
def test_a_block_for_two_stretches(store: KVStore, blocks: list[int]) -> None:
    """Within a chunk, and of two chunks; each chunk alone would come out right."""
    out = [torch.zeros(40, 2, 16, 128, dtype=torch.float16) for _ in range(4)]
    with pytest.raises(InvalidRequest, match="out_blocks names a block twice"):
        store.get(TOKENS, layout=PAGED, blocks=blocks, out=out)
    assert not any(layer.any() for layer in out)


def test_what_is_beyond_the_prompt_may_be_anything(store: KVStore) -> None:
    """A block table that is filled up with one block's number; layers that lie in one strided store."""
    whole = torch.zeros(4, 40, 2, 16, 128, dtype=torch.float16)
    hit = store.get(TOKENS, layout=PAGED, blocks=[*range(1, 20), 0, 0, 0], out=list(whole))
    assert isinstance(hit, Hit)
    store.remove(TOKENS)
    store.put(TOKENS, list(whole), layout=PAGED, blocks=[*range(1, 20), 0, 0, 0])
    assert is_equal(store.get(TOKENS).kv, KV)


@pytest.mark.parametrize(("first", "is_right"), [(11, True), (21, False)])
def test_a_layer_with_fewer_blocks(store: KVStore, first: int, is_right: bool) -> None:
    """It is fine if those that are named are there: 19 from 11 on are in 30, from 21 on they are not."""
    out = [torch.zeros(30 if layer == 3 else 40, 2, 16, 128, dtype=torch.float16) for layer in range(4)]
    blocks = range(first, first + BLOCKS)
    if is_right:
        assert store.get(TOKENS, layout=PAGED, blocks=blocks, out=out).tokens == 300
        return
    with pytest.raises(InvalidRequest, match="layer 3 of out has 30 blocks, not 40"):
        store.get(TOKENS, layout=PAGED, blocks=blocks, out=out)


def test_gradients_are_no_part_of_it(store: KVStore) -> None:
    """KV that wants some is stored as numbers, and what comes back wants none."""
    store.remove(TOKENS)
    store.put(TOKENS, [tuple(part.clone().requires_grad_() for part in layer) for layer in KV])
    hit = store.get(TOKENS)
    assert is_equal(hit.kv, KV)
    assert not any(part.requires_grad for layer in hit.kv for part in layer)
