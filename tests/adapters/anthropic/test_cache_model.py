"""Anthropic's cache model: the published numbers, each rule, and a naive twin."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
from cache_blocks import Row, assistant, play, system, texts, tool, user
from hypothesis import given, settings
from hypothesis import strategies as st
from kvsdk import CacheBlock, CacheModel, ConfigurationError, InvalidBreakpoints, Predicted, cache_model

SONNET_4 = "anthropic:claude-sonnet-4-5"  # a minimum of 1,024 tokens


def model(**switches: Any) -> CacheModel:
    """The model of the tables: at least 1,024 tokens."""
    return cache_model(SONNET_4, **switches)


S = system("S", 3000, "5m")
PLAIN = system("S", 3000)
LAYERS = [tool("T", 2000, "1h"), system("S", 3000, "1h"), user("u", 1500, "5m"), user("q", 30)]
TURN_1 = [PLAIN, user("u1", 50)]
TURN_2 = [*TURN_1, assistant("a1", 200), user("u2", 40, message=3)]
EDITED = [PLAIN, user("u1, edited", 50), *TURN_2[2:]]
AUTO = {"auto": True}

# ---------------------------------------------------------------------- the vectors

VECTORS = {
    "a marked system": [
        Row("A1", 0, [S, user("one", 50)], 0, {"5m": 3000}, 50),
        Row("A2", 60, [S, user("other", 70)], 3000, {}, 70),
        Row("A3: 299 s after A2", 359, [S, user("other", 70)], 3000, {}, 70),
        Row("A4: 301 s after A3", 660, [S, user("other", 70)], 0, {"5m": 3000}, 70),
    ],
    "the automatic mark": [
        Row("A5", 0, TURN_1, 0, {"5m": 3000 + 50}, 0, AUTO),
        Row("A6", 1, TURN_2, 3050, {"5m": 200 + 40}, 0, AUTO),
        Row("A7", 2, EDITED, 0, {"5m": 3000 + 50 + 200 + 40}, 0, AUTO),
    ],
    "20 positions": [
        Row("A8: 10 blocks", 0, texts(10, 200, "5m"), 0, {"5m": 2000}, 0),
        Row("A9: 15 blocks", 1, texts(15, 200, "5m"), 2000, {"5m": 1000}, 0),
        Row("A10: 35 blocks", 2, texts(35, 200, "5m"), 0, {"5m": 7000}, 0),
    ],
    "two TTLs": [
        Row("A12", 0, LAYERS, 0, {"1h": 2000 + 3000, "5m": 1500}, 30),
        Row("A13: 400 s later", 400, LAYERS, 2000 + 3000, {"5m": 1500}, 30),
    ],
}

REFUSED = {
    "A15: tools 5m, then system 1h": ([tool("T", 2000, "5m"), system("S", 3000, "1h")], {}),
    "1h, 5m, 1h": ([tool("T", 2000, "1h"), system("S", 3000, "5m"), user("q", 30, "1h")], {}),
    "A16: five marks": ([tool("T", 2000, "5m"), *(system(str(at), 900, "5m") for at in range(4))], {}),
    "a mark on thinking": ([S, assistant("t", 10, "5m", kind="thinking")], {}),
    "a mark on redacted thinking": ([S, assistant("t", 10, "5m", kind="redacted_thinking")], {}),
    "a mark on an empty text": ([S, user("", 0, "5m")], {}),
    "another vendor's TTL": ([system("S", 3000, "30m")], {}),
    "another vendor's automatic TTL": ([PLAIN], {"auto": "12h"}),
    "the automatic mark on one with another TTL": ([S], {"auto": "1h"}),
    "the automatic mark as the fifth": (
        [*(system(str(at), 900, "5m") for at in range(4)), user("q", 30)],
        AUTO,
    ),
    "the automatic mark longer than one before it": ([S, user("q", 30)], {"auto": True, "ttl": "1h"}),
}


@pytest.mark.parametrize("name", VECTORS)
def test_the_vectors(name: str) -> None:
    """The sheet's requests read, write and leave what it says."""
    play(model(), VECTORS[name])


