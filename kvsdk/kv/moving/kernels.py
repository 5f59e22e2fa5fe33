"""Compiled loops over memory, for `kvsdk.kv.moving.fast`: the only module that loads numba.

All of them take addresses in bytes, and believe them. What is moved is cut into stretches of tokens, which
begin at `places` and `sources`, and each stretch into units, which are the same in all of them: a table of
two offsets each, in the order of the destination. `lines` are the cache lines of a stretch of the source, in
its own order, a row of them for each unit: while one stretch is written the one `ahead` of it is fetched, as
no processor foresees where the next block lies. A `stream` goes past the cache to memory, and saves the read
before each write.

The loops hold no lock and keep nothing, so threads may run them side by side. Numba keeps compiled code in a
file beside this one and goes by this one's date, so all that is compiled is in here.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable
from functools import cache
from typing import Any

import numba
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

VECTOR_BYTES = 16
"""Of the vectors that squares are transposed by."""
LANES = 64
"""Elements that are cast at once, at most."""

FLOAT32, FLOAT16, BFLOAT16, E4M3 = range(4)
UNSCALED, TIMES, OVER = range(3)
_BITS = {FLOAT32: 32, FLOAT16: 16, BFLOAT16: 16, E4M3: 8}

_BYTE, _SHORT, _INT, _LONG = (ir.IntType(bits) for bits in (8, 16, 32, 64))
_HALF, _FLOAT = ir.HalfType(), ir.FloatType()

_NUMBER, _ROW, _TABLE = types.int64, types.int64[::1], types.int64[:, ::1]
_SCALES = types.float32[:, ::1]


def _compiled(function: Callable[..., None], *kinds: Any) -> Any:
    """The function in machine code for these arguments, kept on disk where that works.

    A disk that is full or a file that was cut off there costs the time of compiling, no more.
    """
    signature = types.void(*kinds)
    try:
        return numba.njit(signature, nogil=True, cache=True)(function)
    except (OSError, EOFError, RuntimeError, ValueError, pickle.UnpicklingError):
        return numba.njit(signature, nogil=True)(function)


def _instruction(build: Callable[..., Any]) -> Any:
    """A function that becomes these instructions wherever it is called in compiled code."""
    return intrinsic(prefer_literal=True)(build)


# ---------------------------------------------------------------------- moving bytes


@cache
def runs(width: int, is_single: bool, stream: int) -> Any:
    """A loop that copies units of `pieces` runs, `width` bytes at a time.

    The width is a power of two that divides the run; `is_single` says that it is the run.
    """

    def loop(  # pragma: no cover - compiled
        places: Any,
        sources: Any,
        units: Any,
        lines: Any,
        ahead: int,
        pieces: int,
        to_step: int,
        from_step: int,
        run: int,
    ) -> None:
        for at in range(len(places)):
            place, source = places[at], sources[at]
            next_ = sources[min(at + ahead, len(sources) - 1)]
            for unit in range(len(units)):
                for line in range(lines.shape[1]):
                    _fetch(next_ + lines[unit, line])
                one, other = place + units[unit, 0], source + units[unit, 1]
                for _ in range(pieces):
                    if is_single:
                        _copy(one, other, width, stream)
                    else:
                        for byte in range(0, run, width):
                            _copy(one + byte, other + byte, width, stream)
                    one += to_step
                    other += from_step
        _fence()

    return _compiled(loop, _ROW, _ROW, _TABLE, _TABLE, *[_NUMBER] * 5)


@cache
def squares(item: int, stream: int) -> Any:
    """A loop that transposes squares: rows of 16 bytes here become columns there."""

    def loop(  # pragma: no cover - compiled
        places: Any,
        sources: Any,
        units: Any,
        lines: Any,
        ahead: int,
        to_step: int,
        from_step: int,
    ) -> None:
        for at in range(len(places)):
            place, source = places[at], sources[at]
            next_ = sources[min(at + ahead, len(sources) - 1)]
            for unit in range(len(units)):
                for line in range(lines.shape[1]):
                    _fetch(next_ + lines[unit, line])
                _transpose(place + units[unit, 0], to_step, source + units[unit, 1], from_step, item, stream)
        _fence()

    return _compiled(loop, _ROW, _ROW, _TABLE, _TABLE, *[_NUMBER] * 3)


# ---------------------------------------------------------------------- casting numbers


@cache
def casts(source: int, target: int, scaling: int, lanes: int, stream: int) -> Any:
    """A loop that casts rows of numbers, `lanes` at once: a power of two that divides the row.

    Each row may be multiplied or divided by the scale of its plane and head.
    """
    from_bytes, to_bytes = _BITS[source] // 8, _BITS[target] // 8

    def loop(  # pragma: no cover - compiled
        places: Any,
        sources: Any,
        units: Any,
        lines: Any,
        ahead: int,
        count: int,
        heads: Any,
        planes: Any,
        scales: Any,
    ) -> None:
        for at in range(len(places)):
            place, origin = places[at], sources[at]
            next_ = sources[min(at + ahead, len(sources) - 1)]
            for unit in range(len(units)):
                for line in range(lines.shape[1]):
                    _fetch(next_ + lines[unit, line])
                one, other = place + units[unit, 0], origin + units[unit, 1]
                scale = scales[planes[at], heads[unit]]
                for x in range(0, count, lanes):
                    to, from_ = one + x * to_bytes, other + x * from_bytes
                    _cast(to, from_, scale, lanes, source, target, scaling, stream)
        _fence()

    return _compiled(loop, _ROW, _ROW, _TABLE, _TABLE, _NUMBER, _NUMBER, _ROW, _ROW, _SCALES)


@cache
def largest(bits: int, lanes: int) -> Any:
    """A loop that finds the largest numbers without their sign of each plane and head, in `lanes` places.

    `found` is where the first plane's are kept, and the two steps lead to other planes and heads.
    """
    item = bits // 8

    def loop(  # pragma: no cover - compiled
        sources: Any,
        units: Any,
        lines: Any,
        ahead: int,
        count: int,
        heads: Any,
        planes: Any,
        found: int,
        plane_step: int,
        head_step: int,
    ) -> None:
        for at in range(len(sources)):
            origin, plane = sources[at], found + planes[at] * plane_step
            next_ = sources[min(at + ahead, len(sources) - 1)]
            for unit in range(len(units)):
                for line in range(lines.shape[1]):
                    _fetch(next_ + lines[unit, line])
                other, head = origin + units[unit, 1], plane + heads[unit] * head_step
                for x in range(0, count, lanes):
                    _raise(head, other + x * item, lanes, bits)

    return _compiled(loop, _ROW, _TABLE, _TABLE, _NUMBER, _NUMBER, _ROW, _ROW, *[_NUMBER] * 3)


# ---------------------------------------------------------------------- single instructions


def _at(builder: Any, address: Any, kind: Any) -> Any:
    return builder.inttoptr(address, kind.as_pointer())


def _load(builder: Any, address: Any, kind: Any) -> Any:
    value = builder.load(_at(builder, address, kind))
    value.align = 1
    return value


def _store(builder: Any, value: Any, address: Any, stream: int, align: int) -> None:
    made = builder.store(value, _at(builder, address, value.type), align=align if stream else 1)
    if stream:
        made.set_metadata("nontemporal", builder.module.add_metadata([_INT(1)]))


@_instruction
def _copy(context: Any, to: Any, from_: Any, width: Any, stream: Any) -> Any:
    """Copy `width` bytes."""
    kind = ir.VectorType(_BYTE, width.literal_value) if width.literal_value > 1 else _BYTE

    def build(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        value = _load(builder, values[1], kind)
        _store(builder, value, values[0], stream.literal_value, width.literal_value)
        return context.get_dummy_value()

    return types.void(types.intp, types.intp, width, stream), build


@_instruction
def _transpose(
    context: Any, to: Any, to_step: Any, from_: Any, from_step: Any, item: Any, stream: Any
) -> Any:
    """Transpose a square of elements: each round interleaves the rows' first half with the second."""
    size = VECTOR_BYTES // item.literal_value
    kind = ir.VectorType(ir.IntType(8 * item.literal_value), size)
    low, high = (
        ir.Constant(
            ir.VectorType(_INT, size),
            [_INT(half + at // 2 + at % 2 * size) for at in range(size)],
        )
        for half in (0, size // 2)
    )

    def build(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        place, place_step, source, source_step = values[:4]
        rows = [
            _load(builder, builder.add(source, builder.mul(source_step, _LONG(at))), kind)
            for at in range(size)
        ]
        for _ in range(size.bit_length() - 1):
            halves = list(zip(rows[: size // 2], rows[size // 2 :], strict=True))
            rows = [builder.shuffle_vector(*pair, mask) for pair in halves for mask in (low, high)]
        for at, row in enumerate(rows):
            address = builder.add(place, builder.mul(place_step, _LONG(at)))
            _store(builder, row, address, stream.literal_value, VECTOR_BYTES)
        return context.get_dummy_value()

    return types.void(types.intp, types.intp, types.intp, types.intp, item, stream), build


@_instruction
def _fetch(context: Any, address: Any) -> Any:
    """Ask for a cache line that will be read."""

    def build(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        pointer = _BYTE.as_pointer()
        kind = ir.FunctionType(ir.VoidType(), [pointer, _INT, _INT, _INT])
        function = builder.module.declare_intrinsic("llvm.prefetch", [pointer], kind)
        builder.call(function, [_at(builder, values[0], _BYTE), _INT(0), _INT(3), _INT(1)])
        return context.get_dummy_value()

    return types.void(types.intp), build


@_instruction
def _fence(context: Any) -> Any:
    """Streamed writes are seen by other threads before what comes after."""

    def build(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        builder.fence("seq_cst")
        return context.get_dummy_value()

    return types.void(), build


@_instruction
def _raise(context: Any, found: Any, from_: Any, lanes: Any, bits: Any) -> Any:
    """Keep the larger of what was found and the magnitudes here."""
    kind = ir.VectorType(ir.IntType(bits.literal_value), lanes.literal_value)

    def build(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        mask = _all(kind, (1 << (bits.literal_value - 1)) - 1)
        old, new = _load(builder, values[0], kind), builder.and_(_load(builder, values[1], kind), mask)
        largest = builder.select(builder.icmp_unsigned(">", new, old), new, old)
        _store(builder, largest, values[0], 0, 1)
        return context.get_dummy_value()

    return types.void(types.intp, types.intp, lanes, bits), build


@_instruction
def _cast(
    context: Any,
    to: Any,
    from_: Any,
    scale: Any,
    lanes: Any,
    source: Any,
    target: Any,
    scaling: Any,
    stream: Any,
) -> Any:
    """Cast so many numbers that lie together, by way of float32."""
    count = lanes.literal_value
    from_bits, to_bits = _BITS[source.literal_value], _BITS[target.literal_value]

    def build(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        bits = _load(builder, values[1], ir.VectorType(ir.IntType(from_bits), count))
        numbers = _READERS[source.literal_value](builder, bits, count)
        if scaling.literal_value == TIMES:
            numbers = builder.fmul(numbers, _spread(builder, values[2], count))
        elif scaling.literal_value == OVER:
            numbers = builder.fdiv(numbers, _spread(builder, values[2], count))
        made = _WRITERS[target.literal_value](builder, numbers, count)
        is_nan = builder.fcmp_unordered("uno", numbers, numbers)
        made = builder.select(is_nan, _all(made.type, _NAN[target.literal_value]), made)
        _store(builder, made, values[0], stream.literal_value, min(count * to_bits // 8, 64))
        return context.get_dummy_value()

    kinds = (lanes, source, target, scaling, stream)
    return types.void(types.intp, types.intp, types.float32, *kinds), build


# ---------------------------------------------------------------------- numbers and their bits

_NAN = {FLOAT32: 0x7FC00000, FLOAT16: 0x7E00, BFLOAT16: 0x7FC0, E4M3: 0x7F}
"""The one NaN that each dtype's cast gives; processors disagree about the sign and the rest."""


def _all(kind: Any, value: float) -> Any:
    """A vector of one number."""
    return ir.Constant(kind, [kind.element(value)] * kind.count)


def _spread(builder: Any, value: Any, count: int) -> Any:
    vector = builder.insert_element(ir.Constant(ir.VectorType(_FLOAT, count), ir.Undefined), value, _INT(0))
    zeros = ir.Constant(ir.VectorType(_INT, count), [_INT(0)] * count)
    return builder.shuffle_vector(vector, vector, zeros)


def _read_float32(builder: Any, bits: Any, count: int) -> Any:
    return builder.bitcast(bits, ir.VectorType(_FLOAT, count))


def _read_float16(builder: Any, bits: Any, count: int) -> Any:
    halves = builder.bitcast(bits, ir.VectorType(_HALF, count))
    return builder.fpext(halves, ir.VectorType(_FLOAT, count))


def _read_bfloat16(builder: Any, bits: Any, count: int) -> Any:
    wide = builder.zext(bits, ir.VectorType(_INT, count))
    return builder.bitcast(builder.shl(wide, _all(wide.type, 16)), ir.VectorType(_FLOAT, count))


def _read_e4m3(builder: Any, bits: Any, count: int) -> Any:
    """Moved to the exponent's place they are those of a half 256 times smaller, but for NaN: all ones."""
    short = ir.VectorType(_SHORT, count)
    moved = builder.shl(builder.zext(bits, short), _all(short, 8))
    half = builder.and_(builder.ashr(moved, _all(short, 1)), _all(short, 0xBF80))
    is_nan = builder.icmp_unsigned("==", builder.and_(half, _all(short, 0x3F80)), _all(short, 0x3F80))
    half = builder.select(is_nan, _all(short, 0x7E00), half)
    numbers = _read_float16(builder, half, count)
    return builder.fmul(numbers, _all(numbers.type, 256.0))


def _write_float32(builder: Any, numbers: Any, count: int) -> Any:
    return builder.bitcast(numbers, ir.VectorType(_INT, count))


def _write_float16(builder: Any, numbers: Any, count: int) -> Any:
    halves = builder.fptrunc(numbers, ir.VectorType(_HALF, count))
    return builder.bitcast(halves, ir.VectorType(_SHORT, count))


def _write_bfloat16(builder: Any, numbers: Any, count: int) -> Any:
    """To the nearest, ties to even: half of the last place less one is added, and one where that is odd."""
    bits = _write_float32(builder, numbers, count)
    odd = builder.and_(builder.lshr(bits, _all(bits.type, 16)), _all(bits.type, 1))
    rounded = builder.add(builder.add(bits, _all(bits.type, 0x7FFF)), odd)
    return builder.trunc(builder.lshr(rounded, _all(bits.type, 16)), ir.VectorType(_SHORT, count))


def _write_e4m3(builder: Any, numbers: Any, count: int) -> Any:
    """To the nearest, ties to even; what is larger than 448 is 448.

    Added to 2**20 times its own power of two, a number is rounded to three bits of its mantissa, which are
    the sum's last ones; below the smallest normal number, whose power is taken then, to multiples of 2**-9.
    """
    single = numbers.type
    bits = _write_float32(builder, numbers, count)
    kind = bits.type
    magnitude = builder.bitcast(builder.and_(bits, _all(kind, 0x7FFFFFFF)), single)
    is_large = builder.fcmp_ordered(">", magnitude, _all(single, 448.0))
    magnitude = builder.select(is_large, _all(single, 448.0), magnitude)
    power = builder.and_(builder.bitcast(magnitude, kind), _all(kind, 0x7F800000))
    smallest = _all(kind, (127 - 6) << 23)
    power = builder.select(builder.icmp_unsigned("<", power, smallest), smallest, power)
    grain = builder.add(power, _all(kind, 20 << 23))
    total = builder.bitcast(builder.fadd(magnitude, builder.bitcast(grain, single)), kind)
    # The exponent's bias is 7 instead of 127, and the mantissa's leading bit, an 8, counts as one of it.
    exponent = builder.sub(builder.lshr(power, _all(kind, 20)), _all(kind, ((127 - 7) << 3) + 8))
    found = builder.add(builder.sub(total, grain), exponent)
    sign = builder.and_(builder.lshr(bits, _all(kind, 24)), _all(kind, 0x80))
    return builder.trunc(builder.or_(found, sign), ir.VectorType(_BYTE, count))


_READERS = {FLOAT32: _read_float32, FLOAT16: _read_float16, BFLOAT16: _read_bfloat16, E4M3: _read_e4m3}
_WRITERS = {FLOAT32: _write_float32, FLOAT16: _write_float16, BFLOAT16: _write_bfloat16, E4M3: _write_e4m3}
