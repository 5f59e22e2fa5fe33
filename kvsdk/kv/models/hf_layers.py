"""What each layer of a model is, from the many ways in which configurations say it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from kvsdk.errors import Unsupported
from kvsdk.kv.models.hf_keys import HfKeys
from kvsdk.kv.models.hf_models import FULL_EVERY
from kvsdk.kv.models.layer_kinds import WINDOWED_KINDS

LAYER_COUNT = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")
"""Under which names a configuration has its number of layers."""

_MOST_LAYERS = 10_000  # a wrong number is refused before it becomes a list
_LISTS = ("layer_types", "layers_block_type")
_NAMES = {
    "full_attention": "full",
    "attention": "full",
    "global": "full",
    "sliding_attention": "sliding",
    "local": "sliding",
    "chunked_attention": "chunked",
    "linear_attention": "state",
    "mamba": "state",
    "mamba2": "state",
    "recurrent": "state",
    "conv": "state",
    "hybrid": "hybrid",
    "moe": "none",
    "mlp": "none",
}
_NEMOTRON = {"M": "state", "*": "full", "-": "none", "E": "none"}
_WINDOWS = {
    "sliding": ("sliding_window", "attention_window_size", "window_size"),
    "chunked": ("attention_chunk_size",),
}
_SIGNS_OF_STATE = (
    "mamba_d_state", "mamba_d_conv", "ssm_cfg", "ssm_state_size", "state_size", "conv_kernel", "lru_width",
    "linear_num_key_heads", "linear_attn_config",
)  # fmt: skip
_ALL_HYBRID = ("falcon_h1",)


def hf_layer_kinds(
    keys: HfKeys, num_layers: int | None, *, is_mla: bool
) -> tuple[tuple[str, ...], int | None]:
    """What each layer is, and the window of those that have one.

    Raises:
        InvalidRequest: A key is missing or wrong.
        Unsupported: A layer is of a kind that is not known here, or nothing says which ones keep a state.
    """
    if num_layers is not None and num_layers > _MOST_LAYERS:
        raise keys.wrong(LAYER_COUNT[0], f"{num_layers} layers are more than a model has")
    kinds = _stated(keys, num_layers)
    if kinds is None:
        kinds = _by_rule(keys, keys.number(*LAYER_COUNT) if num_layers is None else num_layers)
    kinds = _shared(keys, kinds)
    if is_mla:
        kinds = ["mla" if kind == "full" else kind for kind in kinds]
    return tuple(kinds), _window(keys, kinds)


def _stated(keys: HfKeys, num_layers: int | None) -> list[str] | None:
    """From a list that has each layer's kind."""
    for name in _LISTS:
        found = keys.items(name)
        if found is not None:
            return _checked_length(keys, name, _named(keys, name, found), num_layers)
    pattern = keys.get("hybrid_override_pattern")
    if pattern is not None:
        name = "hybrid_override_pattern"
        if not isinstance(pattern, str):
            raise keys.wrong(name, f"it is a string, not {type(pattern).__name__}")
        return _checked_length(keys, name, _named(keys, name, pattern, _NEMOTRON), num_layers)
    found = keys.items("attn_type_list")
    if found is not None:  # MiniMax-Text-01
        kinds = _named(keys, "attn_type_list", found, {0: "state", 1: "full"})
        return _checked_length(keys, "attn_type_list", kinds, num_layers)
    return _gpt_neo(keys, num_layers)


def _named(keys: HfKeys, name: str, found: Iterable[Any], table: dict[Any, str] | None = None) -> list[str]:
    known: dict[Any, str] = {**_NAMES} if table is None else table
    kinds = []
    for layer, said in enumerate(found):
        if not isinstance(said, (str, int)) or said not in known:
            raise Unsupported(f"{keys.model}: layer {layer} is {said!r} ({name}), which is not known here")
        kinds.append(known[said])
    return kinds


def _checked_length(keys: HfKeys, name: str, kinds: list[str], num_layers: int | None) -> list[str]:
    if not kinds or (num_layers is not None and len(kinds) != num_layers):
        raise keys.wrong(name, f"it has {len(kinds)} layers, but the model has {num_layers}")
    return kinds


def _gpt_neo(keys: HfKeys, num_layers: int | None) -> list[str] | None:
    runs = keys.items("attention_types")
    if keys.model_type != "gpt_neo" or runs is None:
        return None
    said: list[Any] = []
    for run in runs:
        if not _is_run(run):
            raise keys.wrong("attention_types", "each is a list of kinds and how often it repeats")
        said.extend(list(run[0]) * run[1])
    return _checked_length(keys, "attention_types", _named(keys, "attention_types", said), num_layers)


def _is_run(run: object) -> bool:
    return (
        isinstance(run, (list, tuple))
        and len(run) == 2
        and isinstance(run[0], (list, tuple))
        and isinstance(run[1], int)
        and run[1] <= _MOST_LAYERS
    )


def _by_rule(keys: HfKeys, count: int) -> list[str]:
    """From a rule over the layer's index."""
    rule = _state_rule(keys)
    if rule is not None:
        return [rule(layer) for layer in range(count)]
    for sign in _SIGNS_OF_STATE:
        if keys.get(sign) is not None:
            raise Unsupported(f"{keys.model}: it has {sign}, but nothing says which layers keep a state")
    return _windowed(keys, count)


