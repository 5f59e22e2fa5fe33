"""The KV of real models from their `config.json`: each dict has the published values that matter."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from kvsdk.errors import ConfigurationError, InvalidRequest, Unsupported
from kvsdk.kv.models.hf_models import DEFAULTS, FULL_EVERY
from kvsdk.kv.models.spec import KVSpec

BF16 = {"torch_dtype": "bfloat16"}

# meta-llama/Meta-Llama-3-8B
LLAMA_3_8B = BF16 | {
    "model_type": "llama", "hidden_size": 4096, "num_attention_heads": 32, "num_hidden_layers": 32,
    "num_key_value_heads": 8,
}  # fmt: skip
# meta-llama/Llama-2-7b-hf
LLAMA_2_7B = {
    "model_type": "llama", "hidden_size": 4096, "num_attention_heads": 32, "num_hidden_layers": 32,
    "num_key_value_heads": 32, "torch_dtype": "float16",
}  # fmt: skip
# Qwen/Qwen2.5-7B
QWEN_2_5_7B = BF16 | {
    "model_type": "qwen2", "hidden_size": 3584, "num_attention_heads": 28, "num_hidden_layers": 28,
    "num_key_value_heads": 4, "max_window_layers": 28, "sliding_window": 131072, "use_sliding_window": False,
}  # fmt: skip
# mistralai/Mistral-7B-v0.1
MISTRAL_7B = BF16 | {
    "model_type": "mistral", "hidden_size": 4096, "num_attention_heads": 32, "num_hidden_layers": 32,
    "num_key_value_heads": 8, "sliding_window": 4096,
}  # fmt: skip
# google/gemma-3-4b-it: its text_config leaves out heads and head_dim, which are the class's 8, 4 and 256
GEMMA_3_4B = BF16 | {
    "model_type": "gemma3",
    "text_config": {
        "model_type": "gemma3_text", "hidden_size": 2560, "num_hidden_layers": 34, "sliding_window": 1024,
    },
}  # fmt: skip
# openai/gpt-oss-20b
GPT_OSS_20B = {
    "model_type": "gpt_oss", "hidden_size": 2880, "num_attention_heads": 64, "num_hidden_layers": 24,
    "num_key_value_heads": 8, "head_dim": 64, "sliding_window": 128,
    "layer_types": ["sliding_attention", "full_attention"] * 12,
}  # fmt: skip
# tiiuae/falcon-7b
FALCON_7B = BF16 | {
    "model_type": "falcon", "hidden_size": 4544, "num_attention_heads": 71, "num_hidden_layers": 32,
    "num_kv_heads": 71, "multi_query": True, "new_decoder_architecture": False,
}  # fmt: skip
# tiiuae/falcon-40b
FALCON_40B = BF16 | {
    "model_type": "falcon", "hidden_size": 8192, "num_attention_heads": 128, "num_hidden_layers": 60,
    "num_kv_heads": 8, "multi_query": True, "new_decoder_architecture": True,
}  # fmt: skip
# openai-community/gpt2
GPT_2 = {"model_type": "gpt2", "n_embd": 768, "n_head": 12, "n_layer": 12}
# deepseek-ai/DeepSeek-V3
DEEPSEEK_V3 = BF16 | {
    "model_type": "deepseek_v3", "hidden_size": 7168, "num_attention_heads": 128, "num_hidden_layers": 61,
    "num_key_value_heads": 128, "kv_lora_rank": 512, "qk_rope_head_dim": 64, "qk_nope_head_dim": 128,
    "v_head_dim": 128,
}  # fmt: skip
# openbmb/MiniCPM3-4B
MINICPM3_4B = BF16 | {
    "model_type": "minicpm3", "hidden_size": 2560, "num_attention_heads": 40, "num_hidden_layers": 62,
    "num_key_value_heads": 40, "kv_lora_rank": 256, "qk_rope_head_dim": 32,
}  # fmt: skip
# Qwen/Qwen3-Next-80B-A3B-Instruct
QWEN_3_NEXT = BF16 | {
    "model_type": "qwen3_next", "hidden_size": 2048, "num_attention_heads": 16, "num_hidden_layers": 48,
    "num_key_value_heads": 2, "head_dim": 256, "full_attention_interval": 4, "linear_num_key_heads": 16,
}  # fmt: skip
# ai21labs/Jamba-v0.1
JAMBA = BF16 | {
    "model_type": "jamba", "hidden_size": 4096, "num_attention_heads": 32, "num_hidden_layers": 32,
    "num_key_value_heads": 8, "attn_layer_period": 8, "attn_layer_offset": 4, "mamba_d_state": 16,
}  # fmt: skip
# HuggingFaceTB/SmolLM2-135M
SMOLLM2_135M = BF16 | {
    "model_type": "llama", "hidden_size": 576, "num_attention_heads": 9, "num_hidden_layers": 30,
    "num_key_value_heads": 3,
}  # fmt: skip
# google/gemma-3n-E4B-it, its text_config
GEMMA_3N = BF16 | {
    "model_type": "gemma3n_text", "hidden_size": 2048, "num_attention_heads": 8, "num_hidden_layers": 35,
    "num_key_value_heads": 2, "head_dim": 256, "sliding_window": 512, "num_kv_shared_layers": 15,
}  # fmt: skip
# moonshotai/Kimi-Linear-48B-A3B-Instruct
KIMI_LINEAR = BF16 | {
    "model_type": "kimi_linear", "hidden_size": 2304, "num_attention_heads": 32, "num_hidden_layers": 27,
    "kv_lora_rank": 512, "qk_rope_head_dim": 64,
    "linear_attn_config": {"full_attn_layers": [4, 8, 12, 16, 20, 24, 27]},
}  # fmt: skip
# google/recurrentgemma-2b
RECURRENT_GEMMA = BF16 | {
    "model_type": "recurrent_gemma", "hidden_size": 2560, "num_attention_heads": 10, "num_hidden_layers": 26,
    "num_key_value_heads": 1, "attention_window_size": 2048, "lru_width": 2560,
    "block_types": ["recurrent", "recurrent", "attention"],
}  # fmt: skip
# meta-llama/Llama-4-Scout-17B-16E, its text_config
LLAMA_4 = BF16 | {
    "model_type": "llama4_text", "hidden_size": 5120, "num_attention_heads": 40, "num_hidden_layers": 48,
    "num_key_value_heads": 8, "head_dim": 128, "attention_chunk_size": 8192,
}  # fmt: skip


def _kinds(spec: KVSpec) -> dict[str, tuple[int, ...]]:
    return {group.kind: group.layers for group in spec.groups}


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        pytest.param(LLAMA_3_8B, 32 * 8 * (128 + 128) * 2, id="131072: GQA"),
        pytest.param(LLAMA_2_7B, 32 * 32 * (128 + 128) * 2, id="524288: MHA"),
        pytest.param(QWEN_2_5_7B, 28 * 4 * (128 + 128) * 2, id="57344: GQA, window off"),
        pytest.param(MISTRAL_7B, 32 * 8 * (128 + 128) * 2, id="131072: window"),
        pytest.param(GEMMA_3_4B, 34 * 4 * (256 + 256) * 2, id="139264: head_dim of the class"),
        pytest.param(GPT_OSS_20B | BF16, 24 * 8 * (64 + 64) * 2, id="49152: head_dim is not 2880 / 64"),
        pytest.param(FALCON_7B, 32 * 1 * (64 + 64) * 2, id="8192: one head, not the 71 it says"),
        pytest.param(FALCON_40B, 60 * 8 * (64 + 64) * 2, id="122880: GQA in spite of multi_query"),
        pytest.param(
            GPT_2 | {"torch_dtype": "float32"}, 12 * 12 * (64 + 64) * 4, id="73728: other key names"
        ),
        pytest.param(DEEPSEEK_V3, 61 * (512 + 64) * 2, id="70272: MLA"),
        pytest.param(MINICPM3_4B, 62 * (256 + 32) * 2, id="35712: MLA"),
        pytest.param(QWEN_3_NEXT, 12 * 2 * (256 + 256) * 2, id="24576: 12 of 48 layers"),
        pytest.param(JAMBA, 4 * 8 * (128 + 128) * 2, id="16384: 4 of 32 layers"),
        pytest.param(SMOLLM2_135M, 30 * 3 * (64 + 64) * 2, id="23040: GQA"),
        pytest.param(GEMMA_3N, 20 * 2 * (256 + 256) * 2, id="40960: 20 of 35 layers"),
        pytest.param(KIMI_LINEAR, 7 * (512 + 64) * 2, id="8064: MLA in 7 of 27 layers"),
        pytest.param(RECURRENT_GEMMA, 8 * 1 * (256 + 256) * 2, id="8192: 8 of 26 layers"),
    ],
)
def test_bytes_per_token_of_real_models(
    config: dict[str, Any], expected: int, request: pytest.FixtureRequest
) -> None:
    """A published configuration gives the bytes that its layers, heads and dimensions multiply to."""
    found = KVSpec.from_hf_config(config).bytes_per_token
    assert found == expected
    assert f"[{found}:" in request.node.name  # the number, written out, beside the arithmetic


def test_a_mistral_slides_on_every_layer() -> None:
    """Mistral's window is on all layers, and null turns it off, and nothing is its class's 4096."""
    (group,) = KVSpec.from_hf_config(MISTRAL_7B).groups
    assert (group.kind, len(group.layers), group.window) == ("sliding", 32, 4096)
    assert [group.kind for group in KVSpec.from_hf_config(MISTRAL_7B | {"sliding_window": None}).groups] == [
        "full"
    ]
    unsaid = {name: value for name, value in MISTRAL_7B.items() if name != "sliding_window"}
    assert KVSpec.from_hf_config(unsaid).groups[0].window == 4096


def test_a_gemma_3_is_full_at_every_sixth_layer() -> None:
    """Of Gemma 3's 34 layers, 5, 11, 17, 23 and 29 are full and the others see 1024 tokens."""
    spec = KVSpec.from_hf_config(GEMMA_3_4B)
    assert _kinds(spec)["full"] == (5, 11, 17, 23, 29)
    assert len(_kinds(spec)["sliding"]) == 34 - 5
    assert spec.window == 1024
    spec.require_movable()


