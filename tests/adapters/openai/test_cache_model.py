"""OpenAI's cache models and those of compatible vendors: the published numbers, each rule, a naive twin."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from cache_blocks import Row, assistant, developer, play, system, tool, user
from hypothesis import given, settings
from hypothesis import strategies as st
from kvsdk import (
    CacheBlock,
    CacheModel,
    ConfigurationError,
    InvalidBreakpoints,
    Predicted,
    backend,
    cache_model,
)

NEW = "openai:gpt-6.1-sol"


def model(address: str = NEW, **switches: Any) -> CacheModel:
    """The model of most tests: gpt-5.6 and later."""
    return cache_model(address, **switches)


def vendor(semantics: str, **switches: Any) -> CacheModel:
    """A compatible vendor's model."""
    return cache_model("openai+https://api.example/v1#some-model", semantics=semantics, **switches)


D = developer("D", 2000)
D_MARKED = developer("D", 2000, "30m")
GROWING = [D, user("long", 10_000)]
EXPLICIT = {"mode": "explicit"}

# ---------------------------------------------------------------------- gpt-5.6 and later: the vectors

VECTORS = {
    "implicit, a growing conversation": [
        Row("O1", 0, GROWING, 0, {"30m": 2000 + 10_000}, 0),
        Row(
            "O2",
            1,
            [*GROWING, assistant("a", 1000), user("more", 2000, message=3)],
            12_000,
            {"30m": 1000 + 2000},
            0,
        ),
    ],
    "implicit, the same message grows": [
        Row("O4", 0, [D, user("A", 3000)], 0, {"30m": 5000}, 0),
        Row("O5", 1, [D, user("A", 3000), user("B", 500)], 0, {"30m": 5500}, 0),
    ],
    "implicit, other questions": [
        Row("O6", 0, [D, user("one", 500)], 0, {"30m": 2500}, 0),
        Row("O7", 1, [D, user("two", 500)], 0, {"30m": 2500}, 0),
    ],
    "explicit, other questions": [
        Row("O8", 0, [D_MARKED, user("one", 500)], 0, {"30m": 2000}, 500, EXPLICIT),
        Row("O9", 1, [D_MARKED, user("two", 500)], 2000, {}, 500, EXPLICIT),
    ],
    "explicit without a mark": [
        Row("O10", 0, [D, user("one", 500)], 0, {}, 2500, EXPLICIT),
        Row("O10 again", 1, [D, user("one", 500)], 0, {}, 2500, EXPLICIT),
    ],
    "implicit and a mark, other questions": [
        Row("O11", 0, [D_MARKED, user("one", 500)], 0, {"30m": 2500}, 0),
        Row("O12", 1, [D_MARKED, user("two", 500)], 2000, {"30m": 500}, 0),
    ],
    "measured: litellm PR 37628": [
        Row("first", 0, [system("s", 6002, "30m"), user("one", 1493)], 0, {"30m": 7495}, 0),
        Row("second", 1, [system("s", 6002, "30m"), user("two", 1479)], 6002, {"30m": 1479}, 0),
    ],
    "measured: the AWS cookbook": [
        Row("first", 0, [system("s", 1258, "30m"), user("q", 20)], 0, {"30m": 1258}, 20, EXPLICIT),
        Row("second", 1, [system("s", 1258, "30m"), user("r", 20)], 1258, {}, 20, EXPLICIT),
    ],
}


@pytest.mark.parametrize("name", VECTORS)
def test_the_vectors(name: str) -> None:
    """The sheet's requests read, write and leave what it says."""
    play(model(), VECTORS[name])


# ---------------------------------------------------------------------- gpt-5.6 and later: single rules


def results(count: int, *, message: int) -> list[CacheBlock]:
    """Neighbouring tool results, each a message of its own."""
    return [user(f"r{message + n}", 400, message=message + n, kind="tool_result") for n in range(count)]


