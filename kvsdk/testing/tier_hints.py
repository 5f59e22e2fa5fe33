"""Standard tests of tiers that keep what the application said: expiry, pins, sessions."""

from __future__ import annotations

import pytest

from kvsdk.store.tiers.buffers import BufferPool
from kvsdk.store.tiers.tier import Hints, Tier
from kvsdk.testing.tier_fixtures import Clock, TierFixtures, content, keep, read

NAME = "kv/0/256-ab"
OTHER = "kv/0/256-cd"
_MIB = 1 << 20


class HintTests(TierFixtures):
    """What `Hints` says has the effect that it says. Skipped for a tier that does not keep them."""

    @pytest.fixture
    def hinted(self, tier: Tier) -> Tier:
        """The tier, for tests that make no sense without hints."""
        if not self.keeps_hints:
            pytest.skip("this tier keeps no hints")
        return tier

    def test_what_has_expired_is_a_miss(self, hinted: Tier, pool: BufferPool, clock: Clock) -> None:
        """From its moment on, and not before; `collect` takes it away."""
        assert keep(hinted, pool, NAME, b"1", Hints(expires_at=clock.now + 10))
        assert keep(hinted, pool, OTHER, b"2")
        clock.now += 9
        assert hinted.collect() == 0
        assert read(hinted, pool, NAME) == b"1"
        assert hinted.contains([NAME, OTHER]) == [True, True]
        clock.now += 2
        assert read(hinted, pool, NAME) is None
        assert hinted.contains([NAME, OTHER]) == [False, True]
        hinted.collect()
        assert self.raw_get(hinted, NAME) is None
        assert hinted.list("") == [OTHER]
        assert read(hinted, pool, OTHER) == b"2"

    def test_what_has_expired_may_be_put_again(self, hinted: Tier, pool: BufferPool, clock: Clock) -> None:
        """Its place is not taken."""
        assert keep(hinted, pool, NAME, b"1", Hints(expires_at=clock.now + 10))
        clock.now += 11
        assert keep(hinted, pool, NAME, b"1", Hints(expires_at=clock.now + 10))
        assert read(hinted, pool, NAME) == b"1"

    @pytest.mark.parametrize("by", ["put", "touch"])
    @pytest.mark.parametrize(("first_s", "second_s", "lives_s"), [(10, 30, 30), (30, 10, 30)])
    def test_the_later_expiry_counts(
        self, hinted: Tier, pool: BufferPool, clock: Clock, by: str, first_s: int, second_s: int, lives_s: int
    ) -> None:
        """Whoever said it, and in whatever order."""
        start = clock.now
        assert keep(hinted, pool, NAME, b"1", Hints(expires_at=start + first_s))
        _say(hinted, pool, by, Hints(expires_at=start + second_s))
        clock.now = start + lives_s - 1
        assert read(hinted, pool, NAME) == b"1"
        clock.now = start + lives_s + 1
        assert read(hinted, pool, NAME) is None

    def test_never_is_the_latest(self, hinted: Tier, pool: BufferPool, clock: Clock) -> None:
        """What is put to stay stays, whoever else put it for a while."""
        assert keep(hinted, pool, NAME, b"1", Hints(expires_at=clock.now + 10))
        assert keep(hinted, pool, NAME, b"1", Hints(expires_at=None))
        assert keep(hinted, pool, NAME, b"1", Hints(expires_at=clock.now + 10))
        clock.now += 1e6
        assert read(hinted, pool, NAME) == b"1"

    def test_use_alone_keeps_nothing_longer(self, hinted: Tier, pool: BufferPool, clock: Clock) -> None:
        """To touch it without an expiry says nothing of when it ends."""
        assert keep(hinted, pool, NAME, b"1", Hints(expires_at=clock.now + 10))
        hinted.touch([NAME], Hints())
        clock.now += 11
        assert read(hinted, pool, NAME) is None

    @pytest.mark.parametrize("by", ["put", "touch"])
    def test_it_says_until_when(self, tier: Tier, pool: BufferPool, clock: Clock, by: str) -> None:
        """The latest that was said of it; None for ever, where it is not there, where that is not kept."""
        start = clock.now
        assert tier.expiry(NAME) is None
        assert keep(tier, pool, NAME, b"1", Hints(expires_at=start + 10))
        assert keep(tier, pool, OTHER, b"2")
        assert tier.expiry(NAME) == (start + 10 if self.keeps_hints else None)
        for after_s in (30, 20):
            _say(tier, pool, by, Hints(expires_at=start + after_s))
            assert tier.expiry(NAME) == (start + 30 if self.keeps_hints else None)
        assert tier.expiry(OTHER) is None

    @pytest.mark.parametrize("by", ["put", "touch"])
    def test_what_is_pinned_stays(self, hinted: Tier, pool: BufferPool, by: str) -> None:
        """However much else comes; and goes like the others once it is unpinned."""
        self._need_capacity(hinted)
        assert keep(hinted, pool, NAME, content(NAME, _MIB), Hints(pinned=by == "put"))
        hinted.touch([NAME], Hints(pinned=by == "touch"))
        self._crowd(hinted, pool, "a")
        assert read(hinted, pool, NAME) == content(NAME, _MIB)
        hinted.unpin([NAME])
        self._crowd(hinted, pool, "b")
        assert read(hinted, pool, NAME) is None

    def test_an_ended_session_pins_nothing(self, hinted: Tier, pool: BufferPool) -> None:
        """Its entries are counted, may go, and do not go by that alone."""
        self._need_capacity(hinted)
        assert keep(hinted, pool, NAME, content(NAME, _MIB), Hints(session="s", pinned=True))
        assert hinted.end_session("another") == 0
        assert hinted.end_session("s") == 1
        assert read(hinted, pool, NAME) == content(NAME, _MIB)
        self._crowd(hinted, pool, "a")
        assert read(hinted, pool, NAME) is None

    def _need_capacity(self, tier: Tier) -> None:
        if tier.stats().capacity_bytes is None:
            pytest.skip("this tier evicts nothing")
        tier.resize("4MiB")

    def _crowd(self, tier: Tier, pool: BufferPool, word: str) -> None:
        """Put more than there is room for."""
        for number in range(8):
            assert keep(tier, pool, f"crowd/{word}/{number}", content(word, _MIB))


def _say(tier: Tier, pool: BufferPool, by: str, hints: Hints) -> None:
    if by == "put":
        assert keep(tier, pool, NAME, b"1", hints)
    else:
        tier.touch([NAME], hints)