def test_a_gpt_oss_alternates() -> None:
    """gpt-oss begins with a sliding layer, whether `layer_types` says so or the class does."""
    spec = KVSpec.from_hf_config(GPT_OSS_20B, dtype="bfloat16")
    assert _kinds(spec) == {"sliding": tuple(range(0, 24, 2)), "full": tuple(range(1, 24, 2))}
    unsaid = {name: value for name, value in GPT_OSS_20B.items() if name != "layer_types"}
    assert KVSpec.from_hf_config(unsaid, dtype="bfloat16") == spec


def test_a_qwen_slides_from_max_window_layers() -> None:
    """Qwen's window holds from a layer on, and only with `use_sliding_window`."""
    on = QWEN_2_5_7B | {"use_sliding_window": True, "max_window_layers": 20}
    assert _kinds(KVSpec.from_hf_config(on)) == {"full": tuple(range(20)), "sliding": tuple(range(20, 28))}
    unsaid = {name: value for name, value in QWEN_2_5_7B.items() if name != "use_sliding_window"}
    assert KVSpec.from_hf_config(unsaid) == KVSpec.from_hf_config(QWEN_2_5_7B)


def test_a_gpt_neo_spells_its_layers_as_runs() -> None:
    """GPT-Neo says its layers as a list of kinds and how often it repeats, and its window by another name."""
    # EleutherAI/gpt-neo-125m
    config = {
        "model_type": "gpt_neo", "hidden_size": 768, "num_heads": 12, "num_layers": 12, "window_size": 256,
        "attention_types": [[["global", "local"], 6]],
    }  # fmt: skip
    spec = KVSpec.from_hf_config(config, dtype="float32")
    assert spec.bytes_per_token == 12 * 12 * (64 + 64) * 4
    assert _kinds(spec) == {"full": tuple(range(0, 12, 2)), "sliding": tuple(range(1, 12, 2))}
    assert spec.window == 256


