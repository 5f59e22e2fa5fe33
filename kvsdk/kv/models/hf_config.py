"""Reads what a model's KV is made of from its Hugging Face `config.json`, without transformers."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, TypedDict

from kvsdk.errors import ConfigurationError, InvalidRequest, Unsupported
from kvsdk.kv.models.hf_keys import HfKeys
from kvsdk.kv.models.hf_layers import LAYER_COUNT, hf_layer_kinds
from kvsdk.kv.models.hf_models import ENCODERS, REFUSED, STATE_ONLY
from kvsdk.kv.models.layer_kinds import KV_KINDS

_TEXT_PARTS = ("text_config", "language_config", "llm_config", "thinker_config")
_HEADS = ("num_attention_heads", "n_head", "n_heads", "num_heads", "attention_heads")
_KV_HEADS = ("num_key_value_heads", "num_kv_heads", "n_head_kv", "multi_query_group_num")
_HIDDEN = ("hidden_size", "n_embd", "d_model", "n_embed")
_INDEXED = ("index_topk", "index_head_dim", "compress_ratios")
_SHAPES_THAT_DIFFER = {
    "swa_num_key_value_heads": "num_key_value_heads",
    "swa_head_dim": "head_dim",
    "swa_v_head_dim": "v_head_dim",
    "global_head_dim": "head_dim",
    "num_global_key_value_heads": "num_key_value_heads",
}


class KVFields(TypedDict):
    """The fields of a `KVSpec`."""

    num_layers: int
    num_kv_heads: int
    head_dim: int
    head_dim_v: int | None
    kind: Literal["mha", "mla"]
    layer_kinds: tuple[str, ...]
    window: int | None
    dtype: str
    block_size: int


def read_hf_config(config: Mapping[str, Any] | str | Path, *, dtype: str | None, block_size: int) -> KVFields:
    """The fields of a `KVSpec`, see `KVSpec.from_hf_config`.

    Raises:
        ConfigurationError: The file cannot be read.
        InvalidRequest: It is no JSON object, or a key is missing or wrong.
        Unsupported: The model's KV cannot be told as one `KVSpec`.
    """
    top = HfKeys.of(_load(config))
    keys = _text_part(top)
    _refuse(top, keys)
    num_kv_heads, head_dim, head_dim_v, kind = _shape(keys)
    kinds, window = hf_layer_kinds(keys, _num_layers(keys), is_mla=kind == "mla")
    with_kv = sum(one in KV_KINDS for one in kinds)
    if not with_kv:
        raise Unsupported(f"{keys.model}: none of its {len(kinds)} layers keeps KV per token")
    return {
        "num_layers": with_kv,
        "num_kv_heads": num_kv_heads,
        "head_dim": head_dim,
        "head_dim_v": head_dim_v,
        "kind": kind,
        "layer_kinds": () if set(kinds) <= {"full", "mla"} else kinds,
        "window": window,
        "dtype": _dtype(top, keys) if dtype is None else dtype,
        "block_size": block_size,
    }


def _load(config: Mapping[str, Any] | str | Path) -> Mapping[str, Any]:
    if isinstance(config, Mapping):
        return config
    if not isinstance(config, (str, Path)):
        raise InvalidRequest(f"config is a mapping or a path, not {type(config).__name__}", field="config")
    path = Path(config)
    path = path / "config.json" if path.is_dir() else path
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        say = "pass the path of a config.json or of its folder; nothing is downloaded"
        raise ConfigurationError(f"{path} cannot be read ({error.strerror}): {say}") from error
    except (ValueError, RecursionError) as error:
        raise InvalidRequest(f"{path} is no JSON: {error}", field="config") from error
    if not isinstance(found, dict):
        raise InvalidRequest(f"{path} has no JSON object but {type(found).__name__}", field="config")
    return found


def _text_part(keys: HfKeys) -> HfKeys:
    """The language model of a multimodal one; else the same."""
    for name in _TEXT_PARTS:
        if keys.get(name) is not None:
            return _text_part(keys.part(name))
    return keys


def _refuse(top: HfKeys, keys: HfKeys) -> None:
    """Raise for models whose KV is not what one `KVSpec` can say."""
    for part in (top, keys):
        if part.get("is_encoder_decoder") or (part.get("encoder") and part.get("decoder")):
            raise Unsupported(f"{part.model}: an encoder-decoder model keeps KV of the encoder's output too")
    if keys.get("add_cross_attention") or keys.get("cross_attention_layers"):
        raise Unsupported(f"{keys.model}: cross-attention layers keep KV of what is not in the prompt")
    if keys.model_type in STATE_ONLY:
        raise Unsupported(f"{keys.model}: it has only state layers, and no KV per token")
    if keys.model_type in ENCODERS or keys.get("use_bidirectional_attention") in (True, "all"):
        raise Unsupported(f"{keys.model}: it attends in both directions and keeps no KV")
    if keys.model_type in REFUSED:
        raise Unsupported(f"{keys.model}: {REFUSED[keys.model_type]}")
    for name in _INDEXED:
        if keys.get(name) is not None:
            raise Unsupported(f"{keys.model}: {name} means that an index is kept besides the KV")
    _refuse_differing_shapes(keys)


def _refuse_differing_shapes(keys: HfKeys) -> None:
    for name in ("block_configs", "per_layer_config"):
        if keys.get(name):
            raise Unsupported(f"{keys.model}: {name} means that layers have KV of different shapes")
    for name, general in _SHAPES_THAT_DIFFER.items():
        own = keys.get(name)
        if own is not None and own != keys.get(general):
            raise Unsupported(f"{keys.model}: {name} is {own}, but {general} is {keys.get(general)}")
    if keys.model_type in ("gemma4_text", "gemma4_unified_text") and keys.get("global_head_dim") is None:
        raise Unsupported(f"{keys.model}: without a global_head_dim its full layers have a head_dim of 512")
    for name in (*_KV_HEADS, "head_dim", "sliding_window"):
        if isinstance(keys.get(name), list):
            raise Unsupported(f"{keys.model}: {name} is a list: layers have KV of different shapes")


def _num_layers(keys: HfKeys) -> int | None:
    """Layers that attend or would; None where only the list of them says."""
    if keys.model_type == "longcat_flash" and keys.get("num_hidden_layers") is None:
        return 2 * keys.number("num_layers")  # two attentions in each
    return keys.optional(*LAYER_COUNT)


def _shape(keys: HfKeys) -> tuple[int, int, int | None, Literal["mha", "mla"]]:
    """KV heads, elements of a key, elements of a value where they differ, and the kind."""
    if keys.get("kv_lora_rank") is not None:
        latent = keys.number("kv_lora_rank") + keys.number("qk_rope_head_dim")
        return 1, latent, None, "mla"
    heads = keys.number(*_HEADS)
    kv_heads = _kv_heads(keys, heads)
    if heads % kv_heads:
        raise keys.wrong("num_key_value_heads", f"{kv_heads} does not divide the {heads} attention heads")
    head_dim = _head_dim(keys, heads)
    head_dim_v = keys.optional("v_head_dim")
    return kv_heads, head_dim, None if head_dim_v == head_dim else head_dim_v, "mha"


def _kv_heads(keys: HfKeys, heads: int) -> int:
    given = _given_kv_heads(keys)
    # Falcon-7B says 71 KV heads and multi_query; its class then keeps one. ChatGLM says how many groups.
    is_single = keys.get("multi_query") and not keys.get("new_decoder_architecture")
    if is_single and keys.get("n_head_kv") is None:
        return 1
    if keys.get("multi_query_attention") is False:
        return heads
    return heads if given is None else given


def _given_kv_heads(keys: HfKeys) -> int | None:
    if isinstance(keys.get("attn_config"), Mapping):  # MPT, DBRX
        return keys.part("attn_config").optional("kv_n_heads")
    return keys.optional(*_KV_HEADS)


def _head_dim(keys: HfKeys, heads: int) -> int:
    given = keys.optional("head_dim", "attention_head_dim")
    if given is None and keys.model_type != "zamba2":
        given = keys.optional("kv_channels")
    if given is not None:
        return given
    hidden = keys.number(*_HIDDEN)
    if keys.model_type in ("zamba", "zamba2"):
        hidden *= 2  # its attention reads the layer's input and the embedding side by side
    if hidden % heads:
        raise keys.wrong(
            "num_attention_heads", f"{heads} does not divide hidden_size {hidden}, and there is no head_dim"
        )
    return hidden // heads


def _dtype(top: HfKeys, keys: HfKeys) -> str:
    if _asks_for_quantised_kv(top) or _asks_for_quantised_kv(keys):
        raise InvalidRequest("the config asks for a quantised KV cache; pass dtype=", field="dtype")
    for part in (keys, top):
        found = part.get("dtype") or part.get("torch_dtype")
        if found and found != "auto":
            return str(found).removeprefix("torch.")
    raise InvalidRequest(
        "the config does not say the dtype; pass dtype=, such as dtype='bfloat16'", field="dtype"
    )


def _asks_for_quantised_kv(keys: HfKeys) -> bool:
    """Whether an engine would keep the KV in another dtype than the weights': in which one, it decides."""
    asked = keys.get("quantization_config")
    if not isinstance(asked, Mapping):
        return False
    return bool(asked.get("kv_cache_scheme") or asked.get("kv_cache_quant_algo"))
