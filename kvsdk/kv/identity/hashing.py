"""Keys of a prompt's blocks: kvsdk's own chain, and vLLM's.

A key says which tokens the prefix up to a block's end has, under one root. It is the sha256 of

```
"kvsdk.kv.chain.1" padded with zeros to 32 bytes | sha256(root) | the prefix's token ids, uint32 little-endian
```

so it is the same in every process and on every machine. The 64 bytes before the tokens are one block of
sha256: 16 tokens are then one more, and a key costs no more than what its own block adds.
"""

from __future__ import annotations

import pickle
import sys
from array import array
from collections.abc import Sequence
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Literal, NoReturn, Protocol, TypeAlias, cast

from kvsdk.errors import InvalidRequest

if TYPE_CHECKING:
    from _hashlib import HASH


class IntArray(Protocol):
    """A flat array of integers with `tolist`, such as NumPy's, or a tensor of PyTorch."""

    def tolist(self) -> Any: ...


TokenIds: TypeAlias = "Sequence[int] | IntArray"
"""A prompt's token ids; `array.array("I")` and NumPy's `uint32` are hashed where they lie."""

VllmHash = Literal["sha256", "sha256_cbor"]

VLLM_SEED = "vllm-none-hash"
"""What vLLM 0.32 starts its chains from where `PYTHONHASHSEED` is not set (`v1/core/kv_cache_utils.py`)."""

_DOMAIN = b"kvsdk.kv.chain.1".ljust(32, b"\0")
_ROOT_DOMAIN = b"kvsdk.kv.root.1\0"
_ID_BYTES = 4
_ID_TYPE = "I" if array("I").itemsize == _ID_BYTES else "L"
_NO_IDS = (str, bytes, bytearray, memoryview)
_CBOR_SIZES = ((24, 1), (25, 2), (26, 4), (27, 8))
_PICKLE_PROTOCOL = 5  # vLLM's HIGHEST_PROTOCOL on every Python that it runs on


# ------------------------------------------------------------------ our chain


def chain_hashes(tokens: TokenIds, block_size: int, *, root: bytes = b"") -> list[bytes]:
    """The keys of a prompt's whole blocks, 32 bytes each; a last block that is not whole has none.

    A key depends on the root and on every token up to its block's end, and on nothing else: the key of the
    first 32 tokens is the same by blocks of 16 and of 32. Whoever stores by key what one block holds keeps
    one block size, or writes beside it how many tokens it is of.

    Thread-safe; changes nothing.

    Args:
        tokens: Token ids, 0 <= id < 2**32: a list, tuple, `array.array`, NumPy array or PyTorch tensor, flat.
        block_size: Tokens of a block.
        root: What the keys hold under: `key_root(...)`, or bytes of any length.

    Raises:
        InvalidRequest: `tokens` is no flat sequence of ids, with the position of the first that is none;
            `block_size` is below 1; `root` is not bytes.
    """
    _check_block_size(block_size)
    if not isinstance(root, bytes):
        raise InvalidRequest(f"root is bytes, not {type(root).__name__}", field="root")
    packed = pack_tokens(tokens)
    hasher = prefix_hasher(root)
    update, copy = hasher.update, hasher.copy
    block_bytes = block_size * _ID_BYTES
    keys: list[bytes] = []
    for start in range(0, len(packed) - block_bytes + 1, block_bytes):
        update(packed[start : start + block_bytes])
        keys.append(copy().digest())
    return keys


def prefix_hasher(root: bytes) -> HASH:
    """A hash whose digest, once it has taken in packed tokens, is the key of the prefix that they are.

    Of no tokens at all it is what every chain under this root starts from.
    """
    return sha256(_DOMAIN + sha256(root).digest())


def pack_tokens(tokens: TokenIds) -> bytes:
    """Token ids as uint32, little-endian, whatever the machine's order.

    Raises:
        InvalidRequest: As `chain_hashes`.
    """
    ids = _as_array(tokens)
    if sys.byteorder == "big":
        ids = ids[:]
        ids.byteswap()
    return ids.tobytes()


def _as_array(tokens: TokenIds) -> array[int]:
    """The ids in the machine's own order; the caller's array itself where it is one of uint32."""
    if isinstance(tokens, array) and tokens.typecode == _ID_TYPE:
        return tokens
    ids = array(_ID_TYPE)
    if (view := _uint32_view(tokens)) is not None:
        ids.frombytes(view)
        return ids
    flat = _as_sequence(tokens)
    try:
        return array(_ID_TYPE, flat)
    except (TypeError, OverflowError):
        _refuse_tokens(flat)


