"""What a model's KV cache is made of, whatever the layout it lies in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from kvsdk.errors import InvalidRequest, Unsupported
from kvsdk.kv.models.hf_config import read_hf_config
from kvsdk.kv.models.layer_kinds import KV_KINDS, LAYER_KINDS, WHY_NOT_MOVABLE, WINDOWED_KINDS, LayerKind

Kind = Literal["mha", "mla"]

ITEM_BYTES = {
    "float32": 4,
    "float16": 2,
    "bfloat16": 2,
    "float8_e4m3fn": 1,
    "float8_e5m2": 1,
}
"""Bytes of an element, by dtype as PyTorch calls it."""

SHORT_DTYPES = {"fp16": "float16", "bf16": "bfloat16", "fp32": "float32", "fp8_e4m3": "float8_e4m3fn"}
"""What KV can be stored in, by the short names that callers may use."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KVSpec:
    """The logical KV of a model: layers, heads, dimensions, and the block that it is paged in.

    Attributes:
        num_layers: Layers that have KV.
        num_kv_heads: KV heads of each; 1 for MLA.
        head_dim: Elements of a key per head and token; for MLA the latent and its RoPE part together.
        dtype: Of an element, as PyTorch calls it, such as `"float16"`.
        block_size: Tokens of a block.
        head_dim_v: Elements of a value, where that differs from a key's.
        kind: `mha` (also MQA and GQA): keys and values apart; `mla`: one latent for both.
        layer_kinds: What each layer of the model is, in order, those without KV too: `full`, `sliding`,
            `state`, ... (`kvsdk.kv.models.layer_kinds`); empty where each layer has KV of every token.
        window: Tokens of the window of `sliding` or `chunked` layers; None where there is none, or it is
            not known.

    Raises:
        InvalidRequest: A number is below 1, the dtype or a layer's kind is unknown, or `layer_kinds` has
            another number of layers with KV than `num_layers`.
    """

    num_layers: int
    num_kv_heads: int
    head_dim: int
    dtype: str
    block_size: int
    head_dim_v: int | None = None
    kind: Kind = "mha"
    layer_kinds: tuple[str, ...] = ()
    window: int | None = None

    def __post_init__(self) -> None:
        for name in ("num_layers", "num_kv_heads", "head_dim", "block_size", "head_dim_v", "window"):
            value = getattr(self, name)
            if value is None and name in ("head_dim_v", "window"):
                continue
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise InvalidRequest(f"{name} is a number of at least 1, not {value!r}", field=name)
        if self.dtype not in ITEM_BYTES:
            known = ", ".join(ITEM_BYTES)
            raise InvalidRequest(f"dtype is one of {known}, not {self.dtype!r}", field="dtype")
        if self.kind not in ("mha", "mla"):
            raise InvalidRequest(f"kind is 'mha' or 'mla', not {self.kind!r}", field="kind")
        _check_layer_kinds(self)

    @classmethod
    def from_hf_config(
        cls, config: Mapping[str, Any] | str | Path, *, dtype: str | None = None, block_size: int = 16
    ) -> KVSpec:
        """The KV of a model, from its Hugging Face `config.json`.

        Nothing is downloaded and no model code is run.

        Args:
            config: The configuration, or the path of it or of the folder that holds it.
            dtype: Of the KV cache, where it is not the one the weights were saved in.
            block_size: Tokens of a block; the engine decides that, not the model.

        Raises:
            ConfigurationError: The file cannot be read.
            InvalidRequest: It is no JSON object, or a key is missing or wrong; the text names it.
            Unsupported: The model's KV cannot be told as one `KVSpec`: encoder-decoder, cross-attention, no
                layer with KV, layers of different shapes, sparse attention with an index of its own.
        """
        found = read_hf_config(config, dtype=dtype, block_size=block_size)
        return cls(
            num_layers=found["num_layers"],
            num_kv_heads=found["num_kv_heads"],
            head_dim=found["head_dim"],
            dtype=found["dtype"],
            block_size=found["block_size"],
            head_dim_v=found["head_dim_v"],
            kind=found["kind"],
            layer_kinds=found["layer_kinds"],
            window=found["window"],
        )

    @property
    def dim_v(self) -> int:
        """Elements of a value."""
        return self.head_dim if self.head_dim_v is None else self.head_dim_v

    @property
    def parts(self) -> tuple[int, ...]:
        """Elements per head and token of each part: of keys and of values, or of the latent."""
        return (self.head_dim,) if self.kind == "mla" else (self.head_dim, self.dim_v)

    @property
    def bytes_per_token(self) -> int:
        """Bytes of one token in all layers that have KV.

        State layers count 0: their state does not grow with the tokens. A sliding or chunked layer counts in
        full: its window caps how many tokens it keeps, not what each one takes, so that n tokens take at most
        `n * bytes_per_token` and less once n is above `window`.
        """
        return self.num_layers * self.num_kv_heads * sum(self.parts) * ITEM_BYTES[self.dtype]

    @property
    def groups(self) -> tuple[KVGroup, ...]:
        """The layers by what they keep, each layer in one group, in the order of each group's first layer."""
        default: LayerKind = "mla" if self.kind == "mla" else "full"
        by_kind: dict[str, list[int]] = {}
        for layer, kind in enumerate(self.layer_kinds or (default,) * self.num_layers):
            by_kind.setdefault(default if kind == "full" else kind, []).append(layer)
        return tuple(_group(self, kind, tuple(layers)) for kind, layers in by_kind.items())

    def require_movable(self) -> None:
        """Do nothing where a prefix of this model's KV can be moved.

        Raises:
            Unsupported: Some layers keep what cannot be moved; the text has their groups and why.
        """
        stuck = [
            f"{group.name} ({_ranges(group.layers)}): {group.why_not}"
            for group in self.groups
            if group.why_not
        ]
        if stuck:
            raise Unsupported(f"this model's KV cannot be moved; layers of kind {'; '.join(stuck)}")


