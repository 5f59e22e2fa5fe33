"""The counters of a vLLM engine, and what happened between two looks at them."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

from kvsdk.backend import require_package
from kvsdk.errors import BackendProtocolError, InvalidRequest

from kvsdk_vllm.observe.scrape import get_text

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric
    from prometheus_client.samples import Sample

Samples = Mapping[str, list["Sample"]]
Count = int | Mapping[str, int] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Counted:
    """What an engine counts; None where it does not say.

    Attributes:
        prompt_tokens: Tokens of the prompts that it took in, computed and cached ones.
        prompt_tokens_by_source: The same, by `local_compute`, `local_cache_hit`, `external_kv_transfer`.
        cached_tokens_by_source: Tokens that were read from a cache, by where they were: `device`, `host`,
            `disk`, `p2p`, `external_unspecified`. A load that failed afterwards counts too.
        generation_tokens: Tokens that it generated.
        prefix_queried_tokens: Tokens that were looked up in its own cache.
        prefix_hit_tokens: Those of them that were there.
        external_queried_tokens: Tokens that were looked up by a connector, after its own cache.
        external_hit_tokens: Those of them that were there.
        preemptions: Requests that lost their blocks to others and are computed again.
    """

    prompt_tokens: int | None = None
    prompt_tokens_by_source: Mapping[str, int] | None = None
    cached_tokens_by_source: Mapping[str, int] | None = None
    generation_tokens: int | None = None
    prefix_queried_tokens: int | None = None
    prefix_hit_tokens: int | None = None
    external_queried_tokens: int | None = None
    external_hit_tokens: int | None = None
    preemptions: int | None = None

    @property
    def hit_rate(self) -> float | None:
        """Tokens that were in the engine's own cache, of those looked up there; None before the first."""
        return _ratio(self.prefix_hit_tokens, self.prefix_queried_tokens)

    @property
    def external_hit_rate(self) -> float | None:
        """Tokens that a connector had, of those that it was asked for; None before the first."""
        return _ratio(self.external_hit_tokens, self.external_queried_tokens)


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineInterval(_Counted):
    """What an engine counted between two looks; all None where it was restarted in between.

    Attributes:
        seconds: How long that was.
    """

    seconds: float

    @property
    def prompt_tokens_per_s(self) -> float | None:
        """Prompt tokens per second."""
        return _ratio(self.prompt_tokens, self.seconds)

    @property
    def generation_tokens_per_s(self) -> float | None:
        """Generated tokens per second."""
        return _ratio(self.generation_tokens, self.seconds)


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineMetrics(_Counted):
    """An engine's metrics at one moment; counts are since it started. None where it does not say.

    The data-parallel ranks of a server are added up. Names and meanings are those of vllm 0.32.0.

    Attributes:
        at_s: When, by the reader's clock; it means something only beside another one.
        created_s: When the counters were made, in seconds since 1970.
        kv_cache_usage: Share of the cache's blocks that running requests hold, 0 to 1; the mean over ranks.
            Blocks that are only kept for later do not count.
        running_requests: Requests in the current batch.
        waiting_requests: Requests that wait.
    """

    at_s: float
    created_s: float | None = None
    kv_cache_usage: float | None = None
    running_requests: int | None = None
    waiting_requests: int | None = None

    @classmethod
    def read(
        cls, address: str, *, timeout_s: float = 5.0, clock: Callable[[], float] = time.monotonic
    ) -> Self:
        """Ask a server.

        Args:
            address: Its address, `http://HOST:PORT` or as a backend, `vllm+http://HOST:PORT#MODEL`.
            timeout_s: How long it may take.
            clock: Seconds that only go forward.

        Raises:
            ConfigurationError: The address is none, or prometheus-client is missing; it comes with vLLM.
            BackendUnreachable: No answer, or none in time (`BackendTimeout`).
            BackendUnavailable: It answered that it cannot.
            BackendProtocolError: Its answer is not metrics.
        """
        return cls.parse(get_text(address, timeout_s), at_s=clock())

    @classmethod
    def parse(cls, text: str, *, at_s: float) -> Self:
        """Read Prometheus' text format.

        Raises:
            BackendProtocolError: It is not that.
        """
        require_package("prometheus_client", extra="vllm")
        from prometheus_client.parser import text_string_to_metric_families

        try:
            return cls._of(text_string_to_metric_families(text), at_s)
        except ValueError as error:
            raise BackendProtocolError(
                f"this is not Prometheus' text format: {error}"[:300], backend="vllm"
            ) from error

    @classmethod
    def of_process(cls, *, clock: Callable[[], float] = time.monotonic) -> Self:
        """The metrics of the engine in this process, the last one that was started.

        An engine has them when it was started with `disable_log_stats=False`, which kvsdk does for a client
        that has `engine={"disable_log_stats": False}` only. Without, everything is None.
        """
        require_package("prometheus_client", extra="vllm")
        from prometheus_client import REGISTRY

        return cls._of(REGISTRY.collect(), clock())

    @classmethod
    def _of(cls, families: Iterable[Metric], at_s: float) -> Self:
        found: dict[str, list[Sample]] = {}
        for family in families:
            for sample in family.samples:
                if sample.name.startswith("vllm:"):
                    found.setdefault(sample.name.removeprefix("vllm:"), []).append(sample)
        usages = _values(found, "kv_cache_usage_perc")
        return cls(
            at_s=at_s,
            created_s=max(_values(found, "prompt_tokens_created") or [], default=None),
            kv_cache_usage=None if usages is None else sum(usages) / len(usages),
            running_requests=_total(found, "num_requests_running"),
            waiting_requests=_total(found, "num_requests_waiting"),
            prompt_tokens=_total(found, "prompt_tokens_total"),
            prompt_tokens_by_source=_by_source(found, "prompt_tokens_by_source_total"),
            cached_tokens_by_source=_by_source(found, "prompt_tokens_cached_by_source_total"),
            generation_tokens=_total(found, "generation_tokens_total"),
            prefix_queried_tokens=_total(found, "prefix_cache_queries_total"),
            prefix_hit_tokens=_total(found, "prefix_cache_hits_total"),
            external_queried_tokens=_total(found, "external_prefix_cache_queries_total"),
            external_hit_tokens=_total(found, "external_prefix_cache_hits_total"),
            preemptions=_total(found, "num_preemptions_total"),
        )

    def since(self, earlier: EngineMetrics) -> EngineInterval:
        """What was counted since an earlier look at the same engine.

        Where a count went back, or the counters were made anew, the engine was restarted, and what happened
        in between is not known.

        Raises:
            InvalidRequest: `earlier` is later.
        """
        seconds = self.at_s - earlier.at_s
        if seconds < 0:
            raise InvalidRequest("since takes an earlier look at the engine", field="earlier", backend="vllm")
        changes: dict[str, Any] = {
            name: _difference(getattr(self, name), getattr(earlier, name))
            for name in _Counted.__dataclass_fields__
        }
        is_remade = None not in (self.created_s, earlier.created_s) and self.created_s != earlier.created_s
        if is_remade or any(map(_went_back, changes.values())):
            return EngineInterval(seconds=seconds)
        return EngineInterval(seconds=seconds, **changes)


