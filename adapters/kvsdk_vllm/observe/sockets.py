"""The two ZeroMQ sockets of a subscriber: the stream of batches, and the replay of missed ones."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Literal

from kvsdk.errors import ConfigurationError

from kvsdk_vllm.observe.wire import END_OF_REPLAY, BadMessage, Message, to_message

if TYPE_CHECKING:
    import zmq

REPLAY_TIMEOUT_S = 5.0
"""How long an engine may take for the next batch of a replay. It looks for questions ten times a second."""


class Stream:
    """The stream of batches.

    What does not fit into its queue of 1,000 batches waits with the engine, and is dropped when that is full.

    Attributes:
        was_connected: Whether an engine was ever at the other end.
        other_topic: A topic that was heard and not asked for, the last one.
    """

    def __init__(self, endpoint: str, topic: str, *, bind: bool) -> None:
        import zmq

        self.was_connected = False
        self.other_topic: str | None = None
        self._topic = topic.encode()
        self._socket = _make(zmq.SUB)
        # every topic is taken in, because the wrong one is a reason for silence that can be named
        self._socket.setsockopt(zmq.SUBSCRIBE, b"")
        self._monitor = self._socket.get_monitor_socket(zmq.EVENT_HANDSHAKE_SUCCEEDED)
        try:
            _attach(self._socket, endpoint, bind=bind)
        except ConfigurationError:
            self.close()
            raise

    def receive(self, wait_s: float) -> Message | None:
        """The next batch; None when none came in time, or one of another topic did.

        Raises:
            BadMessage: Something came that is no batch.
        """
        self.note_connection()
        if not self._socket.poll(max(0, round(wait_s * 1000))):
            return None
        frames = self._socket.recv_multipart()
        self.was_connected = True
        if len(frames) != 3:
            raise BadMessage(f"a batch has 3 frames, not {len(frames)}")
        topic, number, payload = frames
        if topic != self._topic:
            self.other_topic = topic[:64].decode(errors="replace")
            return None
        return to_message(number, payload)

    def note_connection(self) -> None:
        """Look whether an engine is at the other end now."""
        while self._monitor.poll(0):
            self._monitor.recv_multipart()  # it tells of connections only
            self.was_connected = True

    def close(self) -> None:
        """Close it; may be called twice."""
        if not self._socket.closed:
            self._socket.disable_monitor()
            self._monitor.close(linger=0)
            self._socket.close(linger=0)


class Replay:
    """One question for the batches from a number on, and its answer.

    Args:
        endpoint: The engine's `replay_endpoint`.
        first: The number of the first batch.
        clock: Seconds that only go forward.
    """

    def __init__(self, endpoint: str, first: int, clock: Callable[[], float] = time.monotonic) -> None:
        import zmq

        self._clock = clock
        self._socket = _make(zmq.DEALER)
        _attach(self._socket, endpoint, bind=False)
        self._socket.send_multipart([b"", first.to_bytes(8, "big")])
        self._ends_at = clock() + REPLAY_TIMEOUT_S

    def receive(self, wait_s: float) -> Message | Literal["pending", "over"]:
        """The next batch; `pending` when none has come yet, `over` when there is none, or no answer.

        Raises:
            BadMessage: Something came that is no batch.
        """
        left_s = min(wait_s, self._ends_at - self._clock())
        if not self._socket.poll(max(0, round(left_s * 1000))):
            return "over" if self._clock() >= self._ends_at else "pending"
        self._ends_at = self._clock() + REPLAY_TIMEOUT_S
        frames = self._socket.recv_multipart()
        if len(frames) != 4:
            raise BadMessage(f"a repeated batch has 4 frames, not {len(frames)}")
        _, _, number, payload = frames
        return "over" if number == END_OF_REPLAY else to_message(number, payload)

    def close(self) -> None:
        self._socket.close(linger=0)


def check_endpoint(endpoint: str, name: str, *, bind: bool = False) -> None:
    """Raise `ConfigurationError` for what nobody can connect to."""
    if not isinstance(endpoint, str) or "://" not in endpoint:
        raise ConfigurationError(
            f"{name} is an address such as 'ipc:///run/kv.sock' or 'tcp://127.0.0.1:5557', not {endpoint!r}",
            backend="vllm",
        )
    if "*" in endpoint and not bind:
        raise ConfigurationError(
            f"{name}={endpoint!r} is where an engine listens; a subscriber needs its host, such as "
            f"{endpoint.replace('*', '127.0.0.1')!r}",
            backend="vllm",
        )


def _make(kind: int) -> zmq.Socket[bytes]:
    import zmq

    socket = zmq.Context.instance().socket(kind)
    socket.setsockopt(zmq.LINGER, 0)  # no limit of a message's size: beyond it ZeroMQ never connects again
    return socket


def _attach(socket: zmq.Socket[bytes], endpoint: str, *, bind: bool) -> None:
    import zmq

    try:
        if bind:
            socket.bind(endpoint)
        else:
            socket.connect(endpoint)
    except zmq.ZMQError as error:
        verb = "listen at" if bind else "connect to"
        raise ConfigurationError(f"cannot {verb} {endpoint!r}: {error}", backend="vllm") from error
