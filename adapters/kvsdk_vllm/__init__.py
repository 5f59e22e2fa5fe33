"""A local vLLM engine, in process (`vllm:PATH`) or as a server (`vllm+http://HOST#MODEL`)."""

from kvsdk_vllm._backend import VllmBackend, backend
from kvsdk_vllm._server import VllmServerBackend

__all__ = ["VllmBackend", "VllmServerBackend", "backend"]
