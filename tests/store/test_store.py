"""`KVStore`: what was put comes back, byte for byte, or a reason why not."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kv_samples import SPEC, first, is_equal, kv_of, prompt
from kvsdk.errors import ConfigurationError, InvalidRequest
from kvsdk.kv import Fingerprint, convert
from kvsdk.store import Disk, Hit, KVStore, Memory, Miss
from kvsdk.testing import CountingTier
from store_makers import StoreMaker

TOKENS = prompt(700)
KV = kv_of(TOKENS)


def test_what_was_put_comes_back(make_store: StoreMaker, tiers: list[Any]) -> None:
    """All 700 tokens: two chunks of 256 and one of 188."""
    store = make_store(*tiers)
    stored = store.put(TOKENS, KV)
    assert (stored.tokens, stored.new_tokens) == (700, 256 + 256 + 188)
    hit = store.get(TOKENS)
    assert isinstance(hit, Hit)
    assert (hit.tokens, hit.ended_by, hit.is_converted, hit.is_lossy) == (700, None, False, False)
    assert is_equal(hit.kv, KV)


def test_it_comes_back_after_it_was_written(make_store: StoreMaker, tiers: list[Any]) -> None:
    """From the tiers themselves, not from what is on its way."""
    store = make_store(*tiers)
    store.put(TOKENS, KV)
    assert store.flush()
    hit = store.get(TOKENS)
    assert isinstance(hit, Hit)
    assert hit.tokens_by_tier == {tiers[0].name: 700}
    assert is_equal(hit.kv, KV)


def test_a_longer_prompt_gets_what_is_stored_of_it(make_store: StoreMaker, tiers: list[Any]) -> None:
    """The last chunk of 188 tokens too, and the reason why there is no more."""
    store = make_store(*tiers)
    store.put(TOKENS, KV)
    store.flush()
    hit = store.get([*TOKENS, 1, 2, 3])
    assert isinstance(hit, Hit)
    assert hit.tokens == 700
    assert is_equal(hit.kv, KV)
    assert hit.ended_by is not None
    assert hit.ended_by.kind == "absent"


def test_a_prompt_that_parts_gets_the_chunks_before(make_store: StoreMaker, tiers: list[Any]) -> None:
    """It parts at token 600: 512 tokens are whole chunks."""
    store = make_store(*tiers)
    store.put(TOKENS, KV)
    store.flush()
    hit = store.get([*TOKENS[:600], *prompt(100, seed=9)])
    assert isinstance(hit, Hit)
    assert hit.tokens == 512
    assert is_equal(hit.kv, first(KV, 512))


def test_other_tokens_get_nothing(make_store: StoreMaker, tiers: list[Any]) -> None:
    """A miss is a value, and false."""
    store = make_store(*tiers)
    store.put(TOKENS, KV)
    store.flush()
    miss = store.get(prompt(700, seed=1))
    assert isinstance(miss, Miss)
    assert not miss
    assert (miss.kind, miss.tokens) == ("absent", 0)
    assert str(miss) == "nothing is stored for these tokens"


def test_the_same_chunk_after_other_tokens_is_another(make_store: StoreMaker) -> None:
    """KV depends on all that was before; the second 256 tokens are the same here."""
    store = make_store(Memory("64MiB"))
    ours, theirs = prompt(256, seed=2), prompt(256, seed=3)
    same = prompt(256, seed=4)
    store.put(ours + same, kv_of(ours + same))
    store.put(theirs, kv_of(theirs))
    hit = store.get(theirs + same)
    assert isinstance(hit, Hit)
    assert hit.tokens == 256


def test_a_turn_more_writes_only_what_is_new(make_store: StoreMaker, tiers: list[Any]) -> None:
    """700 tokens are there; of 1,000 the chunk of 188 is made anew with 68 more, and one of 232 is added."""
    store = make_store(*tiers)
    longer = TOKENS + prompt(300, seed=5)
    store.put(TOKENS, KV)
    stored = store.put(longer, kv_of(longer))
    assert (stored.tokens, stored.new_tokens) == (1000, 256 + 232)
    assert store.put(longer, kv_of(longer)).new_tokens == 0
    hit = store.get(longer)
    assert isinstance(hit, Hit)
    assert is_equal(hit.kv, kv_of(longer))


def test_tenants_lora_and_media_do_not_share(make_store: StoreMaker) -> None:
    """Each of the three alone makes it another prompt, and its own comes back."""
    store = make_store(Memory("64MiB"))
    options: list[dict[str, Any]] = [
        {},
        {"tenant": "a"},
        {"lora": b"l"},
        {"media": [b"m"]},
        {"media": [(3, b"m")]},
    ]
    for own in options:
        assert not store.get(TOKENS, **own)
        store.put(TOKENS, KV, **own)
    for own in options:
        assert store.get(TOKENS, **own).tokens == 700


def test_the_caller_may_overwrite_its_kv_at_once(make_store: StoreMaker, tiers: list[Any]) -> None:
    """`put` has read it when it returns, though it is not written yet."""
    store = make_store(*tiers)
    own = [tuple(part.clone() for part in layer) for layer in KV]
    store.put(TOKENS, own)
    for layer in own:
        for part in layer:
            part.zero_()
    assert is_equal(store.get(TOKENS).kv, KV)


def test_another_store_on_the_same_disk_has_it(make_store: StoreMaker, tmp_path: Path) -> None:
    """After the first one is closed: a restart."""
    with make_store(Disk(tmp_path, "64MiB")) as before:
        before.put(TOKENS, KV)
    hit = make_store(Memory("64MiB"), Disk(tmp_path, "64MiB")).get(TOKENS)
    assert isinstance(hit, Hit)
    assert hit.tokens_by_tier == {"disk": 700}
    assert is_equal(hit.kv, KV)


def test_what_comes_from_below_is_kept_above(make_store: StoreMaker, tmp_path: Path) -> None:
    """The second time it comes from memory."""
    with make_store(Disk(tmp_path, "64MiB")) as before:
        before.put(TOKENS, KV)
    store = make_store(Memory("64MiB"), Disk(tmp_path, "64MiB"))
    assert store.get(TOKENS).tokens_by_tier == {"disk": 700}
    assert store.get(TOKENS).tokens_by_tier == {"memory": 700}


def test_a_paged_cache_gives_and_takes_scattered_blocks(make_store: StoreMaker, tiers: list[Any]) -> None:
    """In vLLM's layout, from blocks in one order into blocks of another; nothing else of `out` is touched."""
    store = make_store(*tiers)
    name = "vllm/0.26+"
    engine = [torch.full((60, 2, 16, 128), 5.0, dtype=torch.float16) for _ in range(4)]
    blocks, others = list(range(43, -1, -1)), list(range(8, 52))
    convert(KV, "hf/dynamic", name, SPEC, dst_blocks=blocks, out=engine)
    store.put(TOKENS, engine, layout=name, blocks=blocks)
    out = [torch.full((60, 2, 16, 128), 7.0, dtype=torch.float16) for _ in range(4)]
    hit = store.get(TOKENS, layout=name, blocks=others, out=out)
    assert isinstance(hit, Hit)
    assert not hit.is_converted
    assert hit.kv is out
    assert is_equal(convert(out, name, "hf/dynamic", SPEC, src_blocks=others, num_tokens=700), KV)
    untouched = [block for block in range(60) if block not in others]
    assert all((layer[untouched] == 7).all() for layer in out)


