"""How a page writes values and names."""

from __future__ import annotations

import unicodedata
from datetime import UTC, datetime
from decimal import ROUND_HALF_UP, Decimal
from typing import Any

DASH = "–"  # noqa: RUF001  an en dash is what is meant
_NAME_WIDTH = 26
_BIDI = set("\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")


def cell(name: str, value: Any) -> str:
    """A field's value as people read it: unknown is a dash."""
    if value is None:
        return DASH
    if isinstance(value, Decimal):
        return dollars(value)
    if isinstance(value, float):
        return f"{value * 1000:,.0f} ms" if name.endswith("_s") else f"{value:.1%}"
    if isinstance(value, int):
        return f"{value:,}"
    if name == "at":
        return str(value).partition(".")[0].replace("T", " ")
    return visible(str(value)) or "(empty)"


def moment_in_words(moment: datetime) -> str:
    """A moment to the minute, in UTC."""
    return moment.astimezone(UTC).strftime("%Y-%m-%d %H:%M UTC")


def dollars(value: Decimal) -> str:
    """Dollars to a cent, or to three figures where that would hide them."""
    if value == 0:
        return "$0"
    places = 2 if abs(value) >= 10 else min(12, 2 - value.adjusted())
    rounded = value.quantize(Decimal(1).scaleb(-places), ROUND_HALF_UP)
    return f"-${-rounded:,f}" if value < 0 else f"${rounded:,f}"


def visible(text: str) -> str:
    """A text on one line, `printable`."""
    return printable(" ".join(text.split()))


def printable(text: str) -> str:
    """A text with U+FFFD for what a page cannot hold or what turns its direction."""
    return "".join("\ufffd" if _is_unprintable(letter) else letter for letter in text)


def _is_unprintable(letter: str) -> bool:
    is_noncharacter = ord(letter) & 0xFFFE == 0xFFFE or 0xFDD0 <= ord(letter) <= 0xFDEF
    return letter in _BIDI or is_noncharacter or unicodedata.category(letter) in ("Cc", "Cs")


def shortened(name: str) -> str:
    """A name that fits beside a bar: its start and its end, wide letters counted twice."""
    if _width(name) <= _NAME_WIDTH:
        return name
    start, end = name[: _NAME_WIDTH - 1], name[-8:]
    while start and _width(start) + 1 + _width(end) > _NAME_WIDTH:
        start, end = (start[:-1], end) if len(start) > len(end) else (start, end[1:])
    return f"{start}…{end}"


def _width(text: str) -> int:
    return sum(2 if unicodedata.east_asian_width(letter) in "WF" else 1 for letter in text)
