"""What a KV cache is made of: its bytes, its groups of layers, and what of it can be moved."""

from __future__ import annotations

from dataclasses import FrozenInstanceError
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kvsdk.errors import InvalidRequest, Unsupported
from kvsdk.kv.models.layer_kinds import KV_KINDS, LAYER_KINDS
from kvsdk.kv.models.spec import KVSpec


def _spec(**changes: Any) -> KVSpec:
    fields: dict[str, Any] = {
        "num_layers": 4, "num_kv_heads": 2, "head_dim": 8, "dtype": "float16", "block_size": 16,
    }  # fmt: skip
    return KVSpec(**fields | changes)


def test_a_token_has_a_key_and_a_value_in_each_layer_and_head() -> None:
    """Bytes of a token are layers times heads times both dimensions times the element's bytes."""
    assert _spec().bytes_per_token == 4 * 2 * (8 + 8) * 2
    assert _spec(head_dim_v=6).bytes_per_token == 4 * 2 * (8 + 6) * 2
    assert _spec(dtype="float8_e4m3fn").bytes_per_token == 4 * 2 * (8 + 8) * 1


def test_mla_has_one_part() -> None:
    """A latent serves as key and value, and is counted once."""
    spec = _spec(kind="mla", num_kv_heads=1, head_dim=576)
    assert spec.parts == (576,)
    assert spec.bytes_per_token == 4 * 576 * 2


def test_layers_that_are_all_alike_are_one_group() -> None:
    """Without `layer_kinds` there is one group, of all layers, whose spec is the whole."""
    (group,) = _spec().groups
    assert (group.name, group.kind, group.layers, group.window) == ("full", "full", (0, 1, 2, 3), None)
    assert (group.spec, group.is_movable, group.why_not) == (_spec(), True, None)
    (latent,) = _spec(kind="mla", num_kv_heads=1).groups
    assert (latent.kind, latent.layers, latent.is_movable) == ("mla", (0, 1, 2, 3), True)


def test_a_window_belongs_to_its_group_alone() -> None:
    """Sliding layers have the window, full ones none, and each group's spec has its own layers."""
    spec = _spec(layer_kinds=("sliding", "full", "sliding", "sliding"), window=128)
    sliding, full = spec.groups
    assert (sliding.layers, sliding.window, full.layers, full.window) == ((0, 2, 3), 128, (1,), None)
    assert sliding.spec is not None
    assert full.spec is not None
    assert sliding.spec.bytes_per_token == 3 * 2 * (8 + 8) * 2
    assert full.spec.bytes_per_token == 1 * 2 * (8 + 8) * 2
    assert sliding.spec.groups[0].window == 128
    spec.require_movable()


def test_a_groups_spec_has_the_shape_of_the_whole() -> None:
    """A group's values are as wide as the model's, and what an MLA model calls full is its latent."""
    wide = _spec(head_dim_v=6, layer_kinds=("sliding", "full", "full", "full"), window=8)
    assert [group.spec.parts for group in wide.groups if group.spec is not None] == [(8, 6), (8, 6)]
    latent = _spec(kind="mla", num_kv_heads=1, num_layers=2, layer_kinds=("state", "full", "mla"))
    assert [(group.kind, group.layers) for group in latent.groups] == [("state", (0,)), ("mla", (1, 2))]


def test_state_layers_are_named_and_refused() -> None:
    """A hybrid model's state layers have no bytes per token, and stop a move with their indices."""
    spec = _spec(num_layers=1, layer_kinds=("state", "state", "full", "state"))
    assert spec.bytes_per_token == 1 * 2 * (8 + 8) * 2
    state, full = spec.groups
    assert (state.layers, state.spec, state.is_movable) == ((0, 1, 3), None, False)
    assert (full.layers, full.is_movable) == ((2,), True)
    with pytest.raises(Unsupported, match=r"state \(0-1, 3\): they keep one state of fixed size") as caught:
        spec.require_movable()
    assert "full" not in str(caught.value)


def test_a_hybrid_layer_has_kv_and_is_refused_for_its_state() -> None:
    """A layer with attention and a state counts its KV, and cannot be moved."""
    spec = _spec(num_layers=2, layer_kinds=("hybrid", "hybrid"))
    assert spec.bytes_per_token == 2 * 2 * (8 + 8) * 2
    with pytest.raises(Unsupported, match=r"hybrid \(0-1\)"):
        spec.require_movable()


def test_layers_that_keep_nothing_do_not_stop_a_move() -> None:
    """Layers that read another's KV, or keep nothing, have no KV and nothing to move."""
    spec = _spec(num_layers=1, layer_kinds=("full", "shared", "none"))
    assert [(group.kind, group.spec is None, group.is_movable) for group in spec.groups] == [
        ("full", False, True),
        ("shared", True, True),
        ("none", True, True),
    ]
    spec.require_movable()


@given(st.lists(st.sampled_from([kind for kind in LAYER_KINDS if kind != "mla"]), min_size=1, max_size=20))
def test_groups_are_a_partition_of_the_layers(kinds: list[str]) -> None:
    """Each layer is in exactly one group, and the groups' bytes sum to the whole."""
    with_kv = sum(kind in KV_KINDS for kind in kinds)
    if not with_kv:
        return
    spec = _spec(num_layers=with_kv, layer_kinds=tuple(kinds), window=64)
    found = {layer: group.kind for group in spec.groups for layer in group.layers}
    assert found == dict(enumerate(kinds))
    assert sum(len(group.layers) for group in spec.groups) == len(kinds)
    parts = [group.spec.bytes_per_token for group in spec.groups if group.spec is not None]
    assert sum(parts) == spec.bytes_per_token


def test_a_spec_is_a_value() -> None:
    """Equal specs are one key of a dict, with kinds and window part of what is compared, and none changes."""
    assert len({_spec(), _spec(), _spec(layer_kinds=("sliding",) * 4, window=8)}) == 2
    assert _spec(layer_kinds=("sliding",) * 4, window=8) != _spec(layer_kinds=("sliding",) * 4, window=9)
    with pytest.raises(FrozenInstanceError):
        _spec().num_layers = 5  # type: ignore[misc]


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"num_layers": 0}, "num_layers"),
        ({"num_kv_heads": -1}, "num_kv_heads"),
        ({"head_dim": 1.5}, "head_dim"),
        ({"head_dim": True}, "head_dim"),
        ({"window": 0}, "window"),
        ({"dtype": "auto"}, "dtype"),
        ({"kind": "gqa"}, "kind"),
        ({"layer_kinds": ("full", "full", "full", "mamba")}, "layer_kinds"),
        ({"layer_kinds": ("full",) * 5}, "layer_kinds"),
        ({"layer_kinds": ("full", "full", "full", "state")}, "layer_kinds"),
        ({"layer_kinds": ["full"] * 4}, "layer_kinds"),
        ({"layer_kinds": ("mla",) * 4}, "layer_kinds"),
    ],
)
def test_a_wrong_field_is_named(changes: dict[str, Any], field: str) -> None:
    """A spec that makes no sense is refused with its field."""
    with pytest.raises(InvalidRequest) as caught:
        _spec(**changes)
    assert caught.value.field == field
