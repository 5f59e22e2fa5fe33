"""The events of a real engine, which runs in a process of its own and says what its cache really holds."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kvsdk_vllm.observe import AllBlocksCleared, BlockRemoved, BlockStored, Gap, KvEvent, KvEvents, Residency

pytestmark = [pytest.mark.engine, pytest.mark.timeout(600)]

SCRIPT = Path(__file__).parents[2] / "support" / "kv_events_engine.py"
WAIT_S = 60
SALT = "tenant-secret"
STORY = list(range(1000, 1192))  # 6 blocks of 32 tokens
QUESTION = [*STORY, 5, 6, 7, 8]


class Engine:
    """The process; what it is told and answers is in its script."""

    def __init__(self, model: Path, folder: Path) -> None:
        self.endpoint, self.replay_endpoint = f"ipc://{folder}/stream", f"ipc://{folder}/replay"
        self._process = subprocess.Popen(
            [sys.executable, str(SCRIPT), str(model), self.endpoint, self.replay_endpoint],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.block_size = self._answer()["block_size"]

    def __call__(self, **wish: Any) -> Any:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(wish) + "\n")
        self._process.stdin.flush()
        return self._answer()

    def close(self) -> None:
        self._process.communicate("\n", timeout=WAIT_S)

    def _answer(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, f"the engine stopped: {self._process.wait()}"
        return json.loads(line)


@pytest.fixture(scope="module")
def engine(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    started = Engine(model, tmp_path_factory.mktemp("kv"))
    yield started
    started.close()


@pytest.fixture
def subscribe(engine: Engine) -> Iterator[Callable[..., KvEvents]]:
    opened: list[KvEvents] = []

    def open_one(**named: Any) -> KvEvents:
        opened.append(KvEvents(engine.endpoint, **named))
        return opened[-1]

    yield open_one
    for events in opened:
        events.close()


def read(events: KvEvents, is_enough: Callable[[Any], bool]) -> list[Any]:
    """What comes, up to an event that is enough."""
    found: list[KvEvent] = []
    ends_at = time.monotonic() + WAIT_S
    while not any(map(is_enough, found)):
        assert time.monotonic() < ends_at, (found, events.explain_silence())
        found.extend(events.read(0.2))
    return found


def of(session: str) -> Callable[[Any], bool]:
    return lambda event: isinstance(event, BlockStored) and event.session == session


def feed(residency: Residency, found: list[KvEvent]) -> list[Any]:
    for event in found:
        residency.feed(event)
    return found


def names(residency: Residency, *sessions: str) -> list[int | bytes]:
    """The blocks of these sessions, each once."""
    found: set[int | bytes] = set()
    for session in sessions:
        blocks = residency.blocks(session)
        assert blocks is not None
        found.update(block.block_hash for block in blocks)
    return sorted(found)


def test_a_life_of_the_cache(engine: Engine, subscribe: Callable[..., KvEvents]) -> None:
    """Stored, read, stored as a copy, evicted, cleared, reported: what is said to be there is there.

    The engine has room for 19 blocks. Reading is no event. A prompt of whole blocks computes its last one
    again, which is then there twice.
    """
    residency, repeats = Residency(), Residency(repeats="reports")
    events = subscribe(replay_endpoint=engine.replay_endpoint)
    assert engine.block_size == 32
    assert engine(run=QUESTION, session="a", salt=SALT) == 0
    (cold,) = feed(residency, read(events, of("a")))
    assert (cold.seq, cold.tokens, cold.parent_block_hash) == (0, 192, None)
    assert engine(run=QUESTION, session="a", salt=SALT) == 192
    assert engine(run=STORY, session="b", salt=SALT) == 160
    (copy,) = feed(residency, read(events, of("b")))  # so the warm one said nothing
    assert (copy.seq, copy.block_hashes) == (1, cold.block_hashes[-1:])
    assert names(residency, "a", "b") == engine(resident=True) == sorted(cold.block_hashes)
    places = [(block.first_token, block.tokens) for block in residency.blocks("a") or ()]
    assert places == [(start, 32) for start in range(0, 192, 32)]

    assert engine(run=list(range(3000, 3350)), session="c") == 0  # 10 blocks
    assert engine(run=list(range(5000, 5350)), session="d") == 0  # 10 more: there is no room for all
    found = feed(residency, read(events, of("d")))
    gone = [event.block_hashes[0] for event in found if isinstance(event, BlockRemoved)]
    assert gone.count(cold.block_hashes[-1]) == 2
    assert names(residency, "a", "b", "c", "d") == engine(resident=True)
    shares = {name: residency.of(name) for name in "abcd"}
    assert [shares[name].evicted_blocks for name in "ab"] == [6, 1]
    assert shares["d"].resident_tokens == 320
    assert residency.everything().evicted_blocks == len(gone) - 1
    assert shares["a"].lifetimes.count == 6
    assert 0 < (shares["a"].lifetimes.median_s or 0) < WAIT_S

    assert engine(reset=True) is True
    assert events.read(1.0) == []  # it is said with the next batch
    assert engine(run=QUESTION, session="a") == 0
    assert engine(run=QUESTION, session="e", report="full") == 192
    found = feed(repeats, read(events, of("e")))
    assert isinstance(found[0], AllBlocksCleared)
    anew, reported = found[-2:]
    assert reported.block_hashes == anew.block_hashes
    assert set(anew.block_hashes).isdisjoint(cold.block_hashes)  # the tenant's salt is in the names
    for event in (*found[:1], anew):
        residency.feed(event)
    assert residency.everything().resident_blocks == 6
    assert residency.of("d").cleared_blocks == 10
    assert names(residency, "a") == engine(resident=True)
    assert names(repeats, "e") == names(residency, "a")  # it began in the middle, where the cache was cleared
    assert events.faults == 0


def test_who_comes_late_is_told_or_made_whole(engine: Engine, subscribe: Callable[..., KvEvents]) -> None:
    """Without a replay what was before is a gap; with one it is read from the engine, from batch 0 on."""
    late, whole = subscribe(), subscribe(replay_endpoint=engine.replay_endpoint)
    for events in (late, whole):
        ends_at = time.monotonic() + WAIT_S
        while "is connected" not in str(events.explain_silence()):
            assert time.monotonic() < ends_at
            events.read(0.1)
    engine(run=list(range(7000, 7070)), session="late")
    first, *_ = read(late, of("late"))
    assert isinstance(first, Gap)
    assert (first.first, first.reason) == (0, "lost")
    found = read(whole, of("late"))
    assert sorted({event.seq for event in found}) == list(range(first.last + 2))
    assert not any(isinstance(event, Gap) for event in found)
    residency = Residency(repeats="reports")
    feed(residency, found)
    assert len(engine(resident=True)) == residency.everything().resident_blocks


def test_vllm_connects_to_an_address_of_one_host(engine: Engine) -> None:
    """Two sides that connect hear nothing, and that is explained; a subscriber that listens hears it."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"tcp://127.0.0.1:{probe.getsockname()[1]}"
    with KvEvents(address) as events:
        for _ in range(3):
            assert engine(publish=address) == "sent"
        assert events.read(1.0) == []
        assert "connects to its endpoint instead of listening" in str(events.explain_silence())
    with KvEvents(address, bind=True) as events:
        found: list[KvEvent] = []
        ends_at = time.monotonic() + WAIT_S
        while not found:
            assert time.monotonic() < ends_at
            assert engine(publish=address) == "sent"
            found = events.read(0.2)
        assert isinstance(found[-1], AllBlocksCleared)
        assert events.explain_silence() is None


def test_the_counts_of_an_engine_in_the_process(engine: Engine) -> None:
    """They are those of the prompts that it was given since the last look."""
    before = engine(metrics=True)
    prompt = list(range(9000, 9100))
    assert [engine(run=prompt), engine(run=prompt)] == [0, 96]
    after = engine(metrics=True)
    assert [name for name, value in after.items() if value is None] == []
    grown = {name: after[name] - before[name] for name in ("prompt_tokens", "prefix_hit_tokens")}
    assert grown == {"prompt_tokens": 2 * 100, "prefix_hit_tokens": 96}
