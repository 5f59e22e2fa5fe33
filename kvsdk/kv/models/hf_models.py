"""What a Hugging Face configuration leaves unsaid, because the model's class says it.

A saved configuration may leave out what equals its class's default (Gemma 3's `text_config` has no
`num_attention_heads`), so that the default is part of it. From transformers 5.19.0; the tests compare.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_QWEN = {"use_sliding_window": False}

DEFAULTS: Mapping[str, Mapping[str, Any]] = {
    "afmoe": {"head_dim": 128, "sliding_window": 1024},
    "bamba": {"num_key_value_heads": 8},
    "cohere2": {"sliding_window": 4096},
    "exaone4": {"num_key_value_heads": 32, "sliding_window": 4096},
    "falcon": {"multi_query": True},
    "falcon_h1": {"num_key_value_heads": 8},
    "gemma": {"num_key_value_heads": 16, "head_dim": 256},
    "gemma2": {"num_key_value_heads": 4, "head_dim": 256, "sliding_window": 4096},
    "gemma3_text": {
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "sliding_window": 4096,
    },
    "gemma3n_text": {
        "num_hidden_layers": 35,
        "num_attention_heads": 8,
        "num_key_value_heads": 2,
        "head_dim": 256,
        "sliding_window": 512,
        "num_kv_shared_layers": 15,
    },
    "glm4": {"num_key_value_heads": 2, "head_dim": 128},
    "gpt_bigcode": {"multi_query": True},
    "gpt_oss": {"num_key_value_heads": 8, "head_dim": 64, "sliding_window": 128},
    "jamba": {"num_key_value_heads": 8, "attn_layer_period": 8, "attn_layer_offset": 4},
    "lfm2": {"num_key_value_heads": 8},
    "llama": {"num_hidden_layers": 32, "num_attention_heads": 32, "hidden_size": 4096},
    "llama4_text": {"num_key_value_heads": 8, "head_dim": 128, "attention_chunk_size": 8192},
    "ministral": {"num_key_value_heads": 8, "sliding_window": 4096},
    "mistral": {
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "hidden_size": 4096,
        "sliding_window": 4096,
    },
    "mixtral": {"num_key_value_heads": 8},
    "nemotron_h": {"num_key_value_heads": 8, "head_dim": 128},
    "olmo3": {"sliding_window": 4096},
    "qwen2": {**_QWEN, "num_key_value_heads": 32, "max_window_layers": 28},
    "qwen2_moe": _QWEN,
    "qwen3": {**_QWEN, "num_key_value_heads": 32, "head_dim": 128, "max_window_layers": 28},
    "qwen3_5_text": {"num_key_value_heads": 4, "head_dim": 256},
    "qwen3_moe": {**_QWEN, "num_key_value_heads": 4},
    "qwen3_next": {"num_key_value_heads": 2, "head_dim": 256},
    "recurrent_gemma": {"attention_window_size": 2048},
    "smollm3": {**_QWEN, "num_key_value_heads": 4},
    "zamba": {"num_key_value_heads": 16},
}
"""Defaults that matter to the KV, by `model_type`."""

FULL_EVERY: Mapping[str, int] = {
    "afmoe": 4,
    "cohere2": 4,
    "exaone4": 4,
    "gemma2": 2,
    "gemma3_text": 6,
    "gemma3n_text": 5,
    "gpt_oss": 2,
    "olmo3": 4,
}
"""Where a window alternates: every how many layers one has full attention."""

STATE_ONLY = frozenset(
    {"mamba", "mamba2", "falcon_mamba", "rwkv", "rwkv5", "rwkv6", "rwkv7", "xlstm", "retnet"}
)
"""Models without any KV."""

ENCODERS = frozenset(
    {
        "albert", "bert", "camembert", "deberta", "deberta-v2", "distilbert", "electra", "ernie", "esm",
        "eurobert", "mobilebert", "modernbert", "mpnet", "nomic_bert", "roberta", "xlm-roberta",
        "xlm-roberta-xl",
    }
)  # fmt: skip
"""Models that read both ways and keep no KV."""

REFUSED: Mapping[str, str] = {
    "deepseek_v4": "its layers keep compressed KV of different shapes",
    "hymba": "its layers share KV and keep states in a pattern that is not known here",
    "phi4flash": "its layers share KV and keep states in a pattern that is not known here",
    "gemma4_assistant": "it reads the KV of another model",
}
"""Models known to need more than one `KVSpec`."""
