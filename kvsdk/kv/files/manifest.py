"""What a file of KV says of itself: a manifest, and its text."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import MISSING, dataclass, fields
from functools import lru_cache
from typing import Any, NoReturn, get_args

from kvsdk.errors import InvalidFile, InvalidRequest, UnknownLayout
from kvsdk.kv.identity.checkpoint import canonical
from kvsdk.kv.identity.fingerprint import Fingerprint
from kvsdk.kv.layouts.layout import Layout
from kvsdk.kv.models.layer_kinds import LAYER_KINDS
from kvsdk.kv.models.spec import ITEM_BYTES, Kind, KVSpec

FORMAT = 1
"""Version of the format. A file of a higher one is `newer`, never guessed at."""

NO_KEY = bytes(32)
"""The parent of a prompt's first chunk."""

CODECS = ("zstd",)

_KEY_BYTES = 32
_CHECKSUM_BYTES = 16
_MOST = 2**32
_MOST_BYTES = 2**48
_LEAST = {"first_token": 0, "num_tokens": 1, "rank": 0}
_SIZES = ("num_layers", "num_kv_heads", "head_dim", "block_size")
_LONGEST_LAYOUT = 200
_WORDS: Mapping[str, Collection[str]] = {
    "dtype": ITEM_BYTES,
    "kind": get_args(Kind),
    "layer_kinds": LAYER_KINDS,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """What one file holds: the KV of tokens `first_token` to `first_token + num_tokens` of a prompt.

    Attributes:
        key: The chain key of the prompt up to the end of these tokens, 32 bytes.
        parent: The key before it; `NO_KEY` where there is none.
        first_token: Where in the prompt they begin.
        num_tokens: How many they are; what the last block has behind them does not count.
        fingerprint: What made the KV.
        spec: Of the payload: dtype and block size are those of its tensors.
        layout: Of the payload, by its name in the registry, or by its axes.
        codec: `"zstd"` where each tensor is compressed; None where they lie as they are.
        rank: Of the tensor and pipeline parallelism that the fingerprint names.
        checksums: xxh3, 128 bits, of each tensor as stored.
        stored_bytes: Of each tensor as stored, where it is compressed.

    Raises:
        InvalidRequest: A value has another type, or does not fit the others.
        UnknownLayout: A name that the registry does not have.
    """

    key: bytes
    parent: bytes = NO_KEY
    first_token: int
    num_tokens: int
    fingerprint: Fingerprint
    spec: KVSpec
    layout: str
    codec: str | None = None
    rank: int = 0
    checksums: tuple[bytes, ...]
    stored_bytes: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        for name in ("key", "parent"):
            if not _is_bytes(getattr(self, name), _KEY_BYTES):
                _refuse(name, f"{_KEY_BYTES} bytes")
        for name, least in _LEAST.items():
            if not _is_count(getattr(self, name), least):
                _refuse(name, f"a number from {least} to {_MOST - 1}")
        if self.first_token + self.num_tokens > _MOST:
            _refuse("num_tokens", f"so many that the last token is below {_MOST}")
        if not all(_is_bytes(checksum, _CHECKSUM_BYTES) for checksum in self.checksums):
            _refuse("checksums", f"a tuple of {_CHECKSUM_BYTES} bytes each")
        if self.codec not in (None, *CODECS):
            _refuse("codec", f"None, or one of {', '.join(CODECS)}")
        lengths = 0 if self.codec is None else len(self.checksums)
        if len(self.stored_bytes) != lengths or not all(_is_size(size) for size in self.stored_bytes):
            _refuse("stored_bytes", "a size for each compressed tensor")
        _check_payload(self.spec, self.layout)

    @property
    def is_lossy(self) -> bool:
        """Whether the KV was stored in another dtype than it was made in."""
        return self.spec.dtype != self.fingerprint.kv_dtype

    def to_json(self) -> str:
        """As canonical JSON. Equal manifests have equal texts, and what has its default is left out."""
        found: dict[str, Any] = {
            "format": FORMAT,
            "key": self.key.hex(),
            "parent": self.parent.hex(),
            "first_token": self.first_token,
            "num_tokens": self.num_tokens,
            "fingerprint": _fingerprint_object(self.fingerprint),
            "spec": _spec_object(self.spec),
            "layout": self.layout,
            "checksums": [checksum.hex() for checksum in self.checksums],
        }
        if self.codec is not None:
            found |= {"codec": self.codec, "stored_bytes": self.stored_bytes}
        if self.rank:
            found["rank"] = self.rank
        return canonical(found).decode()

    @classmethod
    def from_json(cls, text: str) -> Manifest:
        """What `to_json` wrote.

        Raises:
            InvalidFile: It is no manifest, or one of a newer kvsdk.
        """
        try:
            found = json.loads(text)
            _check_version(found)
            return cls(**_values(found))
        except UnknownLayout as error:
            raise InvalidFile(f"{error}; a newer kvsdk may know it", kind="newer") from error
        except (LookupError, TypeError, ValueError, RecursionError, InvalidRequest) as error:
            raise InvalidFile(f"the manifest cannot be read: {error!r:.200}", kind="corrupt") from error


def _check_payload(spec: KVSpec, layout: str) -> None:
    """Raise unless the spec's numbers are below 2**32 and the layout is one for such KV."""
    for name in _SIZES:
        if not _is_count(getattr(spec, name), 1):
            _refuse(f"spec.{name}", f"a number from 1 to {_MOST - 1}")
    for name in ("head_dim_v", "window"):
        if (value := getattr(spec, name)) is not None and not _is_count(value, 1):
            _refuse(f"spec.{name}", f"None, or a number from 1 to {_MOST - 1}")
    if not isinstance(layout, str) or len(layout) > _LONGEST_LAYOUT:
        _refuse("layout", f"a text of at most {_LONGEST_LAYOUT} characters")
    if Layout.of(layout).is_mla != (spec.kind == "mla"):
        _refuse("layout", f"one for KV of kind {spec.kind!r}")


def _is_bytes(value: object, length: int) -> bool:
    return isinstance(value, bytes) and len(value) == length


def _is_count(value: object, least: int) -> bool:
    return type(value) is int and least <= value < _MOST


def _is_size(value: object) -> bool:
    return type(value) is int and 0 < value <= _MOST_BYTES


def _refuse(name: str, wanted: str) -> NoReturn:
    raise InvalidRequest(f"{name} is {wanted}", field=name)


# ------------------------------------------------------------------ of its text


@lru_cache(maxsize=64)
def _fingerprint_object(fingerprint: Fingerprint) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(fingerprint.to_json())
    return found


@lru_cache(maxsize=64)
def _spec_object(spec: KVSpec) -> dict[str, Any]:
    """Its fields, but for those that have their default: a field that is added later changes no text."""
    return {
        each.name: getattr(spec, each.name)
        for each in fields(spec)
        if each.default is MISSING or getattr(spec, each.name) != each.default
    }


def _check_version(found: object) -> None:
    if not isinstance(found, dict) or type(found.get("format")) is not int or found["format"] < 1:
        raise InvalidFile("the manifest has no version of the format", kind="corrupt")
    if found["format"] > FORMAT:
        _newer(f"format {found['format']}, here {FORMAT}")


def _values(found: Mapping[str, Any]) -> dict[str, Any]:
    """The manifest's fields, each of the type that it should be or of whatever the manifest then refuses."""
    known = {each.name for each in fields(Manifest)}
    if extra := sorted(found.keys() - known - {"format"}):
        _newer(f"a manifest with {extra[0]!r:.50}")
    codec = found.get("codec")
    if isinstance(codec, str) and codec not in CODECS:
        _newer(f"the codec {codec!r:.50}")
    values = {name: value for name, value in found.items() if name != "format"}
    return values | {
        "key": bytes.fromhex(found["key"]),
        "parent": bytes.fromhex(found["parent"]),
        "fingerprint": _fingerprint(canonical(found["fingerprint"])),
        "spec": _spec(found["spec"]),
        "checksums": tuple(map(bytes.fromhex, found["checksums"])),
        "stored_bytes": tuple(found.get("stored_bytes", ())),
    }


@lru_cache(maxsize=64)
def _fingerprint(text: bytes) -> Fingerprint:
    try:
        return Fingerprint.from_json(text)
    except InvalidRequest as error:
        version = json.loads(text)["version"]
        if type(version) is int and version >= 1 and error.field not in Fingerprint.classes():
            # In words of our own: the error's have all that the file says, as it says it.
            _newer(
                f"a fingerprint of version {version:d}"
                if error.field == "version"
                else f"a fingerprint with {error.field!r:.50}"
            )
        raise


def _spec(found: Mapping[str, Any]) -> KVSpec:
    if not isinstance(found, dict):
        raise TypeError("spec is no object")
    if extra := sorted(found.keys() - {each.name for each in fields(KVSpec)}):
        _newer(f"a spec with {extra[0]!r:.50}")
    kinds = found.get("layer_kinds", [])
    if not isinstance(kinds, list):
        raise TypeError("spec.layer_kinds is no list")
    said = [("layer_kinds", kind) for kind in kinds]
    said += [(name, found[name]) for name in ("dtype", "kind") if name in found]
    for name, word in said:
        if not isinstance(word, str):
            raise TypeError(f"spec.{name} has no text")
        if word not in _WORDS[name]:
            _newer(f"a spec with {name} {word!r:.50}")
    values: dict[str, Any] = {**found, "layer_kinds": tuple(kinds)}
    return KVSpec(**values)


def _newer(what: str) -> NoReturn:
    raise InvalidFile(f"written by a newer kvsdk ({what:.100}); update kvsdk to read it", kind="newer")
