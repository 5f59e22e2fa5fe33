"""The two ends of a store: KV that is given to `put`, and the place where `get` is to lay it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from kvsdk.errors import InvalidRequest
from kvsdk.kv.identity.fingerprint import Fingerprint
from kvsdk.kv.layouts.infer import infer_spec
from kvsdk.kv.layouts.layout import Layout
from kvsdk.kv.layouts.planes import allocate
from kvsdk.kv.models.layer_kinds import KV_KINDS
from kvsdk.kv.models.spec import KVSpec
from kvsdk.kv.moving.certificate import unit_scales, verify_equal
from kvsdk.kv.moving.convert import QUANTISED, convert
from kvsdk.kv.moving.sides import Side
from kvsdk.store.entries.chunks import CHUNK_TOKENS, Chunk, part_of
from kvsdk.store.entries.images import Image
from kvsdk.store.entries.tensors import check_apart, check_tensors

_DEFAULT_BLOCK = 16
_UNPAGED = {"mha": "layer kv | batch head token dim", "mla": "layer | token latent"}
"""Where KV waits whose blocks do not fit evenly into chunks."""


class Unconverted(Exception):
    """Stored KV did not come out equal in the layout that was asked for."""


@dataclass(frozen=True, slots=True)
class Source:
    """KV to be stored: of a layout whose chunks can be taken one by one."""

    kv: Any
    layout: Layout
    spec: KVSpec
    blocks: Sequence[int] | None

    @classmethod
    def of(
        cls,
        kv: Any,
        layout: Layout | str,
        blocks: Sequence[int] | None,
        tokens: int,
        *,
        spec: KVSpec | None,
        fingerprint: Fingerprint,
    ) -> Source:
        """Check what was given.

        Raises:
            InvalidRequest: The tensors do not fit the layout, the fingerprint's dtype or each other, or have
                no room for so many tokens.
            Unsupported: The model has layers whose state is no KV per token.
        """
        lying = Layout.of(layout)
        found = _spec_of(kv, lying, spec, fingerprint)
        found.require_movable()
        side = Side(kv, lying, found, blocks)
        side.check(tokens, "kv")
        check_tensors(side, tokens, "kv")
        if lying.is_paged and CHUNK_TOKENS % found.block_size:
            waiting = _same(kv, lying, _UNPAGED[found.kind], found, src_blocks=blocks, num_tokens=tokens)
            return cls(waiting, Layout.of(_UNPAGED[found.kind]), found, None)
        return cls(kv, lying, found, blocks)

    def part(self, chunk: Chunk) -> tuple[Any, Sequence[int] | None]:
        """A chunk's KV and its blocks."""
        return part_of(self.kv, self.layout, self.spec, self.blocks, chunk.first, chunk.tokens)