def test_only_the_last_result_of_a_group_is_an_ending() -> None:
    """A prompt that stops at an earlier result of the group is not found in the longer one."""
    call = assistant("c", 100, kind="tool_use")
    for count, read in ((1, 0), (2, 3300)):
        cache = model()
        cache.observe(0, [D, user("q", 400), call, *results(count, message=3)])
        later = [D, user("q", 400), call, *results(2, message=3), assistant("a", 50, message=9)]
        found = cache.observe(1, [*later, user("next", 50, message=10)]).read_tokens
        assert found == read


def test_neighbouring_user_messages_end_each() -> None:
    """Blocks of one message do not."""
    for message, read in ((1, 0), (2, 3000)):
        cache = model()
        cache.observe(0, [user("one", 3000)])
        assert cache.observe(1, [user("one", 3000), user("two", 100, message=message)]).read_tokens == read


def test_an_answer_at_the_end_is_no_ending() -> None:
    """The latest eligible ending is the user's; what follows is fresh."""
    assert model().observe(0, [*GROWING, assistant("a", 100)]) == Predicted(0, 12_000, {"30m": 12_000}, 100)


def test_later_developer_messages_are_no_endings() -> None:
    """Only the run at the start has one."""
    blocks = [D, user("q", 400), developer("later", 600, message=3)]
    assert model().observe(0, blocks) == Predicted(0, 2400, {"30m": 2400}, 600)


def test_a_prompt_of_developer_messages_is_written_at_their_end() -> None:
    """It is the latest eligible ending, and later prompts look there."""
    cache = model()
    assert cache.observe(0, [system("I", 300), D]).write_tokens == 2300
    assert cache.observe(1, [system("I", 300), D, user("q", 400)]) == Predicted(2300, 400, {"30m": 400}, 0)


def long_talk(turns: int) -> list[CacheBlock]:
    """A developer message and so many user messages with answers."""
    blocks = [D]
    for turn in range(turns):
        blocks += [
            user(f"u{turn}", 100, message=2 * turn + 1),
            assistant(f"a{turn}", 50, message=2 * turn + 2),
        ]
    return blocks


@pytest.mark.parametrize(("turns", "read"), [(21, 2100), (22, 0)])
def test_implicit_mode_looks_at_20_endings_before_the_latest(turns: int, read: int) -> None:
    """The first turn's ending is found by the 21st, not by the 22nd."""
    cache = model()
    cache.observe(0, long_talk(1))
    assert cache.observe(1, long_talk(turns)).read_tokens == read


def test_the_developer_run_is_looked_at_from_any_distance() -> None:
    """Its end is a lookup boundary however long the conversation is."""
    cache = model()
    cache.observe(0, [D])
    assert cache.observe(1, long_talk(60)).read_tokens == 2000


def test_the_lookback_can_be_off() -> None:
    """Then an agent's loop rewrites its prompt each turn, as a gateway saw."""
    for switch in (False, "off"):
        cache = model(implicit_lookback=switch)
        cache.observe(0, long_talk(1))
        assert cache.observe(1, long_talk(2)).read_tokens == 0


def marked(count: int, ttl: Any = "30m") -> list[CacheBlock]:
    """So many marked blocks of one user message."""
    return [user(f"m{at}", 2000, ttl) for at in range(count)]


def test_more_marks_than_are_written_are_no_error() -> None:
    """Explicit mode writes the last 4, implicit mode the last 3 beside its own."""
    for mode, missed, found in (("explicit", 6, 7), ("implicit", 7, 8)):
        cache = model()
        cache.observe(0, [*marked(10), user("end", 10)], mode=mode)
        assert cache.predict(1, marked(missed), **EXPLICIT).read_tokens == 0
        assert cache.predict(1, marked(found), **EXPLICIT).read_tokens == found * 2000


LOOKUPS = [
    ("guide", 60, 2, 2),
    ("guide", 60, 10, 0),
    ("azure", 60, 2, 0),
    ("azure", 50, 1, 1),
    ("sdk", 80, 1, 1),
]


