"""Layouts as text, and which one an engine has."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from kvsdk import InvalidRequest, UnknownLayout
from kvsdk.kv import LAYOUTS, KVSpec, Layout, detect_layout
from kvsdk.kv.layouts.planes import allocate


@pytest.mark.parametrize("name", LAYOUTS)
def test_every_name_is_a_layout(name: str) -> None:
    """And so is its text, which is its normal form."""
    layout = Layout.of(name)
    assert Layout.of(layout.text) is layout
    assert Layout.of(layout) is layout
    assert Layout.parse(f"  {layout.text.replace(' | ', '   |  ')} ") == layout


WRONG = [
    ("layer block token head dim", "no bar"),
    ("layer | kv block token head", "no head or no dim"),
    ("layer | kv block token head dim dim", "dim is there twice"),
    ("layer layer | kv block token head dim", "layer is there twice"),
    ("| kv block token head dim", "no layer"),
    ("layer | block token head dim", "told apart once"),
    ("layer | kv block head (dim token ; token dim)", "told apart once"),
    ("layer | kv block head token dim/x", "dim/x and x"),
    ("layer | kv block token slot head dim", "either token"),
    ("layer | kv block head dim", "either token"),
    ("layer | block token head (kv dim", "parenthesis"),
    ("layer kv | a ; b ; c", "more than two parts"),
    ("layer | block head dim token ; block head token dim", "need kv on the left"),
    ("layer | kv blok token head dim", "Did you mean 'block'"),
    ("head | kv block token layer dim", "cannot be a Python sequence"),
    ("layer | block token latent head", "latent"),
]


@pytest.mark.parametrize(("text", "words"), WRONG)
def test_what_is_no_layout_is_refused(text: str, words: str) -> None:
    """With what is wrong with it."""
    with pytest.raises(InvalidRequest, match=words):
        Layout.parse(text)


# ---------------------------------------------------------------------- detection

SPEC = KVSpec(num_layers=2, num_kv_heads=3, head_dim=64, dtype="float16", block_size=16)


def layers(name: str, spec: KVSpec = SPEC) -> Any:
    return allocate(Layout.of(name), spec, tokens=5 * spec.block_size)


@pytest.mark.parametrize(
    ("version", "name"),
    [
        ("0.9.2", "vllm/<=0.22"),
        ("0.22.1", "vllm/<=0.22-hnd"),
        ("0.23.0", "vllm/0.23-0.25"),
        ("0.25.3", "vllm/0.23-0.25"),
        ("0.26.0", "vllm/0.26+"),
        ("v0.32.0+cu130", "vllm/0.26+nhd"),
    ],
)
def test_an_era_is_told_by_version_and_shape(version: str, name: str) -> None:
    """Both sides of every change."""
    assert detect_layout(version, layers(name), SPEC) == name


def test_strides_do_not_deceive() -> None:
    """Layers that are views of one store, in another physical order, are still what their axes say."""
    store = torch.empty(5, 16, 2, 3, 128, dtype=torch.float16)
    views = [store[:, :, layer].transpose(1, 2) for layer in range(2)]
    assert tuple(views[0].shape) == (5, 3, 16, 128)
    assert detect_layout("0.32.0", views, SPEC) == "vllm/0.26+"


def test_the_cpu_has_a_layout_of_its_own() -> None:
    """The shape is the GPU's; only the platform tells, and only head sizes that were checked."""
    found = [torch.empty(5, 3, 16, 128, dtype=torch.float16) for _ in range(2)]
    assert detect_layout("0.32.0", found, SPEC, platform="cpu") == "vllm/0.26+cpu"
    assert detect_layout("0.32.0", found, SPEC) == "vllm/0.26+"
    small = replace(SPEC, head_dim=48)
    with pytest.raises(UnknownLayout, match="not 48"):
        detect_layout("0.32.0", layers("vllm/0.26+", small), small, platform="cpu")
    with pytest.raises(UnknownLayout, match="on a CPU is not known"):
        detect_layout("0.25.0", layers("vllm/0.23-0.25"), SPEC, platform="cpu")


def test_mla_has_one() -> None:
    """A latent per token."""
    spec = KVSpec(num_layers=2, num_kv_heads=1, head_dim=576, dtype="bfloat16", block_size=16, kind="mla")
    assert detect_layout("0.32.0", layers("vllm/mla", spec), spec) == "vllm/mla"


@pytest.mark.parametrize(
    ("version", "name", "words"),
    [
        ("0.33.0", "vllm/0.26+", "newer than 0.32"),
        ("1.0", "vllm/0.26+", "newer than 0.32"),
        ("nightly", "vllm/0.26+", "no version"),
        ("0.32.0", "vllm/<=0.22", "no layout of vLLM 0.32.0"),
        ("0.22.0", "vllm/0.26+", "no layout of vLLM 0.22.0"),
        ("0.24.0", "trtllm", "no layout of vLLM 0.24.0"),
    ],
)
def test_what_is_not_known_is_refused(version: str, name: str, words: str) -> None:
    """A newer engine, a shape of another era."""
    with pytest.raises(UnknownLayout, match=words):
        detect_layout(version, layers(name), SPEC)


def test_what_may_be_either_is_refused() -> None:
    """As many heads as tokens in a block: the shape does not tell NHD from HND."""
    spec = replace(SPEC, num_kv_heads=16)
    with pytest.raises(UnknownLayout, match="name the layout"):
        detect_layout("0.32.0", layers("vllm/0.26+", spec), spec)


def test_a_layer_less_is_refused() -> None:
    """All of the model's layers must be there."""
    with pytest.raises(UnknownLayout):
        detect_layout("0.32.0", layers("vllm/0.26+")[:1], SPEC)
    with pytest.raises(UnknownLayout):
        detect_layout("0.32.0", [*layers("vllm/0.26+"), layers("vllm/0.26+")[0]], SPEC)
