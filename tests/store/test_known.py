"""What a process knows to be stored."""

from __future__ import annotations

from kvsdk.kv.identity.hashing import pack_tokens
from kvsdk.store.entries.chunks import Prompt
from kvsdk.store.entries.known import Known


def asked(tokens: list[int], root: bytes = b"root") -> Prompt:
    return Prompt.of(pack_tokens(tokens), root)


def test_the_last_thing_that_was_learnt_holds() -> None:
    """600 tokens put, then only 256 of them found, then put again."""
    known, prompt = Known(), asked(list(range(600)))
    for tokens in (600, 256, 0, 600):
        known.learn(prompt, tokens)
        assert known.tokens(prompt.root, prompt.packed) == tokens


def test_roots_are_apart() -> None:
    """The same tokens under another root are another prompt."""
    known, prompt = Known(), asked(list(range(300)))
    known.learn(prompt, 300)
    assert known.tokens(b"other", prompt.packed) == 0


def test_a_prompt_that_parts_knows_what_is_before() -> None:
    """Its own end says nothing of the other's."""
    known = Known()
    known.learn(asked(list(range(600))), 600)
    other = asked([*range(520), *range(80)])
    assert known.tokens(other.root, other.packed) == 512
    known.learn(other, 0)
    assert known.tokens(other.root, other.packed) == 0
    assert known.tokens(other.root, pack_tokens(range(600))) == 600
