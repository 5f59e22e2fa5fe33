"""A prompt in chunks."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from kvsdk.errors import InvalidRequest
from kvsdk.kv import LAYOUTS, Fingerprint, KVSpec, Layout, chain_hashes
from kvsdk.kv.identity.hashing import pack_tokens
from kvsdk.kv.layouts.planes import allocate
from kvsdk.store.entries.chunks import Prompt, chunks_of, part_of, shorter_chunks
from kvsdk.store.entries.identity import Identity

ROOT = b"root"
#: What entries are called, by the form of storing.
GOLDEN = {
    (): [
        "fp/6dee97d0e3065f2b7f15abc5c5fc292fa48e174e92cc628e4952a7059f59c5d9",
        "kv/c17eb91105fe65065d6ae8c9e17050c457428f648285bfe7c59893fbd7a53f6d/256-0e51603c0b19cf2ea0fb28963c02073c19249fc81d8827e9629dac25a31fbd7b",
        "kv/0e51603c0b19cf2ea0fb28963c02073c19249fc81d8827e9629dac25a31fbd7b/44-88c5fa7b031524e3a0cd003d6dbf3ea5bf1c4db4d6fc87a1aae58c1aefdf83de",
    ],
    (("codec", "zstd"), ("dtype", "float8_e4m3fn")): [
        "fp/d58cca72c70d2ef7f178c2f5738d673ff5f7d671ff0b5f33fd68d6676707ad40",
        "kv/3e3c65ea1ed39a98881c787941ff6618bda8f70f05453fa5eb0bc413611a3587/256-fbe87abf1cc838a157e491b576ced62b1bded090310b2c776e1b64b6f305f3a0",
        "kv/fbe87abf1cc838a157e491b576ced62b1bded090310b2c776e1b64b6f305f3a0/44-9556c691bb920151066709157d61e72fdec42c149a7d28524d0813ece98d39f0",
    ],
}


@given(st.integers(0, 1100))
def test_chunks_cover_a_prompt_once(count) -> None:
    """Each begins where the one before ends, all but the last have 256 tokens."""
    chunks = chunks_of(pack_tokens(range(count)), ROOT)
    assert [chunk.first for chunk in chunks] == list(range(0, count, 256))
    assert sum(chunk.tokens for chunk in chunks) == count
    assert all(chunk.tokens == 256 for chunk in chunks[:-1])


def test_a_chunks_key_is_the_chains_key_of_the_prefix_up_to_its_end() -> None:
    """As `chain_hashes` has it, for whole chunks and for the last one."""
    tokens = list(range(600))
    first, second, last = chunks_of(pack_tokens(tokens), ROOT)
    assert [first.key, second.key] == chain_hashes(tokens, 256, root=ROOT)
    assert [last.key] == chain_hashes(tokens, 600, root=ROOT)
    assert (second.parent, last.parent) == (first.key, second.key)


def test_the_first_chunks_parent_depends_on_the_root() -> None:
    """Prompts of two tenants have no name in common, not even in part."""
    ours, theirs = (chunks_of(pack_tokens([1]), root)[0] for root in (b"a", b"b"))
    assert ours.parent != theirs.parent
    assert ours.name.split("/")[1] != theirs.name.split("/")[1]


@given(st.integers(1, 255), st.integers(0, 300))
def test_a_shorter_prompts_last_chunk_is_among_those_that_a_longer_one_looks_for(length, more) -> None:
    """Whatever the length, 256 tokens before or none."""
    for head in (0, 256):
        tokens = list(range(head + length))
        stored = chunks_of(pack_tokens(tokens), ROOT)[-1]
        longer = pack_tokens(tokens + [7] * more)
        looked_for = shorter_chunks(longer, ROOT, head, stored.parent)
        assert stored in looked_for
        assert [chunk.tokens for chunk in looked_for] == list(range(min(255, length + more), 0, -1))


def test_a_prompt_does_not_look_for_the_chunk_that_it_has_not_found() -> None:
    """The others in its place only."""
    prompt = Prompt.of(pack_tokens(range(300)), ROOT)
    last = prompt.chunks[-1]
    assert [chunk.tokens for chunk in prompt.shorter(last)] == list(range(43, 0, -1))


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_part_of_kv_has_the_tokens_of_its_chunk(name) -> None:
    """The part's own first element is the whole's at the chunk's first token; nothing is copied."""
    layout = Layout.of(name)
    kind = "mla" if layout.is_mla else "mha"
    heads = 1 if layout.is_mla else 2
    spec = KVSpec(num_layers=2, num_kv_heads=heads, head_dim=16, dtype="float32", block_size=16, kind=kind)
    whole = allocate(layout, spec, tokens=600)
    part, blocks = part_of(whole, layout, spec, None, 256, 100)
    if layout.is_paged:
        assert part is whole
        assert list(blocks) == list(range(16, 23))  # 256 / 16, and 100 / 16 rounded up
        assert part_of(whole, layout, spec, list(range(50, 0, -1)), 256, 100)[1] == list(range(34, 27, -1))
    else:
        axis = [axis.names for axis in layout.axes[0]].index(("token",))
        while isinstance(part, list):
            whole, part = whole[0], part[0]
        assert part.shape[axis] == 100
        assert part.data_ptr() == whole.narrow(axis, 256, 100).data_ptr()


def test_a_layout_that_packs_its_tokens_has_no_parts() -> None:
    """Of `(token head)` a stretch of tokens is no tensor."""
    with pytest.raises(InvalidRequest, match="no axis of tokens alone"):
        part_of(torch.zeros(2, 1, 8, 4), Layout.parse("| kv layer (token head) dim"), None, None, 0, 1)


def test_names_are_the_same_in_every_version() -> None:
    """Golden names: with others, what is stored would be there and never found again."""
    spec = KVSpec(num_layers=2, num_kv_heads=2, head_dim=8, dtype="float16", block_size=16)
    plain = Identity(fingerprint=replace(Fingerprint.for_testing(spec), weights_digest="0" * 64))
    for identity, names in GOLDEN.items():
        of = replace(plain, **dict(identity))
        root = of.root(tenant="acme", lora="l" * 8, media=[(3, b"image")])
        assert [of.record_name, *Prompt.of(pack_tokens(range(300)), root).names] == names
