"""vLLM's cache model, without an engine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from cache_blocks import Row, play, system, user
from hypothesis import given, settings
from hypothesis import strategies as st
from kvsdk import CacheBlock, ConfigurationError, Predicted, backend, cache_model

A, B, C = user("A", 100), user("B", 50), user("C", 50)

VECTORS = {
    "whole blocks of 16": [
        Row("cold", 0, [A, B], 0, {}, 150 - 144),
        Row("floor(100 / 16) * 16", 1, [A, C], 96, {}, 150 - 144),
        Row("floor(150 / 16) * 16", 2, [A, C], 144, {}, 6),
    ],
    "the last token is always computed": [
        Row("cold", 0, [user("A", 160)], 0, {}, 0),
        Row("floor(159 / 16) * 16", 1, [user("A", 160)], 144, {}, 16),
        Row("as the start of more", 2, [user("A", 160), B], 160, {}, 50 - 48),
    ],
    "the salt": [
        Row("a tenant", 0, [A, B], 0, {}, 6, {"scope": "a"}),
        Row("another", 1, [A, B], 0, {}, 6, {"scope": "b"}),
        Row("the first again", 2, [A, B], 144, {}, 6, {"scope": "a"}),
    ],
}


@pytest.mark.parametrize("name", VECTORS)
def test_the_vectors(name: str) -> None:
    """floor(min(LCP, T - 1) / 16) * 16 is read; whole blocks that are new count as written, without a TTL."""
    cache = cache_model("vllm:some/model")
    for row in VECTORS[name]:
        counts = cache.observe(row.t_s, row.blocks, **row.settings)
        assert (counts.read_tokens, counts.fresh_tokens, counts.write_by_ttl) == (row.read, row.fresh, {}), (
            row.name
        )
        assert counts.total_tokens == sum(block.tokens for block in row.blocks), row.name


def test_what_was_measured() -> None:
    """1,567 tokens in blocks of 32: cold 0 read and 1,536 created, then 1,536 read and 0 created."""
    cache = cache_model("vllm+http://127.0.0.1:8000#m", block_size=32)
    assert cache.observe(0, [user("p", 1567)]) == Predicted(0, 1536, {}, 31)
    play(cache, [Row("warm", 1, [user("p", 1567)], 1536, {}, 31)])


def test_the_block_size_is_the_engines() -> None:
    """Where the address's options name it."""
    cache = cache_model(backend("vllm:some/model", block_size=64))
    assert cache.observe(0, [A]).write_tokens == 64
    with pytest.raises(ConfigurationError):
        cache_model("vllm:some/model", block_size=0)


def test_the_least_recently_used_prompt_goes_first_from_its_tail() -> None:
    """With 20 blocks, a third prompt of 9 takes 7 blocks of the first one's tail."""
    first, second, third = (user(name, 144) for name in "123")
    cache = cache_model("vllm:m", capacity_blocks=20)
    for at, block in enumerate((first, second, third)):
        cache.observe(at, [block])
    assert cache.predict(3, [first]).read_tokens == 2 * 16
    assert cache.predict(3, [second]).read_tokens == 8 * 16
    cache.observe(3, [first])
    assert cache.predict(4, [second]).read_tokens == 2 * 16


def test_a_prompt_longer_than_the_capacity_keeps_its_head() -> None:
    """Nothing else is left."""
    cache = cache_model("vllm:m", capacity_blocks=4)
    cache.observe(0, [user("q", 32)])
    cache.observe(1, [A, B])
    assert cache.predict(2, [A, B]).read_tokens == 4 * 16
    assert cache.predict(2, [user("q", 32)]).read_tokens == 0


class Twin:
    """KV blocks one by one, in a list with the least recently used first."""

    def __init__(self, size: int, capacity: int) -> None:
        self.size, self.capacity = size, capacity
        self.order: list[Any] = []

    def observe(self, blocks: Sequence[CacheBlock]) -> tuple[int, int]:
        total = sum(block.tokens for block in blocks)
        keys = []
        for end in range(self.size, total + 1, self.size):
            covering = 0
            while sum(block.tokens for block in blocks[: covering + 1]) < end:
                covering += 1
            keys.append((end, tuple((block.section, block.digest) for block in blocks[: covering + 1])))
        held = 0
        while held < len(keys) and keys[held] in self.order:
            held += 1
        for key in reversed(keys):
            if key in self.order:
                self.order.remove(key)
            self.order.append(key)
        self.order = self.order[-self.capacity :]
        read = min(held, max(0, total - 1) // self.size) * self.size
        return read, (len(keys) - held) * self.size


PIECES = [
    system("S", 70),
    *(user(name, tokens) for name, tokens in (("a", 5), ("b", 33), ("c", 16), ("d", 100))),
]


@settings(max_examples=300, deadline=None, derandomize=True)
@given(
    st.lists(st.lists(st.sampled_from(PIECES[1:]), max_size=5), max_size=12),
    st.sampled_from([1, 8, 16]),
    st.integers(1, 40),
)
def test_the_naive_twin_agrees(prompts: list[list[CacheBlock]], size: int, capacity: int) -> None:
    """On any traffic the model and an LRU of single KV blocks give the same counts."""
    cache = cache_model("vllm:m", block_size=size, capacity_blocks=capacity)
    naive = Twin(size, capacity)
    for at, prompt in enumerate(prompts):
        blocks = [PIECES[0], *prompt]
        counts = cache.observe(at, blocks)
        assert (counts.read_tokens, counts.write_tokens) == naive.observe(blocks)
        assert counts.fresh_tokens >= 0
