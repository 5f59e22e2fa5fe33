"""Casts from one side to the other: the same numbers in another dtype, compiled or by torch."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

from kvsdk.kv.layouts.look import views_alike
from kvsdk.kv.layouts.planes import Survey
from kvsdk.kv.models.spec import ITEM_BYTES
from kvsdk.kv.moving import fast_casts
from kvsdk.kv.moving.transfer import Span, Transfer, addresses

if TYPE_CHECKING:
    import torch

NAN_BITS = {"float32": 0x7FC00000, "float16": 0x7E00, "bfloat16": 0x7FC0, "float8_e4m3fn": 0x7F}
"""The one NaN that a cast gives in each dtype. Torch's own depends on the processor and on the place."""

_GROUP_BYTES = 8 << 20
"""Layers that are quantised together: their numbers are read twice, the second time from the cache."""


def cast(transfer: Transfer, scales: torch.Tensor | None, new_scales: torch.Tensor | None) -> None:
    """The same numbers in another dtype, as near as it has them.

    Args:
        transfer: What goes where.
        scales: What each layer's, part's and head's numbers are multiplied by, if anything.
        new_scales: Is filled with what they are divided by then, if anything: their largest magnitude over
            the dtype's. A scale that is not above 0 divides by 1.
    """
    surveys = transfer.surveys() if scales is None or new_scales is None else None
    if surveys is not None and fast_casts.can_cast(*(survey.dtype for survey in surveys)):
        for parts, spans in transfer.alike(*surveys):
            whole = [slice(0, transfer.source.spec.num_layers)]
            for layers in whole if new_scales is None else _groups(transfer, len(parts)):
                _cast_group(transfer, surveys, spans, layers, parts, scales, new_scales)
    else:
        _cast_planes(transfer, scales, new_scales)


def _scales_of(largest: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Of heads with these largest magnitudes; the one NaN where there is any."""
    import torch

    made = largest / torch.finfo(dtype).max
    return made.where(~made.isnan(), torch.nan)


# ---------------------------------------------------------------------- compiled


def _groups(transfer: Transfer, parts: int) -> Iterator[slice]:
    spec = transfer.source.spec
    size = transfer.num_tokens * spec.num_kv_heads * max(spec.parts) * ITEM_BYTES[spec.dtype] * parts
    step = max(1, _GROUP_BYTES // max(1, size))
    for start in range(0, spec.num_layers, step):
        yield slice(start, start + step)


def _cast_group(
    transfer: Transfer,
    surveys: tuple[Survey, Survey],
    spans: list[Span],
    layers: slice,
    parts: list[int],
    scales: torch.Tensor | None,
    new_scales: torch.Tensor | None,
) -> None:
    """Some layers of parts that look the same."""
    there, here = surveys
    ends = [addresses(span, surveys, parts, layers) for span in spans]
    factors = None
    if scales is not None:
        factors = fast_casts.Factors(scales[layers, parts].flatten(0, 1), is_divided=False)
    elif new_scales is not None:
        planes = len(here.addresses[layers]) * len(parts)
        found = fast_casts.Largest(planes, transfer.source.spec.num_kv_heads, here.dtype)
        for span, (_, sources) in zip(spans, ends, strict=True):
            found.look_at(span.here, sources)
        made = _scales_of(found.magnitudes(), there.dtype)
        new_scales[layers, parts] = made.reshape(-1, len(parts), made.shape[-1])
        factors = fast_casts.Factors(made.where(made > 0, 1.0), is_divided=True)
    for span, (places, sources) in zip(spans, ends, strict=True):
        looks = (span.there, span.here, there.dtype, here.dtype)
        fast_casts.cast(*looks, places, sources, factors, stream=transfer.is_streamed)


# ---------------------------------------------------------------------- by torch


def _cast_planes(transfer: Transfer, scales: torch.Tensor | None, new_scales: torch.Tensor | None) -> None:
    import torch

    for layer in range(transfer.source.spec.num_layers):
        for part in range(len(transfer.source.spec.parts)):
            scale = None if scales is None else scales[layer, part].to(torch.float32)
            new_scale = None if new_scales is None else new_scales[layer, part]
            planes = (transfer.target.plane(layer, part), transfer.source.plane(layer, part))
            _cast_plane(transfer, *planes, scale, new_scale)


def _cast_plane(
    transfer: Transfer,
    writer: torch.Tensor,
    reader: torch.Tensor,
    scale: torch.Tensor | None,
    new_scale: torch.Tensor | None,
) -> None:
    if new_scale is not None:
        found = _largest(transfer, reader)
        new_scale.copy_(_scales_of(found if scale is None else found * scale, writer.dtype))
        new_scale = new_scale.where(new_scale > 0, 1.0)
    for token, blocks, length in transfer.pieces:
        place = transfer.target.piece(writer, token, blocks, length)
        _cast_piece(place, transfer.source.piece(reader, token, blocks, length), scale, new_scale)


def _largest(transfer: Transfer, reader: torch.Tensor) -> torch.Tensor:
    """The largest magnitude of each head, float32; NaN where there is one."""
    import torch

    found = torch.zeros(transfer.source.spec.num_kv_heads)
    for token, blocks, length in transfer.pieces:
        piece = transfer.source.piece(reader, token, blocks, length).to(torch.float32).abs()
        axes = [axis for axis in range(piece.dim()) if axis != 2]
        found = torch.maximum(found, piece.amax(axes))
    return found


def _cast_piece(
    place: torch.Tensor, piece: torch.Tensor, scale: torch.Tensor | None, new_scale: torch.Tensor | None
) -> None:
    import torch

    place, piece = views_alike(place, piece)
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
