"""Keys of blocks: golden bytes, a naive twin, every form of token ids, and vLLM's own functions."""

from __future__ import annotations

import os
import struct
import subprocess
import sys
from array import array
from hashlib import sha256
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kvsdk.errors import InvalidRequest
from kvsdk.kv.identity import hashing
from kvsdk.kv.identity.hashing import chain_hashes, key_root, pack_tokens, vllm_block_hashes

TOKENS = st.lists(st.integers(0, 2**32 - 1) | st.integers(0, 150_000), max_size=80)


def naive_chain(tokens: list[int], block_size: int, root: bytes = b"") -> list[bytes]:
    """The whole prefix hashed anew for each block."""
    head = b"kvsdk.kv.chain.1" + bytes(16) + sha256(root).digest()
    ends = range(block_size, len(tokens) + 1, block_size)
    return [sha256(head + b"".join(struct.pack("<I", t) for t in tokens[:end])).digest() for end in ends]


# ------------------------------------------------------------------ our chain


@given(tokens=TOKENS, block_size=st.integers(1, 20), root=st.binary(max_size=200))
def test_the_chain_is_the_hash_of_each_prefix(tokens: list[int], block_size: int, root: bytes) -> None:
    """The running hash gives what hashing every prefix from its start gives."""
    assert chain_hashes(tokens, block_size, root=root) == naive_chain(tokens, block_size, root)


def test_the_bytes_of_a_key_are_fixed() -> None:
    """Golden keys: stores written by one version are found by the next."""
    assert [key.hex() for key in chain_hashes([1, 2, 70_000, 2**32 - 1], 2, root=b"root")] == [
        "d5b59fc3fb51e293752a811a09714f66a92c93518650ff781fa3ec4323677699",
        "06bee9d70c3c36f84d61cf42d0c2360b3c269c4bf0dbbc993e1a536a7e51b95e",
    ]
    assert pack_tokens([1, 2**32 - 2]) == b"\x01\0\0\0\xfe\xff\xff\xff"


def test_another_process_gives_the_same_keys() -> None:
    """Nothing of a process, such as its hash seed, is in a key."""
    code = (
        "from kvsdk.kv.identity.hashing import chain_hashes, key_root\n"
        "root = key_root(fingerprint=b'f', tenant_salt='t', lora=b'l', media=[(3, b'm')])\n"
        "print(chain_hashes(range(64), 16, root=root)[-1].hex())"
    )
    env = {**os.environ, "PYTHONHASHSEED": "7"}
    answer = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True)
    root = key_root(fingerprint=b"f", tenant_salt="t", lora=b"l", media=[(3, b"m")])
    assert answer.stdout.strip() == chain_hashes(range(64), 16, root=root)[-1].hex()


def test_a_machine_of_the_other_byte_order_packs_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """There the array is swapped before it is hashed, and the caller's own is left as it was."""
    swapped = array("I", [1, 2, 3])
    swapped.byteswap()
    before = swapped.tobytes()
    monkeypatch.setattr(hashing.sys, "byteorder", {"little": "big", "big": "little"}[sys.byteorder])
    packed = pack_tokens(swapped)
    assert packed == array("I", [1, 2, 3]).tobytes()
    assert swapped.tobytes() == before


@pytest.mark.parametrize(("count", "keys"), [(0, 0), (15, 0), (16, 1), (17, 1), (31, 1), (32, 2)])
def test_a_block_that_is_not_whole_has_no_key(count: int, keys: int) -> None:
    """32-byte keys, one for every 16 tokens."""
    assert [len(key) for key in chain_hashes(list(range(count)), 16)] == [32] * keys


def test_a_key_is_of_its_prefix_whatever_the_block() -> None:
    """Every second key by blocks of 16 is a key by blocks of 32."""
    tokens = list(range(128))
    assert chain_hashes(tokens, 16)[1::2] == chain_hashes(tokens, 32)


def test_a_token_changes_its_block_and_those_after_it() -> None:
    """Token 20 is in the second block of four."""
    tokens = list(range(64))
    changed = [*tokens[:20], 999, *tokens[21:]]
    same = [a == b for a, b in zip(chain_hashes(tokens, 16), chain_hashes(changed, 16), strict=True)]
    assert same == [True, False, False, False]


