"""KV with numbers that tell tokens apart, and the prompts that it is of."""

from __future__ import annotations

from typing import Any

import torch
from kvsdk.kv import KVSpec

#: A small model: 4 layers of 2 heads of 64, 16 tokens a block; 2 KiB of KV per token.
SPEC = KVSpec(num_layers=4, num_kv_heads=2, head_dim=64, dtype="float16", block_size=16)


def prompt(tokens: int, seed: int = 0) -> list[int]:
    """Token ids."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 50_000, (tokens,), generator=generator).tolist()


def kv_of(tokens: list[int], spec: KVSpec = SPEC) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """KV in `hf/dynamic` that depends on every token before: what a model would make of them."""
    seen = 17
    columns = []
    for token in tokens:
        seen = (seen * 31 + token) % (2**31 - 1)
        generator = torch.Generator().manual_seed(seen)
        columns.append(torch.randn(spec.num_layers, 2, spec.num_kv_heads, spec.head_dim, generator=generator))
    whole = torch.stack(columns, dim=3).to(getattr(torch, spec.dtype))
    return [(layer[0][None].contiguous(), layer[1][None].contiguous()) for layer in whole]


def first(kv: Any, tokens: int) -> Any:
    """Only the first tokens of KV in `hf/dynamic`."""
    return [tuple(part[:, :, :tokens] for part in layer) for layer in kv]


def is_equal(one: Any, other: Any) -> bool:
    """Whether two KV in `hf/dynamic` have the same bytes."""
    pairs = [
        (a, b) for ours, theirs in zip(one, other, strict=True) for a, b in zip(ours, theirs, strict=True)
    ]
    return all(a.shape == b.shape and torch.equal(_raw(a), _raw(b)) for a, b in pairs)


def _raw(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous().view(torch.uint8)
