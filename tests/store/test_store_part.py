"""A prompt whose first tokens the caller has already: `probe` says what there is, `get` brings the rest."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from dict_tiers import DictTier
from hypothesis import given, settings
from hypothesis import strategies as st
from kv_oracle import tensors
from kv_samples import SPEC, is_equal, kv_of, prompt
from kvsdk.errors import InvalidRequest
from kvsdk.kv import Fingerprint, Layout, convert
from kvsdk.kv.layouts.planes import allocate
from kvsdk.store import Hit, KVStore, Memory, Miss, Object
from kvsdk.testing import CountingTier
from store_makers import StoreMaker

TOKENS = prompt(700)
KV = kv_of(TOKENS)


def from_token(kv: Any, first: int, end: int) -> Any:
    """A stretch of KV in `hf/dynamic`."""
    return [tuple(part[:, :, first:end] for part in layer) for layer in kv]


# ---------------------------------------------------------------------- probe


@pytest.mark.parametrize("asked", [0, 1, 255, 256, 600, 699, 700, 701, 900])
def test_a_probe_says_what_get_would_bring(make_store: StoreMaker, tiers: list[Any], asked: int) -> None:
    """Whole chunks, and a last one that was put as it is; of 600 tokens the 188 of the last are none."""
    store = make_store(*tiers)
    store.put(TOKENS, KV)
    longer = [*TOKENS, *prompt(200, seed=5)][:asked]
    assert store.probe(longer) == store.get(longer).tokens
    store.flush()
    there = 700 if asked >= 700 else min(asked // 256, 2) * 256
    assert store.probe(longer) == store.get(longer).tokens == there


def test_a_probe_sees_what_another_process_put(make_store: StoreMaker, tmp_path: Path) -> None:
    """What `lookup` does not know until then."""
    with make_store(Object(tmp_path.as_uri())) as store:
        store.put(TOKENS, KV)
    store = make_store(Memory("64MiB"), Object(tmp_path.as_uri()))
    assert store.lookup(TOKENS) == 0
    assert store.probe(TOKENS) == 700
    assert store.lookup(TOKENS) == 700
    assert store.probe(TOKENS, tenant="other") == 0


def test_a_probe_reads_no_entry(make_store: StoreMaker) -> None:
    """It asks for names alone."""
    tier = CountingTier(Memory("64MiB"))
    store = make_store(tier)
    store.put(TOKENS, KV)
    before = tier.count("get")
    assert store.probe(TOKENS) == 700
    assert tier.count("get") == before


def test_a_remote_tier_is_not_asked_behind_the_first_gap(make_store: StoreMaker, tmp_path: Path) -> None:
    """Of a long prompt that is not there one name is asked for, and of one that is, more and more at once."""
    asked: list[int] = []

    class Far(Object):
        def contains(self, names: Any) -> Any:
            asked.append(len(names))
            return super().contains(names)

    long = prompt(256 * 9)
    with make_store(Far(tmp_path.as_uri())) as store:
        assert store.probe(long) == 0
        assert asked == [1]
        asked.clear()
        kv = [(torch.zeros(1, 2, len(long), 64, dtype=torch.float16),) * 2 for _ in range(4)]
        store.put(long[: 256 * 7], kv)
        store.flush()
        asked.clear()
        assert store.probe(long) == 256 * 7
        assert asked == [1, 4, 4]


# ---------------------------------------------------------------------- get from a token on


@pytest.mark.parametrize("first", [0, 16, 240, 256, 272, 512, 688])
def test_what_the_caller_has_is_neither_read_nor_written(make_store: StoreMaker, first: int) -> None:
    """Its blocks stay as they are, and chunks that lie before are not asked for."""
    tier = CountingTier(Memory("64MiB"))
    store = make_store(tier)
    store.put(TOKENS, KV)
    out = allocate(Layout.of("vllm/0.26+"), SPEC, tokens=704)
    for tensor in tensors(out):
        tensor.fill_(7)
    before = tier.count("get")
    hit = store.get(TOKENS, layout="vllm/0.26+", out=out, first_token=first)
    assert isinstance(hit, Hit)
    assert (hit.tokens, sum(hit.tokens_by_tier.values())) == (700, 700 - first)
    assert tier.count("get") - before == 3 - first // 256
    assert all((tensor[: first // 16] == 7).all() for tensor in tensors(out))
    found = convert(out, "vllm/0.26+", "hf/dynamic", SPEC, num_tokens=700)
    assert is_equal(from_token(found, first, 700), from_token(KV, first, 700))


@settings(deadline=None, max_examples=60)
@given(st.data())
def test_any_part_in_any_blocks(data: st.DataObject) -> None:
    """Whatever the block sizes there and here, stored in blocks or not, and wherever the part begins."""
    count = data.draw(st.integers(1, 700))
    there, here = data.draw(st.sampled_from([16, 24, 32, 48])), data.draw(st.sampled_from([16, 32, 40, 96]))
    layout = data.draw(st.sampled_from(["hf/dynamic", "vllm/0.26+cpu", "lmcache/2ltd", "sglang/layer-first"]))
    spec, ours = replace(SPEC, block_size=there), replace(SPEC, block_size=here)
    first = data.draw(st.integers(0, (count - 1) // here)) * here
    entries: dict[str, bytes] = {}
    with KVStore([DictTier(entries)], fingerprint=Fingerprint.for_testing(spec), spec=spec) as store:
        kv = convert(from_token(KV, 0, count), "hf/dynamic", layout, spec)
        store.put(TOKENS[:count], kv, layout=layout)
    needed = -(-count // here)
    blocks = data.draw(st.permutations(range(needed + 2)))[:needed]
    out = allocate(Layout.of("vllm/0.26+"), ours, tokens=(needed + 2) * here)
    for tensor in tensors(out):
        tensor.zero_()
    with KVStore([DictTier(entries)], fingerprint=Fingerprint.for_testing(ours), spec=ours) as store:
        hit = store.get(TOKENS[:count], layout="vllm/0.26+", out=out, blocks=blocks, first_token=first)
    assert hit.tokens == count
    rest = convert(
        out, "vllm/0.26+", "hf/dynamic", ours, num_tokens=count - first, src_blocks=blocks[first // here :]
    )
    assert is_equal(rest, from_token(KV, first, count))
    held = [block for block in range(needed + 2) if block not in blocks[first // here :]]
    assert all((tensor[held] == 0).all() for tensor in tensors(out))


def test_a_part_that_is_not_there_is_a_miss(make_store: StoreMaker) -> None:
    """Nothing of it is promised by the tokens before."""
    store = make_store(Memory("64MiB"))
    store.put(TOKENS[:256], from_token(KV, 0, 256))
    miss = store.get(TOKENS, first_token=256)
    assert isinstance(miss, Miss)
    assert miss.kind == "absent"
    assert store.lookup(TOKENS) == 256
    assert store.stats().asked_tokens == 700 - 256


@pytest.mark.parametrize(
    ("first", "words"), [(-1, "700"), (700, "700"), (True, "True"), (1.0, "1.0"), (8, "a block of 16")]
)
def test_a_wrong_first_token_is_refused(make_store: StoreMaker, first: Any, words: str) -> None:
    """By its name."""
    store = make_store(Memory("64MiB"))
    with pytest.raises(InvalidRequest, match=words) as caught:
        store.get(TOKENS, layout="vllm/0.26+", first_token=first)
    assert caught.value.field == "first_token"
