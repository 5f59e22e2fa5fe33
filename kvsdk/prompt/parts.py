"""The parts of a prompt and where it may be cached."""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from mimetypes import guess_type
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeAlias

from kvsdk.errors import InvalidRequest

TTL = Literal["5m", "30m", "1h", "12h"]
TTLS: tuple[TTL, ...] = ("5m", "30m", "1h", "12h")
TTL_SECONDS: Mapping[str, int] = {"5m": 300, "30m": 1800, "1h": 3600, "12h": 43200}


@dataclass(frozen=True, slots=True)
class Breakpoint:
    """Marks where a prompt stops changing: everything up to here, this part included, is reusable.

    Attributes:
        ttl: How long the prefix should be kept after its last use; None is the backend's default.
        round: Which way to go when the backend lacks this TTL.
    """

    ttl: TTL | None = None
    round: Literal["down", "up"] = "down"

    def __post_init__(self) -> None:
        if self.ttl is not None and self.ttl not in TTLS:
            raise InvalidRequest(f"unknown TTL {self.ttl!r}; one of {', '.join(TTLS)}", field="cache")
        if self.round not in ("down", "up"):
            raise InvalidRequest(f"round is 'down' or 'up', not {self.round!r}", field="cache")

    @classmethod
    def of(cls, value: CacheMark) -> Breakpoint | None:
        """From what a caller writes as `cache=`: True, a TTL, a `Breakpoint`, or None and False."""
        if value is None or value is False:
            return None
        if value is True:
            return cls()
        if isinstance(value, cls):
            return value
        return cls(ttl=value)  # type: ignore[arg-type]  # checked in __post_init__


CacheMark: TypeAlias = Breakpoint | TTL | bool | None


class Digest(NamedTuple):
    """What `kvsdk.caching` has worked out of a part, kept with it: a part never changes.

    `head` is what the digest was made for beside the content: where the part stands, and its kind.
    """

    head: str
    digest: bytes
    size_bytes: int


def _mark(part: Any) -> None:
    object.__setattr__(part, "cache", Breakpoint.of(part.cache))


