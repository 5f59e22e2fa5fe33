"""The cache model of an address."""

from __future__ import annotations

from typing import Any

from kvsdk.backend.cache_model import CacheModel
from kvsdk.backend.discovery import backend
from kvsdk.backend.protocol import Backend


def cache_model(address: str | Backend, **switches: Any) -> CacheModel:
    """The cache of a backend as a pure model, for prediction and replay. Needs no key and no vendor SDK.

    Args:
        address: `"scheme:target"`, or a `Backend` that is made already, where it needs options.
        **switches: Choices where the vendor's documentation leaves one; each model names its own.

    Raises:
        UnknownScheme: No adapter has this scheme.
        ConfigurationError: The address has no target, or the model has no such switch.
    """
    return backend(address).cache_model(**switches)
