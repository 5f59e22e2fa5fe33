"""A prompt's pieces as digests, in the order in which a prefix grows."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from itertools import accumulate, takewhile
from typing import NamedTuple

from kvsdk.caching.settings import key_settings
from kvsdk.errors import InvalidRequest
from kvsdk.prompt import (
    Digest,
    File,
    Image,
    Part,
    Request,
    Section,
    Text,
    Thinking,
    Tool,
    ToolCall,
    digest_of,
    keep_digest,
    place_in_words,
)

_IMAGE_BYTES = 6000
"""1,500 tokens of 4 bytes: a picture of a megapixel (Anthropic: width x height / 750, at most 1,600)."""


class PrefixBlock(NamedTuple):
    """One piece of a prompt: where it stands, its digest as sent (16 bytes) and its size in bytes of UTF-8.

    `message`, `position`, `place` and `kind` are those of `kvsdk.prompt.Block`.
    """

    section: Section
    message: int | None
    position: int
    digest: bytes
    size_bytes: int
    place: str
    kind: str

    @property
    def where(self) -> str:
        """Its place in words, such as `messages[2].parts[0]`."""
        return place_in_words(self.section, self.message, self.position)


@dataclass(frozen=True, slots=True)
class Prefix:
    """A prompt as the ordered digests of its pieces, and the settings that enter a cache's key.

    Key order counts in a digest, because it counts to a vendor; `kvsdk.caching.traits` tells the two apart.
    """

    blocks: tuple[PrefixBlock, ...]
    settings: Mapping[str, str]
    ends_bytes: tuple[int, ...]

    @property
    def size_bytes(self) -> int:
        """Bytes of the whole prompt."""
        return self.ends_bytes[-1] if self.ends_bytes else 0

    def common_blocks(self, other: Prefix) -> int:
        """How many leading pieces are equal."""
        pairs = zip(self.blocks, other.blocks, strict=False)
        return sum(1 for _ in takewhile(lambda pair: pair[0].digest == pair[1].digest, pairs))


def digest(request: Request) -> Prefix:
    """Digest a request. Breakpoints are not part of it: they never enter a prompt.

    Raises:
        InvalidRequest: A text that no vendor can be sent: it is no Unicode.
    """
    blocks = []
    for section, message, position, place, kind, part in request.blocks():
        head = f"{place}:{kind}:"
        kept = digest_of(part)
        if kept is None or kept.head != head:
            kept = _work_out(part, head, place_in_words(section, message, position))
            keep_digest(part, kept)
        blocks.append(PrefixBlock(section, message, position, kept.digest, kept.size_bytes, place, kind))
    ends = tuple(accumulate(block.size_bytes for block in blocks))
    return Prefix(tuple(blocks), key_settings(request), ends)


def _work_out(part: Part | Tool, head: str, where: str) -> Digest:
    try:
        whole = f"{head}{content_of(part)}".encode()
    except UnicodeEncodeError:
        raise InvalidRequest(
            f"{where} holds half of a surrogate pair, which is no text", field=where
        ) from None
    size_bytes = _size_bytes(part, len(whole) - len(head))  # the head is ASCII
    return Digest(head, sha256(whole).digest()[:16], size_bytes)


def _size_bytes(part: Part | Tool, content_bytes: int) -> int:
    """What a piece weighs in tokens, as bytes of text would: a picture as many as a long page."""
    if isinstance(part, Image):
        return _IMAGE_BYTES
    if isinstance(part, File):
        return max(_IMAGE_BYTES, content_bytes // 8)
    return content_bytes


def content_of(part: Part | Tool) -> str:
    """The text that a vendor sees of a piece, key order as sent."""
    if isinstance(part, Text):
        return part.text
    if isinstance(part, Tool):
        return f"{part.name}\n{part.description}\n{json.dumps(part.json_schema, ensure_ascii=False)}"
    if isinstance(part, ToolCall):
        return f"{part.id}\n{part.name}\n{part.arguments_json}"
    if isinstance(part, Thinking):
        return json.dumps(dict(part.data), ensure_ascii=False)
    if isinstance(part, Image | File):
        return f"{part.media_type}\n{part.url or part.data or getattr(part, 'file_id', '')}"
    is_text = isinstance(part.content, str)
    content = part.content if is_text else "\n".join(content_of(piece) for piece in part.pieces)
    return f"{part.call_id}\n{part.is_error}\n{content}"
