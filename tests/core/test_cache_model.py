"""What every cache model keeps, whichever vendor's it is."""

from __future__ import annotations

import dataclasses
import json
import random
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from time import perf_counter
from types import SimpleNamespace
from typing import Any

import pytest
from cache_blocks import assistant, system, tool, user
from hypothesis import given, settings
from hypothesis import strategies as st
from kvsdk import (
    CacheBlock,
    CacheModel,
    ConfigurationError,
    InvalidBreakpoints,
    InvalidRequest,
    KvsdkError,
    Predicted,
    UnknownKeyword,
    UnknownScheme,
    cache_model,
)
from kvsdk.backend.cache_model import MarkedPrefixes, MarkRules, chain

TTL: dict[str, Any] = {"anthropic:claude-sonnet-5-5": "5m", "openai:gpt-6.1-sol": "30m"}
LIFE_S = {"anthropic:claude-sonnet-5-5": 300, "openai:gpt-6.1-sol": 1800}
ADDRESSES = [*TTL, "openai:gpt-5.5", "vllm:m"]
ADDRESSES += [
    f"openai+https://api.example/v1#{name}" for name in ("deepseek", "kimi", "xai", "qwen", "nobody")
]


def model(address: str, **switches: Any) -> CacheModel:
    """The model of an address; a compatible server's model name says whose semantics it has."""
    name = address.partition("#")[2]
    vendor = {"semantics": name} if name and name != "nobody" else {}
    return cache_model(address, **vendor, **switches)


BASE = [
    tool("T", 700),
    system("S", 900),
    *(
        user(f"m{at}", 300, message=at) if at % 2 else assistant(f"m{at}", 100, message=at)
        for at in range(1, 28)
    ),
]


@st.composite
def prompts(draw: st.DrawFn) -> list[CacheBlock]:
    """A prompt that likely shares its start with others; up to three marks, whose TTL is set later."""
    blocks = list(BASE[: draw(st.integers(1, len(BASE)))])
    if draw(st.booleans()):
        at = draw(st.integers(0, len(blocks) - 1))
        blocks[at] = replace(blocks[at], digest="changed")
    for at in draw(st.sets(st.sampled_from(range(len(blocks))), max_size=3)):
        blocks[at] = replace(blocks[at], ttl="5m")
    return blocks


TRAFFIC = st.lists(
    st.tuples(st.sampled_from([0, 10, 200, 301, 1700, 1801]), prompts()), min_size=1, max_size=10
)


def with_ttls(blocks: Sequence[CacheBlock], address: str) -> list[CacheBlock]:
    """The prompt with marks as the vendor takes them."""
    ttl = TTL.get(address, "5m" if address.endswith("qwen") else None)
    return [replace(block, ttl=ttl if block.ttl else None) for block in blocks]


@pytest.mark.parametrize("address", ADDRESSES)
@settings(max_examples=60, deadline=None, derandomize=True)
@given(traffic=TRAFFIC)
def test_the_counts_sum_to_the_prompt(address: str, traffic: list[tuple[int, list[CacheBlock]]]) -> None:
    """Read, written and fresh tokens are never negative and sum to the input; so do the TTLs' parts."""
    cache, now = model(address), 0
    for wait, blocks in traffic:
        now += wait
        counts = cache.observe(now, with_ttls(blocks, address))
        assert counts.total_tokens == sum(block.tokens for block in blocks)
        assert min(counts.read_tokens, counts.write_tokens, counts.fresh_tokens) >= 0
        if counts.write_by_ttl or not address.startswith("vllm"):
            assert sum(counts.write_by_ttl.values()) == counts.write_tokens


@pytest.mark.parametrize("address", ADDRESSES)
@settings(max_examples=40, deadline=None, derandomize=True)
@given(traffic=TRAFFIC, others=st.lists(prompts(), max_size=3))
def test_to_predict_changes_nothing(
    address: str, traffic: list[tuple[int, list[CacheBlock]]], others: list[list[CacheBlock]]
) -> None:
    """`predict` says what `observe` will, and other predictions in between leave no trace."""
    asked, quiet, now = model(address), model(address), 0
    for wait, blocks in traffic:
        now += wait
        sent = with_ttls(blocks, address)
        for other in others:
            asked.predict(now, with_ttls(other, address))
        expected = asked.predict(now, sent)
        assert asked.observe(now, sent) == expected == quiet.observe(now, sent)


