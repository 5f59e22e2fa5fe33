"""Scrubbing: what is wrong in a tier is found, and only that is removed."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from kv_files import forged
from kv_samples import SPEC, is_equal, kv_of, prompt
from kvsdk.kv import Fingerprint
from kvsdk.store import Disk, Hit, KVStore, Memory, Object
from kvsdk.store.entries.identity import Identity
from kvsdk.store.scrub import ScrubReport, scrub
from kvsdk.store.tiers.buffers import BufferPool
from kvsdk.store.tiers.tier import Hints, Tier
from kvsdk.testing import CountingTier, FaultyTier
from store_makers import StoreMaker

TOKENS = prompt(300)
KV = kv_of(TOKENS)
OURS = Fingerprint.for_testing(SPEC)
RECORD = Identity(fingerprint=OURS).record_name


@pytest.fixture(params=["memory", "disk", "object"])
def tier(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Tier]:
    """An open tier with two chunks of a prompt, of 256 and 44 tokens, and the record of whose they are."""
    with closing(filled(request.param, tmp_path)) as tier:
        yield tier


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Tier]:
    """The same in a folder."""
    with closing(filled("disk", tmp_path)) as tier:
        yield tier


def filled(kind: str, folder: Path) -> Tier:
    (folder / "objects").mkdir()
    made: dict[str, Callable[[], Tier]] = {
        "memory": lambda: Memory("64MiB"),
        "disk": lambda: Disk(folder / "disk"),
        "object": lambda: Object((folder / "objects").as_uri()),
    }
    tier = made[kind]()
    source = Memory("64MiB")
    pool = BufferPool()
    with KVStore([source], fingerprint=OURS) as store:
        store.put(TOKENS, KV)
        tier.open()
        for name in [*source.list("kv/"), *source.list("fp/")]:
            data = source.get(name, pool)
            assert data is not None
            put(tier, name, bytes(data.view))
            data.release()
    return tier


def put(tier: Tier, name: str, data: bytes) -> None:
    """An entry of these bytes, whatever they are."""
    buffer = BufferPool().take(len(data))
    buffer.view[:] = data
    assert tier.put(name, buffer, Hints())
    buffer.release()


def read(tier: Tier, name: str) -> bytes:
    data = tier.get(name, BufferPool())
    assert data is not None
    found = bytes(data.view)
    data.release()
    return found


def spoil(tier: Tier, name: str, change: Callable[[bytes], bytes]) -> None:
    """Give an entry other bytes."""
    data = change(read(tier, name))
    tier.remove(name)
    put(tier, name, data)


def chunk(tier: Tier, tokens: int) -> str:
    """The name of the chunk of so many tokens."""
    return next(name for name in tier.list("kv/") if f"/{tokens}-" in name)


def kinds(report: ScrubReport) -> dict[str, str]:
    return {problem.name: problem.kind for problem in report.problems}


def flip(data: bytes) -> bytes:
    return data[:-1] + bytes([data[-1] ^ 1])


# ---------------------------------------------------------------------- what is found


def test_what_is_sound_is_counted(tier: Tier) -> None:
    """Two chunks and a record, and all of their bytes."""
    names = [*tier.list("kv/"), *tier.list("fp/")]
    report = scrub(tier)
    assert report == ScrubReport(
        entries=3, read_bytes=sum(len(read(tier, name)) for name in names), problems=()
    )
    assert report.removed == ()


@pytest.mark.parametrize(
    ("change", "kind", "words"),
    [
        (lambda data: data[:-5], "truncated", "lacks its last 5 bytes"),
        (lambda data: data + b"x", "corrupt", "1 bytes behind its end"),
        (flip, "corrupt", "is not what was written"),
        (lambda data: data[:300] + b"x" + data[301:], "corrupt", "not what was written"),
        (lambda _: b"a photo of a cat" * 9, "foreign", "no file of kvsdk"),
        (lambda data: forged(data, lambda manifest: manifest.update(format=2)), "newer", "newer kvsdk"),
    ],
)
def test_a_chunk_that_is_no_good(tier: Tier, change: Callable[[bytes], bytes], kind: str, words: str) -> None:
    """It is named with what is wrong; it is removed if that was asked for, but not what is newer."""
    name = chunk(tier, 44)
    spoil(tier, name, change)
    for remove in (False, True):
        report = scrub(tier, remove=remove)
        (problem,) = report.problems
        assert (problem.name, problem.kind) == (name, kind)
        assert words in problem.detail
        assert problem.is_removed == (remove and kind != "newer")
        assert report.entries == 3
    assert tier.contains([name]) == [kind == "newer"]
    assert scrub(tier).entries == (3 if kind == "newer" else 2)


def test_a_chunk_under_anothers_name(tier: Tier) -> None:
    """Every byte is right, but they are other tokens' than the name says."""
    one, other = chunk(tier, 44), chunk(tier, 256)
    kind, parent, last = one.split("/")
    tokens, key = last.split("-")
    wrong = [
        f"{kind}/{parent}/45-{key}",
        f"{kind}/{'0' * 64}/{tokens}-{key}",
        f"{kind}/{parent}/{tokens}-{'0' * 64}",
    ]
    for name in wrong:
        put(tier, name, read(tier, one))
    report = scrub(tier, remove=True)
    assert kinds(report) == dict.fromkeys(sorted(wrong), "corrupt")
    assert {problem.detail for problem in report.problems} == {"it holds other tokens than its name says"}
    assert tier.list("kv/") == sorted([one, other])


