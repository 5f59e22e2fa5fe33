"""A subscriber to the KV events of a vLLM engine."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Self

from kvsdk.backend import require_package
from kvsdk.errors import InvalidRequest

from kvsdk_vllm.observe.order import Order
from kvsdk_vllm.observe.sockets import Replay, Stream, check_endpoint
from kvsdk_vllm.observe.values import KvEvent
from kvsdk_vllm.observe.wire import BadMessage, Message

logger = logging.getLogger("kvsdk.vllm")

SILENCE_S = 30.0
"""Seconds without a single batch after which the log says what may be wrong, once."""

WAKE_S = 0.1
"""How often an iterator looks whether it was closed."""


class KvEvents:
    """The events of one engine, in order, with what is missing named.

    The engine is started with
    `--kv-events-config '{"enable_kv_cache_events": true, "endpoint": "ipc:///run/kv.sock", "topic": "kv"}'`;
    one in process has vLLM's `KVEventsConfig` of the same: `Client(..., engine={"kv_events_config": ...})`.

    **Both sides may connect, and then nothing is ever heard.** vLLM listens only where its endpoint has a
    `*` or `::`, or starts with `ipc://` or `inproc://`. With `tcp://127.0.0.1:5557` it *connects*, as a
    subscriber does (vllm 0.32.0, measured). On one machine use `ipc://` on both sides, or `tcp://*:5557` for
    the engine and `tcp://127.0.0.1:5557` here; where the engine's endpoint cannot change, `bind=True` listens
    here. When nothing came although the engine worked, `explain_silence` says what it may be; the log has
    it after 30 s.

    Batches are numbered. Those that were missed are repeated by the engine when there is a `replay_endpoint`
    (it keeps `buffer_steps` of them); what it cannot repeat is a `Gap`, as is what cannot be read, and every
    batch from before this subscriber came. A new engine is a `Restarted`. Nothing that comes stops the loop:
    what is not understood is counted in `faults` and logged.

    Iteration waits for what comes next, until `close`. Memory holds 1,000 undecoded batches of the stream,
    1,000 of a replay and one decoded one. Thread-safe: each event is given to one reader. An engine with
    data-parallel ranks has an endpoint for each (its port plus the rank); each needs a subscriber.

    Args:
        endpoint: Where the engine sends its events.
        replay_endpoint: Where it is asked to repeat them; vLLM always listens there.
        topic: The engine's topic, exactly. vLLM's own default is `""`.
        bind: Listen at `endpoint` instead of connecting to it.
        clock: Seconds that only go forward.

    Raises:
        BackendNotInstalled: pyzmq or msgspec is missing; both come with vLLM.
        ConfigurationError: An endpoint that nothing can connect to.
    """

    def __init__(
        self,
        endpoint: str,
        *,
        replay_endpoint: str | None = None,
        topic: str = "kv",
        bind: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        check_endpoint(endpoint, "endpoint", bind=bind)
        if replay_endpoint is not None:
            check_endpoint(replay_endpoint, "replay_endpoint")
        for package in ("zmq", "msgspec"):
            require_package(package, extra="vllm")
        self.endpoint = endpoint
        self.topic = topic
        self._replay_endpoint = replay_endpoint
        self._clock = clock
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self._faults = 0
        self._has_heard = False
        self._warns_at: float | None = clock() + SILENCE_S
        self._order = Order(can_replay=replay_endpoint is not None, on_fault=self._note_fault)
        self._replay: Replay | None = None
        self._replays = 0
        self._stream = Stream(endpoint, topic, bind=bind)

    @property
    def next_seq(self) -> int:
        """The number of the batch that comes next."""
        return self._order.next_seq

    @property
    def faults(self) -> int:
        """How many messages and events were not understood."""
        return self._faults

    def read(self, timeout_s: float = 0.0) -> list[KvEvent]:
        """The next events, those of about one batch; empty when none came in time.

        Raises:
            InvalidRequest: It is closed.
        """
        if self._closing.is_set():
            raise InvalidRequest("these events are closed; open new ones", backend="vllm")
        ends_at = self._clock() + timeout_s
        while True:
            left_s = ends_at - self._clock()
            events = self._read_once(max(0.0, min(left_s, WAKE_S)))
            if events or left_s <= 0 or self._closing.is_set():
                return events

    def __iter__(self) -> Iterator[KvEvent]:
        while not self._closing.is_set():
            yield from self._read_once(WAKE_S)

    def explain_silence(self) -> str | None:
        """Why nothing has come, as far as can be seen from here; None when something has.

        To be asked after the engine has worked on a prompt that it had not seen before.
        """
        with self._lock:
            if not self._closing.is_set():
                self._stream.note_connection()
            return self._explain()

    def close(self) -> None:
        """End the iteration and close the sockets. May be called twice, and from another thread."""
        self._closing.set()
        with self._lock:
            if self._replay is not None:
                self._replay.close()
                self._replay = None
            self._stream.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _explain(self) -> str | None:
        if self._has_heard:
            return None
        if self._faults:
            return (
                f"what comes is not understood ({self._faults} messages): is an engine at {self.endpoint!r}?"
            )
        if self._stream.other_topic is not None:
            return (
                f"batches come with the topic {self._stream.other_topic!r}, not {self.topic!r}; pass the "
                "engine's topic"
            )
        if self._stream.was_connected:
            return (
                "an engine is connected and has sent nothing since: whole blocks are announced, when they "
                "are computed; a shorter prompt, or one that is read from the cache, is no event"
            )
        advice = ""
        if self.endpoint.startswith("tcp:"):
            advice = (
                " vLLM connects to its endpoint instead of listening, unless that has a * or ::, or is "
                "ipc:// or inproc://: then neither side hears the other. Give the engine 'tcp://*:PORT' or "
                "'ipc:///PATH', or pass bind=True here."
            )
        return f"no engine is at {self.endpoint!r}; does it run with enable_kv_cache_events?{advice}"

    def _read_once(self, wait_s: float) -> list[KvEvent]:
        with self._lock:
            if self._closing.is_set():
                return []
            events: list[KvEvent] = []
            try:
                events = self._read_stream(wait_s) if self._order.wants_from is None else self._fill(wait_s)
            except BadMessage as error:
                self._note_fault(str(error))
            self._warn_of_silence()
            return events

    def _read_stream(self, wait_s: float) -> list[KvEvent]:
        message = self._stream.receive(wait_s)
        if message is None:
            return []
        self._has_heard = True
        return self._order.take(message)

    def _fill(self, wait_s: float) -> list[KvEvent]:
        """The next batch of the replay, which is asked for first."""
        answer = self._asked().receive(wait_s)
        if answer == "pending":
            return []
        if isinstance(answer, Message):
            events = self._order.take_replayed(answer)
        else:
            events = self._order.end_replay()
        if self._order.wants_from is None:
            self._end_replay()
        return events

    def _asked(self) -> Replay:
        first = self._order.wants_from
        assert first is not None
        assert self._replay_endpoint is not None
        if self._replay is None or self._replays != self._order.asks:
            self._end_replay()
            self._replay = Replay(self._replay_endpoint, first, self._clock)
            self._replays = self._order.asks
        return self._replay

    def _end_replay(self) -> None:
        if self._replay is not None:
            self._replay.close()
            self._replay = None

    def _note_fault(self, text: str) -> None:
        """Count it; the log has the 1st, 2nd, 4th, 8th... one."""
        self._faults += 1
        if self._faults & (self._faults - 1) == 0:
            logger.warning("KV events of %s, fault %d: %s", self.endpoint, self._faults, text)

    def _warn_of_silence(self) -> None:
        if self._warns_at is None or (not self._has_heard and self._clock() < self._warns_at):
            return
        self._warns_at = None
        text = self._explain()
        if text is not None:
            logger.warning("no KV events in %g s: %s", SILENCE_S, text)