def test_another_root_shares_no_key() -> None:
    """Roots never look like tokens: a root of four bytes is not a token before the prompt."""
    plain, rooted = chain_hashes([1, 2], 1), chain_hashes([2], 1, root=b"\x01\0\0\0")
    assert not set(plain) & set(rooted)
    assert not set(chain_hashes([1, 2], 1, root=b"a")) & set(chain_hashes([1, 2], 1, root=b"b"))


@pytest.mark.parametrize(
    "tokens", [tuple(range(50)), range(50), array("I", range(50)), array("q", range(50))]
)
def test_any_form_of_sequence_gives_the_same_keys(tokens: Any) -> None:
    """Tuples, ranges, and arrays of any integer type."""
    assert chain_hashes(tokens, 16) == naive_chain(list(range(50)), 16)


@pytest.mark.parametrize("dtype", ["u4", "i4", "i8", "u8", "u2", ">u4", ">i8"])
def test_numpy_arrays_give_the_same_keys(dtype: str) -> None:
    """Of any integer type and byte order, with gaps too, and nothing is written into them."""
    numpy = pytest.importorskip("numpy")
    ids = [3, 60_000, 5, 0] * 10
    whole = numpy.array(ids, dtype)
    gapped = numpy.repeat(whole, 2)[::2]
    assert chain_hashes(whole, 16) == chain_hashes(gapped, 16) == naive_chain(ids, 16)
    assert whole.tolist() == ids


def test_tensors_give_the_same_keys() -> None:
    """PyTorch's int64 and int32, through `tolist`."""
    torch = pytest.importorskip("torch")
    ids = list(range(40))
    for dtype in (torch.int64, torch.int32):
        assert chain_hashes(torch.tensor(ids, dtype=dtype), 16) == naive_chain(ids, 16)


@pytest.mark.parametrize("bad", [-1, 2**32, 2**70, 1.5, "7", None, [3]])
@pytest.mark.parametrize("form", [list, tuple])
def test_what_is_no_token_id_is_refused_by_position(bad: Any, form: Any) -> None:
    """The error names the first position at fault."""
    with pytest.raises(InvalidRequest, match=r"tokens\[2\] is a token id, 0 <= id < 2\*\*32, not ") as caught:
        chain_hashes(form([1, 2, bad, -5]), 16)
    assert caught.value.field == "tokens[2]"


def test_what_is_no_token_id_in_an_array_is_refused_by_position() -> None:
    """Negative ids of signed arrays do not turn into large ones; a batch is not a prompt."""
    with pytest.raises(InvalidRequest, match=r"tokens\[1\] is a token id.*-1$"):
        chain_hashes(array("i", [1, -1]), 1)
    numpy = pytest.importorskip("numpy")
    with pytest.raises(InvalidRequest, match=r"tokens\[1\] is a token id.*-1$"):
        chain_hashes(numpy.array([1, -1], "i4"), 1)
    for batch in (numpy.zeros((2, 16), "u4"), numpy.zeros((1, 16), "i8")):
        with pytest.raises(InvalidRequest, match=r"tokens\[0\].* a list; tokens is flat"):
            chain_hashes(batch, 16)


@pytest.mark.parametrize(
    "bad", ["text", b"abcd", bytearray(4), memoryview(b"abcd"), {1, 2}, {1: 2}, 5, None, iter([1])]
)
def test_what_is_no_flat_sequence_is_refused(bad: Any) -> None:
    """Text and bytes are not ids, and sets have no order."""
    with pytest.raises(InvalidRequest, match=f"flat sequence of token ids, not {type(bad).__name__}"):
        chain_hashes(bad, 16)


@pytest.mark.parametrize("bad", [0, -1, 1.0, True, None, "16"])
def test_a_block_size_that_is_none_is_refused(bad: Any) -> None:
    """By both chains, and the error names the argument."""
    for chain in (chain_hashes, vllm_block_hashes):
        with pytest.raises(InvalidRequest, match="block_size is a number of at least 1") as caught:
            chain([1, 2], bad)
        assert caught.value.field == "block_size"