def test_a_name_that_no_store_gives(tier: Tier) -> None:
    """A good file under such a name is not ours to serve."""
    put(tier, "kv/0/1-2", read(tier, chunk(tier, 44)))
    assert kinds(scrub(tier)) == {"kv/0/1-2": "foreign"}


def _more(text: bytes, **fields: Any) -> bytes:
    return json.dumps({**json.loads(text), **fields}).encode()


def _fingerprint(text: bytes, **fields: Any) -> bytes:
    return _more(text, fingerprint={**json.loads(text)["fingerprint"], **fields})


@pytest.mark.parametrize(
    ("change", "kind"),
    [
        (lambda _: b"", "corrupt"),
        (lambda _: b"[1]", "corrupt"),
        (lambda text: text[:-9], "corrupt"),
        (lambda text: _fingerprint(text, kv_dtype=7), "corrupt"),
        (lambda text: _fingerprint(text, version="1"), "corrupt"),
        (lambda text: _fingerprint(text, weights_digest=None), "corrupt"),
        (lambda text: _fingerprint(text, weights_digest="1" * 64), "corrupt"),
        (lambda text: _more(text, codec="zstd"), "corrupt"),
        (lambda text: _fingerprint(text, version=2), "newer"),
        (lambda text: _fingerprint(text, rope_scaling="yarn"), "newer"),
        (lambda text: _more(text, salt="x"), "newer"),
    ],
    ids=[
        "empty",
        "no object",
        "cut",
        "a value",
        "no version",
        "unknown",
        "other weights",
        "another codec",
        "version",
        "a field",
        "a form",
    ],
)
def test_a_record_that_is_no_good(tier: Tier, change: Callable[[bytes], bytes], kind: str) -> None:
    """It does not parse, says more than is known here, or is another identity's."""
    spoil(tier, RECORD, change)
    report = scrub(tier, remove=True)
    assert kinds(report) == {RECORD: kind}
    assert tier.contains([RECORD]) == [kind == "newer"]


# ---------------------------------------------------------------------- what goes wrong meanwhile


def test_an_entry_that_cannot_be_read_stays(tmp_path: Path) -> None:
    """It may be read another time; the others are checked all the same."""
    tier = FaultyTier(filled("memory", tmp_path))
    name = chunk(tier, 256)
    tier.fail(OSError("the disk is on fire"), on="get", names=[name])
    report = scrub(tier, remove=True)
    assert [(each.name, each.kind, each.detail) for each in report.problems] == [
        (name, "unreadable", "the disk is on fire")
    ]
    assert report.removed == ()
    assert report.entries == 2
    assert tier.contains([name]) == [True]


def test_a_tier_that_cannot_be_listed(tmp_path: Path) -> None:
    """The report says so, and never that all is well."""
    tier = FaultyTier(filled("memory", tmp_path))
    tier.fail(OSError("no answer"), on="list")
    report = scrub(tier)
    assert kinds(report) == {"kv/": "unreadable", "fp/": "unreadable"}
    assert report.problems[0].detail == "cannot be listed: no answer"


def test_what_cannot_be_removed_is_said(tmp_path: Path) -> None:
    """It is not among what was removed."""
    tier = FaultyTier(filled("memory", tmp_path))
    name = chunk(tier, 44)
    tier.flip(name, at=-1)
    tier.fail(OSError("read only"), on="remove")
    report = scrub(tier, remove=True)
    assert report.removed == ()
    assert report.problems[0].detail.endswith("it cannot be removed: read only")