@pytest.mark.parametrize("name", REFUSED)
def test_what_the_vendor_refuses(name: str) -> None:
    """A request that is answered with 400 raises, and changes nothing."""
    blocks, given_settings = REFUSED[name]
    cache = model()
    with pytest.raises(InvalidBreakpoints):
        cache.observe(0, blocks, **given_settings)
    unmarked = [replace(block, ttl=None) for block in blocks if block.tokens and "think" not in block.kind]
    assert cache.predict(1, [*unmarked[:-1], replace(unmarked[-1], ttl="5m")]).read_tokens == 0


# ---------------------------------------------------------------------- single rules


def test_the_minimum_is_the_models() -> None:
    """600 tokens are cached by a model with a minimum of 512, not by one of 1,024."""
    short = [system("S", 600, "5m"), user("q", 10)]
    assert cache_model("anthropic:claude-sonnet-5-5").observe(0, short).write_tokens == 600
    assert cache_model(SONNET_4).observe(0, short) == Predicted(0, 0, {}, 610)
    assert cache_model("anthropic:claude-of-tomorrow").observe(0, short).write_tokens == 0
    assert cache_model(SONNET_4, min_tokens=600).observe(0, short).write_tokens == 600


def test_a_minimum_per_increment() -> None:
    """With `min_on="increment"` a mark must add the minimum to the last one that counted."""
    blocks = [tool("T", 1100, "5m"), system("S", 500, "5m"), user("u", 600, "5m"), user("q", 10)]
    assert model().observe(0, blocks).write_tokens == 1100 + 500 + 600
    assert model(min_on="increment").observe(0, blocks).write_tokens == 1100 + 500 + 600
    assert model(min_on="increment").observe(0, blocks[:2]).write_tokens == 1100


def test_the_automatic_mark_passes_over_what_cannot_carry_it() -> None:
    """Thinking and empty texts are walked over; with nothing left there is no mark."""
    thinking = assistant("t", 100, kind="thinking")
    assert model().observe(0, [PLAIN, thinking, user("", 0)], **AUTO) == Predicted(0, 3000, {"5m": 3000}, 100)
    assert model().observe(0, [thinking], **AUTO) == Predicted(0, 0, {}, 100)


def test_the_automatic_mark_has_a_ttl() -> None:
    """By `ttl`, or as the value of `auto`; on a mark of the same TTL it does nothing."""
    for asked in ({"auto": True, "ttl": "1h"}, {"auto": "1h"}):
        assert model().observe(0, [PLAIN], **asked).write_by_ttl == {"1h": 3000}
    assert model().observe(0, [S], auto="5m").write_by_ttl == {"5m": 3000}


def test_a_run_of_tool_blocks_is_one_position() -> None:
    """30 tool results between two marks are one position, and 30 without `group_tool_runs`."""
    results = [user(f"r{at}", 10, message=3, kind="tool_result") for at in range(30)]
    rows = [PLAIN, user("u", 10, "5m"), *results]
    for switches, read in (({}, 3010), ({"group_tool_runs": False}, 0)):
        cache = model(**switches)
        cache.observe(0, rows)
        more = [PLAIN, user("u", 10), *results, user("end", 10, "5m", message=3)]
        assert cache.observe(1, more).read_tokens == read


def test_runs_end_with_their_message() -> None:
    """Tool results of different messages are different positions."""
    results = [user(f"r{at}", 10, message=at, kind="tool_result") for at in range(30)]
    cache = model()
    cache.observe(0, [PLAIN, user("u", 10, "5m"), *results])
    last = user("end", 10, "5m", message=99)
    assert cache.observe(1, [PLAIN, user("u", 10), *results, last]).read_tokens == 0


