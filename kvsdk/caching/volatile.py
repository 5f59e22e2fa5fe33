"""Values in a text that tend to change with every request: dates, times, UUIDs, hashes, counters. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from hashlib import sha256
from heapq import merge
from itertools import islice
from typing import NamedTuple

MAX_VALUES = 64
"""A text with more numbers than this is a table, not a sentence with a date in it."""

MAX_CHARACTERS = 1_000_000
"""Longer texts are not searched: it would take tens of milliseconds."""

_MONTH = (
    r"(?:Jan(?:uary)?|Feb(?:ruary)?|Mar(?:ch)?|Apr(?:il)?|May|June?|July?|Aug(?:ust)?|Sept?(?:ember)?"
    r"|Oct(?:ober)?|Nov(?:ember)?|Dec(?:ember)?)"
)
_WEEKDAY = r"(?:Mon|Tue|Tues|Wed|Wednes|Thu|Thur|Thurs|Fri|Sat|Satur|Sun)(?:day)?"
_UUID = re.compile(r"-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}")
_HEAD = re.compile(r"[0-9a-fA-F]{8}")
_TOKEN = re.compile(r"\d\w*(?:[-:./+]\d\w*)*")
_MONTH_AFTER = re.compile(rf"\d{{1,2}}(?:st|nd|rd|th)?\.?\s+(?:of\s+)?{_MONTH}\b\.?(?:,?\s+\d{{4}}\b)?")
_MONTH_BEFORE = re.compile(rf"(?:\b{_WEEKDAY},?\s+)?\b{_MONTH}\.?\s+$")
_DAY_AND_YEAR = re.compile(r"\d{1,2}(?:st|nd|rd|th)?,?\s+\d{4}\b|\d{1,4}(?:st|nd|rd|th)?\b")
_WEEKDAY_BEFORE = re.compile(rf"\b{_WEEKDAY},?\s+(?:the\s+)?$")
_PLACEHOLDER = "\x00" * 36

_KINDS = (
    ("timestamp", re.compile(r"\d{4}-\d\d-\d\d[Tt_-]\d\d[:.-]?\d\d.*|1[5-9]\d{8}(?:\d{3}){0,3}(?:\.\d+)?")),
    ("date", re.compile(r"(?:19|20)\d\d[-/.]\d{1,2}[-/.]\d{1,2}|\d{1,2}[-/.]\d{1,2}[-/.](?:19|20)\d\d")),
    ("time", re.compile(r"(?:[01]?\d|2[0-3]):[0-5]\d(?::[0-5]\d(?:\.\d+)?)?(?:[aApP][mM]|Z)?")),
    ("hash", re.compile(r"(?=.*[a-fA-F])[0-9a-fA-F]{16,}")),
    ("id", re.compile(r"(?=.*[A-Za-z])\w{8,}")),
)


class Value(NamedTuple):
    """A value in a text: its kind, the place where it starts, and the place where it ends."""

    kind: str
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Shape:
    """What is kept of a text to tell later what changed in it; no text can be read back from its digest.

    Attributes:
        digest: Of the text with every value masked (8 bytes).
        kinds: By kind of value: its name, the digest of its values, how many there are, and the line of the
            first, from 1.
    """

    digest: bytes
    kinds: tuple[tuple[str, bytes, int, int], ...]

    def changed(self, before: Shape) -> tuple[tuple[str, int, int], ...] | None:
        """The kinds of value that changed, with count and line; None where more than values changed."""
        if self.digest != before.digest:
            return None
        old = {kind: values for kind, values, _, _ in before.kinds}
        return tuple((kind, count, line) for kind, values, count, line in self.kinds if old[kind] != values)


def find_values(text: str) -> Iterator[Value]:
    """Every value in a text, in order; none where the text is too long."""
    if len(text) > MAX_CHARACTERS:
        return
    uuids = _uuids(text)
    if uuids:
        text = _PLACEHOLDER.join(_between(text, uuids))  # as long as the UUIDs: places stay what they are
    yield from merge(uuids, _numbers(text), key=lambda value: value.start)


def shape(text: str) -> Shape | None:
    """The shape of a text; None where it holds no value, too many of them, or is too long."""
    if sum(1 for _ in islice(_TOKEN.finditer(text), MAX_VALUES + 1)) > MAX_VALUES:
        return None
    values = list(find_values(text))
    if not values:
        return None
    found: dict[str, list[Value]] = {}
    for value in values:
        found.setdefault(value.kind, []).append(value)
    masked = "\x00".join(_between(text, values)) + "\x01" + ",".join(value.kind for value in values)
    kinds = tuple(
        (
            kind,
            _short("\n".join(text[one.start : one.end] for one in same)),
            len(same),
            line_of(text, same[0]),
        )
        for kind, same in found.items()
    )
    return Shape(_short(masked), kinds)


def line_of(text: str, value: Value) -> int:
    """The line a value stands in, from 1."""
    return text.count("\n", 0, value.start) + 1


def named(kind: str, count: int = 1) -> str:
    """A kind in words, such as `a date`, or `one of 3 dates`."""
    if count > 1:
        return f"one of {count} {'hashes' if kind == 'hash' else kind + 's'}"
    return f"an {kind}" if kind == "id" else f"a {kind}"


def _short(text: str) -> bytes:
    return sha256(text.encode("utf-8", "surrogatepass")).digest()[:8]


def _between(text: str, values: Sequence[Value]) -> list[str]:
    """The texts around values."""
    pieces: list[str] = []
    done = 0
    for value in values:
        pieces.append(text[done : value.start])
        done = value.end
    return [*pieces, text[done:]]


def _uuids(text: str) -> list[Value]:
    return [
        Value("UUID", match.start() - 8, match.end())
        for match in _UUID.finditer(text)
        if match.start() >= 8 and _HEAD.match(text, match.start() - 8)
    ]


def _numbers(text: str) -> Iterator[Value]:
    """Words with a digit in them, and dates with a month's name."""
    done = 0
    for match in _TOKEN.finditer(text):
        start, end = match.span()
        if start < done:
            continue
        written = _written_date(text, start, done)
        if written is not None:
            yield written
            done = written.end
            continue
        while start > done and (text[start - 1].isalnum() or text[start - 1] == "_"):
            start -= 1
        yield Value(_kind(text[start:end]), start, end)
        done = end


def _written_date(text: str, start: int, done: int) -> Value | None:
    """A date with a month's name around a number, such as `Monday, 30 November 2026` or `Nov 30, 2026`."""
    before = text[max(done, start - 24) : start]
    following = _MONTH_AFTER.match(text, start)
    if following is not None:
        day = _WEEKDAY_BEFORE.search(before)
        return Value("date", start - (len(day[0]) if day else 0), following.end())
    month = _MONTH_BEFORE.search(before)
    number = _DAY_AND_YEAR.match(text, start) if month else None
    if month is None or number is None:
        return None
    return Value("date", start - len(month[0]), number.end())


def _kind(word: str) -> str:
    return next((kind for kind, pattern in _KINDS if pattern.fullmatch(word)), "number")
