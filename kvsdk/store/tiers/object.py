"""Entries in a bucket: S3 and what speaks like it, Google, Azure; or a folder, or memory, for trying out."""

from __future__ import annotations

import builtins
import os
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import obstore
from obstore.exceptions import AlreadyExistsError

from kvsdk.store.tiers.bucket import check_seconds, connect
from kvsdk.store.tiers.buffers import Buffer, BufferPool
from kvsdk.store.tiers.tier import Hints, PolicyName, Tier, TierStats, check_name, is_name

_SUFFIX = ".safetensors"
_LOOKUPS = 16
"""Objects that are asked for at the same time."""
_PIECE_BYTES = 4 << 20
_STREAM_BYTES = 64 << 10
_MULTIPART_BYTES = 64 << 20
"""What is larger is sent in parts, each with its own time limit."""


class Object(Tier):
    """Entries in an object store, shared by every machine that knows the URL.

    There is no index: an entry is found by its name, so a machine that has never been here before finds what
    another one put. An object is `<prefix of the URL>/<name>.safetensors`; whatever else lies in the bucket
    is left alone.

    Of `Hints` nothing is kept here: no expiry, no sessions, no pins, and nothing is ever evicted. What an
    object tier holds is forgotten by `max_age_s`, which goes by when it was *written*, or by the bucket's own
    lifecycle rules. A rule that aborts unfinished multipart uploads is a good idea too: a process that is
    killed while it sends more than 64 MiB leaves one.

    On S3 the credentials need `s3:ListBucket` besides getting, putting and deleting objects: without it S3
    answers "forbidden" for what is not there. An object is put only if it is absent (`If-None-Match`); for a
    store that does not know this, pass `conditional_put="disabled"`.

    Thread-safe.

    Args:
        url: `s3://bucket/prefix`, `gs://...`, `az://...`, `file:///folder` or `memory://`.
        timeout_s: How long one request may take, its body included: an entry has to fit through. A failed
            request is sent again up to twice, none later than half of this after the first.
        max_age_s: Objects that were written longer ago than this are not there any more; `collect` deletes
            them. None keeps them.
        **options: Of obstore, such as `endpoint`, `region`, `access_key_id`, `secret_access_key`,
            `client_options`, `retry_config` and `credential_provider`; what is not given comes from the
            environment, as for every client of that store.

    Raises:
        InvalidRequest: The URL or an option is none. Nothing has been sent.
    """

    name = "object"
    is_remote = True

    def __init__(
        self, url: str, *, timeout_s: float = 5.0, max_age_s: float | None = None, **options: Any
    ) -> None:
        self._bucket = connect(url, timeout_s, options)
        self._store = self._bucket.store
        self._max_age_s = None if max_age_s is None else check_seconds(max_age_s, "max_age_s")
        self._clock: Callable[[], float] = time.time
        self._lookups = ThreadPoolExecutor(_LOOKUPS, thread_name_prefix="kvsdk-object")

    def __repr__(self) -> str:
        return f"Object({self._bucket.shown!r})"

    def open(self, *, policy: PolicyName = "hints", clock: Callable[[], float] = time.time) -> None:
        """Take the clock. There is nothing to clean up: nobody sees a half-written object."""
        self._clock = clock

    # ------------------------------------------------------------------ the contract

    def put(self, name: str, data: Buffer, hints: Hints) -> bool:
        """Send it, unless it is there. Always True: a bucket has no end."""
        path = _path(name)
        # In memory obstore keeps the view itself, and what it shows will be another's.
        content = bytes(data.view) if self._bucket.scheme == "memory" else data.view
        self._bucket.ask(f"put {path}", lambda: self._put(path, content))
        return True

    def get(self, name: str, pool: BufferPool) -> Buffer | None:
        """Read it, straight into memory of the pool."""
        path = _path(name)
        return self._bucket.ask(f"get {path}", lambda: self._get(path, pool))

    def contains(self, names: Sequence[str]) -> builtins.list[bool]:
        """Ask for the heads of the objects, some at the same time; the first that fails ends it."""
        paths = [_path(name) for name in names]
        if len(paths) == 1:
            return [self._bucket.ask(f"look up {paths[0]}", lambda: self._is_there(paths[0]))]
        return self._bucket.ask("look up objects", lambda: [*self._lookups.map(self._is_there, paths)])

    def list(self, prefix: str) -> builtins.list[str]:
        """The names that begin so, sorted. A prefix that ends with a slash costs no more than its answer."""
        return sorted(self._bucket.ask("list objects", lambda: self._names(prefix)))

    def remove(self, name: str) -> bool:
        """Delete it."""
        path = _path(name)
        return self._bucket.ask(f"delete {path}", lambda: self._remove(path))

    def collect(self) -> int:
        """Delete what is older than `max_age_s`; without one, nothing."""
        if self._max_age_s is None:
            return 0
        return self._bucket.ask("delete old objects", self._remove_old)

    def stats(self) -> TierStats:
        """Unknown: to count the objects is to list them all, which takes long and is charged for."""
        return TierStats(entries=None, used_bytes=None, capacity_bytes=None)

    def sync(self) -> None:
        """A bucket has what it took. For a folder: what was written goes to the disk."""
        if self._bucket.scheme == "file":
            os.sync()

    def close(self) -> None:
        """End the threads that look up."""
        self._lookups.shutdown(cancel_futures=True)

    # ------------------------------------------------------------------ requests

    def _put(self, path: str, content: bytes | memoryview) -> None:
        is_large = len(content) > _MULTIPART_BYTES
        if not is_large:
            try:
                obstore.put(self._store, path, content, mode="create")
                return
            except AlreadyExistsError:
                if self._max_age_s is None:
                    return
            except NotImplementedError:
                pass  # the store knows no conditions
        if not self._is_there(path):
            obstore.put(self._store, path, content, use_multipart=is_large)

    def _get(self, path: str, pool: BufferPool) -> Buffer | None:
        try:
            found = obstore.get(self._store, path)
        except FileNotFoundError:
            return None
        if self._is_old(found.meta):
            return None
        buffer = pool.take(found.meta["size"])
        is_whole = False
        try:
            is_whole = self._fill(buffer.view, path, found)
        except FileNotFoundError:
            pass  # removed while it was read in pieces
        finally:
            if not is_whole:
                buffer.release()
        return buffer if is_whole else None

    def _fill(self, view: memoryview, path: str, found: obstore.GetResult) -> bool:
        """Lay the object into memory; whether it was as long as it said."""
        filled = 0
        if self._bucket.is_local:  # a stream of a file comes in small reads, ten times slower than pieces
            for start in range(0, len(view), _PIECE_BYTES):
                end = min(start + _PIECE_BYTES, len(view))
                piece = memoryview(obstore.get_range(self._store, path, start=start, end=end))
                view[start : start + len(piece)] = piece
                filled += len(piece)
        else:
            for part in found.stream(_STREAM_BYTES):
                view[filled : filled + len(part)] = part
                filled += len(part)
        return filled == len(view)

    def _is_there(self, path: str) -> bool:
        try:
            return not self._is_old(obstore.head(self._store, path))
        except FileNotFoundError:
            return False

    def _is_old(self, meta: obstore.ObjectMeta) -> bool:
        if self._max_age_s is None:
            return False
        return self._clock() - meta["last_modified"].timestamp() > self._max_age_s

    def _names(self, prefix: str) -> builtins.list[str]:
        entries = self._entries(prefix.rpartition("/")[0])
        return [name for name, meta in entries if name.startswith(prefix) and not self._is_old(meta)]

    def _entries(self, folder: str = "") -> builtins.list[tuple[str, obstore.ObjectMeta]]:
        """The objects under a folder that are entries."""
        if folder and not is_name(f"{folder}/0"):
            return []
        batches = obstore.list(self._store, folder or None, chunk_size=1000)
        named = [(meta["path"].removesuffix(_SUFFIX), meta) for batch in batches for meta in batch]
        return [(name, meta) for name, meta in named if name != meta["path"] and is_name(name)]

    def _remove(self, path: str) -> bool:
        try:
            obstore.head(self._store, path)  # S3 deletes what is not there without a word
            obstore.delete(self._store, path)
        except FileNotFoundError:
            return False
        return True

    def _remove_old(self) -> int:
        return sum(self._remove(meta["path"]) for _, meta in self._entries() if self._is_old(meta))


def _path(name: str) -> str:
    return check_name(name) + _SUFFIX
