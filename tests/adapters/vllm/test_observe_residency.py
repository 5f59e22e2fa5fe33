"""What is in the cache, from events: against a twin that looks through everything that ever happened."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kv_publisher import recorded
from kvsdk.errors import InvalidRequest

from kvsdk_vllm.observe import (
    AllBlocksCleared,
    BlockRemoved,
    BlockStored,
    CacheShare,
    Gap,
    KvEvent,
    Lifetimes,
    Residency,
    Restarted,
)
from kvsdk_vllm.observe import residency as residency_module
from kvsdk_vllm.observe.lifetimes import LifetimeCounts
from kvsdk_vllm.observe.wire import Message, to_batch

SESSIONS = (None, "a", "b", "c")
NO_LIFETIMES = Lifetimes(count=0, median_s=None, p90_s=None, longest_s=None)


def stored(
    *hashes: int,
    at_s: float = 10.0,
    session: str | None = "a",
    parent: int | None = None,
    tokens: int | None = 32,
    seq: int = 0,
    **named: Any,
) -> BlockStored:
    covered = 0 if tokens is None else tokens * len(hashes)
    fields = {"covered_tokens": covered, "medium": "GPU", "group": 0, "rank": 0, **named}
    return BlockStored(
        seq=seq,
        at_s=at_s,
        block_hashes=hashes,
        parent_block_hash=parent,
        block_tokens=tokens,
        session=session,
        **fields,
    )


def removed(*hashes: int, at_s: float = 20.0, **named: Any) -> BlockRemoved:
    fields = {"seq": 0, "medium": "GPU", "group": 0, "rank": 0, **named}
    return BlockRemoved(at_s=at_s, block_hashes=hashes, **fields)


def cleared(at_s: float = 30.0) -> AllBlocksCleared:
    return AllBlocksCleared(seq=0, at_s=at_s, rank=0)


GAP = Gap(first=3, last=4, reason="lost")
RESTARTED = Restarted(seq=0)


def fed(*events: KvEvent, **named: Any) -> Residency:
    residency = Residency(**named)
    for event in events:
        residency.feed(event)
    return residency


def counts(share: CacheShare) -> tuple[int | None, ...]:
    """Resident blocks and tokens, evicted and cleared blocks."""
    return (share.resident_blocks, share.resident_tokens, share.evicted_blocks, share.cleared_blocks)


def test_a_real_engines_events() -> None:
    """As the engine's own pool of 19 blocks had them: 18 blocks after the evictions, 6 after the clearing."""
    residency = Residency()
    seen: list[tuple[int | None, ...]] = []
    for seq, payload in enumerate(recorded()):
        for event in to_batch(Message(seq, payload)).events:
            residency.feed(event)
        seen.append(counts(residency.everything()))
    assert seen[:5] == [
        (6, 6 * 32, 0, 0),
        (6, 6 * 32, 0, 0),  # another copy of the last block
        (16, 16 * 32, 0, 0),  # 10 of another session
        (18, 18 * 32, 6 + 2, 0),  # 10 more; all of the first session's and 2 of the second's are gone
        (6, 6 * 32, 8, 18),
    ]
    assert counts(residency.of("a")) == (6, 192, 6, 0)
    assert counts(residency.of("b")) == (0, 0, 1, 0)
    assert counts(residency.of("c")) == (0, 0, 2, 8)
    assert counts(residency.of("d")) == (0, 0, 0, 10)
    lifetimes = residency.of("a").lifetimes
    assert lifetimes.count == 6
    assert lifetimes.longest_s == pytest.approx(6.2, abs=0.1)


def test_before_the_first_event_nothing_is_known() -> None:
    """An engine may have been at work for long when nothing has come yet."""
    residency = Residency()
    for share in (residency.everything(), residency.of("a")):
        assert counts(share) == (None, None, None, None)
        assert share.since_s is None
        assert share.lifetimes == NO_LIFETIMES
    assert residency.blocks("a") is None


