"""A prompt in chunks: what each is called, and which part of a KV cache it is.

A chunk ends at every 256th token of the prompt and at the prompt's end. It is called by the key of the prefix
before it and the key of the prefix up to its end, so that the same tokens after other ones are another chunk,
and so that what follows a prefix can be asked for by name.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from kvsdk.errors import InvalidRequest
from kvsdk.kv.identity.hashing import prefix_hasher
from kvsdk.kv.layouts.layout import Layout
from kvsdk.kv.models.spec import KVSpec

CHUNK_TOKENS = 256
_ID_BYTES = 4


@dataclass(frozen=True, slots=True)
class Chunk:
    """Tokens `first` to `end` of a prompt.

    Attributes:
        first: Tokens before it.
        tokens: How many it has, 1 to 256.
        key: Of the prefix up to its end.
        parent: Of the prefix before it.
    """

    first: int
    tokens: int
    key: bytes
    parent: bytes

    @property
    def end(self) -> int:
        """Tokens up to its end."""
        return self.first + self.tokens

    @property
    def name(self) -> str:
        """Its name in every tier."""
        return f"kv/{self.parent.hex()}/{self.tokens}-{self.key.hex()}"


@dataclass(frozen=True, slots=True)
class Prompt:
    """A prompt's tokens, what its keys hold under, and its chunks."""

    packed: bytes
    root: bytes
    chunks: list[Chunk]

    @classmethod
    def of(cls, packed: bytes, root: bytes) -> Prompt:
        """From packed tokens, as `kvsdk.kv.identity.hashing.pack_tokens` makes them."""
        return cls(packed, root, chunks_of(packed, root))

    @property
    def tokens(self) -> int:
        """How many tokens it has."""
        return len(self.packed) // _ID_BYTES

    @property
    def names(self) -> list[str]:
        """The chunks' names."""
        return [chunk.name for chunk in self.chunks]

    def shorter(self, chunk: Chunk) -> list[Chunk]:
        """The chunks that may be there in the place of this one, the longest first; not the chunk itself."""
        others = shorter_chunks(self.packed, self.root, chunk.first, chunk.parent)
        return [other for other in others if other.tokens != chunk.tokens]

    def head(self, root: bytes) -> Chunk:
        """Its first chunk under another root."""
        return chunks_of(self.packed[: CHUNK_TOKENS * _ID_BYTES], root)[0]


def chunks_of(packed: bytes, root: bytes) -> list[Chunk]:
    """All chunks of a prompt, the last one as long as it is.

    Args:
        packed: The tokens, as `kvsdk.kv.identity.hashing.pack_tokens` makes them.
        root: What its keys hold under.
    """
    hasher = prefix_hasher(root)
    parent = hasher.digest()
    found: list[Chunk] = []
    size = CHUNK_TOKENS * _ID_BYTES
    for at in range(0, len(packed), size):
        part = packed[at : at + size]
        hasher.update(part)
        key = hasher.digest()
        found.append(Chunk(at // _ID_BYTES, len(part) // _ID_BYTES, key, parent))
        parent = key
    return found


def shorter_chunks(packed: bytes, root: bytes, first: int, parent: bytes) -> list[Chunk]:
    """The chunks that may begin where this prefix ends and that the prompt goes on with; the longest first.

    Those of a whole 256 tokens are not among them.

    Args:
        packed: The prompt's tokens.
        root: What its keys hold under.
        first: Tokens of the prefix.
        parent: Its key.
    """
    hasher = prefix_hasher(root)
    hasher.update(packed[: first * _ID_BYTES])
    found: list[Chunk] = []
    for tokens in range(1, min(CHUNK_TOKENS, len(packed) // _ID_BYTES - first + 1)):
        at = (first + tokens - 1) * _ID_BYTES
        hasher.update(packed[at : at + _ID_BYTES])
        found.append(Chunk(first, tokens, hasher.digest(), parent))
    return found[::-1]


# ---------------------------------------------------------------------- their part of a KV cache


def part_of(
    kv: Any, layout: Layout, spec: KVSpec, blocks: Sequence[int] | None, first: int, tokens: int
) -> tuple[Any, Sequence[int] | None]:
    """A stretch of a KV cache, as `convert` takes it: the KV, and its blocks where the layout has blocks.

    Nothing is copied.

    Raises:
        InvalidRequest: The layout packs its tokens with another axis, so that a stretch of them is no tensor.
    """
    if layout.is_paged:
        size = spec.block_size
        start, stop = first // size, -(-(first + tokens) // size)
        return kv, range(start, stop) if blocks is None else blocks[start:stop]
    return _narrow(kv, layout, layout.left, first, tokens, 0), None


def _narrow(kv: Any, layout: Layout, left: Sequence[str], first: int, tokens: int, part: int) -> Any:
    if left:
        inner = left[1:]
        return [
            _narrow(item, layout, inner, first, tokens, at if left[0] == "kv" else part)
            for at, item in enumerate(kv)
        ]
    names = [axis.names for axis in layout.axes[part]]
    if ("token",) not in names:
        raise InvalidRequest(f"{layout.text!r} has no axis of tokens alone", field="layout")
    return kv.narrow(names.index(("token",)), first, tokens)
