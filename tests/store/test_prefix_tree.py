"""The prefix tree against a naive twin: a dict of whole prefixes, searched by scanning."""

from __future__ import annotations

import copy
from array import array
from collections import OrderedDict
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from kvsdk.errors import InvalidRequest
from kvsdk.kv.identity.hashing import pack_tokens
from kvsdk.store.entries.prefix_tree import PrefixMatch, PrefixTree

# Ids that share bytes at either end, so a cut or a comparison inside a token would be seen.
IDS = st.sampled_from([0, 1, 256, 257, 1 << 24, 0x01000001])
PROMPTS = st.lists(IDS, max_size=14)
Twin = dict[tuple[int, ...], Any]


def naive_longest(twin: Twin, tokens: list[int]) -> list[tuple[int, Any]]:
    """Every prefix of the prompt, looked up whole."""
    prefixes = [tuple(tokens[:end]) for end in range(1, len(tokens) + 1)]
    return [(len(prefix), twin[prefix]) for prefix in prefixes if prefix in twin]


def prefixes_of(twin: Twin) -> set[tuple[int, ...]]:
    """The nodes of a tree of single tokens that holds just these values."""
    return {key[:end] for key in twin for end in range(1, len(key) + 1)}


def contents(tree: PrefixTree[Any], edge_tokens: int) -> Twin:
    """All that a tree holds, read from its inside; what its file promises of every node is checked."""
    found: Twin = {}
    places = {place: index for index, place in enumerate(tree._order)}
    nodes, waiting = 0, [(tree._root, b"")]
    while waiting:
        node, head = waiting.pop()
        whole = head + node.edge
        assert node.start_bytes == len(head)
        assert len(node.edge) % 4 == 0
        assert len(node.edge) <= 4 * edge_tokens
        assert len(node.ends) == len(node.values)
        assert all(len(head) < 4 * end <= len(whole) for end in node.ends)
        ids = array("I", whole)
        found |= {tuple(ids[:end]): value for end, value in zip(node.ends, node.values, strict=True)}
        if node is not tree._root:
            nodes += 1
            assert tree._order[node.place] is node
            assert node.children or 4 * node.ends[-1] == len(whole)
        for first, child in node.children.items():
            assert child.parent is node
            assert child.edge[:4] == first
            if node is not tree._root:
                assert places[child.place] < places[node.place]
                assert len(node.children) > 1 or len(node.edge + child.edge) > 4 * edge_tokens
            waiting.append((child, whole))
    assert nodes == len(places)
    return found