def test_events_from_the_middle_are_not_all() -> None:
    """Events that begin at batch 7 leave open what was there before, though no gap is named."""
    residency = fed(stored(1, 2, seq=7))
    assert counts(residency.of("a")) == (None, None, None, None)
    residency.feed(cleared())
    assert counts(residency.of("a")) == (0, 0, 0, 0)


def test_places_follow_from_the_blocks_before() -> None:
    """Blocks 1 to 3 are at 0, 32 and 64, and 4 after 3; what comes after an unknown block has no place."""
    residency = fed(
        stored(1, 2, 3), stored(4, parent=3, at_s=11.0), stored(5, parent=99), stored(6, 7, covered_tokens=96)
    )
    blocks = residency.blocks("a")
    assert blocks is not None
    assert [(block.block_hash, block.first_token) for block in blocks] == [
        (1, 0),
        (2, 32),
        (3, 64),
        (4, 96),
        (5, None),
        (6, None),  # one block in between was left out
        (7, None),
    ]
    assert [block.stored_at_s for block in blocks[2:4]] == [10.0, 11.0]
    assert [block.tokens for block in blocks[:2]] == [32, 32]
    assert residency.blocks("b") == ()


def test_blocks_without_a_size_make_tokens_unknown() -> None:
    """Blocks are counted and their tokens are not; when they are gone the rest is known again."""
    residency = fed(stored(1), stored(2, tokens=None))
    assert counts(residency.of("a")) == (2, None, 0, 0)
    residency.feed(removed(2))
    assert counts(residency.of("a")) == (1, 32, 1, 0)


def test_a_copy_is_removed_on_its_own() -> None:
    """Stored twice and removed once it is still there; its lifetime is from the first to the last."""
    residency = fed(stored(1, at_s=10.0), stored(1, at_s=14.0), removed(1, at_s=20.0))
    assert counts(residency.of("a")) == (1, 32, 0, 0)
    residency.feed(removed(1, at_s=25.0))
    assert counts(residency.of("a")) == (0, 0, 1, 0)
    assert residency.of("a").lifetimes.longest_s == 25.0 - 10.0


def test_a_report_is_no_copy() -> None:
    """Where requests repeat what is there, one removal is the end; who reports a block has it too."""
    residency = fed(stored(1), stored(1, session="b"), repeats="reports")
    assert counts(residency.of("b")) == (1, 32, 0, 0)
    residency.feed(removed(1))
    assert counts(residency.of("a")) == counts(residency.of("b")) == (0, 0, 1, 0)
    assert counts(residency.everything()) == (0, 0, 1, 0)


def test_a_gap_makes_unknown() -> None:
    """After a gap no count is given, not even for a session that never was; what was measured stays."""
    residency = fed(stored(1, 2), removed(1, at_s=13.0), GAP)
    share = residency.of("a")
    assert counts(share) == counts(residency.of("never")) == (None, None, None, None)
    assert share.since_s is None
    assert residency.blocks("a") is None
    assert share.lifetimes.count == 1
    assert share.lifetimes.longest_s == 3.0


def test_blocks_from_before_a_gap_have_no_lifetime() -> None:
    """Block 1 may have gone and come back in the gap; block 2 came after it and is measured."""
    residency = fed(stored(1), GAP, stored(2, at_s=50.0), removed(1, 2, at_s=52.0))
    assert residency.of("a").lifetimes.count == 1
    assert residency.of("a").lifetimes.longest_s == 2.0
    assert residency.of("a").evicted_blocks is None


@pytest.mark.parametrize("event", [cleared(at_s=60.0), RESTARTED])
def test_an_empty_cache_is_known_again(event: KvEvent) -> None:
    """After a gap a clearing, or a new engine, makes everything known; counts begin there."""
    residency = fed(stored(1, 2), removed(1), GAP, stored(3), event, stored(4, at_s=60.0))
    share = residency.of("a")
    assert counts(share) == (1, 32, 0, 0)
    assert share.since_s == 60.0
    assert share.lifetimes.count == 1


