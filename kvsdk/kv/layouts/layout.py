"""Layouts as text: which axes a KV cache has, and in which order.

```
layer | block head token (kv dim)
```

Axes left of the bar are Python sequences (a list per layer, a pair of keys and values), axes right of it are
those of a tensor, outermost first. `(a b)` is one axis packed from two; `dim/x` and `x` are the two halves of
a tiled axis. Where keys and values lie differently both are written, with a semicolon between: inside of
parentheses as two segments of one axis, keys first, otherwise as two kinds of tensors.

Axes: `layer`, `kv` (keys, values), `block`, `token` (of a block, or of the sequence where there are none),
`slot` (`block * block_size + token`), `head`, `dim`, `latent` (MLA's, for both), `batch` (always 1).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from typing import Any

from kvsdk._text import did_you_mean
from kvsdk.errors import InvalidRequest, UnknownLayout

AXES = frozenset({"layer", "kv", "block", "token", "slot", "head", "dim", "latent", "batch", "dim/x", "x"})
_WORDS = re.compile(r"[()|;]|[a-z]+(?:/x)?|\S")


@dataclass(frozen=True, slots=True)
class Axis:
    """One axis of a tensor. `names` are what it is packed from, outermost first, for keys and for values.

    Where both are the same, keys and values share the axis (`kv` may be one of the names). Where they differ
    the axis has two segments, the keys' first.
    """

    names: tuple[str, ...]
    value_names: tuple[str, ...]

    @property
    def is_segmented(self) -> bool:
        """Whether keys and values are two segments of it."""
        return self.names != self.value_names

    @property
    def is_packed(self) -> bool:
        """Whether it is more than one logical axis."""
        return self.is_segmented or len(self.names) > 1


@dataclass(frozen=True, slots=True)
class Layout:
    """A layout. `text` is its normal form; equal layouts have equal texts.

    Attributes:
        text: As it is written.
        left: Python sequences, outermost first: of `layer` and `kv`.
        axes: The tensor's axes; of keys and of values, which are mostly the same.
    """

    text: str
    left: tuple[str, ...]
    axes: tuple[tuple[Axis, ...], tuple[Axis, ...]]

    @staticmethod
    def parse(text: str) -> Layout:
        """Read a layout.

        Raises:
            InvalidRequest: It is none: an unknown axis, one twice, or none for something that KV has.
        """
        return _parse(text)

    @staticmethod
    def of(value: Layout | str) -> Layout:
        """A layout by its name in the registry, by its axes, or as it is.

        Raises:
            UnknownLayout: A name that the registry does not have.
            InvalidRequest: Axes that make no layout.
        """
        if isinstance(value, Layout):
            return value
        if not isinstance(value, str):
            raise InvalidRequest(f"a layout is a name, axes or a Layout, not {value!r}", field="layout")
        from kvsdk.kv.layouts.registry import LAYOUTS

        if value in LAYOUTS:
            return _parse(LAYOUTS[value])
        if "|" not in value:
            raise UnknownLayout(f"unknown layout {value!r}.{did_you_mean(value, LAYOUTS)}", field="layout")
        return _parse(value)

    @property
    def is_paged(self) -> bool:
        """Whether tokens lie in blocks (or slots), which may be scattered; otherwise one after another."""
        return bool(self._names & {"block", "slot"})

    @property
    def is_mla(self) -> bool:
        """Whether keys and values are one latent."""
        return "latent" in self._names

    @property
    def _names(self) -> set[str]:
        return {name for part in self.axes for axis in part for name in (*axis.names, *axis.value_names)}


@cache
def _parse(text: str) -> Layout:
    left_text, bar, right_text = text.partition("|")
    if not bar:
        _refuse(text, "it has no bar between Python sequences and tensor axes")
    left = tuple(left_text.split())
    for name in left:
        if name not in ("layer", "kv"):
            _refuse(text, f"{name!r} cannot be a Python sequence; layer and kv can")
    words = _WORDS.findall(right_text)
    parts = _split(words, text)
    keys, values = (parts * 2)[:2]
    if len(parts) == 2 and "kv" not in left:
        _refuse(text, "two kinds of tensors need kv on the left")
    axes = (_axes(keys, text), _axes(values, text))
    for part, own in enumerate(axes):
        _check(left, own, part, text)
    return Layout(" ".join(text.split()), left, axes)


def _split(words: list[str], text: str) -> list[list[str]]:
    """Keys' words and values' words, where they are written apart."""
    depth, parts = 0, [list[str]()]
    for word in words:
        depth += {"(": 1, ")": -1}.get(word, 0)
        if word == ";" and depth == 0:
            parts.append([])
        else:
            parts[-1].append(word)
    if depth:
        _refuse(text, "a parenthesis is not closed")
    if len(parts) > 2:
        _refuse(text, "there are more than two parts")
    return parts


def _axes(words: list[str], text: str) -> tuple[Axis, ...]:
    axes: list[Axis] = []
    at = 0
    while at < len(words):
        if words[at] == "(":
            end = words.index(")", at)
            inner = words[at + 1 : end]
            if not set(inner) - {";"}:
                _refuse(text, "an axis is packed from nothing")
            cut = inner.index(";") if ";" in inner else None
            names = tuple(inner if cut is None else inner[:cut])
            values = names if cut is None else tuple(inner[cut + 1 :])
            axes.append(Axis(names, values))
            at = end + 1
        else:
            axes.append(Axis((words[at],), (words[at],)))
            at += 1
    for axis in axes:
        for name in (*axis.names, *axis.value_names):
            if name not in AXES:
                _refuse(text, f"unknown axis {name!r}.{did_you_mean(name, AXES)}")
    return tuple(axes)


def _check(left: tuple[str, ...], axes: tuple[Axis, ...], part: int, text: str) -> None:
    """Every element has one place: each axis once, and all that KV has."""
    names = [*left, *(name for axis in axes for name in (axis.value_names if part else axis.names))]
    doubled = sorted({name for name in names if names.count(name) > 1})
    if doubled:
        _refuse(text, f"{doubled[0]} is there twice")
    has = set(names)
    is_segmented = any(axis.is_segmented for axis in axes)
    if ("dim/x" in has) != ("x" in has):
        _refuse(text, "dim/x and x belong together")
    if "layer" not in has:
        _refuse(text, "it has no layer")
    if "latent" in has:
        if is_segmented or has & {"kv", "head", "dim", "dim/x"}:
            _refuse(text, "a latent has no kv, head or dim, and no keys and values apart")
    else:
        if ("kv" in has) == is_segmented:
            _refuse(text, "keys and values are told apart once: by kv, or as two segments")
        if "head" not in has or not has & {"dim", "dim/x"}:
            _refuse(text, "it has no head or no dim")
    if ("slot" in has) == ("token" in has):
        _refuse(text, "a token's place is either token (with block) or slot")


def _refuse(text: str, why: str) -> Any:
    raise InvalidRequest(f"{text!r} is no layout: {why}", field="layout")
