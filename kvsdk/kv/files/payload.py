"""Which tensors KV is in a file, and where each of them lies."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import lru_cache
from itertools import accumulate, pairwise
from math import prod
from typing import NamedTuple

import xxhash

from kvsdk.errors import InvalidRequest
from kvsdk.kv.files.manifest import Manifest
from kvsdk.kv.layouts.layout import Layout
from kvsdk.kv.layouts.planes import tensor_shape
from kvsdk.kv.layouts.registry import LAYOUTS
from kvsdk.kv.models.spec import ITEM_BYTES, KVSpec
from kvsdk.kv.moving.convert import QUANTISED

_MAX_FILE_BYTES = 1 << 62


class Piece(NamedTuple):
    """One tensor of a file; its dtype is as PyTorch calls it, its bytes are counted from the payload on."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    start: int
    end: int


@lru_cache(maxsize=128)
def plain_pieces(layout: str, spec: KVSpec, num_tokens: int) -> tuple[Piece, ...]:
    """The tensors without compression: layer by layer, keys before values, scales last; no gaps.

    Raises:
        InvalidRequest: No such KV lies in this layout.
    """
    axes = Layout.of(layout)
    shapes = {name: _shape(axes, spec, part, num_tokens) for name, part in _kv_names(axes, spec)}
    tokens = num_tokens + -num_tokens % spec.block_size if axes.is_paged else num_tokens
    elements = tokens * spec.num_layers * spec.num_kv_heads * sum(spec.parts)
    if sum(map(prod, shapes.values())) != elements:
        raise InvalidRequest(f"KV cannot lie as {axes.text!r}: not every element has a place", field="layout")
    named = [(name, spec.dtype, shape) for name, shape in shapes.items()]
    if spec.dtype in QUANTISED:
        named.append(("scales", "float32", (spec.num_layers, len(spec.parts), spec.num_kv_heads)))
    sizes = [prod(shape) * ITEM_BYTES[dtype] for _, dtype, shape in named]
    if sum(sizes) > _MAX_FILE_BYTES:
        raise InvalidRequest("the KV is too large for a file", field="spec")
    return tuple(Piece(*each, *ends) for each, ends in zip(named, _in_a_row(sizes), strict=True))


def stored_pieces(manifest: Manifest) -> tuple[Piece, ...]:
    """The tensors as they are in the file: where they are compressed, bytes.

    Raises:
        InvalidRequest: No such KV lies in this layout.
    """
    pieces = plain_pieces(manifest.layout, manifest.spec, manifest.num_tokens)
    if manifest.codec is None:
        return pieces
    return tuple(
        Piece(piece.name, "uint8", (end - start,), start, end)
        for piece, (start, end) in zip(pieces, _in_a_row(manifest.stored_bytes), strict=True)
    )


def num_kv_tensors(layout: Layout, spec: KVSpec) -> int:
    """How many tensors the KV is, without its scales."""
    return (spec.num_layers if "layer" in layout.left else 1) * (2 if "kv" in layout.left else 1)


def num_pieces(layout: str, spec: KVSpec) -> int:
    """How many tensors a file has. Nothing is built for that, however large the numbers."""
    return num_kv_tensors(Layout.of(layout), spec) + (spec.dtype in QUANTISED)


def checksums(payload: memoryview, pieces: Iterable[Piece]) -> Iterator[bytes]:
    """Of each tensor."""
    return (checksum(payload[piece.start : piece.end]) for piece in pieces)


def checksum(data: bytes | memoryview) -> bytes:
    """xxh3, 128 bits."""
    return xxhash.xxh3_128_digest(data)


def layout_name(layout: Layout | str) -> str:
    """As a manifest says it: a layout's name in the registry, or its axes in their normal form.

    Raises:
        UnknownLayout: A name that the registry does not have.
        InvalidRequest: Axes that make no layout.
    """
    if isinstance(layout, str) and layout in LAYOUTS:
        return layout
    text = Layout.of(layout).text
    return next((name for name in LAYOUTS if Layout.of(name).text == text), text)


def _in_a_row(sizes: Iterable[int]) -> Iterator[tuple[int, int]]:
    return pairwise(accumulate(sizes, initial=0))


def _kv_names(layout: Layout, spec: KVSpec) -> Iterator[tuple[str, int]]:
    """Each tensor's name, and 1 for values."""
    layers = [f"layer.{layer}" for layer in range(spec.num_layers)] if "layer" in layout.left else [""]
    for layer in layers:
        if "kv" in layout.left:
            yield f"{layer}.keys".lstrip("."), 0
            yield f"{layer}.values".lstrip("."), 1
        else:
            yield layer or "kv", 0


def _shape(layout: Layout, spec: KVSpec, part: int, num_tokens: int) -> tuple[int, ...]:
    try:
        return tensor_shape(layout, spec, part, tokens=num_tokens)
    except (LookupError, ValueError) as error:
        raise InvalidRequest(f"KV cannot lie as {layout.text!r}", field="layout") from error
