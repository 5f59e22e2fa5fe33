"""An engine's counters, in the text that Prometheus' own library writes, and from a real server."""

from __future__ import annotations

import dataclasses
import socket
import sys
import threading
from typing import Any

import kvsdk
import pytest
from kvsdk.errors import (
    BackendNotInstalled,
    BackendProtocolError,
    BackendTimeout,
    BackendUnavailable,
    BackendUnreachable,
    ConfigurationError,
    InvalidRequest,
)
from prometheus_client import CollectorRegistry, Counter, Gauge, generate_latest
from pytest_httpserver import HTTPServer
from werkzeug import Request, Response

from kvsdk_vllm.observe import EngineInterval, EngineMetrics, scrape
from kvsdk_vllm.observe.scrape import metrics_url

LABELS = ["model_name", "engine"]
UNKNOWN_COUNTS = dict.fromkeys(
    (
        "prompt_tokens",
        "prompt_tokens_by_source",
        "cached_tokens_by_source",
        "generation_tokens",
        "prefix_queried_tokens",
        "prefix_hit_tokens",
        "external_queried_tokens",
        "external_hit_tokens",
        "preemptions",
    )
)


class Engine:
    """Counters as an engine has them, with a rank for each label."""

    def __init__(self, ranks: int = 1) -> None:
        self.registry = CollectorRegistry()
        self._ranks = [str(rank) for rank in range(ranks)]

    def count(self, name: str, *values: float, source: str | None = None) -> None:
        """Add to a counter, one number for each rank."""
        self._add(Counter, name, values, source)

    def gauge(self, name: str, *values: float) -> None:
        """Set a gauge, one number for each rank."""
        self._add(Gauge, name, values, None)

    def _add(self, kind: Any, name: str, values: tuple[float, ...], source: str | None) -> None:
        labels = [*LABELS, "source"] if source is not None else LABELS
        metric = self.registry._names_to_collectors.get(f"vllm:{name}")
        if metric is None:
            metric = kind(f"vllm:{name}", "help", labels, registry=self.registry)
        for rank, value in zip(self._ranks, values, strict=True):
            named = ("smol", rank) if source is None else ("smol", rank, source)
            metric.labels(*named).inc(value)

    @property
    def text(self) -> str:
        return generate_latest(self.registry).decode()

    def look(self, at_s: float) -> EngineMetrics:
        return EngineMetrics.parse(self.text, at_s=at_s)


def busy_engine() -> Engine:
    engine = Engine()
    engine.gauge("kv_cache_usage_perc", 0.25)
    engine.gauge("num_requests_running", 3)
    engine.gauge("num_requests_waiting", 2)
    engine.count("num_preemptions", 1)
    engine.count("prompt_tokens", 1000)
    engine.count("generation_tokens", 50)
    engine.count("prefix_cache_queries", 900)
    engine.count("prefix_cache_hits", 300)
    engine.count("external_prefix_cache_queries", 600)
    engine.count("external_prefix_cache_hits", 150)
    for source, tokens in (("local_compute", 550), ("local_cache_hit", 300), ("external_kv_transfer", 150)):
        engine.count("prompt_tokens_by_source", tokens, source=source)
    for source, tokens in (("device", 300), ("host", 0), ("disk", 150)):
        engine.count("prompt_tokens_cached_by_source", tokens, source=source)
    return engine


def test_every_count_has_its_place() -> None:
    """Each of vLLM's names is read into its own field, and rates are of those."""
    found = busy_engine().look(5.0)
    assert found.created_s is not None
    assert dataclasses.replace(found, created_s=None) == EngineMetrics(
        at_s=5.0,
        kv_cache_usage=0.25,
        running_requests=3,
        waiting_requests=2,
        preemptions=1,
        prompt_tokens=1000,
        prompt_tokens_by_source={
            "local_compute": 550,
            "local_cache_hit": 300,
            "external_kv_transfer": 150,
        },
        cached_tokens_by_source={"device": 300, "host": 0, "disk": 150},
        generation_tokens=50,
        prefix_queried_tokens=900,
        prefix_hit_tokens=300,
        external_queried_tokens=600,
        external_hit_tokens=150,
    )
    assert found.hit_rate == 300 / 900
    assert found.external_hit_rate == 150 / 600


def test_ranks_are_added_up() -> None:
    """Counts of two ranks are summed, and the share of the cache that is in use is their mean."""
    engine = Engine(ranks=2)
    engine.count("prompt_tokens", 10, 32)
    engine.count("prompt_tokens_by_source", 4, 5, source="local_cache_hit")
    engine.gauge("kv_cache_usage_perc", 0.5, 0.75)
    engine.gauge("num_requests_running", 1, 2)
    found = engine.look(0.0)
    assert found.prompt_tokens == 10 + 32
    assert found.prompt_tokens_by_source == {"local_cache_hit": 4 + 5}
    assert found.kv_cache_usage == (0.5 + 0.75) / 2
    assert found.running_requests == 1 + 2


