"""One engine per model and settings in a process, shared by the channels that use it."""

from __future__ import annotations

import json
import logging
import os
import threading
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from kvsdk.errors import ConfigurationError

from kvsdk_vllm._engine import EngineThread
from kvsdk_vllm._facts import CPU_BLOCK_SIZE, CPU_KV_CACHE_BYTES
from kvsdk_vllm._start import among_vllms_modules
from kvsdk_vllm.store.config import CONNECTOR, StoreConfig

if TYPE_CHECKING:
    from vllm.config import KVTransferConfig
    from vllm.v1.engine.llm_engine import LLMEngine


@dataclass(slots=True)
class SharedEngine:
    """An engine, its tokenizer (one thread at a time), and how many channels hold it.

    `sampling` is what the model's own generation config asks for; `has_store` says whether KV is kept outside
    of it.
    """

    thread: EngineThread
    tokenizer: Any
    max_model_len: int
    block_size: int
    sampling: Mapping[str, Any]
    has_store: bool
    holders: int = 0
    parsers: dict[str, Any] = field(default_factory=dict)
    tokenizer_lock: threading.Lock = field(default_factory=threading.Lock)


_engines: dict[str, SharedEngine] = {}
_lock = threading.Lock()


def acquire(model: str, settings: Mapping[str, Any], store: StoreConfig | None = None) -> SharedEngine:
    """The engine of a model, started at the first call (seconds to minutes) and shared after it.

    Raises:
        ConfigurationError: It does not start, or another engine of this process has a store.
    """
    key = f"{model} {sorted(settings.items())!r} {store and store.to_json()}"
    with _lock:
        shared = _engines.get(key)
        if shared is None:
            _check_alone(store)
            shared = _engines[key] = _start(model, settings, store)
        shared.holders += 1
        return shared


def release(shared: SharedEngine) -> None:
    """Give an engine back; the last holder stops it and frees its memory."""
    with _lock:
        shared.holders -= 1
        if shared.holders:
            return
        for key, value in list(_engines.items()):
            if value is shared:
                del _engines[key]
        shared.thread.close()
        if shared.has_store:
            from vllm.distributed.kv_transfer import ensure_kv_transfer_shutdown

            ensure_kv_transfer_shutdown()


def _check_alone(store: StoreConfig | None) -> None:
    """A process has one connector (vllm 0.32.0): a second engine would write to the first one's store."""
    if _engines and (store is not None or any(engine.has_store for engine in _engines.values())):
        raise ConfigurationError(
            "an engine with a store is the only one of its process; close the other client first",
            backend="vllm",
        )


def _start(model: str, settings: Mapping[str, Any], store: StoreConfig | None) -> SharedEngine:
    _set_environment(model)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from vllm.engine.arg_utils import EngineArgs
        from vllm.v1.engine.llm_engine import LLMEngine

    arguments: dict[str, Any] = {
        "model": model,
        "disable_log_stats": True,
        "use_tqdm_on_load": False,
        **_machine(),
        **settings,
    }
    _check_block_size(arguments)
    if store is not None:
        arguments["kv_transfer_config"] = _transfer(store)

    def make() -> LLMEngine:
        with warnings.catch_warnings(), among_vllms_modules():
            warnings.simplefilter("ignore")  # other packages' deprecations are not the caller's business
            return LLMEngine.from_engine_args(EngineArgs(**arguments), enable_multiprocessing=False)

    try:
        thread = EngineThread(make)
    except (TypeError, ValueError, OSError) as error:
        raise ConfigurationError(f"the engine cannot start: {error}", backend="vllm", model=model) from error
    engine = thread.engine
    return SharedEngine(
        thread,
        engine.get_tokenizer(),
        engine.model_config.max_model_len,
        engine.vllm_config.cache_config.block_size,
        engine.model_config.get_diff_sampling_param(),
        store is not None,
    )


def _transfer(store: StoreConfig) -> KVTransferConfig:
    """How the engine finds kvsdk's connector."""
    from vllm.config import KVTransferConfig

    return KVTransferConfig(**CONNECTOR, kv_connector_extra_config=json.loads(store.to_json()))


def _set_environment(model: str) -> None:
    """What vLLM reads from the environment only; what the user has set stays.

    The engine runs in this process, on this thread's scheduler (no worker processes), says only what is
    wrong, sends no usage statistics, and looks for nothing on the network when the model is a folder.
    """
    os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    logging.getLogger("torch._library.triton").setLevel(logging.ERROR)
    if os.path.isdir(model):
        os.environ.setdefault("HF_HUB_OFFLINE", "1")


def _machine() -> dict[str, Any]:
    """What kvsdk chooses on a CPU: the fastest there that is exact (float32, eager, small blocks)."""
    from vllm.platforms import current_platform

    if not current_platform.is_cpu():
        return {}
    chosen: dict[str, Any] = {"dtype": "float32", "enforce_eager": True, "block_size": CPU_BLOCK_SIZE}
    if "VLLM_CPU_KVCACHE_SPACE" not in os.environ:
        chosen["kv_cache_memory_bytes"] = CPU_KV_CACHE_BYTES
    return chosen


def _check_block_size(arguments: Mapping[str, Any]) -> None:
    from vllm.platforms import current_platform

    block_size = arguments.get("block_size")
    if current_platform.is_cpu() and block_size and block_size % CPU_BLOCK_SIZE:
        raise ConfigurationError(
            f"block_size is a multiple of {CPU_BLOCK_SIZE} on a CPU, not {block_size}", backend="vllm"
        )
