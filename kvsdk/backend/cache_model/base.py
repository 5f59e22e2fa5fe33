"""What all models do alike: one look, and what it leaves behind."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from inspect import signature
from threading import Lock
from typing import Any, NamedTuple, TypeVar, Unpack

from kvsdk._text import did_you_mean
from kvsdk.backend.cache_model.values import (
    CacheBlock,
    CacheModel,
    CacheSettings,
    TtlTokens,
    check_settings,
)
from kvsdk.errors import ConfigurationError
from kvsdk.reply import Predicted

M = TypeVar("M", bound=CacheModel)


class Plan(NamedTuple):
    """What a request would do: the counts, and a function that makes it so."""

    predicted: Predicted
    keep: Callable[[], None]


class PrefixModel(ABC):
    """A cache model whose rules are one method, `_plan`. Thread-safe: one request at a time."""

    def __init__(self) -> None:
        self._lock = Lock()

    def observe(
        self, t_s: float, blocks: Sequence[CacheBlock], **settings: Unpack[CacheSettings]
    ) -> Predicted:
        """See `CacheModel.observe`."""
        check_settings(settings)
        with self._lock:
            predicted, keep = self._plan(t_s, blocks, settings)
            keep()
        return predicted

    def predict(
        self, t_s: float, blocks: Sequence[CacheBlock], **settings: Unpack[CacheSettings]
    ) -> Predicted:
        """See `CacheModel.predict`."""
        check_settings(settings)
        with self._lock:
            return self._plan(t_s, blocks, settings).predicted

    @abstractmethod
    def _plan(self, t_s: float, blocks: Sequence[CacheBlock], settings: CacheSettings) -> Plan:
        """Work out a request without changing anything; `keep` of the result is called at most once."""


class NothingCached(PrefixModel):
    """A backend of which nothing is known: every token is fresh."""

    def _plan(self, t_s: float, blocks: Sequence[CacheBlock], settings: CacheSettings) -> Plan:
        total = sum(block.tokens for block in blocks)
        return Plan(Predicted(0, 0, TtlTokens(), total), _nothing)


def _nothing() -> None:
    """Leave all as it is."""


def make_model(factory: Callable[..., M], switches: Mapping[str, Any], *arguments: Any) -> M:
    """Call a factory of models with the switches that a caller gave.

    Raises:
        ConfigurationError: The model has no switch of a name, or not that value of it.
    """
    parameters = signature(factory).parameters.values()
    known = [each.name for each in parameters if each.kind is each.KEYWORD_ONLY]
    for name in switches:
        if name not in known:
            raise ConfigurationError(f"the cache model has no switch {name!r}.{did_you_mean(name, known)}")
    return factory(*arguments, **switches)