def _uint32_view(tokens: object) -> memoryview | None:
    """The memory of a flat, gapless array of the machine's own uint32, such as NumPy's."""
    try:
        view = memoryview(cast("bytes", tokens))
    except (TypeError, ValueError, BufferError):
        return None
    is_packed = view.format == "I" and view.itemsize == _ID_BYTES and view.ndim == 1 and view.contiguous
    return view.cast("B") if is_packed else None


def _as_sequence(tokens: object) -> Sequence[Any]:
    """A list, tuple or other sequence of what should be ids; text and bytes are none."""
    if type(tokens) is list or type(tokens) is tuple:
        return tokens
    tolist = getattr(tokens, "tolist", None)
    is_bytes = isinstance(tokens, memoryview) and tokens.itemsize == 1
    if tolist is not None and not isinstance(tokens, type) and not is_bytes:
        tokens = tolist()
    if isinstance(tokens, Sequence) and not isinstance(tokens, _NO_IDS):
        return tokens
    raise InvalidRequest(
        f"tokens is a flat sequence of token ids, not {type(tokens).__name__}; "
        "for packed ids pass array.array('I', ...)",
        field="tokens",
    )


def _refuse_tokens(tokens: Sequence[Any]) -> NoReturn:
    """Name the first position that has no token id."""
    for position, token in enumerate(tokens):
        try:
            array(_ID_TYPE, (token,))
        except (TypeError, OverflowError):
            where = f"tokens[{position}]"
            what = "a list; tokens is flat" if type(token) in (list, tuple) else repr(token)[:50]
            raise InvalidRequest(f"{where} is a token id, 0 <= id < 2**32, not {what}", field=where) from None
    raise InvalidRequest("tokens changed while it was read", field="tokens")


def _check_block_size(block_size: int) -> None:
    if not isinstance(block_size, int) or isinstance(block_size, bool) or block_size < 1:
        raise InvalidRequest(f"block_size is a number of at least 1, not {block_size!r}", field="block_size")


# ------------------------------------------------------------------ its root


def key_root(
    *,
    fingerprint: bytes,
    tenant_salt: str | bytes | None = None,
    lora: str | bytes | None = None,
    media: Sequence[tuple[int, str | bytes]] = (),
) -> bytes:
    """The root of a prompt's keys: whose KV it is, and what made it besides the tokens.

    Every field stands with its tag, its type and its length, so two different sets of fields never give the
    same bytes; text and bytes are different values. The salt stands in it as it is: do not log a root.

    Args:
        fingerprint: `Fingerprint.digest()`.
        tenant_salt: What sets one tenant's keys apart from every other's; None shares them.
        lora: Digest of the adapter's weights. A name is only as good as what keeps it from being given anew.
        media: (position, digest) of images and the like, in the order of their positions in `tokens`.

    Raises:
        InvalidRequest: A field has another type, the fingerprint is empty, or media are not in order.
    """
    if not isinstance(fingerprint, bytes) or not fingerprint:
        raise InvalidRequest("fingerprint is bytes, as from Fingerprint.digest()", field="fingerprint")
    fields = [_field(b"F", fingerprint, "fingerprint")]
    if tenant_salt is not None:
        fields.append(_field(b"T", tenant_salt, "tenant_salt"))
    if lora is not None:
        fields.append(_field(b"L", lora, "lora"))
    last = 0
    for index, (position, digest) in enumerate(media):
        if not isinstance(position, int) or not last <= position < 2**64:
            where = f"media[{index}]"
            raise InvalidRequest(f"{where} is at a position from {last} on, not at {position!r}", field=where)
        last = position
        fields.append(b"M" + position.to_bytes(8, "little") + _field(b"", digest, f"media[{index}]"))
    return _ROOT_DOMAIN + b"".join(fields)


def _field(tag: bytes, value: str | bytes, name: str) -> bytes:
    if isinstance(value, str):
        kind, value = b"s", value.encode("utf-8", "surrogatepass")
    elif isinstance(value, bytes):
        kind = b"b"
    else:
        raise InvalidRequest(f"{name} is text or bytes, not {type(value).__name__}", field=name)
    return tag + kind + len(value).to_bytes(8, "little") + value


# ------------------------------------------------------------------ vLLM's chain