@pytest.mark.parametrize(("count", "read"), [(11, 2000), (29, 2000), (30, 0), (31, 0)])
def test_the_window_has_exactly_20_positions(count: int, read: int) -> None:
    """An entry at block 10 is found by a mark at block 29, which is 19 further, and not by one at 30."""
    cache = model()
    cache.observe(0, texts(10, 200, "5m"))
    assert cache.observe(1, texts(count, 200, "5m")).read_tokens == read


def test_an_earlier_mark_continues_the_search() -> None:
    """What the last mark's window does not reach, an earlier mark's does."""
    cache = model()
    cache.observe(0, texts(10, 200, "5m"))
    blocks = texts(35, 200, "5m")
    blocks[14] = replace(blocks[14], ttl="5m")
    assert cache.observe(1, blocks) == Predicted(2000, 5000, {"5m": 5000}, 0)


def test_a_later_request_sees_an_entry_when_the_answer_begins() -> None:
    """Two in flight both write; the earlier one's visibility stays."""
    cache = model()
    assert cache.observe(0, [S], ttft_s=2).write_tokens == 3000
    assert cache.observe(1, [S], ttft_s=5).write_tokens == 3000
    assert cache.observe(2, [S], ttft_s=5).read_tokens == 3000


def test_an_entry_ends_at_its_ttl() -> None:
    """It is used while t < expires, counted from the request's start."""
    for after, read in ((299.999, 3000), (300, 0)):
        cache = model()
        cache.observe(0, [S])
        assert cache.observe(after, [S]).read_tokens == read


def test_an_entry_in_use_lives_on() -> None:
    """Each read starts its 5 minutes anew, however long ago it was written."""
    cache = model()
    cache.observe(0, [S])
    assert [cache.observe(use * 299, [S]).read_tokens for use in range(1, 12)] == [3000] * 11


def test_a_read_keeps_the_chain_alive_or_only_the_hit() -> None:
    """By default shorter prefixes of what was read live on too."""
    both = [tool("T", 2000, "5m"), S, user("q", 10)]
    for refresh, read in (("chain", 2000), ("hit_only", 0)):
        cache = model(refresh=refresh)
        cache.observe(0, both)
        assert cache.observe(200, both).read_tokens == 5000
        assert cache.observe(400, [both[0], system("other", 3000), user("q", 10)]).read_tokens == read


def test_a_1h_mark_on_a_live_5m_entry_reads_it() -> None:
    """It writes nothing, so it pays nothing and lengthens nothing."""
    cache = model()
    cache.observe(0, [S])
    assert cache.observe(1, [system("S", 3000, "1h")]) == Predicted(3000, 0, {}, 0)
    assert cache.observe(302, [S]).read_tokens == 0


CHANGES = [
    ({"scope": "other workspace"}, 0),
    ({"speed": "fast"}, 2000),
    ({"web_search": True}, 2000),
    ({"citations": True}, 2000),
    ({"tool_choice": {"type": "any"}}, 5000),
    ({"disable_parallel_tool_use": True}, 5000),
    ({"images": True}, 5000),
    ({"thinking": {"type": "enabled", "budget_tokens": 1024}}, 5000),
    ({"effort": "low"}, 5000),
    ({"web_search": False, "disable_parallel_tool_use": False, "effort": None, "ttft_s": 1}, 6500),
    ({"mode": "explicit", "service_tier": "batch", "cache_key": "k", "verbosity": "low"}, 6500),
]


@pytest.mark.parametrize(("changed", "read"), CHANGES)
def test_settings_enter_the_key_where_they_stand(changed: dict[str, Any], read: int) -> None:
    """Tools (2,000), system (3,000) and messages (1,500) survive what comes after them."""
    cache = model()
    cache.observe(0, LAYERS)
    assert cache.observe(1, LAYERS, **changed).read_tokens == read


def test_thinking_may_be_part_of_the_root() -> None:
    """With `thinking_in_root` another effort loses the tools too."""
    cache = model(thinking_in_root=True)
    cache.observe(0, LAYERS, effort="high")
    assert cache.observe(1, LAYERS, effort="low").read_tokens == 0


