"""Between Hugging Face's `DynamicCache` and the layout `hf/dynamic`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kvsdk.errors import InvalidRequest, Unsupported

if TYPE_CHECKING:
    import torch


def from_dynamic_cache(cache: Any) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """A cache's keys and values, layer by layer: `hf/dynamic`. The tensors are the cache's own.

    Args:
        cache: A `transformers.DynamicCache` of one sequence (transformers 5).

    Raises:
        InvalidRequest: It is no such cache, or holds several sequences, or nothing yet.
        Unsupported: A layer does not keep every token: a sliding window, or a state.
    """
    layers = getattr(cache, "layers", None)
    if not isinstance(layers, list):
        raise InvalidRequest(f"a DynamicCache has layers; this is a {type(cache).__name__}", field="cache")
    found = []
    for number, layer in enumerate(layers):
        keys, values = getattr(layer, "keys", None), getattr(layer, "values", None)
        if keys is None or values is None:
            raise InvalidRequest(f"layer {number} of the cache holds nothing", field="cache")
        if getattr(layer, "is_sliding", False):
            raise Unsupported(f"layer {number} keeps a sliding window only, not every token")
        if keys.dim() != 4 or keys.shape[0] != 1:
            raise InvalidRequest(
                f"layer {number} has keys of shape {tuple(keys.shape)}; "
                "one sequence is (1, heads, tokens, dim)",
                field="cache",
            )
        found.append((keys, values))
    return found


def to_dynamic_cache(kv: Any) -> Any:
    """A `transformers.DynamicCache` that has these keys and values; it takes the tensors, and does not copy.

    Args:
        kv: `hf/dynamic`: a list per layer of `(K, V)`, each `(1, heads, tokens, dim)`.
    """
    from transformers import DynamicCache

    cache = DynamicCache()
    for number, (keys, values) in enumerate(kv):
        cache.update(keys, values, number)
    return cache