@dataclass(frozen=True, slots=True, kw_only=True)
class KVGroup:
    """Layers of a model that keep the same.

    Attributes:
        name: Of the group; that of its kind.
        layers: Their indices in the model.
        kind: What they keep, see `kvsdk.kv.models.layer_kinds.LayerKind`.
        window: Tokens that a `sliding` or `chunked` layer keeps at most; None for the others.
        spec: The KV of these layers alone; None where they have no KV of their own.
        is_movable: Whether what they keep per token can be moved. True also where there is nothing to move.
        why_not: Why it cannot.
    """

    name: str
    layers: tuple[int, ...]
    kind: LayerKind
    window: int | None
    spec: KVSpec | None
    is_movable: bool
    why_not: str | None


def _group(spec: KVSpec, kind: str, layers: tuple[int, ...]) -> KVGroup:
    window = spec.window if kind in WINDOWED_KINDS else None
    why_not = WHY_NOT_MOVABLE.get(kind)
    return KVGroup(
        name=kind,
        layers=layers,
        kind=kind,  # type: ignore[arg-type]  # one of LAYER_KINDS, checked when the spec was made
        window=window,
        spec=_only(spec, kind, len(layers), window) if kind in KV_KINDS else None,
        is_movable=why_not is None,
        why_not=why_not,
    )


def _only(spec: KVSpec, kind: str, num_layers: int, window: int | None) -> KVSpec:
    """The KV of the layers of one kind."""
    return KVSpec(
        num_layers=num_layers,
        num_kv_heads=spec.num_kv_heads,
        head_dim=spec.head_dim,
        dtype=spec.dtype,
        block_size=spec.block_size,
        head_dim_v=spec.head_dim_v,
        kind=spec.kind,
        layer_kinds=() if kind in ("full", "mla") else (kind,) * num_layers,
        window=window,
    )


def _check_layer_kinds(spec: KVSpec) -> None:
    if not isinstance(spec.layer_kinds, tuple):
        raise InvalidRequest("layer_kinds is a tuple, so that a spec can be a key", field="layer_kinds")
    for kind in spec.layer_kinds:
        if kind not in LAYER_KINDS:
            known = ", ".join(LAYER_KINDS)
            raise InvalidRequest(f"layer_kinds has {known}, not {kind!r}", field="layer_kinds")
    with_kv = sum(kind in KV_KINDS for kind in spec.layer_kinds)
    if spec.layer_kinds and with_kv != spec.num_layers:
        raise InvalidRequest(
            f"layer_kinds has {with_kv} layers with KV, but num_layers is {spec.num_layers}",
            field="layer_kinds",
        )
    if "mla" in spec.layer_kinds and spec.kind != "mla":
        raise InvalidRequest("a layer of kind 'mla' needs kind='mla'", field="layer_kinds")


def _ranges(layers: tuple[int, ...]) -> str:
    """Indices in short: `0-2, 4`."""
    runs: list[list[int]] = []
    for layer in layers:
        if runs and layer == runs[-1][1] + 1:
            runs[-1][1] = layer
        else:
            runs.append([layer, layer])
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)