def _state_rule(keys: HfKeys) -> Callable[[int], str] | None:
    """What a layer of a model with states is; None where no key says so."""
    if keys.model_type in _ALL_HYBRID:
        return lambda _: "hybrid"
    if keys.get("attn_layer_period") is not None:
        return _periodic(keys)
    for name in ("attn_layer_indices", "full_attn_idxs"):  # Bamba, LFM2
        if keys.get(name) is not None:
            return _listed(keys, name, "full")
    if keys.get("hybrid_layer_ids") is not None:  # Zamba 2
        return _listed(keys, "hybrid_layer_ids", "hybrid")
    if keys.get("linear_attn_config") is not None:  # Kimi Linear counts from 1
        return _listed(keys.part("linear_attn_config"), "full_attn_layers", "full", first=1)
    if keys.get("full_attention_interval") is not None or keys.model_type.startswith(
        ("qwen3_next", "qwen3_5")
    ):
        every = keys.optional("full_attention_interval") or 4
        return lambda layer: "state" if (layer + 1) % every else "full"
    pattern = keys.items("block_types")
    if pattern:  # RecurrentGemma; its attention is local
        kinds = _named(keys, "block_types", pattern, {"recurrent": "state", "attention": "sliding"})
        return lambda layer: kinds[layer % len(kinds)]
    if keys.model_type == "minimax":
        return lambda layer: "state" if layer % 2 else "full"
    return None


def _periodic(keys: HfKeys) -> Callable[[int], str]:
    period, offset = keys.number("attn_layer_period"), keys.number("attn_layer_offset", least=0)
    if offset >= period:
        raise keys.wrong("attn_layer_offset", f"{offset} is not below attn_layer_period {period}")
    if keys.model_type != "zamba":
        return lambda layer: "full" if layer % period == offset else "state"
    # Zamba's first three layers are two of Mamba and a hybrid one, and the period begins after them.
    return lambda layer: "hybrid" if layer == 2 or (layer > 2 and (layer - 3) % period == offset) else "state"


def _listed(keys: HfKeys, name: str, kind: str, *, first: int = 0) -> Callable[[int], str]:
    found = keys.items(name)
    if found is None:
        raise keys.wrong(name, "it is missing, and nothing else says which layers keep a state")
    if not all(isinstance(one, int) for one in found):
        raise keys.wrong(name, "it is a list of layers")
    layers = {one - first for one in found}
    return lambda layer: kind if layer in layers else "state"


def _windowed(keys: HfKeys, count: int) -> list[str]:
    """From a window, where nothing keeps a state."""
    if keys.get("attention_chunk_size") is not None:  # Llama 4: layers with RoPE are chunked
        with_rope = keys.items("no_rope_layers") or [(layer + 1) % 4 for layer in range(count)]
        kinds = ["chunked" if one else "full" for one in with_rope]
        return _checked_length(keys, "no_rope_layers", kinds, count)
    if keys.get("sliding_window") is None or keys.get("use_sliding_window") is False:
        return ["full"] * count
    if keys.model_type == "smollm3":
        with_rope = keys.items("no_rope_layers") or [(layer + 1) % 4 for layer in range(count)]
        kinds = ["full" if one else "sliding" for one in with_rope]
        return _checked_length(keys, "no_rope_layers", kinds, count)
    if keys.get("max_window_layers") is not None:
        first = keys.number("max_window_layers", least=0)
        return ["sliding" if layer >= first else "full" for layer in range(count)]
    return _alternating(keys, count)


def _alternating(keys: HfKeys, count: int) -> list[str]:
    pattern = keys.get("sliding_window_pattern")
    if isinstance(pattern, str):  # EXAONE 4: L for local, G for global
        kinds = _named(keys, "sliding_window_pattern", pattern, {"L": "sliding", "G": "full"})
        if kinds:
            return [kinds[layer % len(kinds)] for layer in range(count)]
    every = keys.optional("sliding_window_pattern", "global_attn_every_n_layers") or FULL_EVERY.get(
        keys.model_type
    )
    if every is None:
        return ["sliding"] * count
    return ["sliding" if (layer + 1) % every else "full" for layer in range(count)]


def _shared(keys: HfKeys, kinds: list[str]) -> list[str]:
    """The same, where a layer that reads another one's KV is `shared`."""
    if keys.get("num_kv_shared_layers"):
        shared = keys.number("num_kv_shared_layers")
        if shared >= len(kinds):
            raise keys.wrong("num_kv_shared_layers", f"{shared} is not below the {len(kinds)} layers")
        return kinds[: len(kinds) - shared] + ["shared"] * shared
    if keys.get("use_cla"):  # Hunyuan: the first of each run of this length has KV
        run = keys.number("cla_share_factor")
        return [kind if layer % run == 0 else "shared" for layer, kind in enumerate(kinds)]
    return kinds


def _window(keys: HfKeys, kinds: Sequence[str]) -> int | None:
    found = WINDOWED_KINDS & set(kinds)
    if len(found) > 1:
        raise Unsupported(f"{keys.model}: it has sliding and chunked layers, with a window each")
    return keys.number(*_WINDOWS[next(iter(found))]) if found else None
