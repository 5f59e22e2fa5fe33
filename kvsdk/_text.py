"""Small wordings that several rooms share."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """` Did you mean 'x'?`, or a list of what is known where nothing is close."""
    names = sorted(known)
    close = get_close_matches(word, names, n=1)
    if close:
        return f" Did you mean {close[0]!r}?"
    return f" Known: {', '.join(names)}." if names else ""


def excerpt(text: str, limit: int = 200) -> str:
    """The start of a text, on one line."""
    flat = " ".join(text[: limit * 2].split())
    return flat if len(flat) <= limit else flat[:limit] + "…"
