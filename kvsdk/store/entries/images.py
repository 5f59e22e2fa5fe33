"""Between KV and entries: one chunk's KV as the bytes of a file, and back.

An entry is a file (`docs/format.md`) in one buffer, the same bytes in every tier: KV is gathered right into
its payload, and converted right out of it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from kvsdk.errors import InvalidFile, InvalidRequest
from kvsdk.kv.files.file import FilePlan, compress, open_file, plan_file
from kvsdk.kv.files.manifest import CODECS, Manifest
from kvsdk.kv.identity.fingerprint import Fingerprint
from kvsdk.kv.models.spec import KVSpec
from kvsdk.kv.moving.certificate import unit_scales
from kvsdk.kv.moving.convert import QUANTISED, convert
from kvsdk.store.entries.chunks import Chunk
from kvsdk.store.entries.identity import Identity
from kvsdk.store.tiers.buffers import Buffer, BufferPool

if TYPE_CHECKING:
    import torch

    from kvsdk.store.entries.ends import Source

LOSSY = {"fp8_e4m3": "float8_e4m3fn", "float8_e4m3fn": "float8_e4m3fn"}
"""What KV may be stored in instead of its own dtype, by the names that callers use."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Image:
    """An entry that is what it should be.

    Attributes:
        manifest: What it says of itself.
        kv: Its KV, in the manifest's layout; it lies in the entry's own memory.
        scales: Of KV that was stored lossy.
        notes: What differs from ours without harm.
    """

    manifest: Manifest
    kv: Any
    scales: torch.Tensor | None
    notes: tuple[str, ...]
    _unpacked: Buffer | None

    @property
    def spec(self) -> KVSpec:
        """Of the KV as it is stored."""
        return self.manifest.spec

    @property
    def layout(self) -> str:
        """Of the KV as it is stored."""
        return self.manifest.layout

    @property
    def is_lossy(self) -> bool:
        """Whether it is only nearly what was put."""
        return self.manifest.is_lossy

    def release(self) -> None:
        """Give memory back that it was unpacked to."""
        if self._unpacked is not None:
            self._unpacked.release()


class Images:
    """Makes entries and opens them. Thread-safe.

    Args:
        identity: Whose KV it is, and in which form it is stored.
        pool: Where memory comes from.

    Raises:
        InvalidRequest: No such dtype or codec, or the KV is quantised already.
        ConfigurationError: The codec's library is missing.
    """

    def __init__(self, identity: Identity, pool: BufferPool) -> None:
        self._identity = identity
        self._pool = pool
        self._dtype = _lossy(identity)
        self._scratch = BufferPool(spare_bytes=64 << 20)
        if identity.codec is not None:
            _check_codec(identity.codec)

    def make(self, source: Source, chunk: Chunk) -> Buffer:
        """A chunk's entry, held for the caller."""
        spec = replace(source.spec, dtype=self._dtype or source.spec.dtype)
        plan = plan_file(
            fingerprint=self._identity.fingerprint,
            spec=spec,
            layout=source.layout,
            num_tokens=chunk.tokens,
            rank=self._identity.rank,
        )
        is_packed = self._identity.codec is not None
        data = (self._scratch if is_packed else self._pool).take(plan.total_bytes)
        try:
            self._fill(data, plan, source, chunk)
            return self._packed(data) if is_packed else data.hold()
        finally:
            data.release()

    def _fill(self, data: Buffer, plan: FilePlan, source: Source, chunk: Chunk) -> None:
        kv, blocks = source.part(chunk)
        made, scales = plan.tensors(data.view)
        as_it_is = {} if self._dtype else unit_scales(source.spec)
        places = {"src_blocks": blocks, "num_tokens": chunk.tokens, "dtype": self._dtype, "out": made}
        result = convert(kv, source.layout, source.layout, source.spec, **places, **as_it_is)
        if scales is not None:
            scales.copy_(result[1])
        plan.seal(data.view, key=chunk.key, parent=chunk.parent, first_token=chunk.first)

    def _packed(self, data: Buffer) -> Buffer:
        made: list[Buffer] = []

        def alloc(size: int) -> memoryview:
            made.append(self._pool.take(size))
            return made[-1].view

        compress(data.view, alloc=alloc)
        return made[0]

    def open(self, data: Buffer, chunk: Chunk) -> Image:
        """Check an entry, every byte of it, and that it is the chunk that was asked for.

        Raises:
            InvalidFile: It is not.
        """
        unpacked: list[Buffer] = []

        def alloc(size: int) -> memoryview:
            unpacked.append(self._scratch.take(size))
            return unpacked[-1].view

        try:
            opened = open_file(data.view, alloc=alloc)
            self._check(opened.manifest, chunk)
        except BaseException:
            for buffer in unpacked:
                buffer.release()
            raise
        return Image(
            manifest=opened.manifest,
            kv=opened.kv,
            scales=opened.scales if opened.manifest.is_lossy else None,
            notes=_notes(self._identity.fingerprint, opened.manifest.fingerprint),
            _unpacked=unpacked[0] if unpacked else None,
        )

    def _check(self, manifest: Manifest, chunk: Chunk) -> None:
        """The right chunk, of the right identity, in the right form."""
        ours = self._identity
        found = (manifest.key, manifest.parent, manifest.first_token, manifest.num_tokens)
        if found != (chunk.key, chunk.parent, chunk.first, chunk.tokens):
            raise InvalidFile("it holds other tokens than its name says", kind="corrupt")
        theirs = Identity(
            fingerprint=manifest.fingerprint,
            rank=manifest.rank,
            dtype=ours.dtype if manifest.is_lossy and manifest.spec.dtype == self._dtype else None,
            codec=manifest.codec,
        )
        if theirs.digest() != ours.digest() or manifest.is_lossy != (self._dtype is not None):
            raise InvalidFile(f"it is not what its name says: {ours.explain(theirs)}", kind="corrupt")


@lru_cache(maxsize=64)
def _notes(ours: Fingerprint, theirs: Fingerprint) -> tuple[str, ...]:
    """What differs in ADVISORY fields."""
    mismatch = ours.explain_mismatch(theirs)
    return () if mismatch is None else tuple(map(str, mismatch.advisory))


def _lossy(identity: Identity) -> str | None:
    if identity.dtype is None:
        return None
    if identity.dtype not in LOSSY:
        raise InvalidRequest(f"dtype is {', '.join(LOSSY)} or None, not {identity.dtype!r}", field="dtype")
    if identity.fingerprint.kv_dtype in QUANTISED:
        raise InvalidRequest("the KV is quantised already", field="dtype")
    return LOSSY[identity.dtype]


def _check_codec(codec: str) -> None:
    if codec not in CODECS:
        raise InvalidRequest(f"codec is {', '.join(CODECS)} or None, not {codec!r}", field="codec")
    from kvsdk.kv.files.codec import Zstd

    Zstd()