def test_a_smollm3_slides_where_it_has_no_rope() -> None:
    """SmolLM3's window, where it is on, is that of each fourth layer."""
    smollm3 = LLAMA_3_8B | {"model_type": "smollm3", "sliding_window": 512, "num_hidden_layers": 8}
    assert [group.kind for group in KVSpec.from_hf_config(smollm3).groups] == ["full"]
    on = KVSpec.from_hf_config(smollm3 | {"use_sliding_window": True})
    assert _kinds(on) == {"full": (0, 1, 2, 4, 5, 6), "sliding": (3, 7)}


def test_an_exaone_4_may_spell_its_pattern() -> None:
    """A pattern of letters repeats: three local layers, then a global one."""
    exaone = LLAMA_3_8B | {"model_type": "exaone4", "sliding_window": 4096, "sliding_window_pattern": "LLLG"}
    assert _kinds(KVSpec.from_hf_config(exaone))["full"] == tuple(range(3, 32, 4))


def test_a_longcat_has_two_attentions_a_layer() -> None:
    """LongCat-Flash's 28 layers keep 56 latents."""
    # meituan-longcat/LongCat-Flash-Chat
    config = BF16 | {
        "model_type": "longcat_flash", "num_layers": 28, "kv_lora_rank": 512, "qk_rope_head_dim": 64
    }  # fmt: skip
    assert KVSpec.from_hf_config(config).bytes_per_token == 2 * 28 * (512 + 64) * 2