def test_an_image_changes_the_messages_key() -> None:
    """Its presence is found from the blocks."""
    cache = model()
    cache.observe(0, LAYERS)
    with_image = [*LAYERS, user("i", 900, kind="image", message=3)]
    assert cache.observe(1, with_image).read_tokens == 5000


@pytest.mark.parametrize(
    "switch", [{"refresh": "none"}, {"min_on": "all"}, {"colour": "red"}, {"model": "x"}]
)
def test_switches_are_checked(switch: dict[str, Any]) -> None:
    """An unknown switch, or an unknown value of one, is an error of ours."""
    with pytest.raises(ConfigurationError):
        model(**switch)


# ---------------------------------------------------------------------- the naive twin

SECONDS = {"5m": 300, "1h": 3600}


class Twin:
    """The sheet's steps, word by word, with whole prefixes as keys."""

    def __init__(self, minimum: int, *, refresh: str, group_tool_runs: bool) -> None:
        self.minimum, self.refresh, self.group = minimum, refresh, group_tool_runs
        self.entries: dict[Any, dict[str, Any]] = {}

    def key(self, blocks: Sequence[CacheBlock], i: int, given: Mapping[str, Any]) -> Any:
        content = [(b.section, b.role, b.kind, b.digest) for b in blocks[: i + 1]]
        last = blocks[i].section
        in_system = given.get("speed") if last != "tools" else None
        in_messages = given.get("tool_choice") if last == "messages" else None
        return (given.get("scope"), in_system, in_messages, tuple(content))

    def live(self, key: Any, t: float) -> bool:
        return key in self.entries and self.entries[key]["visible"] <= t < self.entries[key]["expires"]

    def positions(self, blocks: Sequence[CacheBlock]) -> list[int]:
        numbers: list[int] = []
        for i, block in enumerate(blocks):
            before = blocks[i - 1] if i else None
            joins = (
                self.group
                and before is not None
                and block.kind in ("tool_use", "tool_result")
                and (before.kind, before.message, before.section)
                == (block.kind, block.message, block.section)
            )
            numbers.append(numbers[-1] if joins else len(set(numbers)))
        return numbers

    def observe(self, t: float, blocks: Sequence[CacheBlock], **given: Any) -> Predicted:
        tok = [sum(b.tokens for b in blocks[: i + 1]) for i in range(len(blocks))]
        marks = {i: b.ttl for i, b in enumerate(blocks) if b.ttl}
        if given.get("auto"):  # step 0
            able = [
                i
                for i, b in enumerate(blocks)
                if "thinking" not in b.kind and not (b.kind == "text" and not b.tokens)
            ]
            if able:
                if marks.get(able[-1], "5m") != "5m":
                    raise InvalidBreakpoints("conflict")
                marks[able[-1]] = "5m"
        lengths = [SECONDS[marks[i]] for i in sorted(marks)]
        if len(marks) > 4 or lengths != sorted(lengths, reverse=True):  # step 1
            raise InvalidBreakpoints("refused")
        position = self.positions(blocks)  # steps 2 and 3
        hit, read = None, 0
        for mark in sorted(marks, reverse=True):
            window = [i for i in range(mark + 1) if position[mark] - position[i] < 20]
            alive = [i for i in window if self.live(self.key(blocks, i, given), t)]
            if alive:
                hit, read = alive[-1], tok[alive[-1]]
                break
        writes = [i for i in marks if tok[i] > read and tok[i] >= self.minimum]  # step 4
        b = max([tok[i] for i in writes if marks[i] == "1h"], default=read)  # step 5
        c = max([tok[i] for i in writes], default=read)
        if hit is not None:  # step 7
            for i in range(hit + 1) if self.refresh == "chain" else [hit]:
                key = self.key(blocks, i, given)
                if self.live(key, t):
                    self.entries[key]["expires"] = t + self.entries[key]["ttl"]
        for i in writes:  # step 6
            key, ttl, visible = self.key(blocks, i, given), SECONDS[marks[i]], t + given.get("ttft_s", 0)
            old = self.entries.get(key)
            if old and t < old["expires"]:
                visible = min(visible, old["visible"])
            self.entries[key] = {"ttl": ttl, "expires": t + ttl, "visible": visible}
        split = {ttl: n for ttl, n in (("1h", b - read), ("5m", c - b)) if n}
        return Predicted(read, c - read, split, (tok[-1] if tok else 0) - c)