def test_a_clearing_is_no_eviction() -> None:
    """Cleared blocks are counted apart and end no lifetime: when it was is not known."""
    residency = fed(stored(1, 2), removed(1), stored(3, session="b"), cleared())
    assert counts(residency.of("a")) == (0, 0, 1, 1)
    assert counts(residency.of("b")) == (0, 0, 0, 1)
    assert counts(residency.everything()) == (0, 0, 1, 2)
    assert residency.everything().lifetimes.count == 1
    assert residency.everything().since_s == 10.0


def test_another_medium_or_group_is_another_cache() -> None:
    """A block in the host's memory, or of other layers, is neither stored nor removed here."""
    events = [stored(1), stored(2, medium="CPU"), stored(3, group=1), stored(4, group=None)]
    events += [removed(1, medium="CPU"), removed(1, group=1)]
    assert counts(fed(*events).of("a")) == (2, 64, 0, 0)
    assert counts(fed(*events, medium="CPU").of("a")) == (1, 32, 0, 0)
    assert counts(fed(*events, group=1).of("a")) == (1, 32, 0, 0)
    assert counts(fed(*events, cleared(), medium="CPU").of("a")) == (1, 32, 0, 0)


def test_a_clock_that_was_put_back_measures_nothing() -> None:
    """A block that seems to go before it came is evicted, without a lifetime."""
    share = fed(stored(1, at_s=10.0), removed(1, at_s=9.0)).of("a")
    assert counts(share) == (0, 0, 1, 0)
    assert share.lifetimes == NO_LIFETIMES


@pytest.mark.parametrize(
    "named",
    [{"medium": "STORAGE"}, {"repeats": "copy"}, {"idle_sessions": -1}],
    ids=lambda named: next(iter(named)),
)
def test_what_it_does_not_take(named: dict[str, Any]) -> None:
    """Each is refused by its name."""
    (name,) = named
    with pytest.raises(InvalidRequest, match=name) as refused:
        Residency(**named)
    assert refused.value.field == name


def test_idle_sessions_are_forgotten() -> None:
    """Of 1,000 sessions without blocks the last 10 are remembered; of others it is not known what was."""
    residency = Residency(idle_sessions=10)
    for number in range(1000):
        residency.feed(stored(number, session=f"s{number}", at_s=float(number)))
        if number:
            residency.feed(removed(number, at_s=number + 0.5))
    assert len(residency._owners) == 10 + 1
    assert counts(residency.of("s999")) == (0, 0, 1, 0)
    assert counts(residency.of("s990")) == (0, 0, 1, 0)
    assert counts(residency.of("s0")) == (1, 32, 0, 0)  # it has a block
    assert counts(residency.of("s989")) == (0, 0, None, None)
    assert residency.of("s989").since_s is None
    assert counts(residency.everything()) == (1, 32, 999, 0)
    residency.feed(stored(5000, session="s500", at_s=2000.0))
    assert counts(residency.of("s500")) == (1, 32, 0, 0)
    assert residency.of("s500").since_s == 2000.0  # since then only
    residency.feed(RESTARTED)
    assert counts(residency.of("s989")) == (0, 0, 0, 0)


def test_sessions_that_stored_nothing_are_idle() -> None:
    """An event may leave all blocks out (sliding windows do that); its session is forgotten like others."""
    residency = Residency(idle_sessions=10)
    for number in range(100):
        residency.feed(stored(session=f"s{number}"))
    assert len(residency._owners) == 10
    assert counts(residency.of("s99")) == (0, 0, 0, 0)