class TreeMachine(RuleBasedStateMachine):
    """A tree and its twin under the same calls; with a bound, the twin drops what the tree forgot."""

    @initialize(edge_tokens=st.sampled_from([1, 2, 3, 5, 100]), bound=st.none() | st.integers(1, 40))
    def start(self, edge_tokens: int, bound: int | None) -> None:
        self.edge_tokens, self.bound = edge_tokens, bound
        self.tree: PrefixTree[int] = PrefixTree(max_tokens=bound, edge_tokens=edge_tokens)
        self.twin: Twin = {}
        self.calls = 0

    @rule(tokens=PROMPTS, data=st.data())
    def insert(self, tokens: list[int], data: st.DataObject) -> None:
        self._insert(tokens, data)

    @precondition(lambda self: self.twin)
    @rule(tail=PROMPTS, data=st.data())
    def insert_another_tail(self, tail: list[int], data: st.DataObject) -> None:
        head = data.draw(st.sampled_from(sorted(self.twin)))
        self._insert([*head[: data.draw(st.integers(0, len(head)))], *tail], data)

    def _insert(self, tokens: list[int], data: st.DataObject) -> None:
        ends = sorted(data.draw(st.sets(st.integers(1, len(tokens))))) if tokens else []
        self.calls += 1
        self.tree.insert(pack_tokens(tokens), [(end, self.calls) for end in ends])
        self.twin |= {tuple(tokens[:end]): self.calls for end in ends}
        if self.bound is not None:
            self._drop_forgotten(keep={tuple(tokens[:end]) for end in ends if end <= self.bound})

    def _drop_forgotten(self, keep: set[tuple[int, ...]]) -> None:
        assert self.bound is not None
        kept = contents(self.tree, self.edge_tokens)
        forgotten = self.twin.keys() - kept.keys()
        assert not forgotten & keep  # what was just inserted, as far as it fits at all
        assert not forgotten & prefixes_of(kept)  # no head before its tail
        assert len(prefixes_of(self.twin)) > self.bound or not forgotten  # nothing without need
        self.twin = {key: value for key, value in self.twin.items() if key in kept}

    @rule(tokens=PROMPTS)
    def look_up(self, tokens: list[int]) -> None:
        match = self.tree.longest(pack_tokens(tokens))
        expected = naive_longest(self.twin, tokens)
        assert list(match) == expected
        assert match.end_tokens == (expected[-1][0] if expected else 0)

    @precondition(lambda self: self.twin)
    @rule(tail=PROMPTS, data=st.data())
    def look_up_what_is_near(self, tail: list[int], data: st.DataObject) -> None:
        head = data.draw(st.sampled_from(sorted(self.twin)))
        self.look_up([*head[: data.draw(st.integers(0, len(head)))], *tail])

    @rule(tokens=PROMPTS.filter(bool))
    def remove_anything(self, tokens: list[int]) -> None:
        had = self.twin.pop(tuple(tokens), None)
        assert self.tree.remove(pack_tokens(tokens), len(tokens)) is (had is not None)

    @precondition(lambda self: self.twin)
    @rule(tail=PROMPTS, data=st.data())
    def remove_what_is_there(self, tail: list[int], data: st.DataObject) -> None:
        key = data.draw(st.sampled_from(sorted(self.twin)))
        del self.twin[key]
        assert self.tree.remove(pack_tokens([*key, *tail]), len(key))

    @invariant()
    def holds_the_same(self) -> None:
        assert contents(self.tree, self.edge_tokens) == self.twin
        assert len(self.tree) == len(self.twin)
        assert self.tree.held_tokens == len(prefixes_of(self.twin))
        assert self.bound is None or self.tree.held_tokens <= self.bound


TestTreeMachine = TreeMachine.TestCase
TestTreeMachine.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)


# ------------------------------------------------------------------ look up


def tree_of(*prompts: list[int], every: int = 1, **options: int) -> PrefixTree[int]:
    """A value at every so many tokens, the prompt's number."""
    tree: PrefixTree[int] = PrefixTree(**options)
    for number, tokens in enumerate(prompts):
        tree.insert(pack_tokens(tokens), [(end, number) for end in range(every, len(tokens) + 1, every)])
    return tree


@pytest.mark.parametrize("edge_tokens", [7, 64, 1000])
def test_a_prompt_may_leave_at_any_token(edge_tokens: int) -> None:
    """Of 100 tokens with a value at every 16, one that differs at token 40 finds those at 16 and 32."""
    stored = list(range(1000, 1100))
    tree = tree_of(stored, every=16, edge_tokens=edge_tokens)
    for at in range(101):
        expected = [(end, 0) for end in range(16, min(at, 96) + 1, 16)]
        assert list(tree.longest(pack_tokens(stored[:at]))) == expected
        assert list(tree.longest(pack_tokens([*stored[:at], 7, *stored[at + 1 :]]))) == expected


def test_what_shares_bytes_but_no_token_shares_nothing() -> None:
    """0x01010101 and 0x02010101 begin with the same three bytes."""
    tree = tree_of([0x01010101, 5])
    assert list(tree.longest(pack_tokens([0x02010101, 5]))) == []
    tree.insert(pack_tokens([0x01010101, 0x05000005]), [(2, 9)])
    assert list(tree.longest(pack_tokens([0x01010101, 0x05000005]))) == [(1, 0), (2, 9)]
    assert list(tree.longest(pack_tokens([0x01010101, 0x05000006]))) == [(1, 0)]


def test_the_same_tokens_at_another_offset_are_not_found() -> None:
    """A prefix begins at the first token, not at the first byte that fits."""
    tree = tree_of([1, 2, 3])
    assert list(tree.longest(pack_tokens([2, 3]))) == []
    assert list(tree.longest(pack_tokens([1 << 8, 2 << 8, 3 << 8]))) == []


def test_nothing_is_found_in_nothing() -> None:
    """No prompt, no tree, no values."""
    tree = tree_of([1])
    assert not tree.longest(b"")
    assert not PrefixTree[int]().longest(pack_tokens([1]))
    tree.insert(pack_tokens([2]), [])
    tree.insert(b"", [])
    assert (len(tree), tree.held_tokens) == (1, 1)