def _conversation() -> list[CacheBlock]:
    """A long agent conversation: runs of calls and results, thinking, an empty text."""
    blocks: list[CacheBlock] = []
    for turn in range(8):
        blocks.append(user(f"u{turn}", 20 + turn, message=3 * turn))
        blocks.append(assistant(f"t{turn}", 5, message=3 * turn + 1, kind="thinking"))
        blocks += [assistant(f"c{turn}{n}", 10, message=3 * turn + 1, kind="tool_use") for n in range(3)]
        blocks += [user(f"r{turn}{n}", 15, message=3 * turn + 2, kind="tool_result") for n in range(2)]
        blocks.append(user("" if turn % 3 else "note", 0 if turn % 3 else 4, message=3 * turn + 2))
    return blocks


TALK = _conversation()


@st.composite
def requests(draw: st.DrawFn) -> tuple[float, list[CacheBlock], dict[str, Any]]:
    """Seconds since the last request, a prompt that likely shares a prefix with others, its settings."""
    tools = [tool(f"tool{n}", 40) for n in range(draw(st.integers(0, 2)))]
    texts_of_system = [system(draw(st.sampled_from("AB")), 60), system("C", 30)][: draw(st.integers(0, 2))]
    talk = list(TALK[: draw(st.integers(0, len(TALK)))])
    if talk and draw(st.integers(0, 3)) == 0:
        at = draw(st.integers(0, len(talk) - 1))
        talk[at] = replace(talk[at], digest=talk[at].digest + "'")
    blocks = [*tools, *texts_of_system, *talk]
    able = [i for i, b in enumerate(blocks) if b.kind != "thinking" and b.tokens]
    chosen = sorted(draw(st.sets(st.sampled_from(able), max_size=4))) if able else []
    long = draw(st.integers(0, len(chosen)))
    for number, at in enumerate(chosen):
        blocks[at] = replace(blocks[at], ttl="1h" if number < long else "5m")
    given_settings: dict[str, Any] = {
        "auto": draw(st.booleans()),
        "ttft_s": draw(st.sampled_from([0, 0, 5])),
        "scope": draw(st.sampled_from([None, None, "tenant"])),
        "tool_choice": draw(st.sampled_from([None, None, "any"])),
        "speed": draw(st.sampled_from([None, None, "fast"])),
    }
    return draw(st.sampled_from([0, 1, 4, 5, 150, 299, 300, 301, 3600])), blocks, given_settings


def outcome(cache: Any, t_s: float, blocks: Sequence[CacheBlock], given_settings: dict[str, Any]) -> Any:
    """The counts, or that the request is refused."""
    try:
        return cache.observe(t_s, blocks, **given_settings)
    except InvalidBreakpoints:
        return "refused"


@settings(max_examples=300, deadline=None, derandomize=True)
@given(st.lists(requests(), max_size=12), st.sampled_from(["chain", "hit_only"]), st.booleans())
def test_the_naive_twin_agrees(
    traffic: list[tuple[float, list[CacheBlock], dict[str, Any]]], refresh: str, group: bool
) -> None:
    """On any traffic the model and the sheet's steps, taken literally, give the same counts."""
    clever = model(min_tokens=100, refresh=refresh, group_tool_runs=group)
    naive = Twin(100, refresh=refresh, group_tool_runs=group)
    now = 0.0
    for wait, blocks, given_settings in traffic:
        now += wait
        expected = outcome(naive, now, blocks, given_settings)
        assert outcome(clever, now, blocks, given_settings) == expected
