"""A subscriber to KV events: over real sockets, with batches that a real engine sent."""

from __future__ import annotations

import logging
import re
import sys
import threading
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from kv_publisher import Publisher, batch, numbered, recorded, removed
from kvsdk.errors import BackendNotInstalled, ConfigurationError, InvalidRequest

from kvsdk_vllm.observe import AllBlocksCleared, BlockRemoved, BlockStored, Gap, KvEvent, KvEvents, Restarted

WAIT_S = 20
Subscribe = Callable[..., KvEvents]


@pytest.fixture
def publisher(tmp_path: Path) -> Iterator[Publisher]:
    made = Publisher(tmp_path)
    yield made
    made.close()


@pytest.fixture
def subscribe(publisher: Publisher) -> Iterator[Subscribe]:
    """Opens a subscriber to the publisher, with its replays where asked for, and waits until it is there."""
    opened: list[KvEvents] = []

    def open_one(*, replay: bool = False, **named: Any) -> KvEvents:
        if replay:
            named["replay_endpoint"] = publisher.replay_endpoint
        opened.append(KvEvents(publisher.endpoint, **named))
        publisher.wait()
        return opened[-1]

    yield open_one
    for events in opened:
        events.close()


def read(events: KvEvents, enough: Callable[[list[Any]], bool]) -> list[Any]:
    """What comes until it is enough."""
    found: list[KvEvent] = []
    ends_at = time.monotonic() + WAIT_S
    while not enough(found):
        assert time.monotonic() < ends_at, found
        found.extend(events.read(0.1))
    return found


def up_to(seq: int) -> Callable[[list[Any]], bool]:
    return lambda found: bool(found) and found[-1].seq == seq and not isinstance(found[-1], Restarted)


def told(found: list[Any]) -> list[Any]:
    """The numbers of batches made by `numbered`; of what is missing, first and last; '!' of a restart."""
    short: list[Any] = []
    for event in found:
        if isinstance(event, BlockRemoved):
            assert event.block_hashes == (event.seq,)
            short.append(event.seq)
        else:
            short.append("!" if isinstance(event, Restarted) else (event.first, event.last))
    return short


def test_a_real_engines_batches(publisher: Publisher, subscribe: Subscribe) -> None:
    """Stored, stored again as another copy, evicted, cleared, and reported: as the engine sent them."""
    events = subscribe()
    for seq, payload in enumerate(recorded()):
        publisher.send(seq, payload)
    found = read(events, up_to(7))
    first, copy, other = found[:3]
    assert isinstance(first, BlockStored)
    assert (first.seq, first.parent_block_hash, first.session) == (0, None, "a")
    assert (first.tokens, first.covered_tokens, first.block_tokens) == (6 * 32, 192, 32)
    assert (first.medium, first.group, first.rank) == ("GPU", 0, 0)
    assert copy.block_hashes == first.block_hashes[5:]
    assert (copy.parent_block_hash, copy.session) == (first.block_hashes[4], "b")
    evicted = [each for each in found if isinstance(each, BlockRemoved) and each.seq == 3]
    assert (
        [each.block_hashes for each in evicted]
        == [
            *([first.block_hashes[5:]] * 2),  # both copies
            *((each,) for each in first.block_hashes[4::-1]),  # then the rest, the deepest first
            *((each,) for each in other.block_hashes[:7:-1]),
        ]
    )
    cleared = next(each for each in found if isinstance(each, AllBlocksCleared))
    assert cleared.seq == 4
    anew, reported = [each for each in found if isinstance(each, BlockStored) and each.seq in (4, 5)]
    assert reported.block_hashes == anew.block_hashes
    assert (anew.session, reported.session) == ("a", "e")
    assert all(after.at_s >= before.at_s for before, after in pairwise(found))
    assert (events.next_seq, events.faults) == (8, 0)


def test_neither_salts_nor_tokens_are_in_the_values(publisher: Publisher, subscribe: Subscribe) -> None:
    """The engine publishes the tenant's salt in clear, and what the prompt says; the values have neither."""
    payload = recorded()[0]
    assert b"tenant-secret" in payload
    events = subscribe()
    publisher.send(0, payload)
    (event,) = read(events, up_to(0))
    assert "tenant-secret" not in repr(event)
    assert "1000" not in repr(event)  # the first token's id


