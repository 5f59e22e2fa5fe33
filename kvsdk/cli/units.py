"""Quantities as people read them."""

from __future__ import annotations

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


def size(value: int) -> str:
    """Bytes, to three figures: `512 B`, `1.50 MiB`, `128 GiB`."""
    amount, at = float(value), 0
    while round(amount) >= 1024 and at < len(_UNITS) - 1:
        amount, at = amount / 1024, at + 1
    if at == 0:
        return f"{value} B"
    places = 2 if amount < 9.995 else 1 if amount < 99.95 else 0
    return f"{amount:.{places}f} {_UNITS[at]}"


def rate(value: float) -> str:
    """Bytes in a second: `68.2 MB/s`, `1.50 GB/s`."""
    return f"{value / 1e9:.2f} GB/s" if value >= 1e8 else f"{value / 1e6:.3g} MB/s"


def many(number: int, noun: str, plural: str | None = None) -> str:
    """A number of something: `1 entry`, `2,000 entries`."""
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"


def seconds(value: float) -> str:
    """A duration: `85 ms`, `2.1 s`, `3 min 20 s`."""
    if value < 1:
        return f"{value * 1000:.0f} ms"
    if value < 60:
        return f"{value:.1f} s"
    minutes, rest = divmod(round(value), 60)
    return f"{minutes} min {rest} s"