def test_another_layout_and_block_size_are_converted(make_store: StoreMaker, tiers: list[Any]) -> None:
    """Stored as vLLM 0.22 had it in blocks of 16, wanted as 0.26 has it in blocks of 32."""
    old = convert(KV, "hf/dynamic", "vllm/<=0.22", SPEC)
    store = make_store(*tiers)
    store.put(TOKENS, old, layout="vllm/<=0.22")
    out = [torch.zeros(22, 2, 32, 128, dtype=torch.float16) for _ in range(4)]
    hit = store.get(TOKENS, layout="vllm/0.26+", out=out)
    assert isinstance(hit, Hit)
    assert hit.is_converted
    wide = KVSpec_of(32)
    assert is_equal(convert(out, "vllm/0.26+", "hf/dynamic", wide, num_tokens=700), KV)


def KVSpec_of(block_size: int) -> Any:
    """The sample's, with other blocks."""
    from dataclasses import replace

    return replace(SPEC, block_size=block_size)


def test_nothing_stays_held(make_store: StoreMaker, tmp_path: Path) -> None:
    """After puts, hits and misses the store holds what its memory tier has, and no more."""
    store = make_store(Memory("64MiB"), Disk(tmp_path, "64MiB"))
    store.put(TOKENS, KV)
    store.get(TOKENS)
    store.get([*TOKENS[:300], 1])
    store.flush()
    holds = store.stats().tiers["memory"].holds
    assert holds is not None
    assert store._pool.used_bytes == holds.used_bytes


def test_a_lookup_asks_no_tier(make_store: StoreMaker) -> None:
    """It knows what was put and what was found, by tenant, and forgets what turned out to be gone."""
    tier = CountingTier(Memory("64MiB"))
    store = make_store(tier)
    assert store.lookup(TOKENS) == 0
    store.put(TOKENS, KV, tenant="a")
    tier.forget()
    longer = [*TOKENS, 5]
    assert (store.lookup(longer, tenant="a"), store.lookup(TOKENS[:600], tenant="a")) == (700, 512)
    assert store.lookup(TOKENS) == 0
    assert tier.calls == []
    for name in tier.list("kv/"):
        tier.remove(name)
    assert store.lookup(TOKENS, tenant="a") == 700
    assert not store.get(TOKENS, tenant="a")
    assert store.lookup(TOKENS, tenant="a") == 0