def test_an_end_that_is_there_is_replaced() -> None:
    """All ends at once, some of them, and beside new ones."""
    tree, tokens = tree_of([1, 2, 3, 4], every=2), pack_tokens([1, 2, 3, 4])
    for values in ([(2, 5), (4, 6)], [(4, 7)], [(1, 8), (2, 9)]):
        tree.insert(tokens, values)
        assert set(values) <= set(tree.longest(tokens))
    assert list(tree.longest(tokens)) == [(1, 8), (2, 9), (4, 7)]
    assert len(tree) == 3


def test_a_value_may_be_none_or_false() -> None:
    """A value is there or not, whatever it is."""
    tree: PrefixTree[Any] = PrefixTree()
    tree.insert(pack_tokens([1, 2]), [(1, None), (2, 0)])
    assert list(tree.longest(pack_tokens([1, 2]))) == [(1, None), (2, 0)]


def test_tokens_that_no_value_needs_are_not_held() -> None:
    """Five tokens with a value at three are three; they go with it."""
    tree: PrefixTree[int] = PrefixTree()
    tree.insert(pack_tokens([1, 2, 3, 4, 5]), [(1, 7), (3, 8)])
    assert tree.held_tokens == 3
    assert tree.remove(pack_tokens([1, 2, 3]), 3)
    assert tree.held_tokens == 1
    assert tree.remove(pack_tokens([1]), 1)
    assert (tree.held_tokens, len(tree)) == (0, 0)


def test_a_shared_head_is_held_once() -> None:
    """A head of 50 and two tails of 10 are 70 tokens."""
    head = list(range(50))
    tree = tree_of([*head, *range(100, 110)], [*head, *range(200, 210)], every=10)
    assert tree.held_tokens == 50 + 10 + 10
    assert [value for _, value in tree.longest(pack_tokens([*head, *range(100, 110)]))] == [1] * 5 + [0]


# ------------------------------------------------------------------ a match


def test_a_match_reads_like_a_list() -> None:
    """Over several edges: index from either end, slice, both directions."""
    match = tree_of(list(range(40)), every=3, edge_tokens=7).longest(pack_tokens(list(range(38))))
    expected = [(end, 0) for end in range(3, 37, 3)]
    assert isinstance(match, PrefixMatch)
    assert (len(match), match.end_tokens) == (12, 36)
    assert list(match) == expected
    assert list(reversed(match)) == expected[::-1]
    assert [match[i] for i in range(-12, 12)] == expected + expected
    assert match[2:-1:3] == expected[2:-1:3]
    assert (12, 0) in match
    for index in (12, -13):
        with pytest.raises(IndexError, match=str(index)):
            match[index]


def test_a_match_stays_as_it_was_found() -> None:
    """Replacing, splitting and removing afterwards do not reach it."""
    tokens = pack_tokens(list(range(8)))
    tree = tree_of(list(range(8)))
    match = tree.longest(tokens)
    tree.insert(tokens, [(end, 99) for end in (1, 5)])
    tree.insert(pack_tokens([0, 1, 77]), [(3, 98)])
    for end in range(8, 0, -1):
        tree.remove(tokens, end)
    assert list(match) == [(end, 0) for end in range(1, 9)]
    assert len(tree) == 1


# ------------------------------------------------------------------ the bound

FIRSTS = st.integers(0, 5)


