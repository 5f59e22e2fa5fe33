"""A model's sizes, read off the tensors of each layout."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from kvsdk.errors import InvalidRequest
from kvsdk.kv import LAYOUTS, KVSpec, Layout
from kvsdk.kv.layouts.infer import infer_spec
from kvsdk.kv.layouts.planes import allocate

SPEC = KVSpec(num_layers=3, num_kv_heads=2, head_dim=16, dtype="float16", block_size=8)


@pytest.mark.parametrize("name", sorted(set(LAYOUTS) - {"lmcache/2ltd"}))
def test_the_spec_of_every_layout(name: str) -> None:
    """All of it shows, but for the block size of layouts without blocks."""
    layout = Layout.of(name)
    spec = replace(SPEC, num_kv_heads=1, kind="mla") if layout.is_mla else SPEC
    found = infer_spec(allocate(layout, spec, tokens=40), layout, block_size=8)
    assert found == spec


@pytest.mark.parametrize("name", ["hf/dynamic", "vllm/paged-v0", "sglang/page-first"])
def test_keys_and_values_of_different_sizes(name: str) -> None:
    """Where the layout has them apart."""
    spec = replace(SPEC, head_dim_v=24)
    layout = Layout.of(name)
    assert infer_spec(allocate(layout, spec, tokens=40), layout, block_size=8) == spec


def test_what_does_not_show_is_asked_for() -> None:
    """Heads and dims in one axis could be any two numbers."""
    layout = Layout.of("lmcache/2ltd")
    with pytest.raises(InvalidRequest, match=r"the head size does not show .* pass spec="):
        infer_spec(allocate(layout, SPEC, tokens=40), layout, block_size=8)


@pytest.mark.parametrize("kv", [None, [], [torch.zeros(2)], [[]], "kv", [("a", "b")]])
def test_other_things_are_refused(kv: object) -> None:
    """By an error of ours."""
    with pytest.raises(InvalidRequest):
        infer_spec(kv, Layout.of("hf/dynamic"), block_size=8)