def test_what_was_removed_is_gone(make_store: StoreMaker, tiers: list[Any]) -> None:
    """In every tier, pinned or not, and what shares nothing with it stays."""
    store = make_store(*tiers)
    other = prompt(300, seed=1)
    store.put(TOKENS, KV, pin=True)
    store.put(other, kv_of(other))
    store.remove(TOKENS)
    store.flush()
    assert not store.get(TOKENS)
    assert store.get(other).tokens == 300


def test_what_happened_is_counted(make_store: StoreMaker) -> None:
    """Tokens asked for and served, and why no more."""
    store = make_store(Memory("64MiB"))
    assert store.stats().hit_rate is None
    store.put(TOKENS, KV)
    store.get(TOKENS)
    store.get([*TOKENS[:600], 1])
    store.get(prompt(99, seed=6))
    stats = store.stats()
    assert (stats.asked_tokens, stats.hit_tokens) == (700 + 601 + 99, {"memory": 700 + 512})
    assert stats.ends == {"absent": 2}
    assert (stats.put_tokens, stats.new_tokens) == (700, 700)
    assert stats.hit_rate == (700 + 512) / (700 + 601 + 99)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_the_longest_stored_prefix_comes_back(data: st.DataObject) -> None:
    """Prompts that share beginnings, put and asked for in any order, against a dict of what was put.

    What can come back ends where a put prompt ends or at a multiple of 256.
    """
    lengths = st.sampled_from([1, 100, 255, 256, 257, 300, 511, 512, 600])
    base = [prompt(600), [*prompt(300), *prompt(300, seed=7)], [*prompt(256), *prompt(344, seed=8)]]
    ends: set[tuple[int, ...]] = set()
    with KVStore([Memory("1GiB")], fingerprint=Fingerprint.for_testing(SPEC)) as store:
        for _ in range(data.draw(st.integers(1, 8))):
            tokens = data.draw(st.sampled_from(base))[: data.draw(lengths)]
            if data.draw(st.booleans()):
                store.put(tokens, kv_of(tokens))
                ends |= {tuple(tokens[:end]) for end in (*range(256, len(tokens), 256), len(tokens))}
            else:
                found = store.get(tokens)
                best = max((len(end) for end in ends if tuple(tokens[: len(end)]) == end), default=0)
                assert found.tokens == best
                assert not found or is_equal(found.kv, first(kv_of(tokens), best))