@pytest.mark.parametrize("text", ["", "# HELP x y\n", "sglang:prompt_tokens_total 5.0\n", "go_threads 3\n"])
def test_what_is_not_there_is_unknown(text: str) -> None:
    """Names that are missing are None, never 0; so are rates."""
    found = EngineMetrics.parse(text, at_s=1.0)
    assert found == EngineMetrics(at_s=1.0)
    assert found.prompt_tokens is None
    assert found.hit_rate is None


def test_no_number_is_unknown() -> None:
    """A value that is no number makes its own field None and no other."""
    found = EngineMetrics.parse("vllm:prompt_tokens_total NaN\nvllm:generation_tokens_total 4.0\n", at_s=1.0)
    assert (found.prompt_tokens, found.generation_tokens) == (None, 4)


@pytest.mark.parametrize("text", ["<html>no</html>", '{"error": 1}', "a b c", 'vllm:x{a="b\n', "\0"])
def test_what_is_not_metrics_is_refused(text: str) -> None:
    """A page of something else is an error of the backend."""
    with pytest.raises(BackendProtocolError, match="not Prometheus"):
        EngineMetrics.parse(text, at_s=1.0)


def test_an_interval_is_what_happened_in_it() -> None:
    """Between two looks 10 s apart: the differences of all counts, and rates of those alone."""
    engine = busy_engine()
    before = engine.look(5.0)
    engine.count("prompt_tokens", 200)
    engine.count("generation_tokens", 30)
    engine.count("prefix_cache_queries", 200)
    engine.count("prefix_cache_hits", 150)
    engine.count("prompt_tokens_cached_by_source", 140, source="device")
    engine.count("prompt_tokens_cached_by_source", 10, source="p2p")
    assert engine.look(15.0).since(before) == EngineInterval(
        seconds=10.0,
        prompt_tokens=200,
        prompt_tokens_by_source={"local_compute": 0, "local_cache_hit": 0, "external_kv_transfer": 0},
        cached_tokens_by_source={"device": 140, "host": 0, "disk": 0, "p2p": 10},
        generation_tokens=30,
        prefix_queried_tokens=200,
        prefix_hit_tokens=150,
        external_queried_tokens=0,
        external_hit_tokens=0,
        preemptions=0,
    )
    interval = engine.look(15.0).since(before)
    assert interval.prompt_tokens_per_s == 200 / 10
    assert interval.generation_tokens_per_s == 30 / 10
    assert interval.hit_rate == 150 / 200
    assert interval.external_hit_rate is None  # nothing was asked for
    assert engine.look(5.0).since(before).prompt_tokens_per_s is None  # in no time


def test_what_one_look_does_not_have_is_unknown() -> None:
    """A count that only one of the two looks has is None in the interval; the others are there."""
    engine = Engine()
    engine.count("prompt_tokens", 5)
    before = engine.look(0.0)
    engine.count("prompt_tokens", 5)
    engine.count("generation_tokens", 7)
    engine.count("prompt_tokens_by_source", 7, source="local_compute")
    interval = engine.look(1.0).since(before)
    assert interval == EngineInterval(seconds=1.0, prompt_tokens=5)


@pytest.mark.parametrize("name", ["prompt_tokens", "prefix_hit_tokens", "preemptions"])
def test_a_count_that_went_back_makes_the_interval_unknown(name: str) -> None:
    """The engine was restarted: nothing of the interval is known, its length aside."""
    before = busy_engine().look(5.0)
    after = dataclasses.replace(before, at_s=6.0, **{name: 0})
    assert after.since(before) == EngineInterval(seconds=1.0, **UNKNOWN_COUNTS)


@pytest.mark.parametrize("sources", [{"device": 299, "host": 0, "disk": 150}, {"device": 300, "host": 0}])
def test_a_source_that_went_back_makes_the_interval_unknown(sources: dict[str, int]) -> None:
    """A source that has less than before, or is gone, is of another engine too."""
    before = busy_engine().look(5.0)
    after = dataclasses.replace(before, at_s=6.0, cached_tokens_by_source=sources)
    assert after.since(before) == EngineInterval(seconds=1.0)


def test_counters_that_were_made_anew_make_the_interval_unknown() -> None:
    """A new engine that has counted more than the old one is known by when its counters were made."""
    before = busy_engine().look(5.0)
    assert before.created_s is not None
    after = dataclasses.replace(before, at_s=6.0, created_s=before.created_s + 100, prompt_tokens=5000)
    assert after.since(before) == EngineInterval(seconds=1.0)
    unsaid = dataclasses.replace(after, created_s=None)  # servers of several processes do not say
    assert unsaid.since(before).prompt_tokens == 5000 - 1000


def test_since_takes_an_earlier_look() -> None:
    """The two the wrong way round are refused."""
    with pytest.raises(InvalidRequest, match="earlier"):
        EngineMetrics(at_s=1.0).since(EngineMetrics(at_s=2.0))


@pytest.mark.parametrize(
    "address",
    [
        "http://h:8000",
        "http://h:8000/",
        "http://h:8000/v1",
        "http://h:8000/v1/",
        "http://h:8000/metrics",
        "vllm+http://h:8000#smol",
    ],
)
def test_addresses_of_a_server(address: str) -> None:
    """A server's address, its API's, its metrics' and the backend's own all lead there."""
    assert metrics_url(address) == "http://h:8000/metrics"