def test_entries_that_go_meanwhile_are_left_out(tmp_path: Path) -> None:
    """They are neither read nor a problem."""
    tier = FaultyTier(filled("memory", tmp_path))
    tier.swap(chunk(tier, 44), "kv/0/1-2")  # which is not there
    report = scrub(tier)
    assert (report.entries, report.problems) == (2, ())


def test_memory_is_given_back(tier: Tier) -> None:
    """Whatever was found."""
    spoil(tier, chunk(tier, 44), flip)
    pool = BufferPool()
    scrub(tier, pool=pool)
    assert pool.used_bytes == 0


def test_progress_is_told(tier: Tier) -> None:
    """Before each of three entries, and at the end."""
    calls: list[tuple[int, int]] = []
    scrub(tier, progress=lambda done, total: calls.append((done, total)))
    assert calls == [(0, 3), (1, 3), (2, 3), (3, 3)]


def test_scrubbing_is_no_use_of_an_entry(tmp_path: Path) -> None:
    """Nothing is touched, so that what goes next stays as it was."""
    tier = CountingTier(filled("memory", tmp_path))
    scrub(tier)
    assert set(tier.counts()) == {"list", "get"}


# ---------------------------------------------------------------------- a folder


def entry_file(folder: Path, name: str) -> Path:
    (path,) = folder.rglob(f"{name.replace('/', '.')}.safetensors")
    return path


def test_a_file_of_another_size_is_reported_and_stays(disk: Tier, tmp_path: Path) -> None:
    """A disk tier that is asked for it removes it without a word; a scrub looks first."""
    name = chunk(disk, 44)
    path = entry_file(tmp_path, name)
    path.write_bytes(path.read_bytes()[:-7])
    assert kinds(scrub(disk)) == {name: "truncated"}
    assert path.exists()
    assert scrub(disk, remove=True).removed == (name,)
    assert not path.exists()


def test_files_that_the_index_does_not_know_are_checked(disk: Tier, tmp_path: Path) -> None:
    """Another machine's rsync, say."""
    name = chunk(disk, 44)
    stranger = f"{name[:-2]}00"
    path = entry_file(tmp_path, name)
    shard = path.parent.with_name("00")
    shard.mkdir(exist_ok=True)
    (shard / f"{stranger.replace('/', '.')}.safetensors").write_bytes(path.read_bytes())
    assert not disk.contains([stranger])[0]
    assert kinds(scrub(disk, remove=True)) == {stranger: "corrupt"}
    assert not (shard / f"{stranger.replace('/', '.')}.safetensors").exists()


# ---------------------------------------------------------------------- a store


def test_a_store_verifies_its_tiers(make_store: StoreMaker, tmp_path: Path) -> None:
    """By name; what was damaged in one comes from the other, and is counted where it was."""
    store = make_store(Memory("64MiB"), Disk(tmp_path))
    store.put(TOKENS, KV)
    sound = store.verify()
    assert {name: (report.entries, report.problems) for name, report in sound.items()} == {
        "memory": (3, ()),
        "disk": (3, ()),
    }
    (path,) = tmp_path.rglob("*.256-*.safetensors")
    path.write_bytes(flip(path.read_bytes()))
    found = store.verify()["disk"]
    assert (len(found.problems), found.removed) == (1, ())
    found = store.verify(remove=True)["disk"]
    assert (len(found.problems), len(found.removed)) == (1, 1)
    assert store.stats().tiers["disk"].counts["corrupt"] == 1
    assert "corrupt" not in store.stats().tiers["memory"].counts
    assert store.verify()["disk"].entries == 2
    hit = store.get(TOKENS)
    assert isinstance(hit, Hit)
    assert is_equal(hit.kv, KV)


def test_a_store_verifies_lossy_and_compressed_entries(make_store: StoreMaker, tmp_path: Path) -> None:
    """Of other identities too: whatever lies in its tiers."""
    forms: list[dict[str, Any]] = [
        {},
        {"codec": "zstd"},
        {"dtype": "fp8_e4m3"},
        {"fingerprint": replace(OURS, tensor_parallel=2), "rank": 1},
    ]
    for form in forms:
        with make_store(Disk(tmp_path), **form) as store:
            store.put(TOKENS, KV)
    report = make_store(Disk(tmp_path)).verify()["disk"]
    assert (report.entries, report.problems) == (4 * 3, ())


def test_a_tier_that_is_away_is_reported(make_store: StoreMaker) -> None:
    """Verifying raises nothing."""
    tier = FaultyTier(Memory("64MiB"))
    store = make_store(tier)
    tier.fail(OSError("away"))
    assert {problem.kind for problem in store.verify()["memory"].problems} == {"unreadable"}
