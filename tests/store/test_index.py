"""The index of a tier: order, quota, links, and the file that it lies in."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from kvsdk.errors import ConfigurationError, InvalidRequest
from kvsdk.store.tiers.index.database import Database
from kvsdk.store.tiers.index.index import Admission, Index
from kvsdk.store.tiers.index.policy import Policy, links
from kvsdk.store.tiers.index.rows import Measured
from kvsdk.store.tiers.index.schema import VERSION, CorruptIndex, open_database
from kvsdk.store.tiers.tier import Hints, PolicyName
from tier_twin import Clock, chain


class Bytes:
    """What is there, as a dict of sizes; what is in `stuck` cannot be removed."""

    def __init__(self) -> None:
        self.sizes: dict[str, int] = {}
        self.dropped: list[str] = []
        self.stuck: set[str] = set()

    def measure(self, name: str) -> Measured | None:
        return Measured(self.sizes[name], 50.0) if name in self.sizes else None

    def drop(self, name: str) -> None:
        if name in self.stuck:
            raise OSError(5, "stuck")
        self.dropped.append(name)
        self.sizes.pop(name, None)


class Made:
    """An index over bytes, with a clock of its own."""

    def __init__(self, path: str = ":memory:", policy: PolicyName = "hints", owner: str = "me") -> None:
        self.bytes = Bytes()
        self.clock = Clock(100.0)
        self.database = Database(path)
        self.index = Index(self.database, self.bytes, Policy(policy), self.clock, owner)

    def put(self, name: str, size: int = 1, **hints: Any) -> bool:
        admission = self.index.admit(name, size, Hints(**hints))
        if admission is Admission.WRITE:
            self.bytes.sizes[name] = size
            self.index.publish(name, size)
        return admission is not Admission.REFUSED

    def ask(self, sql: str, *values: Any) -> list[tuple[Any, ...]]:
        with self.database.reading() as db:
            return db.execute(sql, values).fetchall()

    def evicted_one_by_one(self) -> list[str]:
        """The order in which all of it goes."""
        size = self.index.stats().used_bytes
        assert size is not None
        for capacity in range(size - 1, -1, -1):
            self.index.set_capacity(capacity)
            self.index.shrink()
        return self.bytes.dropped


@pytest.fixture
def made() -> Iterator[Made]:
    one = Made()
    yield one
    one.database.close()


def test_lru_evicts_by_time_and_depth() -> None:
    """The longest unused first; of those used at once the deepest; nothing else counts but expiry."""
    made = Made(policy="lru")
    for depth, name in enumerate(["fp/a", "fp/b", "fp/c"]):
        made.put(name, depth_tokens=256 * depth)
    made.clock.now = 101.0
    made.put("fp/d", session="s")
    made.put("fp/e", expires_at=105.0)
    made.index.touch(["fp/a"], Hints())
    made.index.demote(["fp/a", "fp/d"])
    made.clock.now = 106.0
    assert made.evicted_one_by_one() == ["fp/e", "fp/c", "fp/b", "fp/a", "fp/d"]
    made.database.close()


def test_hints_evict_what_nobody_wants_first(made: Made) -> None:
    """What has expired, what is demoted, what no living session has, then by time, then by depth."""
    made.put("fp/held", session="s")
    made.put("fp/ended", session="t")
    made.clock.now = 101.0
    made.put("fp/deep", depth_tokens=512)
    made.put("fp/flat")
    made.put("fp/demoted", session="s")
    made.put("fp/expired", session="s", expires_at=103.0)
    made.index.demote(["fp/demoted"])
    assert made.index.end_session("t") == 1
    made.clock.now = 104.0
    order = ["fp/expired", "fp/demoted", "fp/ended", "fp/deep", "fp/flat", "fp/held"]
    assert made.evicted_one_by_one() == order


def test_what_is_used_again_is_not_demoted_any_more(made: Made) -> None:
    """Then it goes in its turn."""
    made.put("fp/a")
    made.put("fp/b")
    made.index.demote(["fp/b"])
    made.index.touch(["fp/b"], Hints())
    assert made.evicted_one_by_one() == ["fp/a", "fp/b"]


def test_a_head_stays_while_its_tail_does(made: Made) -> None:
    """Also where the head was used first, is of no session, and is demoted: the tail goes before it."""
    names = chain(1, 2, 3)
    for name in names:
        made.put(name)
        made.clock.now += 1
    made.index.touch(names[1:], Hints(session="s"))
    made.index.demote(names[:1])
    made.put("fp/other", session="t")
    assert made.evicted_one_by_one() == [*reversed(names), "fp/other"]


def test_a_pinned_tail_protects_its_heads(made: Made) -> None:
    """Though only the tail is pinned; when that is over all of them may go."""
    names = chain(1, 2, 3)
    for name in names:
        made.put(name, pinned=name == names[-1])
    made.index.set_capacity(1)
    assert made.index.shrink() == 0
    made.index.unpin(names)
    assert made.index.shrink() == 2
    assert made.index.contains(names) == [True, False, False]


def test_pins_add_up_and_end_with_their_session(made: Made) -> None:
    """An entry is pinned as long as anybody pins it; `unpin` lifts all pins and no hold."""
    made.put("fp/a", session="s", pinned=True)
    made.index.touch(["fp/a"], Hints(session="t", pinned=True))
    made.index.touch(["fp/a"], Hints(session="s"))
    made.index.set_capacity(0)
    assert made.index.end_session("s") == 1
    assert made.index.shrink() == 0
    made.index.touch(["fp/a"], Hints(pinned=True))
    assert made.index.end_session("t") == 1
    assert made.index.end_session("") == 0
    assert made.index.shrink() == 0
    made.index.touch(["fp/a"], Hints(session="u"))
    made.index.unpin(["fp/a"])
    assert made.ask("SELECT is_held, is_pinned FROM entries") == [(1, 0)]
    assert made.index.shrink() == 1
    assert made.ask("SELECT * FROM holds") == []


def test_the_sum_of_all_rows_is_kept_whatever_their_state(made: Made) -> None:
    """3 bytes ready, 4 being written and 5 gone are 7; what is abandoned does not count."""
    made.put("fp/a", 3)
    assert made.index.admit("fp/b", 4, Hints()) is Admission.WRITE
    made.put("fp/c", 5)
    made.index.remove("fp/c")
    assert made.index.stats().used_bytes == 3 + 4
    assert made.index.stats().entries == 1
    made.index.abandon("fp/b")
    assert made.index.stats().used_bytes == 3


def test_room_is_given_only_when_the_old_is_gone(made: Made) -> None:
    """At no moment do the rows together have more than the capacity, those that are leaving too."""
    made.index.set_capacity(3)
    for name in ("fp/a", "fp/b", "fp/c"):
        made.put(name)
    with made.database.writing() as db:
        db.execute(
            "CREATE TRIGGER above AFTER UPDATE ON totals WHEN NEW.used_bytes > NEW.capacity_bytes"
            " BEGIN SELECT RAISE(ABORT, 'above the capacity'); END"
        )
    assert made.put("fp/d", 2)
    assert made.bytes.dropped == ["fp/a", "fp/b"]
    assert made.index.names("") == ["fp/c", "fp/d"]


def test_what_cannot_be_removed_stays(made: Made) -> None:
    """Its row too, and those that were to go after it; the error is the caller's."""
    for name in ("fp/a", "fp/b", "fp/c"):
        made.put(name)
    made.bytes.stuck = {"fp/b"}
    made.index.set_capacity(0)
    with pytest.raises(OSError, match="stuck"):
        made.index.shrink()
    assert made.index.names("") == ["fp/b", "fp/c"]
    assert made.ask("SELECT count(*) FROM entries WHERE state <> 1 OR owner IS NOT NULL") == [(0,)]


