"""Whose KV an engine's is: the fingerprint of its model, settings and layout."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from kvsdk.errors import ConfigurationError
from kvsdk.kv import Fingerprint, KVSpec, detect_layout

if TYPE_CHECKING:
    import torch
    from vllm.config import VllmConfig
    from vllm.v1.kv_cache_interface import KVCacheConfig

_PLAIN = ("auto", "float16", "bfloat16", "float32")


def check_groups(kv_cache_config: KVCacheConfig) -> None:
    """Refuse models of which not every layer's KV can be kept.

    Raises:
        ConfigurationError: By the kinds of the groups.
    """
    from vllm.v1.kv_cache_interface import FullAttentionSpec

    groups = kv_cache_config.kv_cache_groups
    kinds = [type(group.kv_cache_spec).__name__ for group in groups]
    if len(groups) != 1 or not isinstance(groups[0].kv_cache_spec, FullAttentionSpec):
        raise ConfigurationError(
            f"kvsdk keeps KV of models with full attention in all layers; this one has {', '.join(kinds)}",
            backend="vllm",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineKV:
    """What an engine's KV is.

    Attributes:
        fingerprint: Whose.
        spec: Of one worker's part of it.
        layout: How it lies; None where the tensors were not at hand.
    """

    fingerprint: Fingerprint
    spec: KVSpec
    layout: str | None


def describe(config: VllmConfig, layers: Sequence[torch.Tensor] | None) -> EngineKV:
    """What an engine's KV is, by its configuration and its tensors.

    Reads all of the weights once; see `Fingerprint.of_checkpoint`.

    Raises:
        ConfigurationError: The checkpoint cannot be read, or the KV is quantised, whose scales are not known.
        UnknownLayout: The engine is of a version whose layout is not known.
    """
    import vllm

    model, parallel = config.model_config, config.parallel_config
    folder = _folder(model.model, model.revision)
    whole = KVSpec.from_hf_config(folder, dtype=_dtype(config), block_size=config.cache_config.block_size)
    spec = replace(whole, num_kv_heads=max(1, whole.num_kv_heads // parallel.tensor_parallel_size))
    layout = None if layers is None else _layout(layers, spec)
    fingerprint = Fingerprint.of_checkpoint(
        folder,
        spec=whole,
        tokenizer_folder=_folder(model.tokenizer, model.tokenizer_revision),
        config_overrides=model.hf_overrides if isinstance(model.hf_overrides, dict) else {},
        tensor_parallel=parallel.tensor_parallel_size,
        pipeline_parallel=parallel.pipeline_parallel_size,
        context_parallel=parallel.decode_context_parallel_size,
        engine_build=f"vllm {vllm.__version__}",
    )
    return EngineKV(fingerprint=replace(fingerprint, layout_era=layout), spec=spec, layout=layout)


def lora_digest(folder: str) -> str:
    """Of an adapter's files, so that another adapter under the same name is another one."""
    digest = hashlib.sha256()
    for file in sorted(Path(folder).glob("adapter_*")):
        digest.update(f"{file.name}\0{file.stat().st_size}\0".encode())
        with file.open("rb") as opened:
            digest.update(hashlib.file_digest(opened, "sha256").digest())
    return digest.hexdigest()


def _dtype(config: VllmConfig) -> str:
    asked = config.cache_config.cache_dtype
    if asked not in _PLAIN:
        raise ConfigurationError(
            f"kvsdk does not keep KV of dtype {asked}: only the engine knows its scales", backend="vllm"
        )
    return str(config.model_config.dtype if asked == "auto" else asked).removeprefix("torch.")


def _layout(layers: Sequence[torch.Tensor], spec: KVSpec) -> str:
    import vllm
    from vllm.platforms import current_platform

    platform: Literal["cpu", "cuda"] = "cpu" if current_platform.is_cpu() else "cuda"
    return detect_layout(vllm.__version__, layers, spec, platform=platform)


def _folder(name: str, revision: str | None) -> str:
    """Where a model lies that the engine has loaded already."""
    if os.path.isdir(name):
        return name
    from huggingface_hub import snapshot_download

    return snapshot_download(name, revision=revision, local_files_only=True)
