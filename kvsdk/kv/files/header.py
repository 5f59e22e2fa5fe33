"""The header of a file of KV: a function of its manifest, so that a reader can make it anew and compare."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from functools import lru_cache

from kvsdk.errors import InvalidFile, InvalidRequest
from kvsdk.kv.files.manifest import Manifest
from kvsdk.kv.files.payload import Piece, num_pieces, plain_pieces, stored_pieces
from kvsdk.kv.models.spec import KVSpec

MAX_HEADER_BYTES = 1 << 24

_START = b'{"__metadata__":{"kvsdk":"'
_ALIGN_BYTES = 64
_FIRST_TOKEN_DIGITS = 10
_DTYPES = {
    "float32": "F32",
    "float16": "F16",
    "bfloat16": "BF16",
    "float8_e4m3fn": "F8_E4M3",
    "float8_e5m2": "F8_E5M2",
    "uint8": "U8",
}
"""PyTorch's names and safetensors'."""


def header_of(manifest: Manifest) -> bytes:
    """All of a header: its length, its JSON, and spaces up to where the payload begins.

    It has room for the longest `first_token`, so that all chunks of one kind have headers of one length.

    Raises:
        InvalidRequest: No KV lies as the manifest says.
    """
    text = manifest.to_json()
    digest = hashlib.sha256(text.encode()).hexdigest()
    if manifest.codec is None:
        tensors = _plain_entries(manifest.layout, manifest.spec, manifest.num_tokens)
    else:
        tensors = _entries(stored_pieces(manifest))
    body = f'{{"__metadata__":{{"kvsdk":{json.dumps(text)},"kvsdk.sha256":"{digest}"}},{tensors}}}'
    room = 8 + len(body) + _FIRST_TOKEN_DIGITS - len(str(manifest.first_token))
    size = room + -room % _ALIGN_BYTES
    return (size - 8).to_bytes(8, "little") + body.encode("ascii").ljust(size - 8)


def header_bytes(start: memoryview) -> int:
    """How many bytes of a file are its header, from its first eight.

    Raises:
        InvalidFile: It has none.
    """
    if len(start) < 8:
        raise InvalidFile("the file ends before its header", kind="truncated")
    size = 8 + int.from_bytes(start[:8], "little")
    if not 8 + len(_START) <= size <= MAX_HEADER_BYTES:
        raise InvalidFile("this is no file of kvsdk", kind="foreign")
    return size


def read_header(view: memoryview) -> Manifest:
    """The manifest of a header, once the header is what its manifest says. What follows is not looked at.

    Raises:
        InvalidFile: It is not whole, not one of kvsdk, or not what was written.
    """
    size = header_bytes(view)
    header = bytes(view[:size])
    if not header.startswith(_START[: len(header) - 8], 8):
        raise InvalidFile("this is no file of kvsdk", kind="foreign")
    if len(header) < size:
        raise InvalidFile("the file ends within its header", kind="truncated")
    manifest = Manifest.from_json(_manifest_text(header))
    count = num_pieces(manifest.layout, manifest.spec)
    if len(manifest.checksums) != count:
        raise InvalidFile(f"{len(manifest.checksums)} checksums of {count} tensors", kind="corrupt")
    try:
        expected = header_of(manifest)
    except InvalidRequest as error:
        raise InvalidFile(f"no KV lies as the manifest says: {error}", kind="corrupt") from error
    if header != expected:
        raise InvalidFile("the header is not that of its manifest", kind="corrupt")
    return manifest


def _manifest_text(header: bytes) -> str:
    """The manifest's text, checked against the sha256 behind it."""
    try:
        body = header[8:].decode("ascii")
        text, end = json.JSONDecoder().raw_decode(body, len(_START) - 1)
        digest = hashlib.sha256(text.encode("ascii")).hexdigest()
    except ValueError as error:
        raise InvalidFile("the header is not what was written", kind="corrupt") from error
    if not body.startswith(f',"kvsdk.sha256":"{digest}"}}', end):
        raise InvalidFile("the manifest is not what was written", kind="corrupt")
    return str(text)


@lru_cache(maxsize=128)
def _plain_entries(layout: str, spec: KVSpec, num_tokens: int) -> str:
    return _entries(plain_pieces(layout, spec, num_tokens))


def _entries(pieces: Iterable[Piece]) -> str:
    """The header's entries of tensors, without the braces."""
    entries = {
        piece.name: {
            "dtype": _DTYPES[piece.dtype],
            "shape": piece.shape,
            "data_offsets": (piece.start, piece.end),
        }
        for piece in pieces
    }
    return json.dumps(entries, separators=(",", ":"))[1:-1]