def test_a_llama_4_is_chunked_but_for_every_fourth_layer() -> None:
    """Llama 4's layers with RoPE are chunked, and the fourth, eighth, ... are full."""
    spec = KVSpec.from_hf_config(LLAMA_4)
    assert _kinds(spec)["full"] == tuple(range(3, 48, 4))
    assert {group.kind: group.window for group in spec.groups} == {"chunked": 8192, "full": None}


@pytest.mark.parametrize(
    ("config", "kind", "layers", "has_kv"),
    [
        (QWEN_3_NEXT, "full", tuple(range(3, 48, 4)), 12),
        (JAMBA, "full", (4, 12, 20, 28), 4),
        (KIMI_LINEAR, "mla", (3, 7, 11, 15, 19, 23, 26), 7),
        (RECURRENT_GEMMA, "sliding", tuple(range(2, 26, 3)), 8),
        (JAMBA | {"model_type": "bamba", "attn_layer_period": None, "attn_layer_indices": [9, 18, 27]},
         "full", (9, 18, 27), 3),
        (LLAMA_3_8B | {"model_type": "lfm2", "full_attn_idxs": [2, 5]}, "full", (2, 5), 2),
        (LLAMA_3_8B | {"model_type": "minimax", "num_hidden_layers": 4}, "full", (0, 2), 2),
        (LLAMA_3_8B | {"num_hidden_layers": 3, "attn_type_list": [0, 1, 0]}, "full", (1,), 1),
        (LLAMA_3_8B | {"num_hidden_layers": 5, "hybrid_override_pattern": "M-*EM"}, "full", (2,), 1),
        (LLAMA_3_8B | {"num_hidden_layers": 2, "layer_types": ["conv", "full_attention"]}, "full", (1,), 1),
        (LLAMA_3_8B | {"model_type": "falcon_h1", "num_hidden_layers": 2}, "hybrid", (0, 1), 2),
        (JAMBA | {"model_type": "zamba", "num_hidden_layers": 20, "attn_layer_period": 6},
         "hybrid", (2, 7, 13, 19), 4),
        (JAMBA | {"model_type": "zamba2", "attn_layer_period": None, "hybrid_layer_ids": [6, 11]},
         "hybrid", (6, 11), 2),
    ],
)  # fmt: skip
def test_state_layers_are_named_and_refused(
    config: dict[str, Any], kind: str, layers: tuple[int, ...], has_kv: int
) -> None:
    """A model with states lists all its layers, counts those with KV, and cannot be moved."""
    spec = KVSpec.from_hf_config(config)
    assert _kinds(spec)[kind] == layers
    assert (spec.num_layers, len(spec.layer_kinds)) == (has_kv, config["num_hidden_layers"])
    with pytest.raises(Unsupported, match=r"hybrid|state"):
        spec.require_movable()
    assert hash(spec) == hash(KVSpec.from_hf_config(config))


