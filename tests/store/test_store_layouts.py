"""KV that is put in one layout and block size and fetched in another is the same, for every pair."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest
import torch
from dict_tiers import DictTier
from kv_oracle import tensors
from kvsdk.kv import LAYOUTS, Fingerprint, KVSpec, Layout, verify_equal
from kvsdk.kv.layouts.planes import allocate
from kvsdk.store import Hit, KVStore

#: Block sizes there and here: the same, twice as large, and ones that do not divide a chunk.
SIZES = [(16, 16), (16, 32), (48, 16), (16, 48), (24, 40)]
PAIRS = [(a, b) for a in LAYOUTS for b in LAYOUTS if Layout.of(a).is_mla == Layout.of(b).is_mla]


@pytest.mark.parametrize(("there", "here"), PAIRS, ids=[f"{a}-{b}" for a, b in PAIRS])
def test_every_pair_of_layouts(there: str, here: str) -> None:
    """Scattered blocks, a partial last one, into new tensors and into a reused place."""
    chance = random.Random(f"{there} {here}")
    for size, other_size in SIZES:
        count = chance.choice([1, 255, 256, 257, 600])
        is_mla = Layout.of(there).is_mla
        spec = KVSpec(
            num_layers=2,
            num_kv_heads=1 if is_mla else 2,
            head_dim=16,
            dtype="float16",
            block_size=size,
            kind="mla" if is_mla else "mha",
        )
        other = replace(spec, block_size=other_size)
        tokens = [chance.randrange(1000) for _ in range(count)]
        kv, blocks = _scattered(there, spec, count, chance)
        for tensor in tensors(kv):
            tensor.copy_(torch.randn(tensor.shape))
        entries: dict[str, bytes] = {}
        with KVStore([DictTier(entries)], fingerprint=Fingerprint.for_testing(spec), spec=spec) as store:
            store.put(tokens, kv, layout=there, blocks=blocks)
        fingerprint = Fingerprint.for_testing(other)
        with KVStore([DictTier(entries)], fingerprint=fingerprint, spec=other) as store:
            place, its_blocks = _scattered(here, other, count, chance)
            for out, at in ((None, None), (place, its_blocks)):
                hit = store.get(tokens, layout=here, out=out, blocks=at)
                assert isinstance(hit, Hit), hit
                assert hit.tokens == count
                same = verify_equal(
                    kv,
                    there,
                    hit.kv,
                    here,
                    spec,
                    num_tokens=count,
                    a_blocks=blocks,
                    b_blocks=at,
                    b_block_size=other_size,
                )
                assert same.equal, (size, other_size, count, same.first_difference)


def _scattered(name: str, spec: KVSpec, tokens: int, chance: random.Random) -> tuple[Any, list[int] | None]:
    """A place with room to spare, and a choice of its blocks in any order."""
    layout = Layout.of(name)
    needed = -(-tokens // spec.block_size)
    if not layout.is_paged:
        return allocate(layout, spec, tokens=tokens), None
    place = allocate(layout, spec, tokens=(needed + 3) * spec.block_size)
    return place, chance.sample(range(needed + 3), needed)