def test_a_root_that_is_no_bytes_is_refused() -> None:
    """Text has no bytes of its own."""
    with pytest.raises(InvalidRequest, match="root is bytes, not str"):
        chain_hashes([1], 1, root="root")  # type: ignore[arg-type]


# ------------------------------------------------------------------ its root

VALUES = st.none() | st.text(max_size=4) | st.binary(max_size=12)
ROOTS = st.fixed_dictionaries(
    {
        "fingerprint": st.binary(min_size=1, max_size=12),
        "tenant_salt": VALUES,
        "lora": VALUES,
        "media": st.lists(
            st.tuples(st.integers(0, 3), st.text(max_size=3) | st.binary(max_size=12)), max_size=3
        ).map(lambda pairs: tuple(sorted(pairs, key=lambda pair: pair[0]))),
    }
)


def read_root(root: bytes) -> dict[str, Any]:
    """The fields that a root was made of: that they can be read back is that no two sets share one."""
    assert root.startswith(b"kvsdk.kv.root.1\0")
    fields: dict[str, Any] = {"fingerprint": None, "tenant_salt": None, "lora": None, "media": ()}
    at = 16
    while at < len(root):
        tag, at = root[at : at + 1], at + 1
        position = None
        if tag == b"M":
            position, at = int.from_bytes(root[at : at + 8], "little"), at + 8
        kind, size = root[at : at + 1], int.from_bytes(root[at + 1 : at + 9], "little")
        raw, at = root[at + 9 : at + 9 + size], at + 9 + size
        value = raw.decode("utf-8", "surrogatepass") if kind == b"s" else raw
        if position is not None:
            fields["media"] += ((position, value),)
        else:
            fields[{b"F": "fingerprint", b"T": "tenant_salt", b"L": "lora"}[tag]] = value
    return fields


@given(fields=ROOTS)
def test_the_fields_of_a_root_can_be_read_back(fields: dict[str, Any]) -> None:
    """So no two different sets of fields give the same bytes; empty and absent are different."""
    assert read_root(key_root(**fields)) == fields


@given(ours=ROOTS, theirs=ROOTS)
def test_roots_are_the_same_only_for_the_same_fields(ours: dict[str, Any], theirs: dict[str, Any]) -> None:
    """Compared pair by pair."""
    assert (key_root(**ours) == key_root(**theirs)) == (ours == theirs)


def test_the_bytes_of_a_root_are_fixed() -> None:
    """Tag, type, length, value of each field; a medium has its position first."""
    root = key_root(fingerprint=b"\x01\x02", tenant_salt="ü", media=[(300, b"m")])
    assert root == (
        b"kvsdk.kv.root.1\0"
        b"Fb\x02\0\0\0\0\0\0\0\x01\x02"
        b"Ts\x02\0\0\0\0\0\0\0\xc3\xbc"
        b"M\x2c\x01\0\0\0\0\0\0b\x01\0\0\0\0\0\0\0m"
    )


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        ({"fingerprint": b""}, "fingerprint"),
        ({"fingerprint": "text"}, "fingerprint"),
        ({"tenant_salt": 7}, "tenant_salt"),
        ({"lora": ["a"]}, "lora"),
        ({"media": [(5, b"a"), (4, b"b")]}, "media[1]"),
        ({"media": [(-1, b"a")]}, "media[0]"),
        ({"media": [(2**64, b"a")]}, "media[0]"),
        ({"media": [("0", b"a")]}, "media[0]"),
        ({"media": [(0, None)]}, "media[0]"),
    ],
)
def test_a_root_of_wrong_fields_is_refused(fields: dict[str, Any], name: str) -> None:
    """The error names the field."""
    with pytest.raises(InvalidRequest) as caught:
        key_root(**{"fingerprint": b"f", **fields})
    assert caught.value.field == name


# ------------------------------------------------------------------ vLLM's chain

EXTRAS: tuple[tuple[Any, ...] | None, ...] = (
    (("lora", "sql", "/adapters/sql"), ("cache_salt", "tenant-ä")),
    (("mm", "0f" * 32, 5),),
    (("mm", "0f" * 32, -11), ("mm", "1e" * 32, 300)),
    None,
    (("prompt_embeds", bytes(range(32))),),
)