def test_a_zamba_layer_is_twice_as_wide() -> None:
    """Zamba's attention reads two hidden states side by side: 2 * 4096 / 32 elements a head."""
    assert KVSpec.from_hf_config(JAMBA | {"model_type": "zamba"}).head_dim == 2 * 4096 // 32


def test_layers_that_share_kv_have_none_of_their_own() -> None:
    """Gemma 3n's last 15 layers read earlier ones' KV; with CLA every second layer does."""
    spec = KVSpec.from_hf_config(GEMMA_3N)
    assert _kinds(spec)["shared"] == tuple(range(20, 35))
    assert _kinds(spec)["full"] == (4, 9, 14, 19)
    spec.require_movable()
    cla = KVSpec.from_hf_config(
        LLAMA_3_8B | {"model_type": "hunyuan", "use_cla": True, "cla_share_factor": 2}
    )
    assert _kinds(cla) == {"full": tuple(range(0, 32, 2)), "shared": tuple(range(1, 32, 2))}
    assert cla.bytes_per_token == 16 * 8 * (128 + 128) * 2


@pytest.mark.parametrize(
    ("changes", "heads", "head_dim", "dim_v"),
    [
        ({"num_key_value_heads": None}, 32, 128, 128),
        ({"head_dim": None}, 8, 128, 128),
        ({"head_dim": 192, "v_head_dim": 128}, 8, 192, 128),
        ({"v_head_dim": 128}, 8, 128, 128),
        ({"num_key_value_heads": None, "n_head_kv": 4}, 4, 128, 128),
        ({"num_key_value_heads": None, "n_head_kv": 4, "multi_query": True}, 4, 128, 128),
        ({"multi_query_attention": False}, 32, 128, 128),
        ({"num_key_value_heads": None, "attn_config": {"kv_n_heads": 16}}, 16, 128, 128),
        ({"model_type": "gpt_bigcode", "num_key_value_heads": None}, 1, 128, 128),
        ({"model_type": "chatglm", "num_key_value_heads": None, "multi_query_attention": True,
          "multi_query_group_num": 2, "kv_channels": 96}, 2, 96, 96),
    ],
)  # fmt: skip
def test_heads_and_dimensions(changes: dict[str, Any], heads: int, head_dim: int, dim_v: int) -> None:
    """Heads and dimensions are read under the names that models give them."""
    spec = KVSpec.from_hf_config(LLAMA_3_8B | changes)
    assert (spec.num_kv_heads, spec.head_dim, spec.dim_v) == (heads, head_dim, dim_v)


def test_what_says_nothing_new_makes_no_other_spec() -> None:
    """A value as wide as the key, or a window that is off, is the same KV as without."""
    assert KVSpec.from_hf_config(LLAMA_3_8B | {"v_head_dim": 128}) == KVSpec.from_hf_config(LLAMA_3_8B)
    no_window = {name: value for name, value in QWEN_2_5_7B.items() if name != "sliding_window"}
    assert KVSpec.from_hf_config(QWEN_2_5_7B) == KVSpec.from_hf_config(no_window)
    all_full = QWEN_2_5_7B | {"layer_types": ["full_attention"] * 28, "sliding_window": 4096}
    assert KVSpec.from_hf_config(all_full) == KVSpec.from_hf_config(no_window)


def test_the_language_model_of_a_multimodal_one_is_read() -> None:
    """A nested text_config is what counts, also two deep, and its dtype before the outer one."""
    outer = {"model_type": "llava", "torch_dtype": "float32", "num_hidden_layers": 7}
    expected = KVSpec.from_hf_config(LLAMA_3_8B)
    assert KVSpec.from_hf_config(outer | {"text_config": LLAMA_3_8B}) == expected
    assert KVSpec.from_hf_config({"thinker_config": {"text_config": LLAMA_3_8B}}) == expected
    # llava-hf/llava-1.5-7b-hf says no more than this of its language model
    sparse = {"text_config": {"model_type": "llama", "torch_dtype": "float16"}}
    assert KVSpec.from_hf_config(sparse) == KVSpec.from_hf_config(LLAMA_2_7B)