@pytest.mark.parametrize(
    "address", ["", "h:8000", "file:///etc/passwd", "http://", "vllm:/m", "http://h:port", "http://[::1"]
)
def test_what_is_no_address(address: str) -> None:
    """It is refused before anything is sent."""
    with pytest.raises(ConfigurationError, match="no address of a vLLM server"):
        EngineMetrics.read(address)


def test_a_server_is_read(httpserver: HTTPServer) -> None:
    """One GET of /metrics, with the time at which its answer was there."""
    engine = busy_engine()
    httpserver.expect_oneshot_request("/metrics", method="GET").respond_with_data(engine.text)
    found = EngineMetrics.read(httpserver.url_for("/v1"), clock=lambda: 42.0)
    assert found == engine.look(42.0)


@pytest.mark.parametrize(
    ("status", "error"),
    [(404, BackendProtocolError), (403, BackendProtocolError), (500, BackendUnavailable)],
)
def test_a_server_that_refuses(httpserver: HTTPServer, status: int, error: type[Exception]) -> None:
    """The status is in the error."""
    httpserver.expect_request("/metrics").respond_with_data("no", status=status)
    with pytest.raises(error, match=str(status)) as refused:
        EngineMetrics.read(httpserver.url_for(""))
    assert isinstance(refused.value, kvsdk.KvsdkError)
    assert refused.value.status == status


def test_a_server_that_is_not_there() -> None:
    """Nobody at the port is unreachable."""
    with pytest.raises(BackendUnreachable, match="no answer"):
        EngineMetrics.read("http://127.0.0.1:1")


def test_a_server_that_does_not_answer(httpserver: HTTPServer) -> None:
    """One that has nothing to say in time is a timeout."""
    is_over = threading.Event()

    def wait(request: Request) -> Response:
        is_over.wait(20)
        return Response("")

    httpserver.expect_request("/metrics").respond_with_handler(wait)
    try:
        with pytest.raises(BackendTimeout, match="no answer"):
            EngineMetrics.read(httpserver.url_for(""), timeout_s=0.2)
    finally:
        is_over.set()


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nvllm:prompt_tokens_total 1\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1b\r\nvllm:prompt_tokens_total 1\n\r\n",
        b"",
        b"SSH-2.0\r\n\r\n",
    ],
)
def test_a_page_that_breaks_off_is_none(answer: bytes) -> None:
    """What came of it is not taken for all of it."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(65536)
                connection.sendall(answer)

        server = threading.Thread(target=serve)
        server.start()
        with pytest.raises(BackendUnreachable, match="no answer"):
            EngineMetrics.read(f"http://127.0.0.1:{listener.getsockname()[1]}")
        server.join()


def test_a_page_that_is_too_large_is_refused(httpserver: HTTPServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is not read to its end."""
    monkeypatch.setattr(scrape, "MAX_BYTES", 1000)
    httpserver.expect_request("/metrics").respond_with_data("#" * 1001)
    with pytest.raises(BackendProtocolError, match="more than 1000 bytes"):
        EngineMetrics.read(httpserver.url_for(""))


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without prometheus-client the way out is in the error."""
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    for look in (lambda: EngineMetrics.parse("", at_s=0.0), EngineMetrics.of_process):
        with pytest.raises(BackendNotInstalled, match=r"pip install 'kvsdk\[vllm\]'"):
            look()


@pytest.mark.engine
@pytest.mark.timeout(600)
def test_a_real_servers_counts(server: str) -> None:
    """It has every name; between two looks are the tokens of the two replies, and what was cached of them."""
    before = EngineMetrics.read(f"vllm+http://{server}#smol")
    missing = [name for name, value in dataclasses.asdict(before).items() if value is None]
    assert missing == []
    system = "The toll of a bridge is paid by whoever crosses it last. " * 20
    with kvsdk.Client(f"vllm+http://{server}#smol") as client:
        usages = [client.generate("Who pays?", system=system, max_tokens=4).usage for _ in range(2)]
    after = EngineMetrics.read(f"http://{server}")
    interval = after.since(before)
    inputs = [usage.input_tokens or 0 for usage in usages]
    cached = sum(usage.cache_read_tokens or 0 for usage in usages)
    assert cached > 200
    assert interval.prompt_tokens == interval.prefix_queried_tokens == sum(inputs)
    assert interval.prefix_hit_tokens == cached
    assert interval.hit_rate == cached / sum(inputs)
    assert interval.cached_tokens_by_source is not None
    assert interval.cached_tokens_by_source["device"] == cached
    assert interval.prompt_tokens_by_source == {
        "local_compute": sum(inputs) - cached,
        "local_cache_hit": cached,
        "external_kv_transfer": 0,
    }
    assert interval.generation_tokens == 2 * 4
    assert (interval.preemptions, interval.external_hit_rate) == (0, None)
    assert (after.running_requests, after.waiting_requests, after.kv_cache_usage) == (0, 0, 0.0)
