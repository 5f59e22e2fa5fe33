"""Tiers around a tier: they change what they say they change, and nothing else."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import astuple

import pytest
from broken_holders import Holding
from dict_tiers import HintedTier
from kvsdk.errors import InvalidRequest
from kvsdk.store.tiers.buffers import BufferPool
from kvsdk.store.tiers.tier import Tier
from kvsdk.testing import CountingTier, FaultyTier, SlowTier, TierConformance, WrapperTier
from kvsdk.testing.tier_fixtures import keep, read
from kvsdk.testing.wrappers import OPERATIONS

NAME = "kv/0"
OTHER = "kv/1"


class TestWrapped(TierConformance):
    """With nothing ordered, all of them around a tier are that tier."""

    persists = True

    @pytest.fixture(autouse=True)
    def _place(self) -> None:
        self.place: dict[str, bytes] = {}

    def make_tier(self) -> Tier:
        return CountingTier(FaultyTier(SlowTier(WrapperTier(HintedTier(self.place)))))

    def raw_set(self, tier: Tier, name: str, data: bytes) -> None:
        self.place[name] = data

    def raw_get(self, tier: Tier, name: str) -> bytes | None:
        return self.place.get(name)


@pytest.fixture
def holding(pool: BufferPool) -> Iterator[Holding]:
    """A tier with two entries, which hands out the very memory that it keeps."""
    tier = Holding({})
    for name in (NAME, OTHER):
        assert keep(tier, pool, name, f"bytes of {name}".encode())
    yield tier
    tier.close()


@pytest.fixture
def faulty(holding: Holding) -> FaultyTier:
    return FaultyTier(holding)


def test_every_method_is_passed_on() -> None:
    """A method that is new in the contract is new here too, with the same parameters."""
    own = {name for name in vars(WrapperTier) if name in OPERATIONS}
    assert own == OPERATIONS >= {"put", "get", "contains", "list", "remove", "close"}
    for name in OPERATIONS:
        mine, theirs = (inspect.signature(getattr(kind, name)).parameters for kind in (WrapperTier, Tier))
        assert [*mine.values()] == [*theirs.values()], name


def test_a_wrapper_has_the_traits_of_what_it_wraps() -> None:
    """Unless its effect is another one: who may be slow may block."""

    class Remote(Holding):
        name = "remote"
        is_remote = True

    for kind in (WrapperTier, CountingTier, FaultyTier):
        tier = kind(Remote({}))
        assert (tier.name, tier.may_block, tier.is_remote) == ("remote", False, True)
    slow = SlowTier(Remote({}))
    assert (slow.name, slow.may_block, slow.is_remote) == ("remote", True, True)


def test_a_slow_tier_waits_first(holding: Holding, pool: BufferPool) -> None:
    """As long as it was told for each kind of call, and not at all for the others."""
    waits: list[float] = []
    tier = SlowTier(holding, get_s=1.5, put_s=2.5, ask_s=0.25, sleep=waits.append)
    assert read(tier, pool, NAME) == b"bytes of kv/0"
    assert keep(tier, pool, "kv/2", b"1")
    assert tier.contains([NAME]) == [True]
    assert tier.list("kv/2") == ["kv/2"]
    assert tier.remove("kv/2")
    tier.sync()
    assert waits == [1.5, 2.5, 0.25, 0.25]


def test_a_counting_tier_remembers(holding: Holding, pool: BufferPool) -> None:
    """The method, the names, and the error if there was one."""
    tier = CountingTier(holding)
    assert tier.count() == 0
    assert read(tier, pool, NAME) == b"bytes of kv/0"
    tier.contains([NAME, OTHER])
    with pytest.raises(InvalidRequest):
        tier.remove("no name")
    assert [astuple(call) for call in tier.calls] == [
        ("get", (NAME,), None),
        ("contains", (NAME, OTHER), None),
        ("remove", ("no name",), "InvalidRequest"),
    ]
    assert (tier.count(), tier.count("get"), tier.count("put")) == (3, 1, 0)
    assert tier.counts() == {"get": 1, "contains": 1, "remove": 1}
    tier.forget()
    assert tier.calls == []


def test_it_fails_where_and_as_often_as_ordered(faulty: FaultyTier, pool: BufferPool) -> None:
    """By method, by name and by number; other calls go on."""
    faulty.fail(OSError("disk full"), on="put", times=2)
    faulty.fail(TimeoutError("gone"), on=("get", "contains"), names=[OTHER])
    for _ in range(2):
        with pytest.raises(OSError, match="disk full"):
            keep(faulty, pool, "kv/2", b"1")
    assert keep(faulty, pool, "kv/2", b"1")
    for _ in range(2):
        with pytest.raises(TimeoutError):
            read(faulty, pool, OTHER)
    with pytest.raises(TimeoutError):
        faulty.contains([NAME, OTHER])
    assert faulty.contains([NAME, "kv/2"]) == [True, True]
    assert read(faulty, pool, NAME) == b"bytes of kv/0"
    faulty.heal()
    assert read(faulty, pool, OTHER) == b"bytes of kv/1"


def test_it_fails_everywhere_by_default(faulty: FaultyTier, pool: BufferPool) -> None:
    """A dead tier, with an error of its own for each call."""
    dead = OSError("dead")
    faulty.fail(dead)
    errors = []
    for ask in (faulty.stats, faulty.collect, lambda: faulty.list(""), lambda: faulty.get(NAME, pool)):
        with pytest.raises(OSError, match="dead") as caught:
            ask()
        errors.append(caught.value)
    assert len({id(error) for error in [dead, *errors]}) == 5
    faulty.heal()


def test_it_lies_about_what_it_read(faulty: FaultyTier, holding: Holding, pool: BufferPool) -> None:
    """A byte flipped, the end cut off, another's bytes; what the tier keeps is as it was."""
    right = b"bytes of kv/0"
    faulty.flip(NAME, at=2)
    assert read(faulty, pool, NAME) == b"by" + bytes([right[2] ^ 0xFF]) + b"es of kv/0"
    faulty.truncate(NAME, 5)
    assert read(faulty, pool, NAME) == b"bytes"
    faulty.truncate(NAME, 0)
    assert read(faulty, pool, NAME) == b""
    faulty.swap(NAME, OTHER)
    assert read(faulty, pool, NAME) == b"bytes of kv/1"
    assert read(holding, pool, NAME) == right
    faulty.flip("kv/2")
    assert read(faulty, pool, "kv/2") is None
    faulty.heal()
    assert read(faulty, pool, NAME) == right


def test_it_hangs_until_it_is_let_go(faulty: FaultyTier, pool: BufferPool) -> None:
    """A stuck read does what it was to do once it is released; others are not stuck meanwhile."""
    stuck = faulty.stick(on="get", names=[NAME])
    assert faulty.may_block
    with ThreadPoolExecutor(1) as threads:
        reading = threads.submit(read, faulty, BufferPool(), NAME)
        assert stuck.entered.wait(10)
        assert read(faulty, pool, OTHER) == b"bytes of kv/1"
        assert not reading.done()
        stuck.release.set()
        assert reading.result(10) == b"bytes of kv/0"
    assert read(faulty, pool, NAME) == b"bytes of kv/0"


def test_what_is_no_method_cannot_fail(faulty: FaultyTier) -> None:
    """A slip in a test is found at once."""
    with pytest.raises(InvalidRequest, match="a tier has no gett"):
        faulty.fail(OSError("x"), on="gett")
    with pytest.raises(InvalidRequest, match="a tier has no read"):
        faulty.stick(on=["get", "read"])
