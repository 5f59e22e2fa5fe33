"""Files of KV to convert, and what is in them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from kv_files import KEY, PARENT
from kv_oracle import number, read, tensors
from kvsdk.kv import Fingerprint, KVSpec, Layout
from kvsdk.kv.files.saving import load, save
from kvsdk.kv.layouts.planes import allocate

#: 4 heads of 16: 1, 2 and 4 devices have whole heads, 8 have copies.
SPEC = KVSpec(num_layers=3, num_kv_heads=4, head_dim=16, dtype="float16", block_size=16)
TOKENS = 37


def kept(path: Path, layout: str = "hf/dynamic", spec: KVSpec = SPEC, **more: Any) -> Path:
    """A file of numbered KV."""
    kv = number(allocate(Layout.of(layout), spec, tokens=TOKENS))
    given = {"fingerprint": Fingerprint.for_testing(spec), "num_tokens": TOKENS, "key": KEY, "parent": PARENT}
    save(path, kv, layout=layout, spec=spec, first_token=256, **{**given, **more})
    return path


def noise(path: Path, spec: KVSpec = SPEC, seed: int = 0) -> Path:
    """A file of KV as models have it: small numbers of either sign."""
    torch.manual_seed(seed)
    kv = [
        tuple(
            torch.randn(1, spec.num_kv_heads, TOKENS, spec.head_dim).to(getattr(torch, spec.dtype))
            for _ in "kv"
        )
        for _ in range(spec.num_layers)
    ]
    fingerprint = Fingerprint.for_testing(spec)
    save(path, kv, layout="hf/dynamic", spec=spec, fingerprint=fingerprint, num_tokens=TOKENS, key=KEY)
    return path


def raw(path: Path) -> list[bytes]:
    """Every tensor's bytes."""
    return [bytes(each.contiguous().view(torch.uint8).numpy().reshape(-1)) for each in tensors(load(path).kv)]


def logical(path: Path) -> list[float]:
    """Every element in logical order, by the oracle's own hand."""
    found = load(path)
    return read(found.kv, found.manifest.layout, found.manifest.spec, TOKENS, None)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())