@pytest.mark.parametrize(
    ("dtype", "expected"),
    [
        ({"torch_dtype": "torch.bfloat16"}, "bfloat16"),
        ({"dtype": "float16", "torch_dtype": "float32"}, "float16"),
    ],
)
def test_the_dtype_is_the_configs(dtype: dict[str, str], expected: str) -> None:
    """The newer key wins, and PyTorch's prefix is dropped."""
    assert KVSpec.from_hf_config(GPT_2 | dtype).dtype == expected


def test_the_dtype_given_wins() -> None:
    """A KV cache may have another dtype than the weights, and the block size is the caller's."""
    spec = KVSpec.from_hf_config(LLAMA_3_8B, dtype="float8_e4m3fn", block_size=32)
    assert (spec.dtype, spec.block_size) == ("float8_e4m3fn", 32)
    assert spec.bytes_per_token == 131_072 // 2


@pytest.mark.parametrize(
    "dtype",
    [
        {},
        {"torch_dtype": "auto"},
        {"dtype": None},
        {"dtype": "float16", "quantization_config": {"kv_cache_scheme": {"num_bits": 8, "type": "float"}}},
    ],
)
def test_a_dtype_that_is_not_said_has_to_be_passed(dtype: dict[str, Any]) -> None:
    """Without a dtype, or with a KV quantised in a way that the engine decides, nothing is guessed."""
    with pytest.raises(InvalidRequest, match="pass dtype=") as caught:
        KVSpec.from_hf_config(GPT_2 | dtype)
    assert caught.value.field == "dtype"
    assert KVSpec.from_hf_config(GPT_2 | dtype, dtype="float16").dtype == "float16"


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"is_encoder_decoder": True}, "encoder-decoder"),
        ({"encoder": LLAMA_3_8B, "decoder": LLAMA_3_8B}, "encoder-decoder"),
        ({"text_config": LLAMA_3_8B, "is_encoder_decoder": True}, "encoder-decoder"),
        ({"cross_attention_layers": [3, 8]}, "cross-attention"),
        ({"block_configs": [{"attention": {"n_heads_in_group": 8}}]}, "block_configs"),
        ({"add_cross_attention": True}, "cross-attention"),
        ({"model_type": "mamba"}, "mamba: it has only state layers"),
        ({"model_type": "bert"}, "bert: it attends in both directions"),
        ({"use_bidirectional_attention": True}, "both directions"),
        ({"index_topk": 2048}, "index_topk"),
        ({"layer_types": ["indexed_attention"] * 32}, "layer 0 is 'indexed_attention'"),
        ({"layer_types": ["mamba"] * 32}, "none of its 32 layers"),
        ({"mamba_d_state": 16}, "mamba_d_state, but nothing says which layers"),
        ({"swa_num_key_value_heads": 4}, "swa_num_key_value_heads is 4, but num_key_value_heads is 8"),
        ({"model_type": "gemma4_text"}, "global_head_dim"),
        ({"num_key_value_heads": [8, 4]}, "num_key_value_heads is a list"),
        ({"model_type": "phi4flash"}, "phi4flash: its layers share KV"),
    ],
)
def test_what_one_spec_cannot_say_is_refused_by_name(changes: dict[str, Any], why: str) -> None:
    """A model whose KV is more than keys and values of the prompt is refused with what it has."""
    with pytest.raises(Unsupported, match=why):
        KVSpec.from_hf_config(LLAMA_3_8B | changes)