@settings(max_examples=300, deadline=None)
@given(
    bound=st.integers(1, 30),
    edge_tokens=st.sampled_from([1, 3, 100]),
    steps=st.lists(
        st.tuples(st.just("insert"), FIRSTS, st.sets(st.integers(1, 12), min_size=1))
        | st.tuples(st.just("look up"), FIRSTS, st.none())
        | st.tuples(st.just("remove"), FIRSTS, st.integers(1, 12)),
        max_size=40,
    ),
)
def test_prompts_that_share_nothing_are_forgotten_as_by_a_plain_lru(
    bound: int, edge_tokens: int, steps: list[Any]
) -> None:
    """The last end of the prompt used least recently goes, until the prompts' last ends sum to the bound."""
    tree: PrefixTree[str] = PrefixTree(max_tokens=bound, edge_tokens=edge_tokens)
    twin: OrderedDict[int, set[int]] = OrderedDict()
    for what, first, ends in steps:
        packed = pack_tokens([first, *range(100, 111)])
        if what == "insert":
            tree.insert(packed, [(end, "v") for end in sorted(ends)])
            twin.setdefault(first, set()).update(ends)
            twin.move_to_end(first)
        elif what == "look up":
            assert [end for end, _ in tree.longest(packed)] == sorted(twin.get(first, ()))
            if first in twin:
                twin.move_to_end(first)
        else:
            assert tree.remove(packed, ends) is (ends in twin.get(first, ()))
            twin.get(first, set()).discard(ends)
        while sum(max(ends, default=0) for ends in twin.values()) > bound:
            oldest = next(iter(twin))
            twin[oldest].discard(max(twin[oldest]))
            if not twin[oldest]:
                del twin[oldest]
        for key in [key for key, ends in twin.items() if not ends]:
            del twin[key]
        expected = {(key, *range(100, 99 + end)) for key, ends in twin.items() for end in ends}
        assert contents(tree, edge_tokens).keys() == expected


def test_a_head_in_use_outlives_its_tails() -> None:
    """Of a head of 8 and tails of 4, a bound of 16 keeps the head and the two tails used last."""
    head = list(range(8))
    prompts = [[*head, *range(100 * n, 100 * n + 4)] for n in range(1, 5)]
    tree = tree_of(*prompts, every=4, max_tokens=8 + 4 + 4)
    assert [len(copy.deepcopy(tree).longest(pack_tokens(tokens))) for tokens in prompts] == [2, 2, 3, 3]


def test_a_lookup_of_the_head_alone_does_not_keep_a_tail() -> None:
    """Looking up the head makes its tail no younger than it was."""
    tree = tree_of([1, 2, 3, 4], [1, 2, 5, 6], [7, 8], every=2, max_tokens=8)
    tree.longest(pack_tokens([1, 2, 3, 4]))
    tree.longest(pack_tokens([1, 2]))
    tree.insert(pack_tokens([9, 9]), [(2, 3)])
    found = [tree.longest(pack_tokens(t)).end_tokens for t in ([1, 2, 3, 4], [1, 2, 5, 6], [7, 8], [9, 9])]
    assert found == [4, 2, 2, 2]


def test_a_lookup_of_a_part_of_an_edge_uses_it_whole() -> None:
    """Of two prompts of 3, the one looked up to its first token loses nothing, the other its last value."""
    tree = tree_of([1, 2, 3], [4, 5, 6], max_tokens=6)
    assert list(tree.longest(pack_tokens([1, 9, 9]))) == [(1, 0)]
    tree.insert(pack_tokens([7]), [(1, 2)])
    assert [tree.longest(pack_tokens(t)).end_tokens for t in ([1, 2, 3], [4, 5, 6])] == [3, 2]


def test_a_lookup_that_finds_nothing_on_an_edge_does_not_use_it() -> None:
    """A first token in common keeps nothing: of two prompts of 3, the older one goes for the third."""
    tree = tree_of([1, 2, 3], [4, 5, 6], every=3, max_tokens=6)
    assert not tree.longest(pack_tokens([1, 9, 9]))
    tree.insert(pack_tokens([7, 8, 9]), [(3, 2)])
    assert [tree.longest(pack_tokens(t)).end_tokens for t in ([1, 2, 3], [4, 5, 6])] == [0, 3]


def test_a_prompt_beyond_the_bound_keeps_its_head() -> None:
    """Of ends 3, 6 and 9, a bound of 7 keeps those up to 6, and nothing else."""
    tree = tree_of([5, 5], list(range(10, 19)), every=1, max_tokens=7, edge_tokens=4)
    assert tree.longest(pack_tokens(list(range(10, 19)))).end_tokens == 7
    assert not tree.longest(pack_tokens([5, 5]))
    tree.insert(pack_tokens(list(range(20, 30))), [(8, 1), (10, 1)])
    assert (len(tree), tree.held_tokens) == (0, 0)


# ------------------------------------------------------------------ sizes


