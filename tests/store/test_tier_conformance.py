"""The suite for tiers: what passes it, and that whatever breaks a promise does not."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path
from typing import Any

import broken_keepers  # noqa: F401  it registers its tiers
import pytest
from broken_holders import Holding
from broken_tiers import BROKEN
from dict_tiers import DictTier, HintedTier
from kvsdk.store.tiers.buffers import BufferPool
from kvsdk.store.tiers.disk import Disk
from kvsdk.store.tiers.disk_files import Files
from kvsdk.store.tiers.memory import Memory
from kvsdk.store.tiers.tier import Tier
from kvsdk.testing import TierConformance
from kvsdk.testing.tier_fixtures import Clock

STANDARD = [name for name in dir(TierConformance) if name.startswith("test_")]


class DictSuite:
    """How to look past a tier whose place is a dict."""

    kind: type[DictTier]

    @pytest.fixture(autouse=True)
    def _place(self) -> None:
        self.place: dict[str, bytes] = {}

    def make_tier(self) -> Tier:
        return self.kind(self.place)

    def raw_set(self, tier: Tier, name: str, data: bytes) -> None:
        self.place[name] = data

    def raw_get(self, tier: Tier, name: str) -> bytes | None:
        return self.place.get(name)


class TestDict(DictSuite, TierConformance):
    """The tier that fits on a page."""

    kind = DictTier
    persists = True
    keeps_hints = False


class TestHinted(DictSuite, TierConformance):
    """The one with a capacity and hints."""

    kind = HintedTier
    persists = True


class TestHolding(DictSuite, TierConformance):
    """The one that keeps buffers."""

    kind = Holding
    finds_foreign = False
    keeps_hints = False


class TestMemory(TierConformance):
    """The memory tier; nothing gets into it but by `put`."""

    finds_foreign = False

    def make_tier(self) -> Tier:
        return Memory("64MiB")

    def raw_get(self, tier: Tier, name: str) -> bytes | None:
        assert isinstance(tier, Memory)
        found = tier._buffers._held.get(name)
        return None if found is None else bytes(found.view)


class TestDisk(TierConformance):
    """The disk tier."""

    persists = True

    @pytest.fixture(autouse=True)
    def _place(self, tmp_path: Path) -> None:
        self.folder = tmp_path

    def make_tier(self) -> Tier:
        return Disk(self.folder, "64MiB")

    def raw_set(self, tier: Tier, name: str, data: bytes) -> None:
        path = self.folder / Files(self.folder).path(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)

    def raw_get(self, tier: Tier, name: str) -> bytes | None:
        path = self.folder / Files(self.folder).path(name)
        return path.read_bytes() if path.exists() else None


# ---------------------------------------------------------------------- the suite can fail


def cases(test: Callable[..., None]) -> Iterator[dict[str, Any]]:
    """The arguments of each of a test's cases, as `parametrize` gives them."""
    marks = [mark for mark in getattr(test, "pytestmark", ()) if mark.name == "parametrize"]
    choices = []
    for names, values in (mark.args for mark in marks):
        many = not isinstance(names, str) or "," in names
        keys = [key.strip() for key in names.split(",")] if isinstance(names, str) else names
        choices.append([dict(zip(keys, value if many else (value,), strict=True)) for value in values])
    for choice in product(*choices):
        yield {name: value for part in choice for name, value in part.items()}


def passes(kind: type[DictTier], name: str, case: dict[str, Any]) -> bool:
    """Whether a tier passes a case of a standard test."""

    class Suite(DictSuite, TierConformance):
        persists = True

    suite, pool, clock = Suite(), BufferPool(), Clock()
    suite.kind, suite.place = kind, {}
    test = getattr(suite, name)
    given: dict[str, Any] = {"pool": pool, "clock": clock, **case}
    tier = suite.make_tier()
    tier.open(clock=clock)
    try:
        wanted = inspect.signature(test).parameters
        test(**{key: given.get(key, tier) for key in wanted})  # what is not given is the tier
        tier.close()
    except (Exception, pytest.fail.Exception):  # noqa: BLE001  whatever it is, the suite has found it
        return False
    return pool.used_bytes == 0


def test_no_promise_goes_unchecked() -> None:
    """For every standard test there is a tier that fails it."""
    assert {name for name, _ in BROKEN} == set(STANDARD)


@pytest.mark.parametrize(("name", "kind"), BROKEN, ids=lambda value: getattr(value, "__name__", value))
def test_a_broken_tier_is_found_out(name: str, kind: type[DictTier]) -> None:
    """By the test that is about what it breaks; the whole ones pass that test."""
    test = getattr(TierConformance, name)
    assert not all(passes(kind, name, case) for case in cases(test))
    whole = HintedTier if issubclass(kind, HintedTier) else DictTier
    assert all(passes(whole, name, case) for case in cases(test))


def test_a_standard_test_cannot_be_overridden() -> None:
    """Neither replaced nor switched off; tests of one's own may stand beside them."""
    with pytest.raises(TypeError, match="Mine overrides standard tests: test_what_is_removed_is_gone"):
        type("Mine", (TierConformance,), {"test_what_is_removed_is_gone": None})
    assert type("Mine", (TierConformance,), {"test_of_mine": lambda self: None})


def test_every_standard_test_says_what_it_holds() -> None:
    """A sentence for those whose tier fails it."""
    assert len(STANDARD) > 25
    assert [name for name in STANDARD if not getattr(TierConformance, name).__doc__] == []