def common_tokens(one: Sequence[CacheBlock], other: Sequence[CacheBlock]) -> int:
    """Tokens of the blocks that both begin with."""
    tokens = 0
    for mine, theirs in zip(one, other, strict=False):
        if mine.digest != theirs.digest:
            break
        tokens += mine.tokens
    return tokens


@pytest.mark.parametrize("address", TTL)
@settings(max_examples=100, deadline=None, derandomize=True)
@given(traffic=TRAFFIC)
def test_only_what_was_written_and_is_alive_is_read(
    address: str, traffic: list[tuple[int, list[CacheBlock]]]
) -> None:
    """A read is no longer than what an earlier request within the TTL read or wrote of the same prefix."""
    cache, now = model(address), 0
    kept: list[tuple[int, list[CacheBlock], Predicted]] = []
    for wait, blocks in traffic:
        now += wait
        counts = cache.observe(now, with_ttls(blocks, address))
        reach = [
            min(common_tokens(blocks, before), done.read_tokens + done.write_tokens)
            for at, before, done in kept
            if now - at < LIFE_S[address]
        ]
        assert counts.read_tokens <= max(reach, default=0)
        kept.append((now, blocks, counts))


@settings(max_examples=100, deadline=None, derandomize=True)
@given(traffic=TRAFFIC, seed=st.integers(0, 1000))
def test_the_order_in_which_marks_are_listed_is_irrelevant(
    traffic: list[tuple[int, list[CacheBlock]]], seed: int
) -> None:
    """Marks are tried by where they stand in the prompt."""
    rules = MarkRules(ttl_s={"5m": 300}, min_tokens=500)
    straight, shuffled, now = MarkedPrefixes(rules), MarkedPrefixes(rules), 0
    for wait, blocks in traffic:
        now += wait
        keys = chain(blocks)
        marks = [(at, "5m") for at, block in enumerate(blocks) if block.ttl]
        mixed = random.Random(seed).sample(marks, len(marks))
        looks = []
        for prefixes, listed in ((straight, dict(marks)), (shuffled, dict(mixed))):
            looks.append(prefixes.look(now, blocks, keys, listed))
            prefixes.keep(now, keys, listed, looks[-1], now)
        assert looks[0] == looks[1]


@pytest.mark.parametrize("change", [{"role": "assistant"}, {"kind": "image"}, {"digest": "other"}])
@pytest.mark.parametrize("address", TTL)
def test_another_role_kind_or_content_is_another_prefix(address: str, change: dict[str, Any]) -> None:
    """Numbers of messages and counts of tokens are not compared."""
    cache = model(address)
    blocks = with_ttls([BASE[1], user("q", 2000), user("end", 10, "5m", message=2)], address)
    cache.observe(0, blocks)
    moved = [replace(block, message=block.message + 7) for block in blocks]
    assert cache.predict(1, moved).read_tokens == 2910
    assert cache.predict(1, [blocks[0], replace(blocks[1], **change), blocks[2]]).read_tokens == 0


# ---------------------------------------------------------------------- values and errors


def test_a_ttl_that_is_not_there_has_no_tokens() -> None:
    """`write_by_ttl` holds what was written, answers 0 for the rest, and is plain data."""
    counts = cache_model("anthropic:claude-sonnet-5-5").observe(0, [system("S", 3000, "5m")])
    assert counts.write_by_ttl == {"5m": 3000}
    assert counts.write_by_ttl["1h"] == 0
    assert json.loads(json.dumps(dataclasses.asdict(counts)))["write_by_ttl"] == {"5m": 3000}


def test_an_empty_prompt_has_no_tokens() -> None:
    """Every model answers."""
    assert [model(address).observe(0, []).total_tokens for address in ADDRESSES] == [0] * len(ADDRESSES)


@pytest.mark.parametrize(("field", "value"), [("section", "footer"), ("tokens", -1)])
def test_blocks_are_checked(field: str, value: Any) -> None:
    """A section that there is not, a negative count."""
    with pytest.raises(InvalidRequest) as caught:
        replace(BASE[0], **{field: value})
    assert caught.value.field == field


@pytest.mark.parametrize("address", [each for each in ADDRESSES if "nobody" not in each])
def test_blocks_stand_in_prompt_order(address: str) -> None:
    """Tools, system, messages."""
    for wrong in ([BASE[1], BASE[0]], [BASE[2], BASE[1]]):
        with pytest.raises(InvalidRequest):
            model(address).observe(0, wrong)


