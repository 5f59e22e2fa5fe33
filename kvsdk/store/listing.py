"""What a place holds, without its KV: of a folder the headers are read, of a bucket only names and sizes."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any
from urllib.request import url2pathname

import obstore

from kvsdk.errors import ConfigurationError, InvalidFile, InvalidRequest, KvsdkError
from kvsdk.kv.files.manifest import Manifest
from kvsdk.kv.files.saving import load_manifest
from kvsdk.store.entries.identity import Identity
from kvsdk.store.tiers.bucket import Bucket, connect
from kvsdk.store.tiers.buffers import BufferPool
from kvsdk.store.tiers.disk import Disk
from kvsdk.store.tiers.disk_files import Files
from kvsdk.store.tiers.object import Object
from kvsdk.store.tiers.tier import check_name

_SUFFIX = ".safetensors"
_FOLDERS = ("entries", "owners", "tmp")
_KINDS = ("kv", "fp")


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedChunk:
    """A chunk that lies somewhere.

    Attributes:
        name: Its name.
        tokens: How many it has, by its name.
        num_bytes: As it is stored.
        manifest: What it says of itself; None where that was not read, or cannot be.
        problem: Why it cannot.
    """

    name: str
    tokens: int | None
    num_bytes: int
    manifest: Manifest | None = None
    problem: str | None = None


class DiskPlace:
    """The folder of a disk tier. Nothing is made or changed in it, and no lock is held.

    Args:
        path: The folder.

    Raises:
        InvalidRequest: It is no such folder.
    """

    reads_headers = True

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path).expanduser()
        if not self.path.is_dir():
            raise InvalidRequest(f"there is no store at {path}: no such folder", field="place")
        missing = [name for name in _FOLDERS if not (self.path / name).is_dir()]
        if missing:
            raise InvalidRequest(
                f"there is no store at {path}: the folder has no {missing[0]}/, as that of a disk tier has",
                field="place",
            )
        self._files = Files(self.path)

    def tier(self) -> Disk:
        """The tier, not opened yet."""
        return Disk(self.path)

    def chunks(self) -> Iterator[ListedChunk]:
        """All chunks that have a file, those that have expired too."""
        for name in sorted(self._files.names()):
            if name.startswith("kv/") and (chunk := self._chunk(name)) is not None:
                yield chunk

    def identities(self) -> list[Identity]:
        """Whose chunks they are or were; records that cannot be read are left out."""
        found = []
        for name in sorted(self._files.names()):
            if name.startswith("fp/") and (identity := self._identity(name)) is not None:
                found.append(identity)
        return found

    def occupied(self) -> tuple[int, int]:
        """Entries, and bytes of all files, half-written ones too."""
        names = list(self._files.names())
        sizes = [self._files.measure(name) for name in names]
        half = sum(map(_size, (self.path / "tmp").iterdir()))
        return len(names), half + sum(measured.size for measured in sizes if measured is not None)

    def _chunk(self, name: str) -> ListedChunk | None:
        measured = self._files.measure(name)
        if measured is None:
            return None
        manifest = problem = None
        path = self._files.path(name)
        try:
            manifest = load_manifest(path)
        except InvalidFile as error:
            problem = f"{error.kind}: {error.detail.removeprefix(f'{path}: ')}"
        except ConfigurationError:
            if self._files.measure(name) is None:
                return None
            raise
        return ListedChunk(
            name=name, tokens=_tokens(name), num_bytes=measured.size, manifest=manifest, problem=problem
        )

    def _identity(self, name: str) -> Identity | None:
        try:
            return Identity.from_json(Path(self._files.path(name)).read_bytes())
        except (KvsdkError, OSError):
            return None


class ObjectPlace:
    """What lies under the URL of an object tier.

    Args:
        url: The URL.
        options: Of the tier.

    Raises:
        InvalidRequest: The URL or an option is none, or no entry lies there.
        BackendError: The store does not answer.
    """

    reads_headers = False

    def __init__(self, url: str, options: Mapping[str, Any], *, timeout_s: float = 30.0) -> None:
        if url.startswith("file://") and not Path(url2pathname(url.removeprefix("file://"))).is_dir():
            raise InvalidRequest(f"there is no store at {url}: no such folder", field="place")
        self._url, self._options, self._timeout_s = url, options, timeout_s
        self._bucket: Bucket = connect(url, timeout_s, options)
        if not any(self._has(kind) for kind in _KINDS):
            raise InvalidRequest(
                f"there is no store at {self._bucket.shown}: nothing lies under kv/ or fp/", field="place"
            )

    def tier(self, *, max_age_s: float | None = None) -> Object:
        """The tier, not opened yet."""
        return Object(self._url, timeout_s=self._timeout_s, max_age_s=max_age_s, **self._options)

    def chunks(self) -> Iterator[ListedChunk]:
        """All chunks, by names and sizes alone."""
        for name, num_bytes in self._entries("kv"):
            yield ListedChunk(name=name, tokens=_tokens(name), num_bytes=num_bytes)

    def identities(self) -> list[Identity]:
        """Whose chunks they are or were: a small object for each is read."""
        tier, pool = self.tier(), BufferPool()
        found: list[Identity] = []
        try:
            for name in tier.list("fp/"):
                data = tier.get(name, pool)
                if data is not None:
                    found += _identities(bytes(data.view))
                    data.release()
        finally:
            tier.close()
        return found

    def occupied(self) -> tuple[int, int]:
        """Entries, and their bytes."""
        found = [each for kind in _KINDS for each in self._entries(kind)]
        return len(found), sum(num_bytes for _, num_bytes in found)

    def _has(self, kind: str) -> bool:
        return any(self._bucket.ask("list objects", lambda: [*islice(self._listed(kind), 1)]))

    def _entries(self, kind: str) -> list[tuple[str, int]]:
        return sorted(self._bucket.ask("list objects", lambda: [*self._listed(kind)]))

    def _listed(self, kind: str) -> Iterator[tuple[str, int]]:
        for batch in obstore.list(self._bucket.store, kind, chunk_size=1000):
            for meta in batch:
                if _is_entry(meta["path"]):
                    yield meta["path"].removesuffix(_SUFFIX), meta["size"]


Place = DiskPlace | ObjectPlace


def find_place(place: str, options: Mapping[str, Any]) -> Place:
    """The store at a folder or a URL; it is not opened, and nothing is made there.

    Raises:
        InvalidRequest: There is none, or a folder is given options.
        BackendError: The object store does not answer.
    """
    if "://" in place:
        return ObjectPlace(place, options)
    if options:
        raise InvalidRequest("a folder takes no options; an object store does", field="option")
    return DiskPlace(place)


def _tokens(name: str) -> int | None:
    words = name.rpartition("/")[2].partition("-")[0]
    return int(words) if words.isdecimal() else None


def _size(file: Path) -> int:
    """A file's bytes; whoever writes it may be done with it meanwhile."""
    try:
        found = file.lstat()
    except FileNotFoundError:
        return 0
    return found.st_size if stat.S_ISREG(found.st_mode) else 0


def _identities(text: bytes) -> list[Identity]:
    try:
        return [Identity.from_json(text)]
    except KvsdkError:
        return []


def _is_entry(path: str) -> bool:
    try:
        check_name(path.removesuffix(_SUFFIX))
    except InvalidRequest:
        return False
    return path.endswith(_SUFFIX)