@pytest.mark.parametrize(("lookup", "count", "stored", "read"), LOOKUPS)
def test_which_marks_are_looked_at(lookup: str, count: int, stored: int, read: int) -> None:
    """The guide: the first 2 and the latest 50; Azure: the latest 50; the SDK: the latest 80."""
    cache = model(lookup=lookup)
    cache.observe(0, marked(stored), **EXPLICIT)
    unmarked = [replace(block, ttl=None) for block in marked(stored)[:-1]]
    if stored == 10:
        cache = model(lookup=lookup)
        cache.observe(0, [*unmarked, marked(10)[-1]], **EXPLICIT)
    assert cache.observe(1, marked(count), **EXPLICIT).read_tokens == read * 2000


def test_the_minimum_is_1024() -> None:
    """A shorter boundary is neither written nor read."""
    assert model().observe(0, [user("q", 1023)]) == Predicted(0, 0, {}, 1023)
    cache = model()
    assert cache.observe(0, [user("q", 1024)]) == Predicted(0, 1024, {"30m": 1024}, 0)
    assert cache.observe(1, [user("q", 1024)]) == Predicted(1024, 0, {}, 0)


def test_ttls_of_marks_and_of_the_request() -> None:
    """Tokens up to the last 12h boundary count as 12h; an unmarked ending has the request's TTL."""
    mixed = [developer("D", 2000, "30m"), user("A", 3000, "12h"), user("q", 500, message=2)]
    assert model().observe(0, mixed).write_by_ttl == {"12h": 5000, "30m": 500}
    assert model().observe(0, mixed, ttl="12h").write_by_ttl == {"12h": 5500}
    assert model().observe(0, GROWING, ttl="12h").write_by_ttl == {"12h": 12_000}
    after = [assistant(f"a{n}", 100, "30m", message=3 + n) for n in range(3)]
    assert model().observe(0, [user("q", 2000, "12h"), *after]).write_by_ttl == {"12h": 2000, "30m": 300}


def test_lives_and_refreshes() -> None:
    """30 minutes or 12 hours from the last write or reuse."""
    for ttl, seconds in (("30m", 1800), ("12h", 43_200)):
        cache = model()
        cache.observe(0, GROWING, ttl=ttl)
        assert cache.observe(seconds - 1, GROWING).read_tokens == 12_000
        assert cache.observe(2 * seconds - 2, GROWING).read_tokens == 12_000
        assert cache.observe(3 * seconds - 2, GROWING).read_tokens == 0


def test_a_read_keeps_the_hit_alive_or_the_chain() -> None:
    """By default only the entry that was read."""
    both = [D_MARKED, user("u", 500, "30m")]
    for refresh, read in (("hit_only", 0), ("chain", 2000)):
        cache = model(refresh=refresh)
        cache.observe(0, both, **EXPLICIT)
        assert cache.observe(1000, both, **EXPLICIT).read_tokens == 2500
        assert cache.observe(2000, [D_MARKED, user("v", 500)], **EXPLICIT).read_tokens == read


def test_when_others_see_an_entry() -> None:
    """At the answer's start, or at its end."""
    for visible, read in (("start", 12_000), ("completion", 0)):
        cache = model(visible=visible)
        cache.observe(0, GROWING, ttft_s=1, total_s=30)
        assert cache.observe(0.5, GROWING, ttft_s=1, total_s=30).read_tokens == 0
        assert cache.observe(10, GROWING).read_tokens == read


@pytest.mark.parametrize(
    ("changed", "read"),
    [
        ({"scope": "acme"}, 0),
        ({"cache_key": "acme"}, 0),
        ({"parallel_tool_calls": False}, 0),
        ({"text_format": {"type": "json_schema", "schema": {"a": [1, 2]}}}, 0),
        ({"effort": "low"}, 0),
        ({"verbosity": "low"}, 0),
        ({"service_tier": "flex"}, 0),
        ({"tool_choice": "none", "images": True, "auto": True}, 12_000),
    ],
)
def test_settings_that_are_part_of_the_key(changed: dict[str, Any], read: int) -> None:
    """Each of them begins another cache; the choice of a tool does not."""
    cache = model()
    cache.observe(0, GROWING)
    assert cache.observe(1, GROWING, **changed).read_tokens == read


def test_tools_are_part_of_the_prompt() -> None:
    """They count, and another tool is another prefix."""
    cache = model()
    assert cache.observe(0, [tool("T", 300), *GROWING]).write_tokens == 12_300
    assert cache.observe(1, GROWING).read_tokens == 0