def test_hashes_may_be_bytes(publisher: Publisher, subscribe: Subscribe) -> None:
    """With `VLLM_KV_EVENTS_USE_INT_BLOCK_HASHES=0` names of blocks are the whole digests."""
    events = subscribe()
    publisher.send(0, batch(removed(b"\x01" * 32, b"\x02" * 32)))
    (event,) = read(events, up_to(0))
    assert event.block_hashes == (b"\x01" * 32, b"\x02" * 32)


def test_a_size_of_0_is_no_size(publisher: Publisher, subscribe: Subscribe) -> None:
    """A tier that does not know how many tokens a block has writes 0; here that is None."""
    stored = {"type": "BlockStored", "block_hashes": [1], "parent_block_hash": None}
    events = subscribe()
    publisher.send(0, batch({**stored, "token_ids": [], "block_size": 0, "medium": "CPU"}))
    (event,) = read(events, up_to(0))
    assert (event.block_tokens, event.tokens, event.medium) == (None, None, "CPU")


def test_what_is_missed_is_a_gap(publisher: Publisher, subscribe: Subscribe) -> None:
    """Batches 2 to 4 do not arrive: the reader is told so before it gets batch 5."""
    events = subscribe()
    for seq in (0, 1, 5, 6):
        publisher.send(seq, numbered(seq))
    found = read(events, up_to(6))
    assert told(found) == [0, 1, (2, 4), 5, 6]
    assert found[2] == Gap(first=2, last=4, reason="lost")


def test_what_was_before_is_a_gap(publisher: Publisher, subscribe: Subscribe) -> None:
    """Who comes late is told that batches 0 to 6 are missing."""
    events = subscribe()
    publisher.send(7, numbered(7))
    assert told(read(events, up_to(7))) == [(0, 6), 7]


def test_a_gap_is_filled(publisher: Publisher, subscribe: Subscribe) -> None:
    """The engine repeats what is missing, at the start and in the middle, and nothing comes twice."""
    publisher.kept = {seq: numbered(seq) for seq in range(12)}
    events = subscribe(replay=True)
    for seq in (3, 4, 9, 10, 11):
        publisher.send(seq, numbered(seq))
    assert told(read(events, up_to(11))) == list(range(12))
    assert publisher.asked == [0, 4]  # 4 shows that it is the same engine


def test_what_the_engine_keeps_no_more_is_a_gap(publisher: Publisher, subscribe: Subscribe) -> None:
    """It keeps batches from 6 on only: 2 to 5 are lost, the rest is filled."""
    events = subscribe(replay=True)
    for seq in (0, 1):
        publisher.send(seq, numbered(seq))
    publisher.kept = {seq: numbered(seq) for seq in range(6, 9)}
    publisher.send(9, numbered(9))
    assert told(read(events, up_to(9))) == [0, 1, (2, 5), 6, 7, 8, 9]


def test_a_hole_in_a_replay_is_asked_for_again(publisher: Publisher, subscribe: Subscribe) -> None:
    """The first answer lacks 3 to 5, the second 8: three questions, and nothing is lost."""
    publisher.kept = {seq: numbered(seq) for seq in range(10)}
    publisher.holes = [range(3, 6), [8]]
    events = subscribe(replay=True)
    publisher.send(10, numbered(10))
    assert told(read(events, up_to(10))) == list(range(11))
    assert publisher.asked == [0, 2, 7]


def test_what_no_answer_has_is_a_gap(publisher: Publisher, subscribe: Subscribe) -> None:
    """Batch 2 is in no answer: it is given up when an answer brings nothing new."""
    publisher.kept = {seq: numbered(seq) for seq in (0, 1, 3)}
    events = subscribe(replay=True)
    publisher.send(4, numbered(4))
    assert told(read(events, up_to(4))) == [0, 1, (2, 3), 4]


