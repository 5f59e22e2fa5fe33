"""What is moved from one side to the other: by compiled code, as rows, or as strided copies."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

from kvsdk.errors import InvalidRequest
from kvsdk.kv.layouts.planes import Look, Survey, alike
from kvsdk.kv.models.spec import ITEM_BYTES
from kvsdk.kv.moving import fast
from kvsdk.kv.moving.rows import move_rows
from kvsdk.kv.moving.sides import Side, pieces, stretch_size

if TYPE_CHECKING:
    import torch

NAN_BITS = {"float32": 0x7FC00000, "float16": 0x7E00, "bfloat16": 0x7FC0, "float8_e4m3fn": 0x7F}
"""The one NaN that a cast gives in each dtype. Torch's own depends on the processor and on the place."""

_GROUP_BYTES = 8 << 20
"""Layers that are quantised together: their numbers are read twice, the second time from the cache."""


class Heads(NamedTuple):
    """Some heads: from which one on there, from which one on here, and how many."""

    to: int
    from_: int
    number: int


class _Span(NamedTuple):
    """Stretches of one size: how one looks there and here, and where each begins, in elements from the
    plane's start on."""

    there: Look
    here: Look
    to: Any
    from_: Any


class _Move(NamedTuple):
    """What compiled code moves: looks there and here, bytes of an element and whether past the cache; and the
    addresses there and here."""

    kind: tuple[Look, Look, int, bool]
    places: Any
    sources: Any


