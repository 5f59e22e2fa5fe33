"""Standard tests of tiers: entries and their names."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest

from kvsdk.errors import InvalidRequest
from kvsdk.store.tiers.buffers import BufferPool
from kvsdk.store.tiers.tier import Tier
from kvsdk.testing.tier_fixtures import TierFixtures, content, keep, read

NAME = "kv/0/256-ab"
OTHER = "kv/0/256-cd"
SIZES = pytest.mark.parametrize("size", [0, 1, 4095, 65536, 65537, (5 << 20) + 3])

NO_NAMES = (
    "", "/", "kv", "kv/", "/kv/0", "kv//0", "kv/0/", "../kv/0", "kv/../0", "kv/..", "kv/.", "kv/0/../../x",
    "/etc/passwd", "kv\\0", "kv/0\n", "kv/0\0", "kv/ 0", "KV/0", "kv/A", "kv/0.safetensors", "kv/ü", "k2/0",
    "kv/0/1/2/3", "kv/" + "0" * 101, "k" * 17 + "/0", "~/x", "kv/$x", "kv/%2e%2e", None, 7, b"kv/0",
)  # fmt: skip


class EntryTests(TierFixtures):
    """What is put is there, whole and unchanged, under its name and no other."""

    @SIZES
    def test_what_is_put_lies_there(self, tier: Tier, pool: BufferPool, size: int) -> None:
        """Byte for byte, seen past the tier."""
        assert self.raw_get(tier, NAME) is None
        assert keep(tier, pool, NAME, content(NAME, size))
        assert self.raw_get(tier, NAME) == content(NAME, size)

    @SIZES
    def test_what_lies_there_is_read(self, tier: Tier, pool: BufferPool, size: int) -> None:
        """Byte for byte, laid there past the tier, as by another process."""
        if not self.finds_foreign:
            pytest.skip("this tier does not look for what others put there")
        self.raw_set(tier, NAME, content(NAME, size))
        assert read(tier, pool, NAME) == content(NAME, size)
        assert tier.contains([NAME]) == [True]
        assert tier.list("") == [NAME]

    @SIZES
    def test_what_is_put_is_read(self, tier: Tier, pool: BufferPool, size: int) -> None:
        """More than once, and of its own length."""
        assert keep(tier, pool, NAME, content(NAME, size))
        assert read(tier, pool, NAME) == content(NAME, size)
        assert read(tier, pool, NAME) == content(NAME, size)

    def test_entries_are_kept_apart(self, tier: Tier, pool: BufferPool) -> None:
        """Each has its own bytes."""
        for name in (NAME, OTHER):
            assert keep(tier, pool, name, content(name, 1000))
        for name in (NAME, OTHER):
            assert read(tier, pool, name) == content(name, 1000)

    def test_what_is_absent_is_a_miss(self, tier: Tier, pool: BufferPool) -> None:
        """A value and no error, whether or not there is anything else."""
        for _ in range(2):
            assert read(tier, pool, OTHER) is None
            assert tier.contains([OTHER]) == [False]
            assert tier.remove(OTHER) is False
            assert keep(tier, pool, NAME, b"1")

    def test_a_second_put_changes_nothing(self, tier: Tier, pool: BufferPool) -> None:
        """A name stands for its content: it succeeds, and what was there stays."""
        assert keep(tier, pool, NAME, b"first")
        used, before = pool.used_bytes, tier.stats()
        assert keep(tier, pool, NAME, b"second")
        assert pool.used_bytes == used
        assert tier.stats() == before
        assert tier.list("") == [NAME]
        assert self.raw_get(tier, NAME) == b"first"
        assert read(tier, pool, NAME) == b"first"

    def test_a_batch_is_answered_in_its_order(self, tier: Tier, pool: BufferPool) -> None:
        """One answer for each name, also for one that is asked for twice; none for none."""
        assert keep(tier, pool, NAME, b"1")
        many = [f"kv/1/{number}" for number in range(50)]
        assert tier.contains([OTHER, NAME, *many, NAME]) == [False, True, *[False] * 50, True]
        assert tier.contains([NAME]) == [True]
        assert tier.contains([]) == []

    def test_names_are_listed_by_how_they_begin(self, tier: Tier, pool: BufferPool) -> None:
        """Sorted, by text and not by folder; a name may be the beginning of another."""
        names = ["kv/0", "kv/0-1", "kv/0/1", "kv/0/1/2", "kv/01", "kv/1", "kvs/0"]
        for name in reversed(names):
            assert keep(tier, pool, name, name.encode())
        for prefix in ("", "k", "kv", "kv/", "kv/0", "kv/0/", "kv/0/1", "kv/0/1/", "kvs/", "kv/2", "x/"):
            assert tier.list(prefix) == sorted(name for name in names if name.startswith(prefix)), prefix
        for name in names:
            assert read(tier, pool, name) == name.encode()

    def test_what_is_removed_is_gone(self, tier: Tier, pool: BufferPool) -> None:
        """Everywhere and at once, and nothing else is; it may be put again."""
        used = pool.used_bytes
        for name in ("kv/0", "kv/0/1"):
            assert keep(tier, pool, name, content(name, 100))
        assert tier.remove("kv/0") is True
        assert tier.remove("kv/0") is False
        assert read(tier, pool, "kv/0") is None
        assert self.raw_get(tier, "kv/0") is None
        assert tier.contains(["kv/0", "kv/0/1"]) == [False, True]
        assert tier.list("") == ["kv/0/1"]
        assert read(tier, pool, "kv/0/1") == content("kv/0/1", 100)
        assert keep(tier, pool, "kv/0", content("kv/0", 100))
        assert read(tier, pool, "kv/0") == content("kv/0", 100)
        for name in ("kv/0", "kv/0/1"):
            assert tier.remove(name) is True
        assert pool.used_bytes == used

    @pytest.mark.parametrize("bad", NO_NAMES, ids=ascii)
    def test_what_is_no_name_is_refused(self, tier: Tier, pool: BufferPool, bad: Any) -> None:
        """By every method that takes one, before anything is done."""
        assert keep(tier, pool, NAME, b"1")
        used = pool.used_bytes
        with pytest.raises(InvalidRequest):
            keep(tier, pool, bad, b"bad")
        with pytest.raises(InvalidRequest):
            tier.get(bad, pool)
        with pytest.raises(InvalidRequest):
            tier.contains([NAME, bad])
        with pytest.raises(InvalidRequest):
            tier.remove(bad)
        assert pool.used_bytes == used
        assert tier.list("") == [NAME]

    @pytest.mark.parametrize(
        "prefix", ["/", "..", "../", "/etc/", "kv/../", "kv//", "kv/0/1/2/3/", "*", "KV/"]
    )
    def test_no_prefix_leads_out(self, tier: Tier, pool: BufferPool, prefix: str) -> None:
        """No name begins so: nothing is listed, or the prefix is refused."""
        assert keep(tier, pool, NAME, b"1")
        with contextlib.suppress(InvalidRequest):
            assert tier.list(prefix) == []
