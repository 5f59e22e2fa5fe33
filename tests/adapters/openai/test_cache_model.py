"""OpenAI's cache models: the published numbers, and each rule."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from cache_blocks import Row, assistant, developer, marked, play, system, tool, user
from kvsdk import (
    CacheBlock,
    CacheModel,
    InvalidBreakpoints,
    Predicted,
    backend,
    cache_model,
)

NEW = "openai:gpt-6.1-sol"


def model(address: str = NEW, **switches: Any) -> CacheModel:
    """The model of most tests: gpt-5.6 and later."""
    return cache_model(address, **switches)


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


# ---------------------------------------------------------------------- behind other addresses


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
