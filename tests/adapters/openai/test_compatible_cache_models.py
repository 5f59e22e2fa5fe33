"""The cache models of vendors that speak OpenAI's API: the published numbers, and each one's rule."""

from __future__ import annotations

from typing import Any

import pytest
from cache_blocks import Row, assistant, marked, play, user
from kvsdk import (
    CacheModel,
    ConfigurationError,
    InvalidBreakpoints,
    Predicted,
    backend,
    cache_model,
)


def vendor(semantics: str, **switches: Any) -> CacheModel:
    """A compatible vendor's model."""
    return cache_model("openai+https://api.example/v1#some-model", semantics=semantics, **switches)


A, B, C, OTHER_D = user("A", 1000), user("B", 100), user("C", 100), user("D", 100)


def grown(*sizes: int) -> list[Row]:
    """Prompts that grow by a block each, of these totals."""
    rows, blocks, before = [], [], 0
    for size in sizes:
        blocks = [*blocks, user(f"up to {size}", size - before)]
        before = size
        rows.append(blocks)
    return [Row(str(size), at, rows[at], 0, {}, size) for at, size in enumerate(sizes)]


KIMI_SIZES = (11_250, 11_272, 11_294, 11_316, 11_338)
KIMI_READS = (0, 11_008, 11_264, 11_264, 11_264)
VENDORS: dict[str, tuple[str, list[Row]]] = {
    "deepseek: what grows is read": (
        "deepseek",
        [Row("A+B", 0, [A, B], 0, {}, 1100), Row("A+B+C", 1, [A, B, C], 1100, {}, 100)],
    ),
    "deepseek: a common prefix is found the third time": (
        "deepseek",
        [
            Row("A+B", 0, [A, B], 0, {}, 1100),
            Row("A+C", 1, [A, C], 0, {}, 1100),
            Row("A+D", 2, [A, OTHER_D], 1000, {}, 100),
        ],
    ),
    "deepseek: the answer's end is a unit": (
        "deepseek",
        [
            Row("A", 0, [A], 0, {}, 1000, {"output": assistant("a", 50)}),
            Row("A+a+B", 1, [A, assistant("a", 50), B], 1050, {}, 100),
        ],
    ),
    "kimi-for-coding: chunks of 256": (
        "kimi-for-coding",
        [
            row._replace(read=read, fresh=row.fresh - read)
            for row, read in zip(grown(*KIMI_SIZES), KIMI_READS, strict=True)
        ],
    ),
    "kimi-for-coding: a repeat is read whole": (
        "kimi-for-coding",
        [
            Row("cold", 0, [A], 0, {}, 1000),
            Row("again", 299, [A], 1000, {}, 0),
            Row("over", 599, [A], 0, {}, 1000),
        ],
    ),
    "kimi: a write is counted": (
        "kimi",
        [
            Row("cold", 0, [A], 0, {"5m": 1000}, 0),
            Row("more", 299, [A, B], 1000, {"5m": 100}, 0),
            Row("over", 599, [A, B], 0, {"1h": 1100}, 0, {"ttl": "1h"}),
            Row("1h", 4198, [A, B], 1100, {}, 0),
        ],
    ),
    "xai: floored to 128": (
        "xai",
        [Row("cold", 0, [A, B], 0, {}, 1100), Row("7 * 128", 9999, [A, C], 7 * 128, {}, 1100 - 896)],
    ),
    "mistral: floored to 64": (
        "mistral",
        [Row("cold", 0, [A, B], 0, {}, 1100), Row("15 * 64", 1, [A, C], 15 * 64, {}, 1100 - 960)],
    ),
    "groq: the prefix in common, for two hours": (
        "groq",
        [
            Row("cold", 0, [A, B], 0, {}, 1100),
            Row("A", 7199, [A, C], 1000, {}, 100),
            Row("over", 14_399, [A, C], 0, {}, 1100),
        ],
    ),
    "fireworks: the prefix in common": (
        "fireworks",
        [Row("cold", 0, [A, B], 0, {}, 1100), Row("A", 1, [A, C], 1000, {}, 100)],
    ),
    "qwen: marks, for 300 s from the last use": (
        "qwen",
        [
            Row("write", 0, [user("s", 1500, "5m"), B], 0, {"5m": 1500}, 100),
            Row("read", 299, [user("s", 1500, "5m"), C], 1500, {}, 100),
            Row("further", 598, [user("s", 1500), user("C", 100, "5m")], 1500, {"5m": 100}, 0),
            Row("over", 898, [user("s", 1500), user("C", 100, "5m")], 0, {"5m": 1600}, 0),
        ],
    ),
    "qwen: too short": ("qwen", [Row("1,000", 0, [user("A", 1000, "5m")], 0, {}, 1000)]),
    "qwen: no mark, no promise": (
        "qwen",
        [Row("cold", 0, [user("s", 1500)], 0, {}, 1500), Row("again", 1, [user("s", 1500)], 0, {}, 1500)],
    ),
}


