"""An engine's end of the KV events: a stream of batches and a place that repeats them, as vLLM has them."""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import zmq

RECORDED = Path(__file__).parents[1] / "adapters" / "vllm" / "kv_batches.json"
WAIT_MS = 10_000


def recorded() -> list[bytes]:
    """Batches that a real engine sent, by their numbers; the file says which engine."""
    batches = json.loads(RECORDED.read_text("utf-8"))["batches"]
    assert [batch["seq"] for batch in batches] == list(range(len(batches)))
    return [base64.b64decode(batch["payload"]) for batch in batches]


def batch(*events: Any, at_s: float = 100.0) -> bytes:
    """A batch of these events, as the engine writes it."""
    return msgspec.msgpack.encode([at_s, list(events), 0])


def removed(*hashes: int | bytes) -> dict[str, Any]:
    """The event of blocks that are gone."""
    return {"type": "BlockRemoved", "block_hashes": list(hashes), "medium": "GPU", "group_idx": 0}


def numbered(seq: int, at_s: float = 100.0) -> bytes:
    """A batch that tells its number: the block of that name is gone."""
    return batch(removed(seq), at_s=at_s)


class Publisher:
    """The engine's end. Its stream tells when a subscriber has come, which vLLM's does not.

    Attributes:
        kept: What is repeated when it is asked for, by number.
        holes: For each question, the numbers that its answer leaves out.
        is_mute: It does not answer questions.
        asked: The numbers that were asked for.
    """

    def __init__(self, folder: Path) -> None:
        self.endpoint = f"ipc://{folder}/stream"
        self.replay_endpoint = f"ipc://{folder}/replay"
        self.kept: dict[int, bytes] = {}
        self.holes: list[Sequence[int]] = []
        self.is_mute = False
        self.asked: list[int] = []
        context = zmq.Context.instance()
        self._stream = context.socket(zmq.XPUB)
        self._stream.bind(self.endpoint)
        self._router = context.socket(zmq.ROUTER)
        self._router.bind(self.replay_endpoint)
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._answer, daemon=True)
        self._thread.start()

    def wait(self) -> None:
        """Until a subscriber is there; what is sent before is for nobody."""
        assert self._stream.poll(WAIT_MS), "nobody subscribes"
        self._stream.recv()

    def send(self, seq: int, payload: bytes, *, topic: bytes = b"kv") -> None:
        """Send a batch and keep it."""
        self.kept[seq] = payload
        self.send_raw(topic, seq.to_bytes(8, "big"), payload)

    def send_raw(self, *frames: bytes) -> None:
        """Send whatever it is."""
        self._stream.send_multipart(frames)

    def close(self) -> None:
        self._closing.set()
        self._thread.join()
        self._stream.close(linger=0)
        self._router.close(linger=0)

    def _answer(self) -> None:
        while not self._closing.is_set():
            if not self._router.poll(20):
                continue
            client, _, number = self._router.recv_multipart()
            first = int.from_bytes(number, "big")
            self.asked.append(first)
            if self.is_mute:
                continue
            holes = self.holes.pop(0) if self.holes else ()
            for seq, payload in sorted(self.kept.items()):
                if seq >= first and seq not in holes:
                    self._router.send_multipart([client, b"", b"kv", seq.to_bytes(8, "big"), payload])
            self._router.send_multipart([client, b"", b"", b"\xff" * 8, b""])
