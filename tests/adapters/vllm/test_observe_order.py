"""The order of batches and their decoding, without sockets."""

from __future__ import annotations

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st
from kv_publisher import numbered, recorded

from kvsdk_vllm.observe import BlockRemoved, Gap, KvEvent, Restarted
from kvsdk_vllm.observe.order import Order
from kvsdk_vllm.observe.wire import Message, to_batch

BATCHES = 12
SEQS = st.integers(0, BATCHES - 1)


def covered(events: list[KvEvent]) -> list[tuple[int, str]]:
    """Every number that was spoken of, in order, and as what."""
    found: list[tuple[int, str]] = []
    for event in events:
        if isinstance(event, Gap):
            found.extend((seq, event.reason) for seq in range(event.first, event.last + 1))
        else:
            assert isinstance(event, BlockRemoved)
            found.append((event.seq, "given"))
    return found


@given(
    lost=st.sets(SEQS),
    kept_from=st.integers(0, BATCHES),
    holes=st.lists(st.sets(SEQS), max_size=4),
    silent=st.sets(st.integers(0, 5)),
    can_replay=st.booleans(),
)
def test_each_batch_is_given_or_missing_exactly_once(
    lost: set[int], kept_from: int, holes: list[set[int]], silent: set[int], can_replay: bool
) -> None:
    """Whatever is lost on the way or left out of a replay, and wherever replays break off.

    What came on the stream is always given; what did not is given at most where the engine kept it, and
    always where its answers were whole.
    """
    lost -= {BATCHES - 1}  # what follows shows what is missing
    order = Order(can_replay=can_replay, on_fault=lambda text: None)
    found: list[KvEvent] = []
    answers = 0
    for seq in range(BATCHES):
        if seq in lost:
            continue
        found += order.take(Message(seq, numbered(seq)))
        while (first := order.wants_from) is not None:
            assert can_replay
            asks, left_out = order.asks, holes[answers] if answers < len(holes) else set()
            answers += 1
            assert answers < 100
            for again in range(max(first, kept_from), seq + 1):
                if answers not in silent and again not in left_out and order.asks == asks:
                    found += order.take_replayed(Message(again, numbered(again)))
                if order.wants_from is None:
                    break
            if order.wants_from is not None and order.asks == asks:
                found += order.end_replay()
    told = covered(found)
    assert [seq for seq, _ in told] == list(range(BATCHES))
    given_out = {seq for seq, how in told if how == "given"}
    came = set(range(BATCHES)) - lost
    assert came <= given_out
    if not can_replay:
        assert given_out == came
    if not holes and not silent and can_replay:
        assert given_out == came | set(range(kept_from, BATCHES))


@given(st.lists(st.integers(0, 4), max_size=12))
def test_numbers_that_go_back_are_a_restart(seqs: list[int]) -> None:
    """Between two restarts every number from 0 on is spoken of once, in order."""
    order = Order(can_replay=False, on_fault=lambda text: None)
    lives: list[list[KvEvent]] = [[]]
    restarts, before = 0, -1
    for seq in seqs:
        for event in order.take(Message(seq, numbered(seq))):
            if isinstance(event, Restarted):
                lives.append([])
            else:
                lives[-1].append(event)
        restarts, before = restarts + (seq <= before), seq
    assert len(lives) == restarts + 1
    for life in lives:
        told = [seq for seq, _ in covered(life)]
        assert told == list(range(len(told)))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | st.text() | st.binary(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner, max_size=4),
    max_leaves=8,
)
NAMES = st.sampled_from(["BlockStored", "BlockRemoved", "AllBlocksCleared", "Other"])
KEYS = st.sampled_from(
    ["block_hashes", "parent_block_hash", "token_ids", "block_size", "medium", "group_idx", "session_id"]
)
EVENTS = st.dictionaries(KEYS, JSON | st.lists(st.integers(0, 9))).flatmap(
    lambda fields: NAMES.map(lambda name: {"type": name, **fields})
)


@given(st.binary(max_size=60) | st.tuples(JSON, st.lists(EVENTS | JSON), JSON).map(msgspec.msgpack.encode))
def test_no_payload_raises(payload: bytes) -> None:
    """Whatever comes is a batch of our values; a fault is a gap of its own number."""
    found = to_batch(Message(5, payload))
    gaps = [event for event in found.events if isinstance(event, Gap)]
    assert len(gaps) == len(found.faults)
    assert all(gap == Gap(first=5, last=5, reason="unreadable") for gap in gaps)
    assert all(event.seq == 5 for event in found.events)


@settings(max_examples=300)
@given(st.data())
def test_a_damaged_batch_does_not_raise(data: st.DataObject) -> None:
    """A real engine's batch with any of its bytes changed, or cut off, is values, or a gap."""
    payload = bytearray(data.draw(st.sampled_from(recorded())))
    for _ in range(data.draw(st.integers(1, 3))):
        payload[data.draw(st.integers(0, len(payload) - 1))] = data.draw(st.integers(0, 255))
    found = to_batch(Message(5, bytes(payload[: data.draw(st.integers(0, len(payload)))])))
    assert all(event.seq == 5 for event in found.events)
