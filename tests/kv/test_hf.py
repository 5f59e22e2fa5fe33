"""transformers as the oracle: a model goes on from converted KV as if nothing had happened."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from kv_oracle import PLACES
from kvsdk import InvalidRequest
from kvsdk.kv import KVSpec, convert, from_dynamic_cache, to_dynamic_cache


@pytest.fixture(scope="module")
def model() -> Any:
    """A small Llama with weights of chance, four layers of GQA."""
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(1)
    config = transformers.LlamaConfig(
        vocab_size=101,
        hidden_size=48,
        intermediate_size=64,
        num_hidden_layers=4,
        num_attention_heads=6,
        num_key_value_heads=2,
        head_dim=16,
    )
    return transformers.LlamaForCausalLM(config).eval()


PROMPT = torch.arange(1, 24)[None] * 7 % 101
NEXT = torch.tensor([[5, 17, 99]])
SPEC = KVSpec(num_layers=4, num_kv_heads=2, head_dim=16, dtype="float32", block_size=4)


def prefill(model: Any) -> Any:
    with torch.no_grad():
        return model(PROMPT, use_cache=True).past_key_values


def go_on(model: Any, cache: Any) -> torch.Tensor:
    with torch.no_grad():
        logits: torch.Tensor = model(NEXT, past_key_values=cache).logits
    return logits


@pytest.mark.parametrize("name", sorted(PLACES))
def test_a_model_goes_on_from_every_layout(model: Any, name: str) -> None:
    """23 tokens there and back: the very same logits."""
    expected = go_on(model, prefill(model))
    made = convert(from_dynamic_cache(prefill(model)), "hf/dynamic", name, SPEC)
    back = convert(made, name, "hf/dynamic", SPEC, num_tokens=23)
    assert torch.equal(go_on(model, to_dynamic_cache(back)), expected)


def test_it_would_be_noticed(model: Any) -> None:
    """Read with keys and values in another order, the CPU's layout gives other logits."""
    expected = go_on(model, prefill(model))
    made = convert(from_dynamic_cache(prefill(model)), "hf/dynamic", "vllm/0.26+cpu", SPEC)
    wrong = convert(
        [layer.unflatten(-1, (4, 32)) for layer in made], "vllm/0.26+", "hf/dynamic", SPEC, num_tokens=23
    )
    assert not torch.allclose(go_on(model, to_dynamic_cache(wrong)), expected, atol=1e-3)


def test_fp8_is_near(model: Any) -> None:
    """Three bits of mantissa: the logits move, and not far."""
    expected = go_on(model, prefill(model))
    made, scales = convert(from_dynamic_cache(prefill(model)), "hf/dynamic", "trtllm", SPEC, dtype="fp8_e4m3")
    small = replace(SPEC, dtype="float8_e4m3fn")
    back = convert(made, "trtllm", "hf/dynamic", small, num_tokens=23, dtype="float32", scales=scales)
    found = go_on(model, to_dynamic_cache(back))
    assert not torch.equal(found, expected)
    assert torch.allclose(found, expected, atol=0.1)


def test_what_is_no_cache_is_refused(model: Any) -> None:
    """Another object, an empty cache, several sequences."""
    from transformers import DynamicCache

    with pytest.raises(InvalidRequest, match="a list"):
        from_dynamic_cache([])
    cache = DynamicCache()
    cache.update(torch.zeros(2, 2, 3, 16), torch.zeros(2, 2, 3, 16), 0)
    with pytest.raises(InvalidRequest, match=r"one sequence is \(1, heads"):
        from_dynamic_cache(cache)