def _ratio(part: float | None, whole: float | None) -> float | None:
    return None if part is None or not whole else part / whole


def _difference(now: Count, before: Count) -> Count:
    """Of a count, or of each of a source; a source that is new was at 0."""
    if now is None or before is None:
        return None
    if isinstance(now, Mapping) and isinstance(before, Mapping):
        return {source: now.get(source, 0) - before.get(source, 0) for source in {**before, **now}}
    assert isinstance(now, int)
    assert isinstance(before, int)
    return now - before


def _went_back(change: Count) -> bool:
    changes = change.values() if isinstance(change, Mapping) else (change or 0,)
    return any(each < 0 for each in changes)


def _values(found: Samples, name: str) -> list[float] | None:
    """A metric's values; None where there is none, or one is no number."""
    values = [sample.value for sample in found.get(name, ())]
    return values if values and all(map(math.isfinite, values)) else None


def _total(found: Samples, name: str) -> int | None:
    values = _values(found, name)
    return None if values is None else round(sum(values))


def _by_source(found: Samples, name: str) -> dict[str, int] | None:
    if _values(found, name) is None:
        return None
    totals: dict[str, int] = {}
    for sample in found[name]:
        source = sample.labels.get("source", "")
        totals[source] = totals.get(source, 0) + round(sample.value)
    return totals