def test_a_long_replay_comes_whole(publisher: Publisher, subscribe: Subscribe) -> None:
    """6,000 batches are more than the queues of both sides hold; each comes once, in order."""
    publisher.kept = {seq: numbered(seq) for seq in range(6000)}
    events = subscribe(replay=True)
    publisher.send(6000, numbered(6000))
    assert told(read(events, up_to(6000))) == list(range(6001))


def test_an_engine_that_does_not_answer(publisher: Publisher, subscribe: Subscribe) -> None:
    """Within 5 s the reader waits for the replay, and then has a gap; the time is a test's."""
    now = [1000.0]
    publisher.is_mute = True
    events = subscribe(replay=True, clock=lambda: now[0])
    publisher.send(3, numbered(3))
    ends_at = time.monotonic() + WAIT_S
    while not publisher.asked:
        assert time.monotonic() < ends_at
        assert events.read() == []
    now[0] += 4.9
    assert events.read() == []
    now[0] += 0.2
    assert told(events.read()) == [(0, 2), 3]


@pytest.mark.parametrize(
    ("replay", "expected"),
    [(False, [0, 1, 2, "!", 0, 1, 2, "!", (0, 0), 1]), (True, [0, 1, 2, "!", 0, 1, 2, "!", 0, 1])],
)
def test_a_new_engine_is_noticed(
    publisher: Publisher, subscribe: Subscribe, replay: bool, expected: list[Any]
) -> None:
    """Numbers that begin again are a restart; when the first of them is missing, it is that too."""
    events = subscribe(replay=replay)
    for seq in (0, 1, 2, 0, 1, 2):
        publisher.send(seq, numbered(seq))
    found = read(events, lambda found: len(found) == 7)
    publisher.kept = {0: numbered(0)}
    publisher.send(1, numbered(1))
    assert told([*found, *read(events, up_to(1))]) == expected


def test_a_new_engine_behind_a_gap_is_noticed(publisher: Publisher, subscribe: Subscribe) -> None:
    """The new one is at 5 when the old one's 2 came last: its batch 2 is another, so it is read from 0."""
    events = subscribe(replay=True)
    for seq in range(3):
        publisher.send(seq, numbered(seq))
    found = read(events, up_to(2))
    publisher.kept = {seq: numbered(seq, at_s=200.0) for seq in range(5)}
    publisher.send(5, numbered(5, at_s=200.0))
    found += read(events, up_to(5))
    assert told(found) == [0, 1, 2, "!", 0, 1, 2, 3, 4, 5]
    assert [each.at_s for each in found[4:]] == [200.0] * 6


BAD = {
    "one frame": (b"kv",),
    "two frames": (b"kv", b"\0" * 8),
    "four frames": (b"kv", b"\0" * 8, batch(), b""),
    "a short number": (b"kv", b"\0" * 7, batch()),
    "a number that is too large": (b"kv", b"\xff" * 8, batch()),
}


@pytest.mark.parametrize("frames", BAD.values(), ids=BAD.keys())
def test_what_is_no_batch_is_counted(
    publisher: Publisher,
    subscribe: Subscribe,
    frames: tuple[bytes, ...],
    caplog: pytest.LogCaptureFixture,
) -> None:
    """It is counted and logged, and the next batch comes as if nothing had been."""
    events = subscribe()
    publisher.send_raw(*frames)
    publisher.send(0, numbered(0))
    assert told(read(events, up_to(0))) == [0]
    assert events.faults == 1
    assert "fault 1" in caplog.text


UNREADABLE = {
    "nothing": b"",
    "no msgpack": b"\xc1",
    "cut off": numbered(1)[:-3],
    "something after it": numbered(1) + b"\0",
    "deep": b"\x91" * 100_000,
    "a map": b"\x80",
    "too short": b"\x91\x01",
    "no time": b"\x93\xa1x\x90\xc0",
    "a time that is none": b"\x93\xcb\x7f\xf8\0\0\0\0\0\0\x90\xc0",
    "no list of events": b"\x93\x01\x01\xc0",
    "a length that is a lie": b"\x93\x01\xdd\xff\xff\xff\xff",
}