def test_a_block_that_too_many_share(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond three sharers the one that came first is not accounted for, and that is said; others are."""
    monkeypatch.setattr(residency_module, "SHARERS", 3)
    residency = Residency(repeats="reports")
    for name in ("a", "b", "a", "c", "d"):  # a's second time makes b the earliest
        residency.feed(stored(1, session=name))
    assert counts(residency.of("b")) == (None, None, None, None)
    assert residency.blocks("b") is None
    assert [counts(residency.of(name)) for name in "acd"] == [(1, 32, 0, 0)] * 3
    assert counts(residency.everything()) == (1, 32, 0, 0)
    residency.feed(removed(1))
    assert [counts(residency.of(name)) for name in "acd"] == [(0, 0, 1, 0)] * 3


def test_memory_is_that_of_resident_blocks() -> None:
    """100,000 blocks come and go, three at a time: three are held, and 1 number for lifetimes of 1 s."""
    residency = Residency()
    for number in range(0, 100_000, 100):
        hashes = range(number, number + 100)
        residency.feed(stored(*hashes, at_s=number))
        residency.feed(removed(*hashes[:-3], at_s=number + 1))
        residency.feed(removed(*hashes[-3:], at_s=number + 1))
    residency.feed(stored(1, 2, 3))
    assert len(residency._blocks) == 3
    share = residency.of("a")
    assert share.evicted_blocks == 100_000
    assert len(residency._owners["a"].lifetimes._counts) == 1
    assert share.lifetimes.median_s == pytest.approx(1.0, rel=0.01)


# ------------------------------------------------------------------------------------------- the naive twin

EVENTS = st.lists(
    st.one_of(
        st.builds(
            lambda hashes, session, size: ("stored", tuple(hashes), session, size),
            st.lists(st.integers(0, 6), max_size=4),
            st.sampled_from(SESSIONS),
            st.sampled_from([16, 32, None]),
        ),
        st.builds(lambda hashes: ("removed", tuple(hashes)), st.lists(st.integers(0, 6), max_size=4)),
        st.sampled_from([("cleared",), ("gap",), ("restarted",)]),
    ),
    max_size=40,
)


def to_events(steps: Sequence[tuple[Any, ...]], first_seq: int) -> list[KvEvent]:
    """One event each, a second and a half after the last."""
    found: list[KvEvent] = []
    for number, step in enumerate(steps):
        at_s, seq = 100 + 1.5 * number, first_seq + number
        match step:
            case "stored", hashes, session, size:
                found.append(stored(*hashes, at_s=at_s, session=session, tokens=size, seq=seq))
            case "removed", hashes:
                found.append(removed(*hashes, at_s=at_s, seq=seq))
            case ("cleared",):
                found.append(AllBlocksCleared(seq=seq, at_s=at_s, rank=0))
            case ("gap",):
                found.append(Gap(first=seq, last=seq, reason="lost"))
            case _:
                found.append(Restarted(seq=seq))
    return found


class Twin:
    """Copies of blocks in a list, looked through for everything."""

    def __init__(self, events: Sequence[KvEvent], repeats: str) -> None:
        self.copies: list[tuple[Any, int]] = []  # a name, and the number of its life
        self.lives: list[dict[str, Any]] = []
        self.known = bool(events) and not isinstance(events[0], Gap) and events[0].seq == 0
        self.since: float | None = None
        self.start = 0
        for event in events:
            if isinstance(event, Gap | Restarted):
                self.begin(isinstance(event, Restarted))
                continue
            if isinstance(event, AllBlocksCleared) and not self.known:
                self.begin(True)
            if self.since is None:
                self.since = event.at_s
            if isinstance(event, AllBlocksCleared):
                for life in {number for _, number in self.copies}:
                    self.lives[life]["end"] = "cleared"
                self.copies = []
            elif isinstance(event, BlockStored):
                for name in event.block_hashes:
                    self.store(name, event, repeats)
            else:
                for name in event.block_hashes:
                    self.remove(name, event.at_s)

    def begin(self, known: bool) -> None:
        self.known, self.since, self.copies, self.start = known, None, [], len(self.lives)

    def store(self, name: Any, event: BlockStored, repeats: str) -> None:
        there = [number for other, number in self.copies if other == name]
        if not there:
            self.lives.append({"at": event.at_s, "tokens": event.block_tokens, "by": set(), "end": None})
        number = there[0] if there else len(self.lives) - 1
        self.lives[number]["by"].add(event.session)
        if not there or repeats == "copies":
            self.copies.append((name, number))

    def remove(self, name: Any, at_s: float) -> None:
        there = [copy for copy in self.copies if copy[0] == name]
        if there:
            self.copies.remove(there[0])
            if len(there) == 1:
                self.lives[there[0][1]] |= {"end": "evicted", "lived": at_s - self.lives[there[0][1]]["at"]}

    def counts(self, session: Any) -> tuple[int | None, ...]:
        if not self.known:
            return (None,) * 4
        lives = [life for life in self.lives[self.start :] if session is ... or session in life["by"]]
        sizes = [life["tokens"] for life in lives if life["end"] is None]
        return (
            len(sizes),
            None if None in sizes else sum(sizes),
            sum(life["end"] == "evicted" for life in lives),
            sum(life["end"] == "cleared" for life in lives),
        )

    def names(self, session: Any) -> set[Any]:
        return {name for name, number in self.copies if session in self.lives[number]["by"]}

    def lived(self, session: Any) -> list[float]:
        lives = [life for life in self.lives if session is ... or session in life["by"]]
        return sorted(life["lived"] for life in lives if "lived" in life)


def check_lifetimes(found: Lifetimes, expected: list[float]) -> None:
    assert found.count == len(expected)
    if not expected:
        assert found == NO_LIFETIMES
        return
    assert found.longest_s == expected[-1]
    for share, seconds in ((5, found.median_s), (9, found.p90_s)):
        exact = expected[(share * len(expected) + 9) // 10 - 1]
        assert seconds == pytest.approx(exact, rel=0.0101)


@settings(max_examples=400)
@given(EVENTS, st.sampled_from([0, 0, 0, 3]), st.sampled_from(["copies", "reports"]))
def test_it_is_what_its_twin_says(
    steps: list[tuple[Any, ...]], first_seq: int, repeats: Literal["copies", "reports"]
) -> None:
    """Counts, blocks and lifetimes of everybody and of each session, after every event."""
    events = to_events(steps, first_seq)
    residency = Residency(repeats=repeats)
    for end, event in enumerate(events, start=1):
        residency.feed(event)
        twin = Twin(events[:end], repeats)
        for share, session in ((residency.everything(), ...), *((residency.of(s), s) for s in SESSIONS)):
            assert counts(share) == twin.counts(session)
            assert share.since_s == (twin.since if twin.known else None)
            check_lifetimes(share.lifetimes, twin.lived(session))
        for session in SESSIONS:
            blocks = residency.blocks(session)
            assert (blocks is None) is not twin.known
            assert blocks is None or {block.block_hash for block in blocks} == twin.names(session)


@given(st.lists(st.floats(1e-6, 1e7), min_size=1, max_size=60))
def test_quantiles_are_right_to_one_percent(lifetimes: list[float]) -> None:
    """The median and the ninth decile of any lifetimes, against all of them sorted."""
    found = LifetimeCounts()
    for seconds in lifetimes:
        found.add(seconds)
    check_lifetimes(found.summary(), sorted(lifetimes))


def test_an_instant_is_a_lifetime() -> None:
    """Blocks that go in the batch they came in have lived for no time that can be told."""
    found = LifetimeCounts()
    found.add(0.0)
    assert found.summary().count == 1
    assert found.summary().longest_s == 0.0
    assert math.isclose(found.summary().median_s or 0, 0, abs_tol=2e-6)