def test_a_million_tokens_with_one_value_are_found_and_forgotten() -> None:
    """Edges of 16,384 tokens: a prompt that differs in its last token finds nothing."""
    tokens = array("I", range(1_000_000))
    packed = pack_tokens(tokens)
    tree: PrefixTree[str] = PrefixTree()
    tree.insert(packed, [(1_000_000, "end")])
    assert list(tree.longest(packed)) == [(1_000_000, "end")]
    assert not tree.longest(packed[:-4] + b"\0\0\0\0")
    assert not tree.remove(packed, 999_999)
    assert tree.remove(packed, 1_000_000)
    assert tree.held_tokens == 0


def test_a_prompt_that_others_leave_at_every_token_is_whole_again_without_them() -> None:
    """3,000 branches cut it to single tokens; once they are gone it lies on edges of 1,000 again."""
    stem = list(range(3000))
    tree = tree_of(stem, every=1000, edge_tokens=1000)
    branches = [pack_tokens([*stem[:at], 9999]) for at in range(3000)]
    for at, branch in enumerate(branches):
        tree.insert(branch, [(at + 1, -1)])
    assert list(tree.longest(pack_tokens(stem))) == [(1000, 0), (2000, 0), (3000, 0)]
    for at, branch in enumerate(branches):
        assert tree.remove(branch, at + 1)
    assert contents(tree, 1000).keys() == {tuple(stem[:end]) for end in (1000, 2000, 3000)}
    assert len(tree._order) <= 6
    assert list(tree.longest(pack_tokens(stem))) == [(1000, 0), (2000, 0), (3000, 0)]


def test_many_prompts_of_one_token_stay_within_the_bound() -> None:
    """Of 50,000, the last 1,000 are held."""
    tree: PrefixTree[int] = PrefixTree(max_tokens=1000)
    for token in range(50_000):
        tree.insert(pack_tokens([token]), [(1, token)])
    assert (len(tree), tree.held_tokens) == (1000, 1000)
    assert not tree.longest(pack_tokens([48_999]))
    assert list(tree.longest(pack_tokens([49_000]))) == [(1, 49_000)]


# ------------------------------------------------------------------ bad input


@pytest.mark.parametrize("packed", [b"abc", bytearray(4), memoryview(b"abcd"), "abcd", [1], None])
def test_what_is_not_packed_tokens_is_refused(packed: Any) -> None:
    """Bytes, four per token."""
    tree = tree_of([1])
    for call in (tree.longest, lambda p: tree.insert(p, [(1, 0)]), lambda p: tree.remove(p, 1)):
        with pytest.raises(InvalidRequest, match="packed is bytes") as caught:
            call(packed)
        assert caught.value.field == "packed"


@pytest.mark.parametrize(
    "values",
    [
        [(0, 1)],
        [(4, 1)],
        [(-1, 1)],
        [(2**40, 1)],
        [(1.0, 1)],
        [("1", 1)],
        [(2, 1), (1, 1)],
        [(1, 1), (3, 1), (2, 1)],
        [(2, 1), (2, 1)],
        [(1,)],
        [1],
        [(1, 2, 3)],
        None,
    ],
)
def test_ends_that_are_not_of_the_prompt_are_refused(values: Any) -> None:
    """And nothing of such a call is kept."""
    tree = tree_of([1])
    with pytest.raises(InvalidRequest) as caught:
        tree.insert(pack_tokens([1, 2, 3]), values)
    assert caught.value.field == "values"
    assert contents(tree, 16_384) == {(1,): 0}


@pytest.mark.parametrize("end", [0, -1, 3, 1.0, "1", None, True])
def test_an_end_to_remove_is_one_of_the_prompt(end: Any) -> None:
    """1 to its tokens."""
    tree = tree_of([1, 2])
    with pytest.raises(InvalidRequest) as caught:
        tree.remove(pack_tokens([1, 2]), end)
    assert caught.value.field == "end"


@pytest.mark.parametrize("option", ["max_tokens", "edge_tokens"])
@pytest.mark.parametrize("number", [0, -5, 1.5, "9", True])
def test_a_bound_is_a_number_of_at_least_one(option: str, number: Any) -> None:
    """The error names the argument."""
    with pytest.raises(InvalidRequest) as caught:
        PrefixTree(**{option: number})
    assert caught.value.field == option


def test_values_may_come_from_an_iterator() -> None:
    """They are read once."""
    tree: PrefixTree[str] = PrefixTree()
    tree.insert(pack_tokens([1, 2]), zip([1, 2], "ab", strict=True))
    assert list(tree.longest(pack_tokens([1, 2]))) == [(1, "a"), (2, "b")]