@pytest.fixture
def vllm_utils() -> Any:
    return pytest.importorskip("vllm.v1.core.kv_cache_utils", reason="vLLM is not installed")


@pytest.mark.parametrize("algorithm", ["sha256", "sha256_cbor"])
@pytest.mark.parametrize("seed", [None, "0", "a seed"])
@pytest.mark.parametrize("extras", [None, EXTRAS])
def test_vllms_own_functions_give_the_same_hashes(
    algorithm: Any, seed: str | None, extras: Any, vllm_utils: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The installed `init_none_hash` and `hash_block_tokens`, chained over five blocks of 16 and a rest."""
    from vllm.utils.hashing import get_hash_fn_by_name

    hash_fn = get_hash_fn_by_name(algorithm)
    monkeypatch.delenv("PYTHONHASHSEED", raising=False)
    if seed is not None:
        monkeypatch.setenv("PYTHONHASHSEED", seed)
    monkeypatch.setattr(vllm_utils, "NONE_HASH", None, raising=False)
    monkeypatch.setattr(vllm_utils, "_NONE_HASH_SEED", None)
    vllm_utils.init_none_hash(hash_fn)
    tokens = [0, 23, 24, 255, 256, 65_535, 65_536, 151_000, *range(80)]
    expected: list[bytes] = []
    for index in range(5):
        parent = expected[-1] if expected else None
        block = tokens[index * 16 : index * 16 + 16]
        extra = None if extras is None else extras[index]
        expected.append(vllm_utils.hash_block_tokens(hash_fn, parent, block, extra))
    options = {} if seed is None else {"seed": seed}
    found = vllm_block_hashes(tokens[:85], 16, algorithm=algorithm, extra_keys=extras, **options)
    assert found == expected


def test_vllms_defaults_are_ours(vllm_utils: Any) -> None:
    """The algorithm and the seed of an engine of which nothing else is known."""
    from vllm.config.cache import CacheConfig

    assert CacheConfig.prefix_caching_hash_algo == "sha256"
    assert vllm_utils.DEFAULT_NONE_HASH_SEED == hashing.VLLM_SEED


CBOR = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**64), 2**64 - 1)
    | st.text(max_size=300)
    | st.binary(max_size=300),
    lambda inner: st.lists(inner, max_size=30).map(tuple),
    max_leaves=30,
)


@given(value=CBOR)
def test_cbor_is_as_cbor2_writes_it(value: Any) -> None:
    """Canonical CBOR of everything that stands in a block's hash."""
    cbor2 = pytest.importorskip("cbor2")
    assert hashing._cbor(value) == cbor2.dumps(value, canonical=True)


def test_vllms_hashes_are_fixed() -> None:
    """Golden hashes of vLLM 0.32, for where it is not installed; ids on both sides of each width of CBOR."""
    tokens = [23, 24, 255, 256, 65_535, 65_536, 2**32 - 1, 0]
    assert (
        vllm_block_hashes(tokens, 8)[0].hex()
        == "d92f5e25b9fe55fce78632cfce376930fb8915dbcb4ab9b8493e1d630c1dce26"
    )
    assert (
        vllm_block_hashes(tokens, 8, algorithm="sha256_cbor")[0].hex()
        == "07ead60dbda51171ef6dcf856f04083feee2ddf3933e08a4e7517de1ed05881f"
    )


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"algorithm": "xxhash"}, "algorithm"),
        ({"seed": 0}, "seed"),
        ({"extra_keys": [None]}, "extra_keys"),
        ({"extra_keys": [None, "salt"]}, "extra_keys[1]"),
        ({"extra_keys": [None, (1.5,)], "algorithm": "sha256_cbor"}, "extra_keys"),
        ({"extra_keys": [None, (2**64,)], "algorithm": "sha256_cbor"}, "extra_keys"),
    ],
)
def test_what_vllm_would_not_hash_is_refused(options: dict[str, Any], name: str) -> None:
    """The error names the argument."""
    with pytest.raises(InvalidRequest) as caught:
        vllm_block_hashes([1, 2, 3, 4], 2, **options)
    assert caught.value.field == name