@dataclass(frozen=True, slots=True)
class Text:
    """A piece of text. `cache=` puts a breakpoint after it; what is given is turned into a `Breakpoint`."""

    text: str
    cache: CacheMark = None
    _digest: Digest | None = field(default=None, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not isinstance(self.text, str):
            raise InvalidRequest(f"Text needs a str, not {type(self.text).__name__}", field="text")
        _mark(self)


@dataclass(frozen=True, slots=True)
class ToolCall:
    """The model's wish to call a tool.

    Attributes:
        id: The backend's id of the call; its result names it.
        name: The tool.
        arguments: The decoded arguments, empty when they are not a JSON object (see `arguments_json`).
        arguments_json: The arguments as the model wrote them; sent back unchanged.
    """

    id: str
    name: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    arguments_json: str = ""
    cache: CacheMark = None
    _digest: Digest | None = field(default=None, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not isinstance(self.arguments, Mapping):
            raise InvalidRequest(
                f"the arguments of a tool call are an object, not {type(self.arguments).__name__}",
                field="arguments",
            )
        if not self.arguments_json:
            text = json.dumps(self.arguments, ensure_ascii=False, separators=(",", ":"))
            object.__setattr__(self, "arguments_json", text)
        _mark(self)

    @classmethod
    def parse(cls, id: str, name: str, arguments_json: str) -> ToolCall:
        """From a backend that sends the arguments as text."""
        try:
            value = json.loads(arguments_json or "{}")
        except json.JSONDecodeError:
            value = None
        return cls(id, name, value if isinstance(value, dict) else {}, arguments_json or "{}")


@dataclass(frozen=True, slots=True)
class Image:
    """A picture, from an address or as data. Make it with `Image(url=...)`, `.from_path` or `.from_bytes`.

    Attributes:
        url: Where the vendor can fetch it.
        data: Or its bytes as base64.
        media_type: Such as `"image/png"`; needed with `data`.
        detail: How closely to look (`"low"`, `"high"`, `"auto"`), for vendors that ask.
    """

    url: str | None = None
    data: str | None = None
    media_type: str | None = None
    detail: str | None = None
    cache: CacheMark = None
    _digest: Digest | None = field(default=None, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        _check_source("an image", {"url": self.url, "data": self.data}, self.media_type)
        _mark(self)

    @classmethod
    def from_bytes(cls, content: bytes, media_type: str, *, cache: CacheMark = None) -> Image:
        """From a picture's bytes."""
        return cls(data=b64encode(content).decode(), media_type=media_type, cache=cache)

    @classmethod
    def from_path(cls, path: str | Path, *, cache: CacheMark = None) -> Image:
        """From a file; its ending says what it is."""
        return cls.from_bytes(*_read(path), cache=cache)


@dataclass(frozen=True, slots=True)
class File:
    """A document, such as a PDF: from an address, as data, or by the id of an earlier upload.

    Attributes:
        name: The file's name.
        url: Where the vendor can fetch it.
        data: Or its bytes as base64.
        file_id: Or the vendor's id of an upload.
        media_type: Such as `"application/pdf"`; needed with `data`.
    """

    name: str
    url: str | None = None
    data: str | None = None
    file_id: str | None = None
    media_type: str | None = None
    cache: CacheMark = None
    _digest: Digest | None = field(default=None, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        sources = {"url": self.url, "data": self.data, "file_id": self.file_id}
        _check_source("a file", sources, self.media_type)
        _mark(self)

    @classmethod
    def from_bytes(cls, name: str, content: bytes, media_type: str, *, cache: CacheMark = None) -> File:
        """From a document's bytes."""
        return cls(name, data=b64encode(content).decode(), media_type=media_type, cache=cache)

    @classmethod
    def from_path(cls, path: str | Path, *, cache: CacheMark = None) -> File:
        """From a file; its ending says what it is."""
        return cls.from_bytes(Path(path).name, *_read(path), cache=cache)


@dataclass(frozen=True, slots=True)
class ToolResult:
    """What a tool gave back for the call `call_id`: text, or texts and images."""

    call_id: str
    content: str | Sequence[Text | Image]
    is_error: bool = False
    cache: CacheMark = None
    _digest: Digest | None = field(default=None, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not isinstance(self.content, str):
            if not isinstance(self.content, Sequence) or not all(
                isinstance(piece, Text | Image) for piece in self.content
            ):
                raise InvalidRequest(
                    "a tool's result is text, or a list of Text and Image, not "
                    f"{type(self.content).__name__}; use json.dumps for data",
                    field="content",
                )
            marks = [mark for piece in self.content if (mark := breakpoint_of(piece)) is not None]
            if marks and not self.cache:  # a mark inside belongs to the result: no vendor reads it there
                object.__setattr__(self, "cache", marks[-1])
            object.__setattr__(self, "content", tuple(with_breakpoint(piece, None) for piece in self.content))
        _mark(self)

    @property
    def pieces(self) -> tuple[Text | Image, ...]:
        """The content as texts and images."""
        return (Text(self.content),) if isinstance(self.content, str) else tuple(self.content)

    @property
    def text(self) -> str:
        """The texts of the content, joined."""
        return "".join(piece.text for piece in self.pieces if isinstance(piece, Text))


@dataclass(frozen=True, slots=True)
class Thinking:
    """A model's reasoning, opaque: passed back unchanged to the vendor it came from, left out elsewhere.

    Attributes:
        text: The readable part, if any.
        vendor: The scheme it came from, such as `"anthropic"`.
        data: The vendor's block as it arrived.
    """

    text: str
    vendor: str
    data: Mapping[str, Any]
    cache: CacheMark = None

    def __post_init__(self) -> None:
        _mark(self)


Part: TypeAlias = Text | Image | File | ToolCall | ToolResult | Thinking

#: The `kind` of each part, as it stands in capabilities and reports.
KINDS: Mapping[type, str] = {
    Text: "text",
    Image: "image",
    File: "file",
    ToolCall: "tool_call",
    ToolResult: "tool_result",
    Thinking: "thinking",
}


def _check_source(what: str, sources: Mapping[str, str | None], media_type: str | None) -> None:
    given = [name for name, value in sources.items() if value is not None]
    if len(given) != 1:
        raise InvalidRequest(
            f"{what} has one of {', '.join(sources)}; given: {given or 'none'}", field="content"
        )
    if not isinstance(sources[given[0]], str):
        raise InvalidRequest(f"the {given[0]} of {what} is text; for bytes use from_bytes", field="content")
    if given == ["data"] and not media_type:
        raise InvalidRequest(f"{what} as data needs its media_type", field="content")


def _read(path: str | Path) -> tuple[bytes, str]:
    """A file's bytes and its media type."""
    media_type, _ = guess_type(str(path))
    if media_type is None:
        raise InvalidRequest(f"{path}: its ending does not say what it is; use from_bytes", field="content")
    try:
        return Path(path).read_bytes(), media_type
    except OSError as error:
        raise InvalidRequest(f"{path} cannot be read: {error}", field="content") from error


def digest_of(part: object) -> Digest | None:
    """What was kept with a part, if anything."""
    kept: Digest | None = getattr(part, "_digest", None)
    return kept


def keep_digest(part: object, digest: Digest) -> None:
    """Keep a digest with a part, unless it is of a kind whose content a caller may change."""
    if hasattr(part, "_digest"):
        object.__setattr__(part, "_digest", digest)


def breakpoint_of(part: object) -> Breakpoint | None:
    """The breakpoint after a part or a tool."""
    mark: Breakpoint | None = getattr(part, "cache", None)
    return mark


def with_breakpoint(part: Any, mark: Breakpoint | None) -> Any:
    """The same part or tool with another breakpoint (the same object when nothing changes)."""
    return part if breakpoint_of(part) == mark else replace(part, cache=mark)
