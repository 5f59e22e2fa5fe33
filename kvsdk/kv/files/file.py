"""One chunk of KV as one file: a safetensors file with a manifest. `docs/format.md` has it in prose.

A file lies in memory that the caller gives, and everything happens there: tensors are views of it, and each
byte of KV is moved once. A reader first checks all of the file, and only then are there tensors.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from kvsdk.errors import InvalidFile, InvalidRequest
from kvsdk.kv.files.codec import Zstd
from kvsdk.kv.files.header import header_bytes, header_of, read_header
from kvsdk.kv.files.manifest import NO_KEY, Manifest
from kvsdk.kv.files.payload import checksum, checksums, stored_pieces
from kvsdk.kv.files.plan import FilePlan, plan_file, plan_of
from kvsdk.kv.models.spec import ITEM_BYTES

if TYPE_CHECKING:
    import torch

__all__ = [
    "NO_KEY",
    "FilePlan",
    "Manifest",
    "Opened",
    "check_file",
    "compress",
    "decompress",
    "file_bytes",
    "open_file",
    "plan_file",
    "read_manifest",
]

Bytes: TypeAlias = "bytes | bytearray | memoryview | mmap.mmap"
Alloc: TypeAlias = Callable[[int], memoryview]
"""Gives writable memory of at least so many bytes."""


class Opened(NamedTuple):
    """What a file holds. The tensors lie in the file's own memory: read them, and do not write."""

    manifest: Manifest
    kv: Any
    scales: torch.Tensor | None


# ------------------------------------------------------------------ reading


def read_manifest(view: Bytes) -> Manifest:
    """A file's manifest, from its header; what follows is not looked at, and need not be there.

    Raises:
        InvalidFile: The header is not whole, not one of kvsdk, or not what was written.
    """
    return read_header(_as_bytes(view))


def file_bytes(manifest: Manifest) -> int:
    """How long the file of a manifest is."""
    return len(header_of(manifest)) + stored_pieces(manifest)[-1].end


def check_file(view: Bytes) -> Manifest:
    """Check all of a file: header, size, and every byte of the payload. Needs no PyTorch.

    Raises:
        InvalidFile: Something is not as it was written.
    """
    view = _as_bytes(view)
    manifest = read_header(view)
    pieces, start = stored_pieces(manifest), header_bytes(view)
    missing = start + pieces[-1].end - len(view)
    if missing > 0:
        raise InvalidFile(f"the file lacks its last {missing} bytes", kind="truncated")
    if missing < 0:
        raise InvalidFile(f"the file has {-missing} bytes behind its end", kind="corrupt")
    found = checksums(view[start:], pieces)
    for piece, ours, expected in zip(pieces, found, manifest.checksums, strict=True):
        if ours != expected:
            raise InvalidFile(f"the tensor {piece.name} is not what was written", kind="corrupt")
    return manifest


def open_file(view: Bytes, *, alloc: Alloc | None = None) -> Opened:
    """Check all of a file, then give its tensors. They keep the memory alive; do not write to them.

    Args:
        view: The file. Memory that cannot be written is copied, which costs more than all the rest.
        alloc: Where a compressed file is unpacked to; new memory by default.

    Raises:
        InvalidFile: Something is not as it was written.
        ConfigurationError: The file is compressed, and the library for that is not installed.
    """
    view = _as_bytes(view)
    manifest = check_file(view)
    if manifest.codec is not None:
        view = _unpacked(view, manifest, alloc or _new)
    elif view.readonly:
        view = memoryview(bytearray(view))
    return Opened(manifest, *plan_of(manifest).tensors(view))


# ------------------------------------------------------------------ compressing


def compress(view: Bytes, *, alloc: Alloc | None = None) -> memoryview:
    """The file with every tensor compressed by zstd; `decompress` gives back the same bytes.

    Args:
        view: A file that is not compressed.
        alloc: Where the new one goes; new memory by default.

    Returns:
        The new file: as much of the memory as it takes.

    Raises:
        InvalidFile: Something is not as it was written. All is checked: no fault gets a new checksum.
        InvalidRequest: It is compressed already.
        ConfigurationError: The library is not installed.
    """
    view = _as_bytes(view)
    codec, manifest = Zstd(), check_file(view)
    if manifest.codec is not None:
        raise InvalidRequest("the file is compressed already", field="view")
    plan = plan_of(manifest)
    payload = view[plan.header_bytes :]
    packed = [codec.pack(payload[each.start : each.end], ITEM_BYTES[each.dtype]) for each in plan.pieces]
    sizes = tuple(len(each) for each in packed)
    sums = tuple(map(checksum, packed))
    header = header_of(replace(manifest, codec="zstd", checksums=sums, stored_bytes=sizes))
    made = (alloc or _new)(len(header) + sum(sizes))
    end = 0
    for part in (header, *packed):
        made[end : end + len(part)] = part
        end += len(part)
    return made[:end]


def decompress(view: Bytes, *, alloc: Alloc | None = None) -> memoryview:
    """A compressed file as it was before `compress`.

    Args:
        view: The file.
        alloc: Where the new one goes; new memory by default. It is asked for what the manifest says that the
            KV takes, once every tensor says the same.

    Returns:
        The new file: as much of the memory as it takes.

    Raises:
        InvalidFile: Something is not as it was written.
        InvalidRequest: It is not compressed.
        ConfigurationError: The library is not installed.
    """
    view = _as_bytes(view)
    manifest = check_file(view)
    if manifest.codec is None:
        raise InvalidRequest("the file is not compressed", field="view")
    made = _unpacked(view, manifest, alloc or _new)
    plan = plan_of(manifest)
    plan.seal(made, key=manifest.key, parent=manifest.parent, first_token=manifest.first_token)
    return made


def _unpacked(view: memoryview, manifest: Manifest, alloc: Alloc) -> memoryview:
    """Memory of the file without compression, with its payload; its header is not there yet."""
    codec, plan, start = Zstd(), plan_of(manifest), header_bytes(view)
    parts = [view[start + piece.start : start + piece.end] for piece in stored_pieces(manifest)]
    for piece, part in zip(plan.pieces, parts, strict=True):
        if codec.raw_bytes(part) != piece.end - piece.start:
            raise InvalidFile(f"the tensor {piece.name} would have another size", kind="corrupt")
    made = alloc(plan.total_bytes)[: plan.total_bytes]
    payload = made[plan.header_bytes :]
    for piece, part in zip(plan.pieces, parts, strict=True):
        if not codec.unpack(part, payload[piece.start : piece.end], ITEM_BYTES[piece.dtype]):
            raise InvalidFile(f"the tensor {piece.name} cannot be unpacked", kind="corrupt")
    return made


def _new(size: int) -> memoryview:
    return memoryview(bytearray(size))


def _as_bytes(view: Bytes) -> memoryview:
    return memoryview(view).cast("B")