# ---------------------------------------------------------------------- bad input


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"tokens": "text"}, "tokens is a flat sequence"),
        ({"tokens": [1, -1]}, r"tokens\[1\]"),
        ({"layout": "vllm/0.26"}, "unknown layout 'vllm/0.26'. Did you mean"),
        ({"layout": "vllm/0.26+"}, "does not have the 4 axes"),
        ({"kv": [(KV[0][0][:, :, :10], KV[0][1][:, :, :10])]}, "the KV has 1 layers, the fingerprint says 4"),
        ({"kv": first(KV, 699)}, "room for 699 tokens, not for 700"),
        (
            {"kv": [tuple(part.float() for part in layer) for layer in KV]},
            "the KV is float32, the fingerprint",
        ),
        ({"kv": None}, "no sequence by layer"),
        ({"blocks": [0]}, "has no blocks to name"),
        ({"ttl": "1d"}, "ttl is '5m'"),
        ({"ttl": 0}, "ttl is '5m'"),
        ({"ttl": True}, "ttl is '5m'"),
        ({"ttl": float("nan")}, "ttl is '5m'"),
        ({"session": 5}, "session is a name, not a int"),
        ({"session": "\ud800"}, "session is a name without lone surrogates"),
        ({"pin": "no"}, "pin is True or False, not 'no'"),
        ({"pin": 1}, "pin is True or False, not 1"),
        ({"tenant": 5}, "tenant_salt is text or bytes"),
        ({"lora": 5}, "lora is text or bytes"),
        ({"media": [(5, b"a"), (4, b"b")]}, r"media\[1\] is at a position from 5 on"),
    ],
)
def test_a_wrong_put_is_refused_and_nothing_is_kept(
    make_store: StoreMaker, change: dict[str, Any], says: str
) -> None:
    """By an error that names what is wrong."""
    store = make_store(Memory("64MiB"))
    call = {"tokens": TOKENS, "kv": KV, **change}
    with pytest.raises(InvalidRequest, match=says):
        store.put(call.pop("tokens"), call.pop("kv"), **call)
    assert store.stats().tiers["memory"].holds.entries == 0  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"layout": "vllm/0.26+", "blocks": [0]}, "blocks are those of out"),
        (
            {"layout": "vllm/0.26+", "out": [torch.zeros(2, 2, 16, 128, dtype=torch.float16)] * 4},
            "room for 32",
        ),
        ({"layout": "vllm/0.26+", "out": [torch.zeros(44, 2, 16, 128)] * 4}, "float32, the fingerprint says"),
        (
            {
                "layout": "vllm/0.26+",
                "out": [torch.zeros(44, 1, 16, 128, dtype=torch.float16) for _ in range(4)],
            },
            "4 layers, 1 KV heads of 64 and 64",
        ),
        (
            {"layout": "vllm/0.26+", "out": [torch.zeros(44, 2, 16, 128, dtype=torch.float16)] * 3},
            "the KV has 3 layers, the fingerprint says 4",
        ),
    ],
)
def test_a_wrong_get_is_refused(make_store: StoreMaker, options: dict[str, Any], says: str) -> None:
    """By an error that names what is wrong."""
    store = make_store(Memory("64MiB"))
    store.put(TOKENS, KV)
    with pytest.raises(InvalidRequest, match=says):
        store.get(TOKENS, **options)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"tiers": []}, "tiers has Memory"),
        ({"tiers": ["/tmp"]}, "tiers has Memory"),
        ({"policy": "fifo"}, "policy is 'lru' or 'hints'"),
        ({"queue": "much"}, "queue is a size"),
        ({"dtype": "int4"}, "dtype is fp8_e4m3"),
        ({"codec": "gzip"}, "codec is zstd"),
    ],
)
def test_a_wrong_store_is_refused(options: dict[str, Any], says: str) -> None:
    """Before anything is opened."""
    call: dict[str, Any] = {
        "tiers": [Memory("1MiB")],
        "fingerprint": Fingerprint.for_testing(SPEC),
        **options,
    }
    with pytest.raises(InvalidRequest, match=says):
        KVStore(call.pop("tiers"), **call)


def test_two_tiers_of_one_name_are_refused() -> None:
    """Their counts and hits could not be told apart."""
    with pytest.raises(InvalidRequest, match="two tiers named 'memory'"):
        KVStore([Memory("1MiB"), Memory("1MiB")], fingerprint=Fingerprint.for_testing(SPEC))


def test_a_fingerprint_with_unknown_fields_keeps_nothing() -> None:
    """Two models that are both unknown would share their keys."""
    with pytest.raises(ConfigurationError, match="weights_digest"):
        KVStore([Memory("1MiB")], fingerprint=Fingerprint(kv_dtype="float16"))


def test_a_closed_store_says_so(make_store: StoreMaker) -> None:
    """And closing it again does nothing."""
    store = make_store(Memory("1MiB"))
    store.close()
    store.close()
    with pytest.raises(ConfigurationError, match="closed"):
        store.get(TOKENS)


def test_a_wrong_session_does_not_end(make_store: StoreMaker) -> None:
    """No tier is asked, so none has failed."""
    store = make_store(Memory("1MiB"))
    for name, says in (({}, "not a dict"), (None, "not a NoneType"), ("\ud800", "surrogates")):
        with pytest.raises(InvalidRequest, match=says):
            store.end_session(name)
    assert store.stats().tiers["memory"].counts == {}


def test_a_time_beyond_all_numbers_is_for_ever(make_store: StoreMaker) -> None:
    """It has no place in a float."""
    store = make_store(Memory("64MiB"), clock=lambda: 1e12)
    store.put(TOKENS, KV, ttl=10**400)
    assert store.get(TOKENS).tokens == 700


def test_a_fork_needs_a_store_of_its_own(make_store: StoreMaker, tmp_path: Path) -> None:
    """Its threads are not there, so it says so at once; the parent's goes on, and closing does nothing."""
    store = make_store(Memory("64MiB"), Disk(tmp_path, "64MiB"))
    store.put(TOKENS, KV)
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            store.get(TOKENS)
        except ConfigurationError as error:
            os.write(write, str(error).encode())
        finally:
            store.close()
            os._exit(0)
    os.close(write)
    with os.fdopen(read) as said:
        assert said.read() == "the store was opened before a fork; open one in this process"
    assert os.waitpid(child, 0)[1] == 0
    assert store.get(TOKENS).tokens == 700
    assert store.flush(10)


def test_no_tokens_are_nothing(make_store: StoreMaker) -> None:
    """Nothing is stored of them and nothing is served."""
    store = make_store(Memory("1MiB"))
    assert store.put([], KV).tokens == 0
    assert not store.get([])
