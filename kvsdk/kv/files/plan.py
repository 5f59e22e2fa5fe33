"""Where everything lies in a file of KV, before there is a file."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from math import prod
from typing import TYPE_CHECKING, Any

from kvsdk.errors import InvalidRequest
from kvsdk.kv.files.header import MAX_HEADER_BYTES, header_of
from kvsdk.kv.files.manifest import NO_KEY, Manifest
from kvsdk.kv.files.payload import Piece, checksums, layout_name, num_kv_tensors, num_pieces, plain_pieces
from kvsdk.kv.identity.fingerprint import Fingerprint
from kvsdk.kv.layouts.layout import Layout
from kvsdk.kv.layouts.planes import arrange
from kvsdk.kv.models.spec import ITEM_BYTES, KVSpec

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True, kw_only=True)
class FilePlan:
    """Where everything lies in a file of so many tokens, whatever the tokens are. See `plan_file`.

    Attributes:
        fingerprint: What makes the KV.
        spec: Of the payload.
        layout: Of the payload, as the manifest says it.
        num_tokens: How many tokens a file has.
        rank: Of tensor and pipeline parallelism.
        pieces: The tensors, one after the other.
        header_bytes: Where the payload begins.
        total_bytes: Of the file.
    """

    fingerprint: Fingerprint
    spec: KVSpec
    layout: str
    num_tokens: int
    rank: int
    pieces: tuple[Piece, ...]
    header_bytes: int
    total_bytes: int

    def tensors(self, view: memoryview) -> tuple[Any, torch.Tensor | None]:
        """The tensors of a file that lies in this memory, to be written: KV in its layout, and scales.

        Scales are float32 of shape `(layers, parts, heads)`; None where the dtype has none. What the last
        block has behind the last token belongs to the file: write zeros there.

        Raises:
            InvalidRequest: The memory is too small, or cannot be written.
        """
        import torch

        view = self._writable(view)
        layout = Layout.of(self.layout)
        kv_pieces = self.pieces[: num_kv_tensors(layout, self.spec)]
        item_bytes = ITEM_BYTES[self.spec.dtype]
        flat = torch.frombuffer(
            view,
            dtype=getattr(torch, self.spec.dtype),
            count=kv_pieces[-1].end // item_bytes,
            offset=self.header_bytes,
        )
        views = [
            flat.as_strided(piece.shape, _strides(piece.shape), piece.start // item_bytes)
            for piece in kv_pieces
        ]
        per_layer = 2 if "kv" in layout.left else 1
        kv = arrange(layout, self.spec, lambda layer, part: views[layer * per_layer + part])
        if len(kv_pieces) == len(self.pieces):
            return kv, None
        shape, offset = self.pieces[-1].shape, self.header_bytes + self.pieces[-1].start
        scales = torch.frombuffer(view, dtype=torch.float32, count=prod(shape), offset=offset)
        return kv, scales.view(shape)

    def seal(self, view: memoryview, *, key: bytes, parent: bytes = NO_KEY, first_token: int = 0) -> Manifest:
        """Write the header before a payload that is there: afterwards `view[:total_bytes]` is a file.

        Args:
            view: The memory.
            key: The chain key of the prompt up to the chunk's end, 32 bytes.
            parent: The one before.
            first_token: Where in the prompt the chunk begins.

        Raises:
            InvalidRequest: The memory is too small or cannot be written, or a value does not fit.
        """
        view = self._writable(view)
        manifest = Manifest(
            key=key,
            parent=parent,
            first_token=first_token,
            num_tokens=self.num_tokens,
            fingerprint=self.fingerprint,
            spec=self.spec,
            layout=self.layout,
            rank=self.rank,
            checksums=tuple(checksums(view[self.header_bytes :], self.pieces)),
        )
        header = header_of(manifest)
        assert len(header) == self.header_bytes, "a header's length depends on the plan alone"
        view[: self.header_bytes] = header
        return manifest

    def _writable(self, view: memoryview) -> memoryview:
        if view.readonly or view.nbytes < self.total_bytes:
            raise InvalidRequest(f"the file needs {self.total_bytes} bytes that can be written", field="view")
        return view.cast("B")


@lru_cache(maxsize=128, typed=True)  # True is 1, but no number of tokens
def plan_file(
    *, fingerprint: Fingerprint, spec: KVSpec, layout: Layout | str, num_tokens: int, rank: int = 0
) -> FilePlan:
    """Where everything will lie in a file. Plans are kept, since the chunks of a prompt are alike.

    Args:
        fingerprint: What makes the KV.
        spec: Of the payload: its dtype and block size are those that are stored.
        layout: Of the payload.
        num_tokens: How many tokens; a paged layout has room for whole blocks.
        rank: Of tensor and pipeline parallelism.

    Raises:
        UnknownLayout: A name that the registry does not have.
        InvalidRequest: A value does not fit, or no such KV lies in this layout.
    """
    name = layout_name(layout)
    blank = Manifest(
        key=NO_KEY,
        first_token=0,
        num_tokens=num_tokens,
        fingerprint=fingerprint,
        spec=spec,
        layout=name,
        rank=rank,
        checksums=(bytes(16),) * num_pieces(name, spec),
    )
    header, pieces = header_of(blank), plain_pieces(name, spec, num_tokens)
    if len(header) > MAX_HEADER_BYTES:
        raise InvalidRequest(f"the file's header would have {len(header)} bytes", field="spec")
    return FilePlan(
        fingerprint=fingerprint,
        spec=spec,
        layout=name,
        num_tokens=num_tokens,
        rank=rank,
        pieces=pieces,
        header_bytes=len(header),
        total_bytes=len(header) + pieces[-1].end,
    )


def plan_of(manifest: Manifest) -> FilePlan:
    """Of the file as it is when nothing is compressed."""
    return plan_file(
        fingerprint=manifest.fingerprint,
        spec=manifest.spec,
        layout=manifest.layout,
        num_tokens=manifest.num_tokens,
        rank=manifest.rank,
    )


@lru_cache(maxsize=256)
def _strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Of a tensor without gaps."""
    return tuple(prod(shape[axis + 1 :]) for axis in range(len(shape)))
