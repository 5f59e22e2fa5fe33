"""Moves from one side to the other: by compiled code, as rows, or as strided copies."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

from kvsdk.errors import InvalidRequest
from kvsdk.kv.layouts.look import Look, views_alike
from kvsdk.kv.layouts.planes import Survey
from kvsdk.kv.models.spec import ITEM_BYTES
from kvsdk.kv.moving import fast
from kvsdk.kv.moving.rows import move_rows
from kvsdk.kv.moving.sides import Side, runs, stretch_size

if TYPE_CHECKING:
    import torch


class Heads(NamedTuple):
    """Some heads: from which one on there, from which one on here, and how many."""

    to: int
    from_: int
    number: int


class Span(NamedTuple):
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
        for parts, spans in self.alike(*surveys):
            for span in spans:
                places, sources = addresses(span, surveys, parts, slice(None))
                made.append(_Move((span.there, span.here, item, self.is_streamed), places, sources))
        return made

    def move_planes(self) -> None:
        """The same bytes in all planes, one by one."""
        for layer in range(self.source.spec.num_layers):
            for part in range(len(self.source.spec.parts)):
                self.move_plane(self.target.plane(layer, part), self.source.plane(layer, part))

    def move_plane(self, writer: torch.Tensor, reader: torch.Tensor) -> None:
        """The same bytes in one plane."""
        writer, reader = self._cut(writer, reader)
        spans = self._spans(Look.of(writer), Look.of(reader))
        if fast.is_on() and writer.is_cpu and reader.is_cpu and writer.itemsize == reader.itemsize:
            for there, here, to, from_ in spans:
                places = to * writer.itemsize + writer.data_ptr()
                sources = from_ * reader.itemsize + reader.data_ptr()
                fast.move(there, here, writer.itemsize, places, sources, stream=self.is_streamed)
            return
        is_done = bool(self._whole) and self._is_scattered and _move_rows(writer, reader, spans[0])
        for token, blocks, length in self._rest if is_done else self.pieces:
            place = self.target.piece(writer, token, blocks, length)
            _copy(place, self.source.piece(reader, token, blocks, length))

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

    def alike(self, there: Survey, here: Survey) -> Iterator[tuple[list[int], list[Span]]]:
        """Parts that look the same on both sides, and their spans.

        Keys and values that lie beside each other are so read and written together.
        """
        looks = list(zip(there.looks, here.looks, strict=True))
        for look in dict.fromkeys(looks):
            yield [part for part, other in enumerate(looks) if other == look], self._spans(*look)

    def _spans(self, writer: Look, reader: Look) -> list[Span]:
        """Those of a plane; planes that look alike have the same."""
        if (writer, reader) not in self._known_spans:
            self._known_spans[writer, reader] = self._make_spans(writer, reader)
        return self._known_spans[writer, reader]

    @cached_property
    def _known_spans(self) -> dict[tuple[Look, Look], list[Span]]:
        return {}

    def _make_spans(self, writer: Look, reader: Look) -> list[Span]:
        """Stretches of one size, and what is left as one that is shorter."""
        sides, size, whole = ((self.target, writer), (self.source, reader)), self._size, self._whole
        made = []
        if whole:
            looks = [side.stretch(look, size) for side, look in sides]
            made.append(Span(*looks, *(side.starts(look, size, whole) for side, look in sides)))
        if rest := self.num_tokens - whole * size:
            looks = [side.stretch(look, rest) for side, look in sides]
            made.append(Span(*looks, *(side.start(look, whole * size) for side, look in sides)))
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
    def is_streamed(self) -> bool:
        """Whether it is so much that it is written past the cache."""
        spec = self.target.spec
        elements = spec.num_layers * spec.num_kv_heads * sum(spec.parts) * self.num_tokens
        return elements * ITEM_BYTES[spec.dtype] >= fast.STREAM_BYTES

    @cached_property
    def pieces(self) -> list[tuple[int, int, int]]:
        """Strided copies that do it: `(first token, blocks, tokens of each)`."""
        return list(runs(self.source, self.target, self.num_tokens))

    @cached_property
    def _rest(self) -> list[tuple[int, int, int]]:
        return list(runs(self.source, self.target, self.num_tokens, self._whole * self._size))


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


def _narrow(found: Survey, axis: int, start: int, count: int) -> Survey:
    """Some heads of all planes."""
    looks = [Look((*sizes[:axis], count, *sizes[axis + 1 :]), strides) for sizes, strides in found.looks]
    offsets = [start * look.strides[axis] * found.dtype.itemsize for look in looks]
    return Survey(looks, found.addresses + offsets, found.dtype)


def addresses(span: Span, surveys: Sequence[Survey], parts: list[int], layers: slice) -> list[Any]:
    """Where each stretch begins there and here: `(layers, stretches, parts)`."""
    return [
        survey.addresses[layers, None, parts] + (starts * survey.dtype.itemsize)[:, None]
        for survey, starts in zip(surveys, (span.to, span.from_), strict=True)
    ]


def _check_inside(view: Look, stretch: Look, starts: Any) -> None:
    """Compiled code looks at no bounds: no stretch ends behind the plane."""
    if int(starts.max()) + stretch.reach > view.reach:
        raise InvalidRequest("the tensors are too small for the layout and the spec", field="kv")


def _move_rows(writer: torch.Tensor, reader: torch.Tensor, span: Span) -> bool:
    there = writer.as_strided(*span.there, int(writer.storage_offset()))
    here = reader.as_strided(*span.here, int(reader.storage_offset()))
    return move_rows(there, here, span.to, span.from_)


def _copy(place: torch.Tensor, piece: torch.Tensor) -> None:
    """The same bytes elsewhere; a tiled side is split like the other one."""
    import torch

    raw = {1: torch.uint8, 2: torch.int16, 4: torch.int32}[piece.element_size()]
    place, piece = views_alike(place, piece)
    place.view(raw).copy_(piece.view(raw))
