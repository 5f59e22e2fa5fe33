"""`kvsdk store ls`, `verify` and `gc`, as a user runs them."""

from __future__ import annotations

import csv
import errno
import io
import json
import os
import pty
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from kv_files import forged
from kv_samples import SPEC, kv_of, prompt
from kvsdk.cli import main
from kvsdk.kv import Fingerprint
from kvsdk.store import Disk, KVStore, Object
from kvsdk.store.tiers.disk_files import Files
from object_server import ObjectServer

TOKENS = prompt(300)
KV = kv_of(TOKENS)
OURS = Fingerprint.for_testing(SPEC)
#: Four ways to store the same prompt: as it is, compressed, lossy, and as another device's part.
FORMS: list[dict[str, Any]] = [
    {},
    {"codec": "zstd"},
    {"dtype": "fp8_e4m3"},
    {"fingerprint": replace(OURS, tensor_parallel=2), "rank": 1},
]


def run(*arguments: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(("store", *arguments))
    assert isinstance(ended.value.code, int)
    return ended.value.code


def read(capsys: pytest.CaptureFixture[str]) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Rows and total of what was printed as JSON."""
    found = json.loads(capsys.readouterr().out)
    return found["rows"], found["total"]


@pytest.fixture
def disk(tmp_path: Path) -> Path:
    """A folder with a prompt of 300 tokens, two chunks, in four forms."""
    for form in FORMS:
        with KVStore([Disk(tmp_path / "kv")], **{"fingerprint": OURS, **form}) as store:
            store.put(TOKENS, KV)
    return tmp_path / "kv"


@pytest.fixture
def objects(tmp_path: Path) -> Path:
    """The same under a URL, as it is and compressed."""
    (tmp_path / "objects").mkdir()
    for form in FORMS[:2]:
        with KVStore([Object((tmp_path / "objects").as_uri())], **{"fingerprint": OURS, **form}) as store:
            store.put(TOKENS, KV)
    return tmp_path / "objects"


def chunks(folder: Path) -> list[Path]:
    """The files of all chunks."""
    return sorted([*folder.rglob("kv.*.safetensors"), *folder.glob("kv/*/*.safetensors")])


def state(folder: Path) -> dict[str, tuple[int, int]]:
    """All files, with their sizes and times."""
    return {str(path): (path.stat().st_size, path.stat().st_mtime_ns) for path in folder.rglob("*")}


def flip(path: Path, at: int = -1) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


# ---------------------------------------------------------------------- ls


def test_a_line_for_each_form(disk: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Two chunks and 300 tokens in each; the bytes are those of the files."""
    assert run("ls", str(disk), "--format", "json") == 0
    rows, total = read(capsys)
    found = {(row["codec"], row["is_lossy"], row["dtype"], row["tp"], row["rank"]): row for row in rows}
    assert set(found) == {
        (None, False, "float16", 1, 0),
        ("zstd", False, "float16", 1, 0),
        (None, True, "float8_e4m3fn", 1, 0),
        (None, False, "float16", 2, 1),
    }
    for row in rows:
        assert (row["chunks"], row["tokens"], row["layout"], row["block_size"], row["pp"]) == (
            2,
            300,
            "hf/dynamic",
            16,
            1,
        )
        assert row["model"] == OURS.weights_digest
        assert row["fingerprint"] == OURS.digest().hex()
    assert total == {"chunks": 8, "tokens": 1200, "bytes": sum(path.stat().st_size for path in chunks(disk))}
    assert [row["bytes"] for row in rows] == sorted((row["bytes"] for row in rows), reverse=True)


def test_a_line_for_each_chunk(disk: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Depth, tokens and bytes, a prompt's chunks in order."""
    assert run("ls", str(disk), "--chunks", "--format", "json") == 0
    rows, total = read(capsys)
    assert [(row["first_token"], row["tokens"]) for row in rows] == [(0, 256), (256, 44)] * 4
    sizes = {path.name: path.stat().st_size for path in chunks(disk)}
    assert {f"{row['name'].replace('/', '.')}.safetensors": row["bytes"] for row in rows} == sizes
    assert all(row["name"].endswith(f"-{row['key']}") and row["problem"] is None for row in rows)
    assert total == {"tokens": 1200, "bytes": sum(sizes.values())}


def test_for_people(disk: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Digests are short, sizes are readable, and columns that say nothing are left out."""
    assert run("ls", str(disk)) == 0
    out = capsys.readouterr().out
    assert "\x1b" not in out
    assert str(OURS.weights_digest)[:12] in out
    assert str(OURS.weights_digest)[:13] not in out
    assert "604 KiB" in out
    assert "| pp " not in out
    assert "| total " in out
    assert run("ls", str(disk), "--format", "md") == 0
    assert capsys.readouterr().out.startswith(
        "| model | fingerprint | dtype | lossy | codec | layout | block |"
    )
    assert run("ls", str(disk), "--format", "csv") == 0
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert sum(int(row["bytes"]) for row in rows) == sum(path.stat().st_size for path in chunks(disk))


def on_terminal(width: int, *arguments: str) -> list[str]:
    """What is shown in so many columns."""
    ours, theirs = pty.openpty()
    command = [sys.executable, "-Im", "kvsdk", "store", *arguments]
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": str(width), "NO_COLOR": "1"}
    done = subprocess.run(command, stdout=theirs, stderr=subprocess.PIPE, env=environment, check=False)
    os.close(theirs)
    shown = os.read(ours, 65536).decode()
    os.close(ours)
    assert done.returncode == 0
    return re.sub(r"\x1b\[[0-9;]*m|\r", "", shown).splitlines()


@pytest.mark.parametrize(
    ("width", "titles"),
    [
        (60, "model dtype chunks tokens size"),
        (80, "model dtype codec tp rank chunks tokens size"),
        (140, "model fingerprint dtype lossy codec layout block tp rank chunks tokens size"),
    ],
)
def test_a_narrow_terminal_keeps_what_tells_lines_apart(disk: Path, width: int, titles: str) -> None:
    """Model, layout and block size are the same in all: they go before dtype, codec and rank do."""
    shown = on_terminal(width, "ls", str(disk))
    assert " ".join(shown[1].split()) == titles
    assert all(len(line) <= width for line in shown)
    rows = [line.rsplit(maxsplit=4)[0] for line in shown[3:7]]
    assert len(set(rows)) == (4 if width > 60 else 2)


def test_a_chunk_that_cannot_be_read_fits_a_terminal(disk: Path) -> None:
    """Of what is wrong with it one word; `verify` has all of it."""
    chunks(disk)[0].write_bytes(b"a photo of a cat" * 9)
    shown = on_terminal(60, "ls", str(disk), "--chunks")
    assert all(len(line) <= 60 for line in shown)
    assert len([line for line in shown if line.split()[-1:] == ["foreign"]]) == 1


def test_looking_changes_nothing(disk: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Not a file, not a time, and nobody is locked out or waited for."""
    before = state(disk)
    assert run("ls", str(disk)) == 0
    assert run("ls", str(disk), "--chunks") == 0
    assert state(disk) == before
    with Files(disk).alone():  # as somebody who opens the folder
        assert run("ls", str(disk)) == 0


def test_identities_without_chunks_are_listed(disk: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What is left of a model whose chunks were evicted."""
    other = replace(OURS, weights_digest="ab" * 32)
    with KVStore([Disk(disk)], fingerprint=other, dtype="fp8_e4m3") as store:
        store.put(TOKENS, KV)
        store.remove(TOKENS)
    assert run("ls", str(disk), "--format", "json") == 0
    rows, _ = read(capsys)
    expected = {"model": "ab" * 32, "dtype": "float8_e4m3fn", "is_lossy": True, "layout": None}
    expected |= {"chunks": 0, "tokens": 0, "bytes": 0}
    assert {key: rows[-1][key] for key in expected} == expected


def test_chunks_that_cannot_be_read_are_counted(disk: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Their bytes are there, whosever they are; the payload is not looked at."""
    files = chunks(disk)
    flip(files[0], at=100)
    flip(files[1])
    files[2].write_bytes(forged(files[2].read_bytes(), lambda manifest: manifest.update(format=2)))
    size = files[0].stat().st_size + files[2].stat().st_size
    assert run("ls", str(disk), "--format", "json") == 0
    captured = capsys.readouterr()
    assert "2 of them cannot be read; see `kvsdk store verify" in captured.err
    (row,) = [row for row in json.loads(captured.out)["rows"] if row["model"] is None]
    assert (row["chunks"], row["bytes"]) == (2, size)
    assert run("ls", str(disk), "--chunks", "--format", "json") == 0
    problems = [row["problem"] for row in read(capsys)[0] if row["problem"]]
    assert sorted(problem.partition(":")[0] for problem in problems) == ["corrupt", "newer"]


def test_of_objects_only_names_and_sizes_are_read(objects: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A chunk whose content is nothing is listed like the others; that is said on standard error."""
    chunks(objects)[0].write_bytes(b"nothing")
    assert run("ls", objects.as_uri(), "--format", "json") == 0
    captured = capsys.readouterr()
    assert "only their names and sizes are known" in captured.err
    rows = json.loads(captured.out)["rows"]
    assert (rows[0]["model"], rows[0]["chunks"], rows[0]["tokens"]) == (None, 4, 600)
    assert rows[0]["bytes"] == sum(path.stat().st_size for path in chunks(objects))
    assert sorted(str(row["codec"]) for row in rows[1:]) == ["None", "zstd"]
    assert all(row["model"] == OURS.weights_digest and row["chunks"] is None for row in rows[1:])
    assert run("ls", objects.as_uri(), "--chunks", "--format", "json") == 0
    rows, _ = read(capsys)
    assert sorted(row["tokens"] for row in rows) == [44, 44, 256, 256]
    assert {row["first_token"] for row in rows} == {None}


@pytest.fixture(scope="module")
def server() -> Iterator[ObjectServer]:
    started = ObjectServer()
    yield started
    started.close()


def test_an_s3_bucket(server: ObjectServer, capsys: pytest.CaptureFixture[str]) -> None:
    """With options from the command line; without a store in it the bucket is none."""
    url = f"s3://{server.new_bucket()}/some/where"
    options = [word for name, value in server.options.items() for word in ("--option", f"{name}={value}")]
    assert run("ls", url, *options) == 2
    assert f"there is no store at {url}: nothing lies under kv/ or fp/" in capsys.readouterr().err
    with KVStore([Object(url, timeout_s=60.0, **server.options)], fingerprint=OURS) as store:
        store.put(TOKENS, KV)
    assert run("ls", url, *options, "--format", "json") == 0
    assert read(capsys)[1]["tokens"] == 300
    assert run("verify", url, *options) == 0
    assert "3 entries, " in capsys.readouterr().out
    assert run("gc", url, *options, "--older-than", "1d") == 0
    assert "0 entries removed" in capsys.readouterr().out


# ---------------------------------------------------------------------- verify


def test_a_sound_store(disk: Path, objects: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """8 chunks and 4 records; 4 chunks and 2 records."""
    for place, entries in ((str(disk), 12), (objects.as_uri(), 6)):
        assert run("verify", place) == 0
        captured = capsys.readouterr()
        assert captured.out.startswith(f"{entries} entries, ")
        assert captured.out.endswith(" checked: all are what was written\n")
        assert captured.err == ""


def test_faults_are_found_and_removed(disk: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The status is 1 whenever one was found, and 0 once all are gone; what is newer stays."""
    files = chunks(disk)
    flip(files[0])
    files[1].write_bytes(files[1].read_bytes()[:-3])
    files[2].write_bytes(b"a photo of a cat" * 9)
    files[3].write_bytes(forged(files[3].read_bytes(), lambda manifest: manifest.update(format=2)))
    assert run("verify", str(disk), "--format", "json") == 1
    rows, total = read(capsys)
    assert sorted(row["kind"] for row in rows) == ["corrupt", "foreign", "newer", "truncated"]
    assert total == {
        "entries": 12,
        "bytes": sum(path.stat().st_size for path in disk.rglob("*.safetensors")),
        "problems": 4,
        "removed": 0,
    }
    assert all(path.exists() for path in files)
    assert run("verify", str(disk)) == 1
    out = capsys.readouterr().out
    assert out.endswith(" checked: 4 problems\n--remove removes 3 of them\n")
    assert "removed" not in out
    assert run("verify", str(disk), "--remove") == 1
    out = capsys.readouterr().out
    assert "12 entries, " in out
    assert " checked: 4 problems, 3 removed\n" in out
    assert "--remove removes" not in out
    assert "the file lacks its last 3 bytes" in out
    assert [path.exists() for path in files[:4]] == [False, False, False, True]
    assert run("verify", str(disk)) == 1
    out = capsys.readouterr().out
    assert "9 entries, " in out
    assert out.endswith(" checked: 1 problem\n")  # of which none is ever removed
    files[3].unlink()
    assert run("verify", str(disk)) == 0


def test_faults_among_objects(objects: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """They are read whole here."""
    flip(chunks(objects)[0])
    assert run("verify", objects.as_uri(), "--remove", "--format", "csv") == 1
    (row,) = csv.DictReader(io.StringIO(capsys.readouterr().out))
    assert (row["kind"], row["is_removed"]) == ("corrupt", "True")
    assert run("verify", objects.as_uri()) == 0


def test_a_bar_on_a_terminal(disk: Path) -> None:
    """On standard error, so that what is printed stays what it is."""
    ours, theirs = pty.openpty()
    command = [sys.executable, "-Im", "kvsdk", "store", "verify", str(disk)]
    environment = {**os.environ, "TERM": "xterm"}
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=theirs, env=environment, check=False)
    os.close(theirs)
    shown = os.read(ours, 65536).decode()
    os.close(ours)
    assert done.returncode == 0
    assert done.stdout.decode().startswith("12 entries, ")
    assert "verifying" in shown
    assert "12/12" in shown


# ---------------------------------------------------------------------- gc


def test_what_has_expired_goes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Two chunks that were to be kept for a second, a long time ago; the record stays."""
    with KVStore([Disk(tmp_path / "kv")], fingerprint=OURS, clock=lambda: 1000.0) as store:
        store.put(TOKENS, KV, ttl=1)
    size = sum(path.stat().st_size for path in chunks(tmp_path / "kv"))
    assert run("gc", str(tmp_path / "kv"), "--format", "json") == 0
    rows, _ = read(capsys)
    record = sum(path.stat().st_size for path in (tmp_path / "kv").rglob("*.safetensors"))
    assert rows == [
        {"removed_entries": 2, "freed_bytes": size, "entries": 1, "bytes": record, "capacity_bytes": None}
    ]
    assert chunks(tmp_path / "kv") == []


def test_what_nobody_finished_goes(disk: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A file that a killed process was writing; of a process that lives it stays."""
    tier = Disk(disk)
    tier.open()
    (owner,) = (disk / "owners").iterdir()
    living = disk / "tmp" / f"{owner.stem}.7"
    living.write_bytes(bytes(1024))
    (disk / "tmp" / f"own_{'0' * 26}.0").write_bytes(bytes(2048))
    assert run("gc", str(disk)) == 0
    assert capsys.readouterr().out.startswith("0 entries removed, 2.00 KiB freed; 12 entries left, ")
    assert list((disk / "tmp").iterdir()) == [living]
    tier.close()


def test_what_is_over_the_quota_goes(disk: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Down to 700 KiB, which is the quota from then on."""
    assert run("gc", str(disk), "--size", "700KiB") == 0
    out = capsys.readouterr().out
    assert " of a quota of 700 KiB" in out
    left = sum(path.stat().st_size for path in disk.rglob("*.safetensors"))
    assert 0 < left <= 700 * 1024
    tier = Disk(disk)
    tier.open()
    assert tier.stats().capacity_bytes == 700 * 1024
    tier.close()
    assert run("verify", str(disk)) == 0


def test_old_objects_go(objects: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One of six was written two days ago."""
    old = chunks(objects)[0]
    size = old.stat().st_size
    written = old.stat().st_mtime - 2 * 86400
    os.utime(old, (written, written))
    assert run("gc", objects.as_uri(), "--older-than", "1.5d", "--format", "json") == 0
    (row,) = read(capsys)[0]
    assert (row["removed_entries"], row["freed_bytes"], row["entries"]) == (1, size, 5)
    assert not old.exists()


# ---------------------------------------------------------------------- what is wrong


@pytest.mark.parametrize("command", ["ls", "verify", "gc"])
def test_a_place_that_is_no_store(tmp_path: Path, command: str, capsys: pytest.CaptureFixture[str]) -> None:
    """In one line, with status 2, and nothing is made there."""
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "index.db").write_text("another program's")
    (tmp_path / "file").write_text("...")
    more = ["--older-than", "1d"] if command == "gc" else []
    before = state(tmp_path)
    for place, words in (
        (str(tmp_path / "none"), "none: no such folder"),
        (str(tmp_path / "file"), "file: no such folder"),
        (str(tmp_path / "folder"), "folder: the folder has no entries/"),
    ):
        assert run(command, place) == 2
        assert words in capsys.readouterr().err
    for url, words in (
        ((tmp_path / "none").as_uri(), "none: no such folder"),
        ((tmp_path / "folder").as_uri(), "nothing lies under kv/ or fp/"),
        ("memory://", "nothing lies under kv/ or fp/"),
        ("ftp://host/kv", "the URL begins with one of"),
    ):
        assert run(command, url, *more) == 2
        captured = capsys.readouterr()
        assert words in captured.err
        assert captured.err.count("\n") == 1
    assert state(tmp_path) == before


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("ls", "DISK", "--option", "a=b"), "a folder takes no options"),
        (("ls", "URL", "--option", "region"), "--option is NAME=VALUE"),
        (("ls", "URL", "--option", "region=x"), "'region' is no option of"),
        (("gc", "DISK", "--size", "huge"), "--size is a size such as '50GiB', not 'huge'"),
        (("gc", "DISK", "--older-than", "1d"), "--older-than is for object tiers"),
        (("gc", "URL"), "say what goes with --older-than"),
        (("gc", "URL", "--older-than", "soon"), "--older-than is an age such as 12h or 30d"),
        (("gc", "URL", "--older-than", "0d"), "--older-than is an age such as 12h or 30d"),
        (("gc", "URL", "--size", "1GiB"), "--size is for folders"),
    ],
)
def test_arguments_that_do_not_fit(
    disk: Path, objects: Path, arguments: tuple[str, ...], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The text names the option, the status is 2, and nothing is removed."""
    places = {"DISK": str(disk), "URL": objects.as_uri()}
    before = state(disk.parent)
    assert run(*(places.get(word, word) for word in arguments)) == 2
    assert words in capsys.readouterr().err
    assert state(disk.parent) == before


@pytest.mark.parametrize("command", ["ls", "gc"])
def test_a_folder_that_may_not_be_read(
    disk: Path, command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In one line, as everything that is wrong with a place."""
    real = os.scandir

    def refusing(path: Any = ".") -> Any:
        if Path(path) == disk / "entries":
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return real(path)

    monkeypatch.setattr(os, "scandir", refusing)
    assert run(command, str(disk)) == 2
    place = disk / "entries"
    assert capsys.readouterr().err == f"kvsdk: {disk} cannot be read: {place}: Permission denied\n"


def test_a_newer_index(disk: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It is left alone; what is in the files can be listed all the same."""
    import sqlite3

    with sqlite3.connect(disk / "index.db") as db:
        db.execute("PRAGMA user_version = 99")
    db.close()
    for command in ("verify", "gc"):
        assert run(command, str(disk)) == 2
        assert "upgrade kvsdk" in capsys.readouterr().err
    assert run("ls", str(disk)) == 0