@pytest.mark.parametrize("name", VENDORS)
def test_the_vectors_of_compatible_vendors(name: str) -> None:
    """Each by its own rule."""
    semantics, rows = VENDORS[name]
    play(vendor(semantics), rows)


def test_qwen_shows_an_entry_when_the_answer_is_complete() -> None:
    """Its marks are four at most, and its implicit cache can be asked for."""
    marked_text = [user("s", 1500, "5m")]
    cache = vendor("qwen")
    cache.observe(0, marked_text, ttft_s=1, total_s=30)
    assert cache.predict(29, marked_text).read_tokens == 0
    assert cache.predict(30, marked_text).read_tokens == 1500
    for refused in (marked(5, "5m"), marked(1, "1h")):
        with pytest.raises(InvalidBreakpoints):
            cache.observe(31, refused)
    implicit = vendor("qwen", implicit=True)
    implicit.observe(0, [user("s", 1500), B])
    assert implicit.observe(1, [user("s", 1500), C]).read_tokens == 1500


def test_deepseek_has_switches() -> None:
    """Units are built for a while; steps, and units at a stride in long prompts."""
    cache = vendor("deepseek", build_s=5, step_tokens=64)
    cache.observe(0, [A, B], total_s=2)
    assert cache.predict(6, [A, B]).read_tokens == 0
    assert cache.predict(7, [A, B]).read_tokens == 1100 // 64 * 64
    cache = vendor("deepseek", stride_tokens=600)
    cache.observe(0, [A, B])
    assert cache.observe(1, [A, C]).read_tokens == 1000


def test_tenants_are_apart() -> None:
    """`scope` is part of every vendor's key."""
    for semantics in ("deepseek", "kimi", "kimi-for-coding", "xai", "mistral", "groq", "fireworks"):
        cache = vendor(semantics)
        cache.observe(0, [A, B], scope="a")
        assert cache.observe(1, [A, B], scope="b").read_tokens == 0


@pytest.mark.parametrize(
    ("address", "options", "reads"),
    [
        ("openai+https://api.deepseek.com/v1#deepseek-chat", {}, [0, 0, 1000]),
        ("openai+https://api.x.ai/v1#grok-5", {}, [0, 896, 896]),
        ("openai+http://127.0.0.1:1/v1#grok-5", {"profile": "xai"}, [0, 896, 896]),
        ("openai+https://api.moonshot.ai/v1#kimi-k3", {}, [0, 1000, 1000]),
        ("openai+https://api.moonshot.ai/v1#kimi-for-coding", {}, [0, 768, 768]),
    ],
)
def test_a_known_server_has_its_vendors_model(
    address: str, options: dict[str, Any], reads: list[int]
) -> None:
    """By its host, or by its profile."""
    cache = cache_model(backend(address, **options))
    assert [cache.observe(at, [A, last]).read_tokens for at, last in enumerate((B, C, OTHER_D))] == reads


def test_an_unknown_server_caches_nothing() -> None:
    """Nothing is known, so nothing is predicted; it can be given a vendor's semantics."""
    cache = cache_model("openai+https://api.example/v1#m")
    assert [cache.observe(at, [A]) for at in range(2)] == [Predicted(0, 0, {}, 1000)] * 2
    with pytest.raises(ConfigurationError):
        vendor("deepsee")
    with pytest.raises(ConfigurationError):
        cache_model("openai:gpt-6.1-sol", color="red")