@pytest.mark.parametrize(
    ("blocks", "given_settings"),
    [
        ([user("q", 2000, "5m")], {}),
        ([user("q", 2000, "1h")], {}),
        ([user("q", 2000)], {"ttl": "5m"}),
        ([user("q", 2000)], {"mode": "off"}),
    ],
)
def test_what_the_vendor_refuses(blocks: list[CacheBlock], given_settings: dict[str, Any]) -> None:
    """Another vendor's TTL, or a mode that there is not."""
    with pytest.raises(InvalidBreakpoints):
        model().observe(0, blocks, **given_settings)


def test_chat_completions_take_only_30m() -> None:
    """12h is of the Responses API."""
    chat = cache_model(backend(NEW, api="chat"))
    assert chat.observe(0, [user("q", 2000, "30m")]).write_tokens == 2000
    with pytest.raises(InvalidBreakpoints):
        chat.observe(0, [user("q", 2000, "12h")])


# ---------------------------------------------------------------------- gpt-5.5 and earlier

G2 = [system("S", 3000), user("q", 741)]
OLD_VECTORS = {
    "gpt-5.5, 3,741 tokens": (
        "openai:gpt-5.5",
        [Row("G1: cold", 0, G2, 0, {}, 3741), Row("G2", 1, G2, 3328, {}, 3741 - 3328)],
    ),
    "gpt-5.5, 1,289 tokens": (
        "openai:gpt-5.5",
        [Row(name, at, [user("q", 1289)], 0, {}, 1289) for at, name in enumerate(["cold", "G1"])],
    ),
    "gpt-5.5, 1,323 tokens": (
        "openai:gpt-5.5",
        [Row(name, at, [user("q", 1323)], 0, {}, 1323) for at, name in enumerate(["cold", "G3"])],
    ),
    "gpt-4.1, 12,033 tokens": (
        "openai:gpt-4.1",
        [
            Row("cold", 0, [user("q", 12_033)], 0, {}, 12_033),
            Row("93 * 128", 1, [user("q", 12_033)], 93 * 128, {}, 12_033 - 11_904),
        ],
    ),
}


@pytest.mark.parametrize("name", OLD_VECTORS)
def test_the_vectors_of_earlier_models(name: str) -> None:
    """Whole intervals are read, nothing is counted as written."""
    address, rows = OLD_VECTORS[name]
    play(model(address), rows)


@pytest.mark.parametrize(
    ("hidden", "read"), [(640, 3456), (641, 3328), (700, 3328), (768, 3328), (769, 3200)]
)
def test_the_hidden_tokens_that_the_measurements_leave(hidden: int, read: int) -> None:
    """641 to 768 give 3,328 of 3,741."""
    cache = model("openai:gpt-5.5", hidden_tokens=hidden)
    cache.observe(0, G2)
    assert cache.observe(1, G2).read_tokens == read


def test_earlier_models_have_switches() -> None:
    """Interval, minimum and hidden tokens are arguments: 5 * 500 - 100 is floored to 128."""
    cache = model("openai:gpt-4o", interval_tokens=500, hidden_tokens=100, min_tokens=256)
    cache.observe(0, [user("q", 2500)])
    assert cache.observe(1, [user("q", 2500)]).read_tokens == 2400 // 128 * 128


@pytest.mark.parametrize(
    ("address", "switches", "idle_s"),
    [
        ("openai:gpt-5.5", {}, 1800),
        ("openai:gpt-4.1", {"retention": "in_memory"}, 300),
        ("openai:gpt-4o", {}, 300),
        ("openai:gpt-4o", {"idle_s": 3600}, 3600),
    ],
)
def test_earlier_models_forget_when_idle(address: str, switches: dict[str, Any], idle_s: int) -> None:
    """The pessimistic end of what each retention says, from the last use."""
    cache = model(address, **switches)
    cache.observe(0, G2)
    assert cache.observe(idle_s - 1, G2).read_tokens > 0
    assert cache.observe(2 * idle_s - 2, G2).read_tokens > 0
    assert cache.observe(3 * idle_s - 2, G2).read_tokens == 0