@pytest.mark.parametrize("payload", UNREADABLE.values(), ids=UNREADABLE.keys())
def test_what_cannot_be_read_is_a_gap(publisher: Publisher, subscribe: Subscribe, payload: bytes) -> None:
    """Batch 1 cannot be read: what was in it is not known, and the reader is told so."""
    events = subscribe(replay=True)
    for seq, content in enumerate((numbered(0), payload, numbered(2))):
        publisher.send(seq, content)
    found = read(events, up_to(2))
    assert told(found) == [0, (1, 1), 2]
    assert found[1].reason == "unreadable"
    assert events.faults == 1
    assert publisher.asked == []


NO_EVENTS = {
    "an unknown one": {"type": "BlockMoved", "block_hashes": [1]},
    "no name": {"block_hashes": [1]},
    "no map": ["BlockRemoved", [1]],
    "no hashes": {"type": "BlockRemoved"},
    "hashes that are text": {"type": "BlockRemoved", "block_hashes": ["a"]},
    "a negative size": {
        "type": "BlockStored",
        "block_hashes": [1],
        "parent_block_hash": None,
        "token_ids": [1],
        "block_size": -1,
    },
    "tokens that are none": {
        "type": "BlockStored",
        "block_hashes": [1],
        "parent_block_hash": None,
        "token_ids": 5,
        "block_size": 1,
    },
}


@pytest.mark.parametrize("event", NO_EVENTS.values(), ids=NO_EVENTS.keys())
def test_an_event_that_is_not_understood_is_a_gap_in_its_place(
    publisher: Publisher, subscribe: Subscribe, event: Any
) -> None:
    """The events around it are given out, in order."""
    events = subscribe()
    publisher.send(0, batch(removed(0), event, {"type": "AllBlocksCleared", "new": 1}))
    before, gap, after = read(events, lambda found: len(found) == 3)
    assert before.block_hashes == (0,)
    assert gap == Gap(first=0, last=0, reason="unreadable")
    assert isinstance(after, AllBlocksCleared)
    assert events.faults == 1


def test_a_bad_answer_is_counted(publisher: Publisher, subscribe: Subscribe) -> None:
    """A batch that is unreadable when it is repeated is a gap too."""
    publisher.kept = {0: numbered(0), 1: b"\xc1", 2: numbered(2)}
    events = subscribe(replay=True)
    publisher.send(3, numbered(3))
    assert told(read(events, up_to(3))) == [0, (1, 1), 2, 3]
    assert events.faults == 1


def test_what_nobody_reads_does_not_pile_up(publisher: Publisher, subscribe: Subscribe) -> None:
    """Of 50,000 batches that nobody reads, the queues keep some thousands; each other one is in a gap."""
    events = subscribe()
    for seq in range(50_000):
        publisher.send(seq, numbered(seq))
    found = read(events, lambda found: len(found) >= 1000)
    while came := events.read(0.5):
        found.extend(came)
    publisher.send(50_000, numbered(50_000))
    found += read(events, up_to(50_000))
    parts = [each if isinstance(each, tuple) else (each, each) for each in told(found)]
    assert [seq for first, last in parts for seq in range(first, last + 1)] == list(range(50_001))
    assert len(found) < 10_000


def test_another_topic_is_named(publisher: Publisher, subscribe: Subscribe) -> None:
    """Batches of the topic '' are not those of 'kv', and the silence is explained with it."""
    events = subscribe()
    publisher.send(0, numbered(0), topic=b"")
    publisher.send(1, numbered(1), topic=b"kv2")
    ends_at = time.monotonic() + WAIT_S
    while "'kv2'" not in str(events.explain_silence()):
        assert time.monotonic() < ends_at
        assert events.read(0.1) == []
    assert "not 'kv'" in str(events.explain_silence())


def test_silence_is_explained(publisher: Publisher, subscribe: Subscribe) -> None:
    """An engine that is connected and silent is another thing than none; after an event there is nothing."""
    events = subscribe()
    assert "is connected" in str(events.explain_silence())
    publisher.send(0, numbered(0))
    read(events, up_to(0))
    assert events.explain_silence() is None


