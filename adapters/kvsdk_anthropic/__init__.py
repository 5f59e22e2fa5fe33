"""Anthropic Messages, through the vendor's own SDK (`pip install 'kvsdk[anthropic]'`)."""

from kvsdk_anthropic._backend import AnthropicBackend, backend

__all__ = ["AnthropicBackend", "backend"]
