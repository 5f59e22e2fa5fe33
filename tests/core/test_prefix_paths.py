"""Where prompts are cut, so that a cache model finds what they have in common."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from kvsdk.cost.ledger.row import PrefixMark
from kvsdk.cost.reports.prefix_paths import PrefixPaths


@given(st.lists(st.tuples(st.text("ab", min_size=1, max_size=12), st.sets(st.integers(1, 12))), max_size=20))
def test_prompts_are_cut_alike(prompts: list[tuple[str, set[int]]]) -> None:
    """With a prefix as its own digest: cuts grow, hold all marks, and a prefix never loses a cut."""
    paths = PrefixPaths()
    inside: dict[str, set[str]] = {}
    for prompt, places in prompts:
        ends = sorted({place for place in places if place < len(prompt)} | {len(prompt)})
        marks = [PrefixMark(end, prompt[:end]) for end in ends]
        cuts = paths.cut(marks)
        texts = [text for text, _ in cuts]
        assert all(size == len(text) for text, size in cuts)
        assert texts == sorted(set(texts), key=len)
        assert all(prompt.startswith(text) for text in texts)
        assert {mark.digest for mark in marks} <= set(texts)
        for mark in marks:
            now = {text for text in texts if mark.digest.startswith(text)}
            assert inside.get(mark.digest, set()) <= now
            inside[mark.digest] = now


def test_what_is_cut_inside_of_a_known_prefix_is_cut_again() -> None:
    """The second turn's end is known to hold the first's, and the third row does not say so."""
    paths = PrefixPaths()
    paths.cut([PrefixMark(10, "one")])
    paths.cut([PrefixMark(10, "one"), PrefixMark(20, "two")])
    assert paths.cut([PrefixMark(21, "two"), PrefixMark(30, "three")]) == [
        ("one", 10),
        ("two", 21),
        ("three", 30),
    ]


def test_the_least_recently_used_prefixes_are_forgotten() -> None:
    """Tails before heads: the system text stays, the oldest conversation goes."""
    paths = PrefixPaths(max_prefixes=3)
    for name in ("a", "b", "c"):
        paths.cut([PrefixMark(10, "system"), PrefixMark(20, name)])
    assert paths.cut([PrefixMark(20, "c"), PrefixMark(30, "d")])[0] == ("system", 10)
    assert paths.cut([PrefixMark(20, "a")]) == [("a", 20)]