def test_what_is_not_understood_explains_silence(publisher: Publisher, subscribe: Subscribe) -> None:
    """Only nonsense came: that is said, not that nothing came."""
    events = subscribe()
    publisher.send_raw(b"hello")
    ends_at = time.monotonic() + WAIT_S
    while not events.faults:
        assert time.monotonic() < ends_at
        events.read(0.1)
    assert "not understood" in str(events.explain_silence())


def test_two_sides_that_connect_never_hear_each_other(caplog: pytest.LogCaptureFixture) -> None:
    """The engine connects to tcp://127.0.0.1, so nobody listens there; after 30 s the log says so, once."""
    now = [1000.0]
    with (
        caplog.at_level(logging.WARNING, logger="kvsdk.vllm"),
        KvEvents("tcp://127.0.0.1:1", clock=lambda: now[0]) as events,
    ):
        now[0] += 29.9
        assert events.read() == []
        assert caplog.text == ""
        now[0] += 0.2
        for _ in range(3):
            assert events.read() == []
        text = str(events.explain_silence())
    assert "connects to its endpoint instead of listening" in text
    assert "tcp://*:PORT" in text
    assert len(caplog.records) == 1
    assert text in caplog.text


def test_no_engine_at_a_file(tmp_path: Path) -> None:
    """Nobody is at the file yet: that is said, without the advice for TCP."""
    with KvEvents(f"ipc://{tmp_path}/none") as events:
        text = str(events.explain_silence())
    assert "no engine is at" in text
    assert "tcp" not in text


def test_it_listens_where_the_engine_connects() -> None:
    """With `bind=True` it hears a publisher that connects."""
    import zmq

    with (
        KvEvents("tcp://127.0.0.1:*", bind=True) as events,
        zmq.Context.instance().socket(zmq.XPUB) as publisher,
    ):
        publisher.connect(events._stream._socket.getsockopt_string(zmq.LAST_ENDPOINT))
        ends_at = time.monotonic() + WAIT_S
        while not publisher.poll(0):  # a side that listens subscribes when it reads
            assert time.monotonic() < ends_at
            assert events.read(0.1) == []
        publisher.send_multipart([b"kv", b"\0" * 8, numbered(0)])
        assert told(read(events, up_to(0))) == [0]


@pytest.mark.parametrize(
    ("endpoint", "advice"),
    [
        ("tcp://*:5557", "'tcp://127.0.0.1:5557'"),
        ("127.0.0.1:5557", "such as"),
        ("", "such as"),
        ("pigeon://x", "cannot connect"),
        ("tcp://127.0.0.1", "cannot connect"),
        (f"ipc://{'x' * 200}", "cannot connect"),
    ],
)
def test_an_endpoint_that_is_none(endpoint: str, advice: str) -> None:
    """It is refused at once, with what to write."""
    with pytest.raises(ConfigurationError, match=re.escape(advice)):
        KvEvents(endpoint)


def test_a_replay_endpoint_that_is_none() -> None:
    """It is named in the refusal."""
    with pytest.raises(ConfigurationError, match="replay_endpoint"):
        KvEvents("ipc:///tmp/x", replay_endpoint="tcp://*:1")


@pytest.mark.parametrize("package", ["zmq", "msgspec"])
def test_a_missing_package_is_named(package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without pyzmq or msgspec the way out is in the error."""
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(BackendNotInstalled, match=r"pip install 'kvsdk\[vllm\]'"):
        KvEvents("ipc:///tmp/x")


def test_closing_ends_the_iteration(publisher: Publisher, subscribe: Subscribe) -> None:
    """A reader in another thread gets what came, and its loop ends; reading on is an error."""
    events = subscribe()
    found: list[KvEvent] = []
    has_one = threading.Event()

    def loop() -> None:
        for event in events:
            found.append(event)
            has_one.set()

    reader = threading.Thread(target=loop)
    reader.start()
    publisher.send(0, numbered(0))
    assert has_one.wait(WAIT_S)
    events.close()
    reader.join(WAIT_S)
    assert not reader.is_alive()
    assert told(found) == [0]
    events.close()
    assert list(events) == []
    with pytest.raises(InvalidRequest, match="closed"):
        events.read()
