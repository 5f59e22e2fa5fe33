"""What decides whether stored KV may be used: a fingerprint of model, numbers and layout.

Every field has a class. REFUSE: KV that differs there is never loaded, and unknown differs from everything.
CONVERT: it can be used once converted. ADVISORY: it can be used, and the difference is worth saying.
LoRA and media belong to a call and are in its keys' root (`key_root`), not here.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeAlias, TypedDict, Unpack

from kvsdk.errors import ConfigurationError, InvalidRequest
from kvsdk.kv.identity.checkpoint import canonical, hex_digest, read_checkpoint
from kvsdk.kv.models.spec import ITEM_BYTES, KVSpec

FieldClass = Literal["refuse", "convert", "advisory"]
FieldValue: TypeAlias = "str | int | tuple[str, ...] | None"

_VERSION = 1
_DOMAIN = b"kvsdk.kv.fingerprint.1\0"
_REFUSE: dict[str, FieldClass] = {"class": "refuse"}
_CONVERT: dict[str, FieldClass] = {"class": "convert"}
_ADVISORY: dict[str, FieldClass] = {"class": "advisory"}
_COUNTS = {
    "sliding_window": 0,
    "context_parallel": 1,
    "block_size": 1,
    "tensor_parallel": 1,
    "pipeline_parallel": 1,
}
"""Fields that are numbers, and the least of each."""

_NO_SCALES = "none"


class Difference(NamedTuple):
    """One field that differs; None is unknown."""

    field: str
    ours: FieldValue
    theirs: FieldValue

    def __str__(self) -> str:
        ours, theirs = _short(self.ours), _short(self.theirs)
        if ours == theirs and self.ours != self.theirs:
            ours, theirs = repr(self.ours), repr(self.theirs)
        return f"{self.field} is {ours} here and {theirs} there"


@dataclass(frozen=True, slots=True, kw_only=True)
class Mismatch:
    """Where two fingerprints differ, by class; `str()` of it is a sentence.

    Attributes:
        refused: Fields for which the KV must not be used.
        converted: Fields for which it must be converted first.
        advisory: Fields that only may explain something.
    """

    refused: tuple[Difference, ...] = ()
    converted: tuple[Difference, ...] = ()
    advisory: tuple[Difference, ...] = ()

    @property
    def is_refused(self) -> bool:
        """Whether the KV must not be used at all."""
        return bool(self.refused)

    def __str__(self) -> str:
        groups = (
            ("the KV cannot be used", self.refused),
            ("to be converted", self.converted),
            ("worth knowing", self.advisory),
        )
        return "; ".join(f"{words}: {', '.join(map(str, found))}" for words, found in groups if found)


class EngineFacts(TypedDict, total=False):
    """Fields of a fingerprint that an engine decides and a checkpoint does not."""

    kv_scales_digest: str
    sliding_window: int
    context_parallel: int
    layout_era: str
    tensor_parallel: int
    pipeline_parallel: int
    attention_backend: str
    engine_build: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Fingerprint:
    """What stored KV was made by. None is unknown, which in a REFUSE field equals nothing, not even itself.

    Attributes:
        weights_digest: Of the weights. REFUSE.
        config_digest: Of RoPE and the rest of the model's config. REFUSE.
        tokenizer_digest: Of the tokenizer. REFUSE.
        kv_dtype: Of the KV's elements, as PyTorch calls it. REFUSE.
        kv_scales_digest: Of the scales of quantised KV; `"none"` for KV without. REFUSE.
        kv_groups: What each layer's KV is, such as `("full", "sliding")`. REFUSE.
        sliding_window: Tokens of the window; 0 for none. REFUSE.
        context_parallel: Ranks that share one sequence's KV; 1 for none. REFUSE.
        layout_era: Name of the layout, such as `"vllm/0.26+"`. CONVERT.
        block_size: Tokens of a block. CONVERT.
        tensor_parallel: Ranks that share the heads. CONVERT.
        pipeline_parallel: Ranks that share the layers. CONVERT.
        attention_backend: Which kernels wrote the KV. ADVISORY.
        engine_build: Version of the engine. ADVISORY.
        chat_template_digest: Of the chat template; keys are of tokens, so blocks stay good. ADVISORY.

    Raises:
        InvalidRequest: A field has another type, or a number below its least.
    """

    weights_digest: str | None = field(default=None, metadata=_REFUSE)
    config_digest: str | None = field(default=None, metadata=_REFUSE)
    tokenizer_digest: str | None = field(default=None, metadata=_REFUSE)
    kv_dtype: str | None = field(default=None, metadata=_REFUSE)
    kv_scales_digest: str | None = field(default=None, metadata=_REFUSE)
    kv_groups: tuple[str, ...] | None = field(default=None, metadata=_REFUSE)
    sliding_window: int | None = field(default=None, metadata=_REFUSE)
    context_parallel: int | None = field(default=None, metadata=_REFUSE)
    layout_era: str | None = field(default=None, metadata=_CONVERT)
    block_size: int | None = field(default=None, metadata=_CONVERT)
    tensor_parallel: int | None = field(default=None, metadata=_CONVERT)
    pipeline_parallel: int | None = field(default=None, metadata=_CONVERT)
    attention_backend: str | None = field(default=None, metadata=_ADVISORY)
    engine_build: str | None = field(default=None, metadata=_ADVISORY)
    chat_template_digest: str | None = field(default=None, metadata=_ADVISORY)

    def __post_init__(self) -> None:
        for name, value in self._items():
            if value is not None and not _fits(name, value):
                raise InvalidRequest(
                    f"{name} is {_wanted(name)}, or None for unknown, not {value!r}", field=name
                )

    @classmethod
    def classes(cls) -> dict[str, FieldClass]:
        """The class of each field."""
        return {each.name: each.metadata["class"] for each in fields(cls)}

    def _items(self, *of_class: FieldClass) -> tuple[tuple[str, Any], ...]:
        found = self.classes().items()
        return tuple((name, getattr(self, name)) for name, kind in found if not of_class or kind in of_class)

    def explain_mismatch(self, other: Fingerprint) -> Mismatch | None:
        """Every field in which the other, such as that of stored KV, differs; None where none does.

        Unknown on one side is a difference. On both sides it is one in REFUSE and CONVERT fields, where
        nothing shows that they are the same, and none in ADVISORY fields.
        """
        found: dict[FieldClass, list[Difference]] = {"refuse": [], "convert": [], "advisory": []}
        for name, kind in self.classes().items():
            ours, theirs = getattr(self, name), getattr(other, name)
            if ours != theirs or (ours is None and kind != "advisory"):
                found[kind].append(Difference(name, ours, theirs))
        if not any(found.values()):
            return None
        return Mismatch(
            refused=tuple(found["refuse"]),
            converted=tuple(found["convert"]),
            advisory=tuple(found["advisory"]),
        )

    def digest(self) -> bytes:
        """32 bytes over the REFUSE fields: what enters keys. The other fields leave it as it is.

        Raises:
            ConfigurationError: A REFUSE field is unknown: two that are unknown would share their keys.
        """
        refuse = dict(self._items("refuse"))
        unknown = [name for name, value in refuse.items() if value is None]
        if unknown:
            raise ConfigurationError(
                f"KV has no keys while {', '.join(unknown)} of its fingerprint is unknown"
            )
        return hashlib.sha256(_DOMAIN + canonical(refuse)).digest()

    def to_json(self) -> str:
        """As canonical JSON with a version; unknown fields are left out."""
        known = {name: value for name, value in self._items() if value is not None}
        return canonical({"version": _VERSION, **known}).decode()

    @classmethod
    def from_json(cls, text: str | bytes) -> Fingerprint:
        """What `to_json` wrote; a field that is missing is unknown.

        Raises:
            InvalidRequest: It is no fingerprint, or one of a newer kvsdk, which may say more than we know.
        """
        try:
            found = json.loads(text)
        except (ValueError, TypeError, RecursionError) as error:
            raise InvalidRequest(f"this is not a fingerprint's JSON: {error}", field="text") from error
        version = found.pop("version", None) if isinstance(found, dict) else None
        if type(version) is not int or version < 1:
            raise InvalidRequest("this is not a fingerprint's JSON: it has no version", field="version")
        extra = sorted(found.keys() - cls.classes().keys())
        if version > _VERSION or extra:
            what = f" with the fields {', '.join(extra)}" if extra else ""
            raise InvalidRequest(
                f"the fingerprint was written by a newer kvsdk (version {version}, here {_VERSION}){what}; "
                "update kvsdk to use what it is of",
                field=extra[0] if extra else "version",
            )
        if isinstance(found.get("kv_groups"), list):
            found["kv_groups"] = tuple(found["kv_groups"])
        return cls(**found)

    @classmethod
    def for_testing(cls, spec: KVSpec) -> Fingerprint:
        """Every field filled with a fixed value that depends on the spec alone."""
        shape = (spec.kind, spec.num_layers, spec.num_kv_heads, spec.head_dim, spec.dim_v)
        return cls(
            weights_digest=hex_digest("testing weights"),
            config_digest=hex_digest(f"testing config {shape}"),
            tokenizer_digest=hex_digest("testing tokenizer"),
            kv_dtype=spec.dtype,
            kv_scales_digest=_NO_SCALES if ITEM_BYTES[spec.dtype] > 1 else hex_digest("testing scales"),
            kv_groups=_groups(spec),
            sliding_window=0,
            context_parallel=1,
            layout_era="vllm/0.26+",
            block_size=spec.block_size,
            tensor_parallel=1,
            pipeline_parallel=1,
            attention_backend="testing",
            engine_build="testing 1",
            chat_template_digest=hex_digest("testing chat template"),
        )

    @classmethod
    def of_checkpoint(
        cls,
        folder: str | os.PathLike[str],
        *,
        spec: KVSpec,
        tokenizer_folder: str | os.PathLike[str] | None = None,
        config_overrides: Mapping[str, object] | None = None,
        **engine: Unpack[EngineFacts],
    ) -> Fingerprint:
        """Of a checkpoint in Hugging Face's form: `config.json`, `*.safetensors`, tokenizer files.

        Reads all of the weights, a minute or more for a large model. What it read is kept in kvsdk's cache
        directory and trusted while path, size and times of the file are the same.

        Args:
            folder: The checkpoint's.
            spec: Of the KV; says its dtype, its groups and the block size.
            tokenizer_folder: Where the tokenizer is, if not there.
            config_overrides: All that changes KV and that the folder does not say, such as vLLM's
                `hf_overrides` or a quantisation done on load.
            **engine: What only the engine can say; goes before what is taken for granted: parallelism of 1,
                the config's sliding window, and no scales unless the KV is quantised (then unknown).

        Raises:
            ConfigurationError: The folder has no checkpoint, not all of one, or one that cannot be read.
            InvalidRequest: The overrides are nothing that JSON can write, or another argument does not fit.
        """
        told: dict[str, Any] = {**engine}
        cls(**told)  # what does not fit is said before the minutes of reading
        tokenizer = Path(folder if tokenizer_folder is None else tokenizer_folder)
        found = read_checkpoint(Path(folder), tokenizer, config_overrides or {})
        if found["tokenizer_digest"] is None and tokenizer_folder is not None:
            raise ConfigurationError(f"{tokenizer} has no file of a tokenizer")
        granted: dict[str, Any] = {
            "kv_dtype": spec.dtype,
            "kv_groups": _groups(spec),
            "kv_scales_digest": _NO_SCALES if ITEM_BYTES[spec.dtype] > 1 else None,
            "context_parallel": 1,
            "block_size": spec.block_size,
            "tensor_parallel": 1,
            "pipeline_parallel": 1,
        }
        return cls(**{**granted, **found, **told})


# ------------------------------------------------------------------ values


def _fits(name: str, value: object) -> bool:
    if name in _COUNTS:
        return type(value) is int and value >= _COUNTS[name]
    if name == "kv_groups":
        return (
            isinstance(value, tuple) and all(isinstance(each, str) and each for each in value) and bool(value)
        )
    return isinstance(value, str) and bool(value)


def _wanted(name: str) -> str:
    if name in _COUNTS:
        return f"a number of at least {_COUNTS[name]}"
    return "a tuple of texts" if name == "kv_groups" else "a text that is not empty"


def _groups(spec: KVSpec) -> tuple[str, ...]:
    return tuple(spec.layer_kinds) or ("full",) * spec.num_layers


def _short(value: FieldValue) -> str:
    """A value in a sentence; of a digest its start, of layers how many of each kind."""
    if value is None:
        return "unknown"
    if isinstance(value, tuple):
        return " and ".join(f"{value.count(kind)} {kind}" for kind in sorted(set(value)))
    if isinstance(value, str) and len(value) == 64:
        return f"{value[:12]}…"
    return repr(value)
