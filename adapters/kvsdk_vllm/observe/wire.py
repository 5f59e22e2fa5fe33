"""Batches of KV events as they are on the wire, read into values.

Three frames: the topic, the batch's number in 8 bytes (big-endian), and msgpack: an array of the time, the
events, and the rank. Each event is a map with its name under `type`. Read at vllm 0.32.0.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, NamedTuple

from kvsdk_vllm.observe.values import AllBlocksCleared, BlockHash, BlockRemoved, BlockStored, Gap, KvEvent

END_OF_REPLAY = b"\xff" * 8
"""Instead of a number: a replay ends here."""

_MAX_SEQ = 1 << 63


class BadMessage(Exception):
    """A message that is none. The text says what is wrong."""


class Message(NamedTuple):
    """A batch that is not decoded yet."""

    seq: int
    payload: bytes


@dataclass(frozen=True, slots=True)
class Batch:
    """A batch.

    Attributes:
        events: In the engine's order, with a `Gap` in the place of each that is not understood.
        faults: What is wrong with those, in words.
    """

    events: tuple[KvEvent, ...]
    faults: tuple[str, ...] = ()


def to_message(number: bytes, payload: bytes) -> Message:
    """A batch with its number.

    Raises:
        BadMessage: The number is none.
    """
    if len(number) != 8:
        raise BadMessage(f"a batch's number has 8 bytes, not {len(number)}")
    seq = int.from_bytes(number, "big")
    if seq >= _MAX_SEQ:
        raise BadMessage("a batch's number is below 2**63")
    return Message(seq, payload)


def to_batch(message: Message) -> Batch:
    """Decode a batch. One that cannot be read is a `Gap`, as is each event in it that is not understood."""
    types = _types()
    try:
        batch = types.batch.decode(message.payload)
        if not math.isfinite(batch.ts):
            raise ValueError("its time is no number")
    except (ValueError, RecursionError) as error:  # msgspec's errors are ValueErrors
        return Batch((_unreadable(message.seq),), (f"a batch that cannot be read: {_text(error)}",))
    events: list[KvEvent] = []
    faults: list[str] = []
    for raw in batch.events:
        try:
            events.append(_to_value(types.event.decode(raw), message.seq, batch.ts, batch.rank))
        except (ValueError, RecursionError) as error:
            faults.append(f"an event that is not understood: {_text(error)}")
            events.append(_unreadable(message.seq))
    return Batch(tuple(events), tuple(faults))


def _unreadable(seq: int) -> Gap:
    return Gap(first=seq, last=seq, reason="unreadable")


def _text(error: Exception) -> str:
    """An error's text, cut: it may quote what was sent as an event's name."""
    return str(error)[:120]


def _to_value(event: Any, seq: int, at_s: float, rank: int | None) -> KvEvent:
    name = type(event).__name__
    if name == "AllBlocksCleared":
        return AllBlocksCleared(seq=seq, at_s=at_s, rank=rank)
    if name == "BlockRemoved":
        return BlockRemoved(
            seq=seq,
            at_s=at_s,
            block_hashes=event.block_hashes,
            medium=event.medium,
            group=event.group_idx,
            rank=rank,
        )
    return BlockStored(
        seq=seq,
        at_s=at_s,
        block_hashes=event.block_hashes,
        parent_block_hash=event.parent_block_hash,
        block_tokens=event.block_size or None,  # a tier that does not know writes 0
        covered_tokens=len(event.token_ids),
        medium=event.medium,
        group=event.group_idx,
        session=event.session_id,
        rank=rank,
    )


class _Types(NamedTuple):
    batch: Any
    event: Any


@cache
def _types() -> _Types:
    """The decoders. Fields that are not named here are skipped; the salts are among those."""
    import msgspec

    hashes = ("block_hashes", tuple[BlockHash, ...])
    medium = ("medium", str | None, None)
    group = ("group_idx", int | None, None)
    stored = msgspec.defstruct(
        "BlockStored",
        [
            hashes,
            ("parent_block_hash", BlockHash | None),
            ("token_ids", list[int]),
            ("block_size", Annotated[int, msgspec.Meta(ge=0)]),
            medium,
            group,
            ("session_id", str | None, None),
        ],
        tag=True,
    )
    removed = msgspec.defstruct("BlockRemoved", [hashes, medium, group], tag=True)
    cleared = msgspec.defstruct("AllBlocksCleared", [], tag=True)
    batch = msgspec.defstruct(
        "Batch",
        [("ts", float), ("events", list[msgspec.Raw]), ("rank", int | None, None)],
        array_like=True,
    )
    decoder = msgspec.msgpack.Decoder
    return _Types(decoder(batch), decoder(stored | removed | cleared))
