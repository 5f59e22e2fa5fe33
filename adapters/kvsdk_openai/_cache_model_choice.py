"""Which cache model a model at a server has."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kvsdk.backend.cache_model import CacheModel, NothingCached, make_model, one_of

from kvsdk_openai._cache_model import MarkedGptCacheModel
from kvsdk_openai._cache_model_intervals import IntervalGptCacheModel
from kvsdk_openai._cache_models_compatible import COMPATIBLE
from kvsdk_openai._facts import Api, Profile, profile, takes_marks

_AZURE: Mapping[str, Any] = {"ttls": ("30m",), "lookup": "azure"}  # documented, 2026-08


def choose_model(model: str, api: Api, server: Profile, switches: Mapping[str, Any]) -> CacheModel:
    """The cache model; of a server that is not known, one that caches nothing.

    Args:
        model: The model's name.
        api: Chat Completions take only the TTL 30m.
        server: The server's profile.
        switches: The model's switches, and `semantics`, which names another vendor's cache.
    """
    rest = {name: value for name, value in switches.items() if name != "semantics"}
    name = switches.get("semantics") or _vendor(model, server)
    if name in ("openai", "azure"):
        if not takes_marks(model, profile(name)):
            return make_model(IntervalGptCacheModel, rest, model.rpartition("/")[2])
        own: dict[str, Any] = {} if api == "responses" else {"ttls": ("30m",)}
        if name == "azure":
            own.update(_AZURE)
        return make_model(MarkedGptCacheModel, {**own, **rest})
    if "semantics" in switches:
        one_of("semantics", name, COMPATIBLE)
    return make_model(COMPATIBLE.get(name, NothingCached), rest)


def _vendor(model: str, server: Profile) -> str:
    if server.name != "moonshot":
        return server.name
    return "kimi-for-coding" if model.startswith("kimi-for-coding") else "kimi"