def vllm_block_hashes(
    tokens: TokenIds,
    block_size: int,
    *,
    algorithm: VllmHash = "sha256",
    seed: str = VLLM_SEED,
    extra_keys: Sequence[tuple[Any, ...] | None] | None = None,
) -> list[bytes]:
    """The block hashes that vLLM 0.32 gives the same prompt, to agree with its events and connectors.

    Each is the hash of (the one before, the block's tokens, its extra keys); the first one's parent is the
    hash of the seed. `sha256` hashes the pickle and `sha256_cbor` canonical CBOR. In a pickle, an object that
    comes twice is written once: with `sha256`, extra keys agree only where the same *objects* repeat in vLLM.

    Args:
        tokens: As in `chain_hashes`.
        block_size: The engine's hash block size: its `block_size`, times its decode context parallelism.
        algorithm: The engine's `prefix_caching_hash_algo`; the default is vLLM's.
        seed: The engine's `PYTHONHASHSEED`, or vLLM's own where that is not set.
        extra_keys: One tuple or None per whole block, tagged as vLLM does: `("lora", name, path)`,
            `("mm", identifier, offset)`, `("cache_salt", salt)` in the first block,
            `("prompt_embeds", digest)`.

    Raises:
        InvalidRequest: As `chain_hashes`; the algorithm is unknown, or extra keys do not fit.
    """
    _check_block_size(block_size)
    if algorithm not in ("sha256", "sha256_cbor"):
        raise InvalidRequest(f"algorithm is 'sha256' or 'sha256_cbor', not {algorithm!r}", field="algorithm")
    if not isinstance(seed, str):
        raise InvalidRequest(f"seed is text, not {type(seed).__name__}", field="seed")
    ids = _as_array(tokens).tolist()
    blocks = len(ids) // block_size
    extras = [None] * blocks if extra_keys is None else extra_keys
    if len(extras) != blocks:
        raise InvalidRequest(f"extra_keys has an entry per whole block, {blocks}", field="extra_keys")
    dumps = _cbor_link if algorithm == "sha256_cbor" else _pickle_link
    codes = _TokenCodes()
    parent = sha256(_cbor(seed) if algorithm == "sha256_cbor" else _pickle(seed)).digest()
    keys: list[bytes] = []
    for index, extra in enumerate(extras):
        if extra is not None and type(extra) is not tuple:
            raise InvalidRequest(f"extra_keys[{index}] is a tuple or None", field=f"extra_keys[{index}]")
        block = tuple(ids[index * block_size : (index + 1) * block_size])
        parent = sha256(dumps((parent, block, extra), codes)).digest()
        keys.append(parent)
    return keys


_Link: TypeAlias = tuple[bytes, tuple[int, ...], "tuple[Any, ...] | None"]
"""What one hash of vLLM is of: parent, the block's ids, extra keys."""


class _TokenCodes(dict[int, bytes]):
    """Ids as CBOR; a prompt has few different ones, so each is worked out once."""

    def __missing__(self, token: int) -> bytes:
        wide = token >= 1 << 16  # the common case of a large vocabulary, at a third of the time
        code = self[token] = b"\x1a" + token.to_bytes(4, "big") if wide else _cbor_head(0, token)
        return code


def _pickle_link(link: _Link, _codes: _TokenCodes) -> bytes:
    return _pickle(link)


def _cbor_link(link: _Link, codes: _TokenCodes) -> bytes:
    parent, block, extra = link
    ids = b"".join(map(codes.__getitem__, block))
    return b"".join((b"\x83", _cbor(parent), _cbor_head(4, len(block)), ids, _cbor(extra)))


def _pickle(value: object) -> bytes:
    return pickle.dumps(value, protocol=_PICKLE_PROTOCOL)


def _cbor(value: object) -> bytes:
    """Canonical CBOR (RFC 8949, 4.2.1) of what vLLM hashes: ints, text, bytes, None and tuples of them."""
    if type(value) is int:
        return _cbor_head(0, value) if value >= 0 else _cbor_head(1, -1 - value)
    if value is None:
        return b"\xf6"
    if isinstance(value, bool):
        return b"\xf5" if value else b"\xf4"
    if isinstance(value, bytes):
        return _cbor_head(2, len(value)) + value
    if isinstance(value, str):
        text = value.encode()
        return _cbor_head(3, len(text)) + text
    if type(value) is tuple or type(value) is list:
        return _cbor_head(4, len(value)) + b"".join(map(_cbor, value))
    kind = type(value).__name__
    raise InvalidRequest(f"extra_keys has ints, text, bytes, None and tuples, not {kind}", field="extra_keys")


def _cbor_head(major: int, number: int) -> bytes:
    """A type and its number, in as few bytes as it fits."""
    if number < 24:
        return bytes((major << 5 | number,))
    for code, size in _CBOR_SIZES:
        if number < 1 << 8 * size:
            return bytes((major << 5 | code,)) + number.to_bytes(size, "big")
    raise InvalidRequest("extra_keys has a number of more than 64 bits", field="extra_keys")