def test_an_entry_that_is_leaving_is_not_there(made: Made) -> None:
    """Nor can it be put until it is gone, for whoever removes it does not look again."""
    made.put("fp/a")
    with made.database.writing() as db:
        db.execute("UPDATE entries SET state = 2, owner = 'other'")
    assert made.index.contains(["fp/a"]) == [False]
    assert made.index.names("") == []
    assert not made.index.remove("fp/a")
    assert made.index.admit("fp/a", 1, Hints()) is Admission.REFUSED
    assert made.index.others_are_busy()
    assert made.index.bury(alive={"other"}) == 0
    assert made.index.bury(alive=set()) == 1
    assert made.bytes.dropped == ["fp/a"]
    assert made.put("fp/a")


def test_what_another_writes_is_taken_over(tmp_path: Path) -> None:
    """Two write one entry: it counts once, and is there whichever of them is done, or dies."""
    first, second = (Made(str(tmp_path / "index.db"), owner=name) for name in ("first", "second"))
    assert first.index.admit("fp/a", 3, Hints()) is Admission.WRITE
    assert second.index.admit("fp/a", 4, Hints()) is Admission.WRITE
    assert first.index.stats().used_bytes == 4
    first.index.abandon("fp/a")
    second.index.publish("fp/a", 4)
    assert first.index.contains(["fp/a"]) == [True]
    first.bytes.sizes["fp/a"] = 4
    first.index.publish("fp/a", 3)
    assert second.index.stats().used_bytes == 4
    for one in (first, second):
        one.database.close()