@pytest.mark.parametrize(
    ("blocks", "given_settings"),
    [
        ([user("q", 2000, "30m")], {}),
        ([user("q", 2000)], {"mode": "explicit"}),
        ([user("q", 2000)], {"ttl": "30m"}),
    ],
)
def test_earlier_models_refuse_marks_and_options(
    blocks: list[CacheBlock], given_settings: dict[str, Any]
) -> None:
    """They are answered with 400."""
    with pytest.raises(InvalidBreakpoints):
        model("openai:gpt-5.5").observe(0, blocks, **given_settings)


# ---------------------------------------------------------------------- compatible vendors

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


def test_azure_is_openai_with_one_ttl() -> None:
    """30 minutes only, and only the latest 50 marks are looked at; a deployment may say its model."""
    url = "https://acme.openai.azure.com"
    cache = cache_model(backend("azure:prod", base_url=url, model="gpt-6.1-sol"))
    cache.observe(0, marked(2), **EXPLICIT)
    assert cache.observe(1, marked(60), **EXPLICIT).read_tokens == 0
    with pytest.raises(InvalidBreakpoints):
        cache.observe(2, marked(1, "12h"))
    with pytest.raises(InvalidBreakpoints):
        cache_model(backend("azure:prod", base_url=url)).observe(0, marked(1))


def test_a_gateway_may_be_given_openais_semantics() -> None:
    """The model's name, after its vendor's, says which."""
    cache = cache_model("openai+https://gateway.example/v1#openai/gpt-5.5", semantics="openai")
    cache.observe(0, G2)
    assert cache.observe(1, G2).read_tokens == 3328


def test_an_unknown_server_caches_nothing() -> None:
    """Nothing is known, so nothing is predicted; it can be given a vendor's semantics."""
    cache = model("openai+https://api.example/v1#m")
    assert [cache.observe(at, [A]) for at in range(2)] == [Predicted(0, 0, {}, 1000)] * 2
    with pytest.raises(ConfigurationError):
        vendor("deepsee")
    with pytest.raises(ConfigurationError):
        model(color="red")


# ---------------------------------------------------------------------- the naive twin

SECONDS = {"30m": 1800, "12h": 43_200}


class Twin:
    """The sheet's steps for gpt-5.6 and later, word by word, with whole prefixes as keys."""

    def __init__(self, refresh: str) -> None:
        self.refresh = refresh
        self.entries: dict[Any, list[float]] = {}  # prefix: seconds of its TTL, when it is over

    def key(self, blocks: Sequence[CacheBlock], i: int, scope: Any) -> Any:
        return (scope, tuple((b.section, b.role, b.kind, b.digest) for b in blocks[: i + 1]))

    def endings(self, blocks: Sequence[CacheBlock]) -> tuple[list[int], list[int]]:
        """E, and the end of the initial developer run (as a list of one or none)."""
        spoken = [i for i, b in enumerate(blocks) if b.section != "tools"]
        ends = []
        run = []
        for i in spoken:
            if blocks[i].role not in ("developer", "system"):
                break
            run.append(i)
        for i in spoken:
            block, rest = blocks[i], [blocks[j] for j in spoken if j > i]
            is_result = block.kind == "tool_result"
            if is_result:
                if not rest or rest[0].kind != "tool_result":
                    ends.append(i)
            elif block.role == "user":
                same = rest and rest[0].role == "user" and rest[0].kind != "tool_result"
                if not same or rest[0].message != block.message:
                    ends.append(i)
        return sorted([*ends, *run[-1:]]), run[-1:]

    def observe(self, t: float, blocks: Sequence[CacheBlock], mode: str, ttl: str, scope: Any) -> Predicted:
        tok = [sum(b.tokens for b in blocks[: i + 1]) for i in range(len(blocks))]
        x = [i for i, b in enumerate(blocks) if b.ttl]
        e, run = self.endings(blocks)
        lookup = x[:2] + x[-50:]
        write = x[-4:]
        if mode == "implicit":
            lookup = lookup + e[-1:] + e[:-1][-20:] + run
            write = e[-1:] + x[-3:]
        alive = [
            i
            for i in lookup
            if tok[i] >= 1024 and t < self.entries.get(self.key(blocks, i, scope), (0, float("-inf")))[1]
        ]
        read = max([tok[i] for i in alive], default=0)
        write = [i for i in write if tok[i] >= 1024 and tok[i] > read]
        top = max([tok[i] for i in write], default=read)
        long = max([tok[i] for i in write if (blocks[i].ttl or ttl) == "12h"], default=read)
        for i in range(len(blocks)):
            entry = self.entries.get(self.key(blocks, i, scope))
            is_hit = tok[i] == read and i in alive
            if entry and t < entry[1] and (is_hit or (self.refresh == "chain" and tok[i] < read)):
                entry[1] = t + entry[0]
        for i in write:
            seconds = SECONDS[blocks[i].ttl or ttl]
            self.entries[self.key(blocks, i, scope)] = [seconds, t + seconds]
        split = {name: n for name, n in (("12h", long - read), ("30m", top - long)) if n}
        return Predicted(read, top - read, split, (tok[-1] if tok else 0) - top)