@dataclass(frozen=True)
class Transfer:
    """So many tokens of the source, from its first one on, to the target's first places.

    `heads` are those that are moved; all by default.
    """

    source: Side
    target: Side
    num_tokens: int
    heads: Heads | None = None

    def move(self) -> None:
        """The same bytes in all planes."""
        move_together([self])

    @cached_property
    def moves(self) -> list[_Move] | None:
        """What compiled code is told to move; None where it cannot."""
        surveys = self.surveys()
        if surveys is None or surveys[0].dtype.itemsize != surveys[1].dtype.itemsize:
            return None
        item = surveys[0].dtype.itemsize
        made = []
        for parts, spans in self._alike(*surveys):
            for span in spans:
                places, sources = _addresses(span, surveys, parts, slice(None))
                made.append(_Move((span.there, span.here, item, self._is_streamed), places, sources))
        return made

    def move_planes(self) -> None:
        """The same bytes in all planes, one by one."""
        for layer in range(self.source.spec.num_layers):
            for part in range(len(self.source.spec.parts)):
                self.move_plane(self.target.plane(layer, part), self.source.plane(layer, part))

    def move_plane(self, writer: torch.Tensor, reader: torch.Tensor) -> None:
        """The same bytes in one plane."""
        writer, reader = self._cut(writer, reader)
        spans = self._spans(_look(writer), _look(reader))
        if fast.is_on() and writer.is_cpu and reader.is_cpu and writer.itemsize == reader.itemsize:
            for there, here, to, from_ in spans:
                places = to * writer.itemsize + writer.data_ptr()
                sources = from_ * reader.itemsize + reader.data_ptr()
                fast.move(there, here, writer.itemsize, places, sources, stream=self._is_streamed)
            return
        is_done = bool(self._whole) and self._is_scattered and _move_rows(writer, reader, spans[0])
        for token, blocks, length in self._rest if is_done else self._pieces:
            place = self.target.piece(writer, token, blocks, length)
            _copy(place, self.source.piece(reader, token, blocks, length))

    # ------------------------------------------------------------------ casts

    def cast(self, scales: torch.Tensor | None, new_scales: torch.Tensor | None) -> None:
        """The same numbers in another dtype, as near as it has them.

        Args:
            scales: What each layer's, part's and head's numbers are multiplied by, if anything.
            new_scales: Is filled with what they are divided by then, if anything: their largest magnitude
                over the dtype's. A scale that is not above 0 divides by 1.
        """
        import torch

        surveys = self.surveys() if scales is None or new_scales is None else None
        if surveys is not None and fast.can_cast(*(survey.dtype for survey in surveys)):
            for parts, spans in self._alike(*surveys):
                for layers in self._groups(len(parts)):
                    self._cast_group(surveys, spans, layers, parts, scales, new_scales)
            return
        for layer in range(self.source.spec.num_layers):
            for part in range(len(self.source.spec.parts)):
                scale = None if scales is None else scales[layer, part].to(torch.float32)
                new_scale = None if new_scales is None else new_scales[layer, part]
                planes = (self.target.plane(layer, part), self.source.plane(layer, part))
                self._cast_plane(*planes, scale, new_scale)

    def _cast_group(
        self,
        surveys: tuple[Survey, Survey],
        spans: list[_Span],
        layers: slice,
        parts: list[int],
        scales: torch.Tensor | None,
        new_scales: torch.Tensor | None,
    ) -> None:
        """Some layers of parts that look the same, compiled."""
        import torch

        there, here = surveys
        ends = [_addresses(span, surveys, parts, layers) for span in spans]
        factors = None
        if scales is not None:
            factors = fast.Factors(scales[layers, parts].flatten(0, 1), is_divided=False)
        elif new_scales is not None:
            planes = len(here.addresses[layers]) * len(parts)
            found = fast.Largest(planes, self.source.spec.num_kv_heads, here.dtype)
            for span, (_, sources) in zip(spans, ends, strict=True):
                found.look_at(span.here, sources)
            made = found.magnitudes() / torch.finfo(there.dtype).max
            new_scales[layers, parts] = made.reshape(-1, len(parts), made.shape[-1])
            factors = fast.Factors(made.where(made > 0, 1.0), is_divided=True)
        for span, (places, sources) in zip(spans, ends, strict=True):
            looks = (span.there, span.here, there.dtype, here.dtype)
            fast.cast(*looks, places, sources, factors, stream=self._is_streamed)

    def _cast_plane(
        self,
        writer: torch.Tensor,
        reader: torch.Tensor,
        scale: torch.Tensor | None,
        new_scale: torch.Tensor | None,
    ) -> None:
        """One plane without compiled code."""
        import torch

        if new_scale is not None:
            found = self._largest(reader)
            new_scale.copy_((found if scale is None else found * scale) / torch.finfo(writer.dtype).max)
            new_scale = new_scale.where(new_scale > 0, 1.0)
        for token, blocks, length in self._pieces:
            place = self.target.piece(writer, token, blocks, length)
            _cast(place, self.source.piece(reader, token, blocks, length), scale, new_scale)

    def _largest(self, reader: torch.Tensor) -> torch.Tensor:
        """The largest magnitude of each head, float32; NaN where there is one."""
        import torch

        found = torch.zeros(self.source.spec.num_kv_heads)
        for token, blocks, length in self._pieces:
            piece = self.source.piece(reader, token, blocks, length).to(torch.float32).abs()
            axes = [axis for axis in range(piece.dim()) if axis != 2]
            found = torch.maximum(found, piece.amax(axes))
        return found

    def _groups(self, parts: int) -> Iterator[slice]:
        spec = self.source.spec
        size = self.num_tokens * spec.num_kv_heads * max(spec.parts) * ITEM_BYTES[spec.dtype] * parts
        step = max(1, _GROUP_BYTES // max(1, size))
        for start in range(0, spec.num_layers, step):
            yield slice(start, start + step)

    # ------------------------------------------------------------------ what lies where

    def surveys(self) -> tuple[Survey, Survey] | None:
        """Both sides, the target first; None where compiled code cannot take all planes at once."""
        if not fast.is_on():
            return None
        there, here = self.target.survey, self.source.survey
        if there is None or here is None:
            return None
        if self.heads is None:
            return there, here
        to, from_, number = self.heads
        axes = self._head_axes
        return _narrow(there, axes[0], to, number), _narrow(here, axes[1], from_, number)

    @property
    def _head_axes(self) -> tuple[int, int]:
        return 2 if self.target.is_paged else 1, 2 if self.source.is_paged else 1

    def _alike(self, there: Survey, here: Survey) -> Iterator[tuple[list[int], list[_Span]]]:
        """Parts that look the same on both sides, and their spans.

        Keys and values that lie beside each other are so read and written together.
        """
        looks = list(zip(there.looks, here.looks, strict=True))
        for look in dict.fromkeys(looks):
            yield [part for part, other in enumerate(looks) if other == look], self._spans(*look)

    def _spans(self, writer: Look, reader: Look) -> list[_Span]:
        """Stretches of one size, and what is left as one that is shorter."""
        sides, size, whole = ((self.target, writer), (self.source, reader)), self._size, self._whole
        made = []
        if whole:
            looks = [side.stretch(look, size) for side, look in sides]
            made.append(_Span(*looks, *(side.starts(look, size, whole) for side, look in sides)))
        if rest := self.num_tokens - whole * size:
            looks = [side.stretch(look, rest) for side, look in sides]
            made.append(_Span(*looks, *(side.start(look, whole * size) for side, look in sides)))
        for span in made:
            _check_inside(writer, span.there, span.to)
            _check_inside(reader, span.here, span.from_)
        return made

    @cached_property
    def _size(self) -> int:
        return stretch_size(self.source, self.target)

    @property
    def _whole(self) -> int:
        return self.num_tokens // self._size

    def _cut(self, writer: torch.Tensor, reader: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The heads that are moved."""
        if self.heads is None:
            return writer, reader
        axes = self._head_axes
        to, from_, number = self.heads
        return writer.narrow(axes[0], to, number), reader.narrow(axes[1], from_, number)

    @cached_property
    def _is_scattered(self) -> bool:
        """Whether it takes more than a few strided copies."""
        paged = [side for side in (self.source, self.target) if side.is_paged]
        is_uniform = len({side.spec.block_size for side in paged}) < 2
        return not is_uniform or any(side.is_scattered for side in paged)

    @cached_property
    def _is_streamed(self) -> bool:
        spec = self.target.spec
        elements = spec.num_layers * spec.num_kv_heads * sum(spec.parts) * self.num_tokens
        return elements * ITEM_BYTES[spec.dtype] >= fast.STREAM_BYTES

    @cached_property
    def _pieces(self) -> list[tuple[int, int, int]]:
        return list(pieces(self.source, self.target, self.num_tokens))

    @cached_property
    def _rest(self) -> list[tuple[int, int, int]]:
        return list(pieces(self.source, self.target, self.num_tokens, self._whole * self._size))


def move_together(transfers: Sequence[Transfer]) -> None:
    """Several transfers, a stretch of each in turn: what lies together is so read and written together."""
    alike: dict[Any, list[_Move]] = {}
    for transfer in transfers:
        if transfer.moves is None:
            transfer.move_planes()
        for move in transfer.moves or ():
            alike.setdefault((move.kind, move.places.shape), []).append(move)
    for moves in alike.values():
        places = _interleaved([move.places for move in moves])
        sources = _interleaved([move.sources for move in moves])
        there, here, item, stream = moves[0].kind
        fast.move(there, here, item, places, sources, stream=stream)


def _interleaved(arrays: list[Any]) -> Any:
    import numpy as np

    return arrays[0] if len(arrays) == 1 else np.stack(arrays, -1)


def _look(view: torch.Tensor) -> Look:
    return Look(tuple(view.shape), view.stride())


def _narrow(found: Survey, axis: int, start: int, count: int) -> Survey:
    """Some heads of all planes."""
    looks = [Look((*sizes[:axis], count, *sizes[axis + 1 :]), strides) for sizes, strides in found.looks]
    offsets = [start * look.strides[axis] * found.dtype.itemsize for look in looks]
    return Survey(looks, found.addresses + offsets, found.dtype)


def _addresses(span: _Span, surveys: Sequence[Survey], parts: list[int], layers: slice) -> list[Any]:
    """Where each stretch begins there and here: `(layers, stretches, parts)`."""
    return [
        survey.addresses[layers, None, parts] + (starts * survey.dtype.itemsize)[:, None]
        for survey, starts in zip(surveys, (span.to, span.from_), strict=True)
    ]


def _check_inside(view: Look, stretch: Look, starts: Any) -> None:
    """Compiled code looks at no bounds: no stretch ends behind the plane."""
    if int(starts.max()) + _reach(stretch) > _reach(view):
        raise InvalidRequest("the tensors are too small for the layout and the spec", field="kv")


def _reach(look: Look) -> int:
    """How far the last element is from the first."""
    return sum((size - 1) * stride for size, stride in zip(*look, strict=True))


def _move_rows(writer: torch.Tensor, reader: torch.Tensor, span: _Span) -> bool:
    there = writer.as_strided(*span.there, int(writer.storage_offset()))
    here = reader.as_strided(*span.here, int(reader.storage_offset()))
    return move_rows(there, here, span.to, span.from_)


def _copy(place: torch.Tensor, piece: torch.Tensor) -> None:
    """The same bytes elsewhere; a tiled side is split like the other one."""
    import torch

    raw = {1: torch.uint8, 2: torch.int16, 4: torch.int32}[piece.element_size()]
    place, piece = alike(place, piece)
    place.view(raw).copy_(piece.view(raw))


def _cast(
    place: torch.Tensor, piece: torch.Tensor, scale: torch.Tensor | None, new_scale: torch.Tensor | None
) -> None:
    import torch

    place, piece = alike(place, piece)
    numbers = piece
    by_head = [1, 1, -1, *[1] * (piece.dim() - 3)]
    if scale is not None or new_scale is not None:
        numbers = piece.to(torch.float32)
    if scale is not None:
        numbers = numbers * scale.view(by_head)
    if new_scale is not None:
        numbers = numbers / new_scale.view(by_head)
    place.copy_(numbers)
    # A sum that is finite has no NaN in it, and costs less than looking for one.
    if not math.isfinite(numbers.sum(dtype=torch.float32)):
        _mend(place, numbers)


def _mend(place: torch.Tensor, numbers: torch.Tensor) -> None:
    """The one NaN of the dtype, wherever there is any."""
    import torch

    bits = NAN_BITS.get(str(place.dtype).removeprefix("torch."))
    if bits is not None:
        raw = {1: torch.uint8, 2: torch.int16, 4: torch.int32}[place.element_size()]
        place.view(raw).masked_fill_(numbers.to(torch.float32).isnan(), bits)