@pytest.mark.parametrize("address", ADDRESSES)
def test_unknown_settings_and_switches_are_errors(address: str) -> None:
    """With the name that may have been meant."""
    with pytest.raises(UnknownKeyword, match="scope"):
        model(address).observe(0, BASE, scoop="x")
    with pytest.raises(ConfigurationError):
        model(address, no_such_switch=1)


def test_settings_are_compared_by_value() -> None:
    """Dicts, lists and sets too; a thing that is no data is refused."""
    cache = cache_model("vllm:m")
    cache.observe(0, BASE, scope={"b": [1, {2}], "a": "x"})
    assert cache.observe(1, BASE, scope={"a": "x", "b": [1, {2}]}).read_tokens > 0
    assert cache.observe(1, BASE, scope={"a": "x", "b": [1, {3}]}).read_tokens == 0
    with pytest.raises(InvalidRequest):
        cache.observe(1, BASE, scope=SimpleNamespace())


def test_a_refusal_is_an_error_of_ours() -> None:
    """And says where."""
    with pytest.raises(KvsdkError, match="empty text") as caught:
        cache_model("anthropic:claude-sonnet-5-5").observe(0, [user("", 0, "5m")])
    assert isinstance(caught.value, InvalidBreakpoints)


def test_an_unknown_scheme_has_no_model() -> None:
    """As it has no backend."""
    with pytest.raises(UnknownScheme):
        cache_model("antropic:claude")


# ---------------------------------------------------------------------- what it costs


def test_neither_a_key_nor_a_vendors_sdk_is_needed() -> None:
    """Models are made and asked in a process where no vendor's package can be imported."""
    code = (
        "import sys\n"
        "for name in ('anthropic', 'openai', 'vllm', 'torch', 'numpy'): sys.modules[name] = None\n"
        "from kvsdk import CacheBlock, cache_model\n"
        "block = CacheBlock('messages', 0, 'user', 'text', 'd', 2000)\n"
        "for address in ('anthropic:claude-sonnet-5-5', 'openai:gpt-6.1-sol', 'openai:gpt-5.5', 'vllm:m'):\n"
        "    print(cache_model(address).observe(0, [block]).total_tokens)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout.split() == ["2000"] * 4, done.stderr


@pytest.mark.parametrize("address", [each for each in ADDRESSES if "nobody" not in each])
def test_memory_is_bounded(address: str) -> None:
    """Ten thousand prompts that never come back leave no more than what their TTL keeps, or the limit."""
    limits = {
        "vllm": {"capacity_blocks": 2000},
        "xai": {"max_prefixes": 2000},
        "kimi": {"max_prefixes": 1000},
    }
    switches = next((limit for name, limit in limits.items() if name in address), {})
    cache: Any = model(address, **switches)
    for at in range(10_000):
        blocks = [user(f"{at}", 2000, "5m"), user("q", 10)]
        cache.observe(at * 10.0, with_ttls(blocks, address))
    assert 0 < len(cache) <= 2000


def test_threads_may_share_a_model() -> None:
    """Two hundred requests from eight threads write one prefix, once."""
    cache = cache_model("anthropic:claude-sonnet-5-5")
    blocks = [*BASE[:20], user("end", 50, "5m")]
    with ThreadPoolExecutor(8) as pool:
        counts = list(pool.map(lambda _: cache.observe(0, blocks), range(200)))
    assert sum(1 for each in counts if each.write_tokens) == 1


@pytest.mark.parametrize(
    "address", ["anthropic:claude-sonnet-5-5", "openai:gpt-6.1-sol", "openai:gpt-5.5", "vllm:m"]
)
def test_a_request_of_60_blocks_costs_microseconds(address: str) -> None:
    """About 20 to 25 of them on a quiet machine, hit or miss; ten times that is a fault."""
    talk = [user(f"m{at}", 100, message=at) for at in range(60)]
    for at in (10, 30, 45, 59) if address in TTL else ():
        talk[at] = replace(talk[at], ttl=TTL[address])
    requests = [[*talk[:40], replace(talk[40], digest=f"{at}"), *talk[41:]] for at in range(200)]
    rounds = []
    for _ in range(5):
        cache, start = model(address), perf_counter()
        for at, blocks in enumerate(requests):
            cache.observe(at, blocks)
        rounds.append((perf_counter() - start) / len(requests))
    assert min(rounds) < 250e-6