def test_one_that_was_taken_for_dead_publishes_all_the_same(made: Made) -> None:
    """Its row was removed meanwhile, so what it wrote is counted anew."""
    assert made.index.admit("fp/a", 3, Hints()) is Admission.WRITE
    with made.database.writing() as db:
        db.execute("DELETE FROM entries")
    made.bytes.sizes["fp/a"] = 3
    made.index.publish("fp/a", 3)
    assert made.index.names("") == ["fp/a"]
    assert made.index.stats().used_bytes == 3


def test_a_tail_without_its_head_evicts_nothing(made: Made) -> None:
    """It is kept where there is room, since another tier may have the head."""
    head, tail = chain(1, 2)
    made.index.set_capacity(2)
    made.put("fp/a")
    assert made.put(tail, depth_tokens=256)
    made.index.remove(tail)
    made.put("fp/b")
    assert not made.put(tail, depth_tokens=256)
    assert made.put(head)
    assert made.put(tail, depth_tokens=256)
    assert made.index.names("") == sorted([head, tail])


def test_names_say_what_is_before() -> None:
    """Only those of three words; kinds have nothing to do with each other."""
    head, tail = chain(1, 2)
    assert links(head)[0] == links(tail)[1]
    assert links("kv/a/1-b")[0] == links("kv/b/7-c")[1]
    assert links("kv/a/1-b")[0] != links("fp/b/7-c")[1]
    assert links("fp/a") == (None, None)
    assert links("fp/a/b/c") == (None, None)


def test_an_entry_that_follows_itself_may_go(made: Made) -> None:
    """A name that makes no sense is no way to stay for ever."""
    made.put("kv/a/1-a")
    assert made.evicted_one_by_one() == ["kv/a/1-a"]


def test_names_are_found_by_their_beginning(made: Made) -> None:
    """As text, not as a pattern."""
    for name in ("fp/a", "kv/a", "kv/a-b", "kv/b"):
        made.put(name)
    assert made.index.names("kv/a") == ["kv/a", "kv/a-b"]
    assert made.index.names("kv/") == ["kv/a", "kv/a-b", "kv/b"]
    assert made.index.names("kv/_") == made.index.names("%") == []


@pytest.mark.parametrize("policy", ["lru", "hints"])
def test_the_next_to_go_is_found_without_looking_at_all(policy: PolicyName) -> None:
    """Through the policy's own index, without sorting."""
    made = Made(policy=policy)
    expired, loose = (" ".join(row[3] for row in explain(made, query)) for query in Policy(policy).choices)
    assert "USING INDEX expiring" in expired
    assert f"USING INDEX by_{policy}" in loose
    assert "TEMP B-TREE" not in expired + loose
    made.database.close()


def explain(made: Made, query: str) -> list[tuple[Any, ...]]:
    with made.database.reading() as db:
        return db.execute("EXPLAIN QUERY PLAN " + query, {"now": 1.0, "before": 1}).fetchall()


# ---------------------------------------------------------------------- the file


def test_a_newer_index_is_refused(tmp_path: Path) -> None:
    """With both versions and what to do; nothing in it is changed."""
    path = tmp_path / "index.db"
    open_database(str(path))[0].close()
    with closing(sqlite3.connect(path)) as db:
        db.execute(f"PRAGMA user_version = {VERSION + 6}")
    before = path.read_bytes()
    words = f"has version {VERSION + 6}, this kvsdk knows up to {VERSION}; upgrade kvsdk"
    with pytest.raises(ConfigurationError, match=words):
        Database(str(path))
    assert path.read_bytes() == before


def test_another_programs_database_is_refused(tmp_path: Path) -> None:
    """It is not ours to set aside."""
    path = tmp_path / "index.db"
    with closing(sqlite3.connect(path)) as db, db:
        db.execute("CREATE TABLE songs (title TEXT)")
    with pytest.raises(ConfigurationError, match="no index of a store; choose another folder"):
        Database(str(path))


@pytest.mark.parametrize("at", [0, 100, 4096, 3 * 4096])
def test_a_damaged_index_is_recognised(tmp_path: Path, at: int) -> None:
    """Whether its head, its schema or a page of its tables is overwritten."""
    path = tmp_path / "index.db"
    made = Made(str(path))
    for name in chain(*range(200)):
        made.put(name)
    made.database.close()
    content = bytearray(path.read_bytes())
    content[at : at + 512] = b"\xff" * 512
    path.write_bytes(content)
    with pytest.raises(CorruptIndex):
        Database(str(path))


def test_an_index_that_cannot_be_opened_is_said(tmp_path: Path) -> None:
    """A folder in its place is no damage: nothing is set aside."""
    (tmp_path / "index.db").mkdir()
    with pytest.raises(ConfigurationError, match="cannot be opened"):
        Database(str(tmp_path / "index.db"))


def test_a_closed_database_says_so() -> None:
    """Closing twice is no fault."""
    made = Made()
    made.database.close()
    made.database.close()
    with pytest.raises(InvalidRequest, match="the tier is closed"):
        made.index.stats()
