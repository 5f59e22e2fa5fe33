"""A checkpoint in transformers: what KV it makes of a prompt, and what it says after one."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from kvsdk.kv import from_dynamic_cache, to_dynamic_cache

Pairs = list[tuple[torch.Tensor, torch.Tensor]]
"""`hf/dynamic`: keys and values of each layer, `(1, heads, tokens, dim)`."""


def load(folder: Path, dtype: torch.dtype) -> Any:
    """The model."""
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, local_files_only=True).eval()


def first_tokens(folder: Path, text: str, size: int) -> list[int]:
    """The first tokens of a text."""
    from transformers import AutoTokenizer

    found: list[int] = AutoTokenizer.from_pretrained(folder, local_files_only=True).encode(text)
    assert len(found) >= size
    return found[:size]


def prefill(model: Any, prompt: Sequence[int]) -> Any:
    """The model's own `DynamicCache` of a prompt."""
    with torch.inference_mode():
        return model(torch.tensor([prompt]), use_cache=True).past_key_values


def logits_after(model: Any, cache: Any, token: int) -> torch.Tensor:
    """The logits for what comes after this token; it is added to the cache."""
    with torch.inference_mode():
        logits: torch.Tensor = model(torch.tensor([[token]]), past_key_values=cache).logits
    return logits[0, -1]


def continue_greedily(model: Any, kv: Pairs, prompt: Sequence[int], max_tokens: int) -> list[int]:
    """The continuation of a prompt whose KV is there; the last token is computed again, as an engine does."""
    cache = to_dynamic_cache([(keys[:, :, :-1], values[:, :, :-1]) for keys, values in kv])
    assert from_dynamic_cache(cache)[0][0].shape[2] == len(prompt) - 1
    tokens = [prompt[-1]]
    for _ in range(max_tokens):
        tokens.append(int(logits_after(model, cache, tokens[-1]).argmax()))
    return tokens[1:]


def differences(found: Pairs, expected: Pairs) -> list[float]:
    """Of each layer's keys and values the largest difference, as a part of the largest number there."""
    return [
        float((one - other).abs().max() / other.abs().max())
        for layer, expected_layer in zip(found, expected, strict=True)
        for one, other in zip(layer, expected_layer, strict=True)
    ]