class Target:
    """Where KV goes, chunk by chunk.

    Args:
        layout: What is asked for.
        blocks: Of `out`, in logical order.
        out: Where to write; made when the first chunk is there, if None.
        tokens: Of the prompt.
        first_token: From which one on; what is before is not touched.
        spec: The model, where it is known before.
        fingerprint: Ours.

    Raises:
        InvalidRequest: `out` does not fit, has no room for the prompt's tokens, or one place for several; or
            `first_token` is none of the prompt's, or not the first of a block.
    """

    def __init__(
        self,
        layout: Layout | str,
        blocks: Sequence[int] | None,
        out: Any,
        tokens: int,
        *,
        first_token: int = 0,
        spec: KVSpec | None,
        fingerprint: Fingerprint,
    ) -> None:
        self.first_token = first_token
        self._layout = Layout.of(layout)
        self._blocks = blocks
        self._out = out
        self._tokens = tokens
        self._dtype = str(fingerprint.kv_dtype)
        self._block_size = fingerprint.block_size or _DEFAULT_BLOCK
        self._expected: KVSpec | None = None
        self._waiting: Any = None
        if out is None and blocks is not None:
            raise InvalidRequest("blocks are those of out, which is missing", field="out")
        if out is not None:
            self._expected = _spec_of(out, self._layout, spec, fingerprint)
            self._block_size = self._expected.block_size
            side = Side(out, self._layout, self._expected, blocks)
            side.check(tokens, "out")
            check_tensors(side, tokens, "out")
            check_apart(out, blocks and blocks[: -(-tokens // self._block_size)])
        _check_first(first_token, tokens, self._block_size if self._layout.is_paged else 1)

    def has(self, chunk: Chunk) -> bool:
        """Whether a chunk is before what is wanted."""
        return chunk.end <= self.first_token

    @property
    def _is_odd(self) -> bool:
        """Whether its blocks do not fit evenly into chunks, so that all of it is laid out at the end."""
        return self._layout.is_paged and CHUNK_TOKENS % self._block_size != 0

    def take(self, image: Image, chunk: Chunk) -> bool:
        """Lay a chunk where it belongs; whether it had to be converted.

        Raises:
            InvalidRequest: `out` is of another model than what is stored.
            Unconverted: It is not equal there.
        """
        spec = replace(image.spec, dtype=self._dtype, block_size=self._block_size)
        self._prepare(spec)
        layout = Layout.of(_UNPAGED[spec.kind]) if self._is_odd else self._layout
        skipped = max(0, self.first_token - chunk.first)
        tokens = chunk.tokens - skipped
        place, blocks = part_of(
            self._waiting if self._is_odd else self._out,
            layout,
            spec,
            None if self._is_odd else self._blocks,
            chunk.first + skipped,
            tokens,
        )
        part = _Part.of(image, skipped, tokens)
        _lay(part, image, place, layout, blocks, spec)
        differs = Layout.of(image.layout) != layout or (
            layout.is_paged and image.spec.block_size != spec.block_size
        )
        if differs and not image.is_lossy:
            _certify(part, place, layout, image.spec, blocks, spec.block_size)
        return differs

    def finish(self, tokens: int) -> Any:
        """The KV of so many first tokens."""
        assert self._expected is not None
        spec = self._expected
        if self._is_odd:
            layout, first = Layout.of(_UNPAGED[spec.kind]), self.first_token
            kv, _ = part_of(self._waiting, layout, spec, None, first, tokens - first)
            part = _Part(kv, layout, None, tokens - first)
            _, blocks = part_of(self._out, self._layout, spec, self._blocks, first, tokens - first)
            places = {"out": self._out, "dst_blocks": blocks, "num_tokens": part.tokens}
            _same(kv, layout, self._layout, spec, dst_block_size=spec.block_size, **places)
            _certify(part, self._out, self._layout, spec, blocks, spec.block_size)
        if self._layout.is_paged or tokens == self._tokens:
            return self._out
        return part_of(self._out, self._layout, spec, None, 0, tokens)[0]

    def _prepare(self, spec: KVSpec) -> None:
        """Make what is missing, once the model is known; afterwards it must stay the same."""
        if self._expected is not None and not _is_alike(self._expected, spec):
            raise InvalidRequest(
                f"out is of a model with {_shape(self._expected)}, but stored is one with {_shape(spec)}",
                field="out",
            )
        self._expected = spec
        if self._out is None:
            self._out = allocate(self._layout, spec, tokens=self._tokens)
        if self._is_odd and self._waiting is None:
            self._waiting = allocate(Layout.of(_UNPAGED[spec.kind]), spec, tokens=self._tokens)


def _spec_of(kv: Any, layout: Layout, spec: KVSpec | None, fingerprint: Fingerprint) -> KVSpec:
    """The model by its tensors, or as it was told; its layers by the fingerprint."""
    block_size = fingerprint.block_size or _DEFAULT_BLOCK
    found = spec or infer_spec(kv, layout, block_size=block_size)
    if found.dtype != fingerprint.kv_dtype:
        raise InvalidRequest(
            f"the KV is {found.dtype}, the fingerprint says {fingerprint.kv_dtype}", field="kv"
        )
    if spec is not None or fingerprint.kv_groups is None:
        return found
    layers = sum(kind in KV_KINDS for kind in fingerprint.kv_groups)
    if found.num_layers != layers:
        raise InvalidRequest(
            f"the KV has {found.num_layers} layers, the fingerprint says {layers}", field="kv"
        )
    return replace(found, layer_kinds=fingerprint.kv_groups, window=fingerprint.sliding_window or None)


@dataclass(frozen=True, slots=True)
class _Part:
    """The last tokens of a chunk's KV, or all of it."""

    kv: Any
    layout: Layout
    blocks: Sequence[int] | None
    tokens: int

    @classmethod
    def of(cls, image: Image, skipped: int, tokens: int) -> _Part:
        """Without the first tokens of a chunk; all of it is moved first where its blocks do not end there."""
        kv, layout, spec = image.kv, Layout.of(image.layout), image.spec
        if layout.is_paged and skipped % spec.block_size:
            waiting = Layout.of(_UNPAGED[spec.kind])
            kv = _same(kv, layout, waiting, spec, num_tokens=skipped + tokens)
            layout = waiting
        found, blocks = part_of(kv, layout, spec, None, skipped, tokens)
        return cls(found, layout, blocks, tokens)


def _lay(
    part: _Part, image: Image, place: Any, layout: Layout, blocks: Sequence[int] | None, spec: KVSpec
) -> None:
    places = {"out": place, "src_blocks": part.blocks, "dst_blocks": blocks, "num_tokens": part.tokens}
    places["dst_block_size"] = spec.block_size
    if image.is_lossy:
        whole: dict[str, Any] = {"dtype": spec.dtype, "scales": image.scales}
        convert(part.kv, part.layout, layout, image.spec, **whole, **places)
    else:
        _same(part.kv, part.layout, layout, image.spec, **places)


def _same(kv: Any, from_: Layout | str, to: Layout | str, spec: KVSpec, **places: Any) -> Any:
    """The very bytes elsewhere, of quantised KV too."""
    made = convert(kv, from_, to, spec, **places, **unit_scales(spec))
    return made[0] if spec.dtype in QUANTISED else made


def _certify(
    part: _Part, place: Any, layout: Layout, spec: KVSpec, blocks: Sequence[int] | None, block_size: int
) -> None:
    certificate = verify_equal(
        part.kv,
        part.layout,
        place,
        layout,
        spec,
        num_tokens=part.tokens,
        a_blocks=part.blocks,
        b_blocks=blocks,
        b_block_size=block_size,
    )
    if not certificate.equal:
        raise Unconverted(f"converted to {layout.text!r} it differs: {certificate.first_difference}")


def _check_first(first_token: int, tokens: int, block_size: int) -> None:
    is_number = isinstance(first_token, int) and not isinstance(first_token, bool)
    if not is_number or not 0 <= first_token <= max(0, tokens - 1):
        raise InvalidRequest(
            f"first_token is one of the prompt's {tokens}, not {first_token!r}", field="first_token"
        )
    if first_token % block_size:
        raise InvalidRequest(
            f"first_token begins a block of {block_size} tokens, {first_token} does not", field="first_token"
        )


def _is_alike(one: KVSpec, other: KVSpec) -> bool:
    return _shape(one) == _shape(other)


def _shape(spec: KVSpec) -> str:
    dims = " and ".join(map(str, spec.parts))
    return f"{spec.num_layers} layers, {spec.num_kv_heads} KV heads of {dims}, {spec.dtype}"
