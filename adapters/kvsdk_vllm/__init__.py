"""A local vLLM engine, in process (`vllm:PATH`) or as a server (`vllm+http://HOST#MODEL`)."""

from kvsdk_vllm._backend import VllmBackend, backend
from kvsdk_vllm._server import VllmServerBackend
from kvsdk_vllm.serving import NativeTiers, ServeArgs, serve_args
from kvsdk_vllm.store.config import StoreConfig

__all__ = [
    "NativeTiers",
    "ServeArgs",
    "StoreConfig",
    "VllmBackend",
    "VllmServerBackend",
    "backend",
    "serve_args",
]
