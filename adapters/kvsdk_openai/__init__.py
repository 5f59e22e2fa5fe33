"""OpenAI Responses and Chat Completions, and servers that speak them (`pip install 'kvsdk[openai]'`)."""

from kvsdk_openai._backend import OpenAIBackend, backend

__all__ = ["OpenAIBackend", "backend"]