@pytest.mark.parametrize("name", ["n_layer", "n_head", "n_embd"])
def test_a_missing_key_is_named(name: str) -> None:
    """What a configuration lacks is named as most models call it, with the other names."""
    config = {key: value for key, value in GPT_2.items() if key != name}
    with pytest.raises(InvalidRequest, match=name) as caught:
        KVSpec.from_hf_config(config, dtype="float16")
    usual = {"n_layer": "num_hidden_layers", "n_head": "num_attention_heads", "n_embd": "hidden_size"}
    assert caught.value.field == usual[name]


def test_an_mla_without_its_rope_is_named() -> None:
    """A latent's size needs both of its parts."""
    config = {key: value for key, value in DEEPSEEK_V3.items() if key != "qk_rope_head_dim"}
    with pytest.raises(InvalidRequest, match="qk_rope_head_dim"):
        KVSpec.from_hf_config(config)


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"num_attention_heads": 33}, "num_key_value_heads"),
        ({"num_attention_heads": 24}, "num_attention_heads"),
        ({"num_key_value_heads": 64}, "num_key_value_heads"),
        ({"num_hidden_layers": -32}, "num_hidden_layers"),
        ({"num_hidden_layers": 0}, "num_hidden_layers"),
        ({"num_hidden_layers": 10**30}, "num_hidden_layers"),
        ({"model_type": "gpt_neo", "attention_types": [[["local"], 10**30]]}, "attention_types"),
        ({"model_type": "gpt_neo", "attention_types": [["local", 3]]}, "attention_types"),
        ({"hidden_size": "4096"}, "hidden_size"),
        ({"num_attention_heads": True}, "num_attention_heads"),
        ({"head_dim": 0}, "head_dim"),
        ({"sliding_window": -1}, "sliding_window"),
        ({"layer_types": ["full_attention"]}, "layer_types"),
        ({"layer_types": ["full_attention"] * 33}, "layer_types"),
        ({"layer_types": "full_attention"}, "layer_types"),
        ({"layer_types": ["sliding_attention"] * 32}, "sliding_window"),
        ({"hybrid_override_pattern": 7}, "hybrid_override_pattern"),
        ({"attn_layer_period": 4, "attn_layer_offset": 4}, "attn_layer_offset"),
        ({"attn_layer_indices": ["4"]}, "attn_layer_indices"),
        ({"num_kv_shared_layers": 32}, "num_kv_shared_layers"),
        ({"use_cla": True}, "cla_share_factor"),
        ({"text_config": "llama"}, "text_config"),
        ({"text_config": [LLAMA_3_8B]}, "text_config"),
        ({"text_config": LLAMA_3_8B | {"num_attention_heads": -1}}, "text_config.num_attention_heads"),
        ({"torch_dtype": "int4"}, "dtype"),
    ],
)
def test_a_wrong_value_is_named(changes: dict[str, Any], field: str) -> None:
    """A value that cannot be is refused with its key, nested ones with their place."""
    with pytest.raises(InvalidRequest) as caught:
        KVSpec.from_hf_config(LLAMA_3_8B | changes)
    assert caught.value.field == field


def test_a_path_and_its_folder_are_read(tmp_path: Path) -> None:
    """The file, its folder, and both as text give what the dict gives."""
    path = tmp_path / "config.json"
    path.write_text(json.dumps(LLAMA_3_8B), encoding="utf-8")
    expected = KVSpec.from_hf_config(LLAMA_3_8B)
    for given in (path, tmp_path, str(path), str(tmp_path)):
        assert KVSpec.from_hf_config(given) == expected


def test_a_file_that_is_not_there_is_a_matter_of_configuration(tmp_path: Path) -> None:
    """A missing file is named, with its folder's too, and a name on the Hub is not fetched."""
    for given in (tmp_path, tmp_path / "config.json"):
        with pytest.raises(ConfigurationError, match=r"config\.json cannot be read") as caught:
            KVSpec.from_hf_config(given)
        assert str(tmp_path) in str(caught.value)
    with pytest.raises(ConfigurationError, match="nothing is downloaded"):
        KVSpec.from_hf_config("meta-llama/Meta-Llama-3-8B")