def _conversation() -> list[CacheBlock]:
    """A long agent conversation, with a developer message in the middle of it."""
    blocks: list[CacheBlock] = []
    for turn in range(14):
        at = 6 * turn
        blocks += [user(f"u{turn}{n}", 100 + n, message=at) for n in range(1 + turn % 2)]
        blocks += [assistant(f"c{turn}{n}", 10, message=at + 1, kind="tool_use") for n in range(2)]
        blocks += [user(f"r{turn}{n}", 90, message=at + 2 + n, kind="tool_result") for n in range(2)]
        blocks.append(assistant(f"a{turn}", 30, message=at + 4))
        if turn == 5:
            blocks.append(developer("steer", 40, message=at + 5))
    return blocks


TALK = _conversation()


@st.composite
def requests(draw: st.DrawFn) -> tuple[float, list[CacheBlock], dict[str, Any]]:
    """Seconds since the last request, a prompt that likely shares a prefix with others, its settings."""
    head = [
        *[tool("T", 200)] * draw(st.integers(0, 1)),
        *[system("I", 300)] * draw(st.integers(0, 1)),
        *[developer(draw(st.sampled_from("DE")), 800), developer("F", 50, message=1)][
            : draw(st.integers(0, 2))
        ],
    ]
    talk = list(TALK[: draw(st.integers(0, len(TALK)))])
    if talk and draw(st.integers(0, 3)) == 0:
        at = draw(st.integers(0, len(talk) - 1))
        talk[at] = replace(talk[at], digest=talk[at].digest + "'")
    blocks = [*head, *talk]
    indexes = st.sampled_from(range(len(blocks))) if blocks else st.nothing()
    for at in draw(st.sets(indexes, max_size=6)) if blocks else ():
        blocks[at] = replace(blocks[at], ttl=draw(st.sampled_from(["30m", "12h"])))
    given_settings = {
        "mode": draw(st.sampled_from(["implicit", "implicit", "explicit"])),
        "ttl": draw(st.sampled_from(["30m", "30m", "12h"])),
        "scope": draw(st.sampled_from([None, None, "tenant"])),
    }
    return draw(st.sampled_from([0, 1, 900, 1799, 1800, 1801, 43_200])), blocks, given_settings


@settings(max_examples=300, deadline=None, derandomize=True)
@given(st.lists(requests(), max_size=12), st.sampled_from(["chain", "hit_only"]))
def test_the_naive_twin_agrees(
    traffic: list[tuple[float, list[CacheBlock], dict[str, Any]]], refresh: str
) -> None:
    """On any traffic the model and the sheet's steps, taken literally, give the same counts."""
    clever, naive = model(refresh=refresh), Twin(refresh)
    now = 0.0
    for wait, blocks, given_settings in traffic:
        now += wait
        expected = naive.observe(now, blocks, **given_settings)
        assert clever.observe(now, blocks, **given_settings) == expected
