"""A naive twin of the cache model of gpt-5.6 and later: on any traffic the two agree."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from cache_blocks import assistant, developer, system, tool, user
from hypothesis import given, settings
from hypothesis import strategies as st
from kvsdk import CacheBlock, Predicted, cache_model

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
    clever, naive = cache_model("openai:gpt-6.1-sol", refresh=refresh), Twin(refresh)
    now = 0.0
    for wait, blocks, given_settings in traffic:
        now += wait
        expected = naive.observe(now, blocks, **given_settings)
        assert clever.observe(now, blocks, **given_settings) == expected