@pytest.mark.parametrize("text", [b"", b"{", b"[]", b"null", b'"llama"', b"\xff\xfe", b"[" * 100_000])
def test_a_file_without_a_json_object_is_refused(tmp_path: Path, text: bytes) -> None:
    """No JSON, or JSON that is no object, is refused with the path."""
    path = tmp_path / "config.json"
    path.write_bytes(text)
    with pytest.raises(InvalidRequest, match="no JSON") as caught:
        KVSpec.from_hf_config(path)
    assert str(path) in str(caught.value)


def test_a_config_of_another_type_is_refused() -> None:
    """Neither mapping nor path is an error of the call."""
    with pytest.raises(InvalidRequest, match="not int"):
        KVSpec.from_hf_config(7)  # type: ignore[arg-type]


TRANSFORMERS_KINDS = {
    "full_attention": "full", "sliding_attention": "sliding", "linear_attention": "state",
    "chunked_attention": "chunked", "hybrid": "hybrid", "conv": "state",
}  # fmt: skip


@pytest.mark.parametrize(
    "model_type",
    [
        "llama", "mistral", "qwen2", "gemma2", "gemma3_text", "gpt_oss", "cohere2", "olmo3", "exaone4",
        "llama4_text", "qwen3_next", "qwen3_5_text", "jamba", "falcon_h1", "zamba", "zamba2", "minimax",
        "lfm2", "afmoe",
    ],
)  # fmt: skip
def test_transformers_own_classes_agree(model_type: str) -> None:
    """A configuration that transformers writes gives the shape and the layers that its class has."""
    transformers = pytest.importorskip("transformers")
    theirs = transformers.AutoConfig.for_model(model_type)
    saved = theirs.to_dict()
    spec = KVSpec.from_hf_config(saved, dtype="bfloat16")
    head_dim = getattr(theirs, "head_dim", None) or theirs.hidden_size // theirs.num_attention_heads
    assert (spec.num_kv_heads, spec.head_dim) == (theirs.num_key_value_heads, head_dim)
    kinds = getattr(theirs, "layer_types", None)
    if kinds is not None:
        expected = tuple(TRANSFORMERS_KINDS[kind] for kind in kinds)
        assert (spec.layer_kinds or ("full",) * spec.num_layers) == expected
    saved.pop("layer_types", None)
    assert KVSpec.from_hf_config(saved, dtype="bfloat16") == spec  # by rule what it said by list


@pytest.mark.parametrize("model_type", ["deepseek_v3", "minicpm3", "falcon", "gpt_bigcode", "gpt2"])
def test_transformers_own_sizes_agree(model_type: str) -> None:
    """The same for models that say their heads or latent in a way of their own."""
    transformers = pytest.importorskip("transformers")
    theirs = transformers.AutoConfig.for_model(model_type)
    spec = KVSpec.from_hf_config(theirs.to_dict(), dtype="bfloat16")
    assert spec.num_layers == theirs.num_hidden_layers
    if hasattr(theirs, "kv_lora_rank"):
        assert (spec.kind, spec.head_dim) == ("mla", theirs.kv_lora_rank + theirs.qk_rope_head_dim)
    else:
        heads = theirs.num_attention_heads if model_type == "gpt2" else 1
        assert (spec.num_kv_heads, spec.head_dim) == (heads, theirs.hidden_size // theirs.num_attention_heads)


@pytest.mark.parametrize("model_type", sorted(DEFAULTS))
def test_the_defaults_are_those_of_the_class(model_type: str) -> None:
    """Each default that stands in for a missing key is the one that transformers' class has."""
    transformers = pytest.importorskip("transformers")
    theirs = transformers.AutoConfig.for_model(model_type)
    assert {name: getattr(theirs, name) for name in DEFAULTS[model_type]} == dict(DEFAULTS[model_type])


@pytest.mark.parametrize("model_type", sorted(FULL_EVERY))
def test_the_patterns_are_those_of_the_class(model_type: str) -> None:
    """The first full layer of transformers' class is where the pattern puts it."""
    transformers = pytest.importorskip("transformers")
    kinds = transformers.AutoConfig.for_model(model_type).layer_types
    assert kinds.index("full_attention") + 1 == FULL_EVERY[model_type]
