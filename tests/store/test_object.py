"""The object tier: in memory, in a folder, and on an S3 server."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable
from pathlib import Path

import obstore
import pytest
from kvsdk.store.tiers.buffers import Buffer, BufferPool
from kvsdk.store.tiers.object import Object
from kvsdk.store.tiers.tier import Tier
from kvsdk.testing import TierConformance
from kvsdk.testing.tier_fixtures import content, keep, read
from object_server import ObjectServer


class TestInMemory(TierConformance):
    """`memory://`"""

    keeps_hints = False

    def make_tier(self) -> Tier:
        return Object("memory://")

    def raw_set(self, tier: Tier, name: str, data: bytes) -> None:
        assert isinstance(tier, Object)
        obstore.put(tier._store, f"{name}.safetensors", data)

    def raw_get(self, tier: Tier, name: str) -> bytes | None:
        assert isinstance(tier, Object)
        with contextlib.suppress(FileNotFoundError):
            return bytes(obstore.get(tier._store, f"{name}.safetensors").bytes())
        return None


class TestInAFolder(TierConformance):
    """`file:///`"""

    persists = True
    keeps_hints = False

    @pytest.fixture(autouse=True)
    def _place(self, tmp_path: Path) -> None:
        self.folder = tmp_path / "ob jects"

    def make_tier(self) -> Tier:
        return Object(self.folder.as_uri())

    def raw_set(self, tier: Tier, name: str, data: bytes) -> None:
        path = self.folder / f"{name}.safetensors"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)

    def raw_get(self, tier: Tier, name: str) -> bytes | None:
        path = self.folder / f"{name}.safetensors"
        return path.read_bytes() if path.exists() else None


class TestOnS3(TierConformance):
    """`s3://`"""

    persists = True
    keeps_hints = False

    @pytest.fixture(autouse=True)
    def _place(self, object_server: ObjectServer) -> None:
        self.server = object_server
        self.bucket = object_server.new_bucket()

    def make_tier(self) -> Tier:
        return Object(f"s3://{self.bucket}/some/where", timeout_s=60.0, **self.server.options)

    def raw_set(self, tier: Tier, name: str, data: bytes) -> None:
        key = f"some/where/{name}.safetensors"
        self.server.s3.put_object(Bucket=self.bucket, Key=key, Body=data)

    def raw_get(self, tier: Tier, name: str) -> bytes | None:
        key = f"some/where/{name}.safetensors"
        if key not in self.server.keys(self.bucket):
            return None
        return self.server.s3.get_object(Bucket=self.bucket, Key=key)["Body"].read()


# ---------------------------------------------------------------------- one bucket, several machines


@pytest.fixture
def bucket(object_server: ObjectServer) -> str:
    return object_server.new_bucket()


def test_another_machine_finds_what_one_has_put(object_server: ObjectServer, bucket: str) -> None:
    """With nothing but the URL: there is no index to be shared."""
    pools = BufferPool(), BufferPool()
    here, there = (Object(f"s3://{bucket}/kv-cache", **object_server.options) for _ in pools)
    assert keep(here, pools[0], "kv/0/1", b"from here")
    assert object_server.keys(bucket) == ["kv-cache/kv/0/1.safetensors"]
    assert there.list("kv/0/") == ["kv/0/1"]
    assert there.contains(["kv/0/1", "kv/0/2"]) == [True, False]
    assert read(there, pools[1], "kv/0/1") == b"from here"
    assert there.remove("kv/0/1")
    assert read(here, pools[0], "kv/0/1") is None


def test_a_store_without_conditions_is_asked_first(
    object_server: ObjectServer, bucket: str, pool: BufferPool
) -> None:
    """`conditional_put="disabled"`: what is there is not put again."""
    tier = Object(f"s3://{bucket}", conditional_put="disabled", **object_server.options)
    assert keep(tier, pool, "kv/0", b"first")
    assert keep(tier, pool, "kv/0", b"second")
    assert read(tier, pool, "kv/0") == b"first"


def test_a_large_entry_is_sent_in_parts(object_server: ObjectServer, bucket: str, pool: BufferPool) -> None:
    """64 MiB and a byte: its ETag ends with the number of parts; what is there is not sent again."""
    tier = Object(f"s3://{bucket}", timeout_s=60.0, **object_server.options)
    data = content("kv/0", (64 << 20) + 1)
    assert keep(tier, pool, "kv/0", data)
    tag = object_server.s3.head_object(Bucket=bucket, Key="kv/0.safetensors")["ETag"]
    assert tag.strip('"').endswith("-13")  # 13 = 64 MiB / 5 MiB, rounded up
    assert keep(tier, pool, "kv/0", b"x" * len(data))
    assert read(tier, pool, "kv/0") == data


def test_foreign_objects_are_left_alone(tmp_path: Path, pool: BufferPool) -> None:
    """What is no entry is not listed and not collected, however old."""
    tier = Object(tmp_path.as_uri(), max_age_s=10)
    assert keep(tier, pool, "kv/0", b"1")
    foreign = ["readme.txt", "kv/1", "kv/0.txt", "kv/A.safetensors", "kv.safetensors", "kv/x y.safetensors"]
    for name in foreign:
        (tmp_path / name).write_bytes(b"foreign")
        os.utime(tmp_path / name, (0, 0))
    assert tier.list("") == ["kv/0"]
    assert tier.list("kv/") == ["kv/0"]
    assert tier.collect() == 0
    assert all((tmp_path / name).exists() for name in foreign)


class MeddlingPool(BufferPool):
    """Something happens whenever memory is taken."""

    def __init__(self, meddle: Callable[[], object]) -> None:
        super().__init__()
        self.meddle = meddle

    def take(self, size: int) -> Buffer:
        self.meddle()
        return super().take(size)


def test_what_ends_while_it_is_read_is_a_miss(tmp_path: Path) -> None:
    """An entry that becomes shorter, or goes, after its size was learned."""

    tier, path = Object(tmp_path.as_uri()), tmp_path / "kv/0.safetensors"
    path.parent.mkdir()
    for meddle in (lambda: path.write_bytes(b"short"), path.unlink):
        path.write_bytes(b"longer than short")
        pool = MeddlingPool(meddle)
        assert tier.get("kv/0", pool) is None
        assert pool.used_bytes == 0


# ---------------------------------------------------------------------- forgetting


def age(path: Path, seconds: float) -> None:
    """Let the file have been written so long ago."""
    written = path.stat().st_mtime - seconds
    os.utime(path, (written, written))


def test_an_old_object_is_a_miss(tmp_path: Path, pool: BufferPool) -> None:
    """From `max_age_s` after it was written, by the tier's clock; it may be put again."""
    now = time.time()
    tier = Object(tmp_path.as_uri(), max_age_s=1000)
    tier.open(clock=lambda: now)
    for name in ("kv/0", "kv/1"):
        assert keep(tier, pool, name, b"old")
    age(tmp_path / "kv/1.safetensors", 2000)
    now += 900
    assert read(tier, pool, "kv/0") == b"old"
    assert read(tier, pool, "kv/1") is None
    assert tier.contains(["kv/0", "kv/1"]) == [True, False]
    assert tier.list("") == ["kv/0"]
    now -= 900
    assert keep(tier, pool, "kv/1", b"new")
    assert read(tier, pool, "kv/1") == b"new"
    now += 1100
    assert tier.list("") == []
    assert tier.collect() == 2
    assert tier.collect() == 0
    assert [*tmp_path.rglob("*.safetensors")] == []


def test_without_an_age_nothing_is_forgotten(tmp_path: Path, pool: BufferPool) -> None:
    """A hundred years are no reason."""
    tier = Object(tmp_path.as_uri())
    assert keep(tier, pool, "kv/0", b"1")
    age(tmp_path / "kv/0.safetensors", 100 * 365 * 86_400 / 2)
    assert tier.collect() == 0
    assert read(tier, pool, "kv/0") == b"1"


def test_age_goes_by_the_servers_date(object_server: ObjectServer, bucket: str, pool: BufferPool) -> None:
    """On S3 too; a machine whose clock is ahead forgets the sooner."""
    tier = Object(f"s3://{bucket}", max_age_s=1000, **object_server.options)
    assert keep(tier, pool, "kv/0", b"1")
    tier.open(clock=lambda: time.time() + 900)
    assert read(tier, pool, "kv/0") == b"1"
    tier.open(clock=lambda: time.time() + 1100)
    assert read(tier, pool, "kv/0") is None
    assert tier.collect() == 1
    assert object_server.keys(bucket) == []
