"""What a layer of a model keeps between tokens, and whether that can be moved."""

from __future__ import annotations

from typing import Literal, get_args

LayerKind = Literal["full", "sliding", "chunked", "mla", "hybrid", "state", "shared", "none"]
"""What a layer keeps.

- `full`: keys and values of every token.
- `sliding`: of the last tokens, as many as the window has.
- `chunked`: of the tokens since the last multiple of the window.
- `mla`: one latent of every token.
- `hybrid`: keys and values of every token, and a state as well (Falcon-H1, Zamba).
- `state`: a state of fixed size (Mamba, linear attention, convolution), and nothing per token.
- `shared`: nothing of its own; it reads the KV of another layer (Gemma 3n, Hunyuan's CLA).
- `none`: nothing; it is a feed-forward layer that counts as one (Nemotron-H).
"""

LAYER_KINDS: tuple[LayerKind, ...] = get_args(LayerKind)

KV_KINDS = frozenset({"full", "sliding", "chunked", "mla", "hybrid"})
"""Kinds that have KV of their own."""

WINDOWED_KINDS = frozenset({"sliding", "chunked"})
"""Kinds that keep no more tokens than a window has."""

WHY_NOT_MOVABLE = {
    "state": "they keep one state of fixed size and no KV per token, so no prefix can be cut out of it",
    "hybrid": "they keep a state besides their KV, and a prefix cannot be cut out of that",
}
"""Why a kind cannot be moved; a kind that is not here can, or has nothing to move."""
