"""A real model goes on from KV that came through another layout, in scattered blocks, as if from its own."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import torch
from hf_model import Pairs, first_tokens, load, logits_after, prefill
from kv_oracle import tensors
from kvsdk.cli.demo_model import ensure_demo_model
from kvsdk.kv import LAYOUTS, KVSpec, Layout, convert, from_dynamic_cache, to_dynamic_cache
from kvsdk.kv.layouts.planes import allocate

pytestmark = [pytest.mark.engine, pytest.mark.timeout(300)]

TOKENS = 75  # two blocks of 32, and 11 of a third
BLOCK_SIZE = 32
ROOM = 7  # blocks
NAMES = [name for name in LAYOUTS if not Layout.of(name).is_mla]
TEXT = "The heron stands at the weir and waits for the eel, and the eel waits for the night. " * 5


class Prefilled:
    """A model, a prompt's KV, and the logits after one more token, with the cache that it made itself."""

    def __init__(self, folder: Path, dtype: str) -> None:
        self.spec = KVSpec.from_hf_config(folder, dtype=dtype, block_size=BLOCK_SIZE)
        self.model: Any = load(folder, getattr(torch, dtype))
        *prompt, self.next = first_tokens(folder, TEXT, TOKENS + 1)
        cache = prefill(self.model, prompt)
        self.kv = [(keys.clone(), values.clone()) for keys, values in from_dynamic_cache(cache)]
        self.expected = logits_after(self.model, cache, self.next)


@pytest.fixture(scope="module", params=["float32", "bfloat16"])
def prefilled(request: pytest.FixtureRequest) -> Prefilled:
    """SmolLM2: 30 layers of 3 KV heads, for 9 of queries."""
    return Prefilled(ensure_demo_model(), request.param)


def scattered(layout: Layout) -> list[int] | None:
    """Blocks for the prompt in no order and with gaps; None where the layout has no blocks."""
    blocks = random.Random(4).sample(range(ROOM), -(-TOKENS // BLOCK_SIZE))
    assert blocks != sorted(blocks)
    return blocks if layout.is_paged else None


def go_on(prefilled: Prefilled, kv: Pairs) -> torch.Tensor:
    return logits_after(prefilled.model, to_dynamic_cache(kv), prefilled.next)


@pytest.mark.parametrize("name", NAMES)
def test_it_goes_on_from_every_layout(prefilled: Prefilled, name: str) -> None:
    """75 tokens there and back: the very same KV and logits. What was not written there is not a number.

    The logits alone would not show blocks in another order: keys carry their positions.
    """
    layout, spec = Layout.of(name), prefilled.spec
    blocks = scattered(layout)
    there = allocate(layout, spec, tokens=ROOM * BLOCK_SIZE if layout.is_paged else TOKENS)
    for tensor in tensors(there):
        tensor.fill_(torch.nan)
    convert(prefilled.kv, "hf/dynamic", name, spec, dst_blocks=blocks, out=there)
    back = convert(there, name, "hf/dynamic", spec, src_blocks=blocks, num_tokens=TOKENS)
    pairs = zip(tensors(back), tensors(prefilled.kv), strict=True)
    assert all(torch.equal(found, expected) for found, expected in pairs)
    assert torch.equal(go_on(prefilled, back), prefilled.expected)


def test_a_wrong_block_is_noticed(prefilled: Prefilled) -> None:
    """With one block read instead of its neighbour, the logits are others."""
    name, spec = "vllm/0.26+cpu", prefilled.spec
    there = convert(prefilled.kv, "hf/dynamic", name, spec)
    back = convert(there, name, "hf/dynamic", spec, src_blocks=[0, 0, 2], num_tokens=TOKENS)
    assert not torch.allclose(go_on(prefilled, back), prefilled.expected, atol=0.1)
