"""Compression of one tensor's bytes: zstd over byte planes.

Nearly all that can be saved in KV is in the exponents. So the elements' lowest bytes come first, then the
next ones, and so on. A block of zstd has one code for all of its bytes, so each of these planes begins a
block. bfloat16 then takes two thirds of its size, and is read faster than when it is compressed as it lies.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

from kvsdk.errors import ConfigurationError

_LEVEL = 1
_WORDS = {2: "<u2", 4: "<u4"}
_MOST_PER_BYTE = 1 << 15
"""zstd's blocks are of at most 128 KiB, and take 4 bytes at least."""


class Zstd:
    """zstd, for one thread at a time.

    Raises:
        ConfigurationError: The library is not installed.
    """

    __slots__ = ("_compressor", "_decompressor", "_library")

    def __init__(self) -> None:
        self._library = _library()
        self._compressor = self._library.ZstdCompressor(level=_LEVEL)
        self._decompressor = self._library.ZstdDecompressor()

    def pack(self, data: memoryview, item_bytes: int) -> bytes:
        """A tensor's bytes as one frame. The same bytes give the same ones with one version of zstd."""
        if item_bytes == 1:
            whole: bytes = self._compressor.compress(data)
            return whole
        stream, packed = self._compressor.compressobj(size=len(data)), list[bytes]()
        for plane in _planes(data, item_bytes):
            packed += [stream.compress(plane), stream.flush(self._library.COMPRESSOBJ_FLUSH_BLOCK)]
        return b"".join((*packed, stream.flush()))

    def raw_bytes(self, packed: memoryview) -> int | None:
        """How many bytes `unpack` would write; None where that is not said, or cannot be true."""
        try:
            size: int = self._library.get_frame_parameters(packed).content_size
        except self._library.ZstdError:
            return None
        return size if 0 <= size <= len(packed) * _MOST_PER_BYTE else None

    def unpack(self, packed: memoryview, place: memoryview, item_bytes: int) -> bool:
        """Write a tensor's bytes where they belong; False where these are not what `pack` made of so many."""
        if self.raw_bytes(packed) != len(place):
            return False
        try:
            raw = self._decompressor.decompress(packed, max_output_size=len(place), allow_extra_data=False)
        except self._library.ZstdError:
            return False
        if len(raw) != len(place):
            return False
        if item_bytes == 1:
            place[:] = raw
        else:
            _join(raw, place, item_bytes)
        return True


def _library() -> ModuleType:
    try:
        import zstandard
    except ImportError as error:
        raise ConfigurationError(
            'codec="zstd" needs the library zstandard; run: pip install "kvsdk[zstd]"'
        ) from error
    return zstandard


def _planes(data: memoryview, item_bytes: int) -> Any:
    """All lowest bytes, then all of the next, `(item_bytes, elements)`."""
    import numpy as np

    words = np.frombuffer(data, _WORDS[item_bytes])
    planes = np.empty((item_bytes, words.size), np.uint8)
    planes[0] = words
    for at in range(1, item_bytes):
        planes[at] = words >> (8 * at)
    return planes


def _join(raw: bytes, place: memoryview, item_bytes: int) -> None:
    import numpy as np

    planes = np.frombuffer(raw, np.uint8).reshape(item_bytes, -1)
    words = np.frombuffer(place, _WORDS[item_bytes])
    words[...] = planes[-1]
    for plane in planes[-2::-1]:
        words <<= 8
        words |= plane
