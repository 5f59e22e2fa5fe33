"""The layouts of the engines, by name. Adding one is adding a line."""

from __future__ import annotations

from collections.abc import Mapping

LAYOUTS: Mapping[str, str] = {
    # vLLM up to 0.22: flash attention's and HND.
    "vllm/<=0.22": "layer | kv block token head dim",
    "vllm/<=0.22-hnd": "layer | kv block head token dim",
    "vllm/0.23-0.25": "layer | block kv token head dim",
    # One logical view [block, head, token, 2 * dim], keys then values; all layers may share one store.
    "vllm/0.26+": "layer | block head token (kv dim)",
    "vllm/0.26+nhd": "layer | block token head (kv dim)",
    # The CPU kernels: per block and head the keys transposed, then the values. Read as K|V it is garbage.
    "vllm/0.26+cpu": "layer | block head (dim token ; token dim)",
    # The first paged attention: keys tiled by 16 bytes, values transposed.
    "vllm/paged-v0": "layer kv | block head dim/x token x ; block head dim token",
    "vllm/mla": "layer | block token latent",
    "sglang/layer-first": "kv layer | slot head dim",
    "sglang/page-first": "kv | slot layer head dim",
    "hf/dynamic": "layer kv | batch head token dim",
    "lmcache/2ltd": "| kv layer token (head dim)",
    "trtllm": "layer | block kv head token dim",
}
