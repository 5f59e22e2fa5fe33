"""Token counts before a backend has reported any."""

from __future__ import annotations

from dataclasses import dataclass

BYTES_PER_TOKEN = 4.0


@dataclass(frozen=True, slots=True)
class TokenScale:
    """Turns bytes of UTF-8 into tokens: an estimate.

    Without a measurement, a token is 4 bytes. After a reply, `measured` scales by what the backend
    reported for a prompt of known size, which also takes in what the backend itself adds to a prompt.
    """

    bytes_per_token: float = BYTES_PER_TOKEN

    @classmethod
    def measured(cls, size_bytes: int, tokens: int | None) -> TokenScale:
        """From a prompt's size and the total the backend reported for it."""
        return cls(size_bytes / tokens) if tokens and size_bytes else cls()

    def tokens(self, size_bytes: int) -> int:
        """Tokens of so many bytes, rounded; something is never nothing."""
        return max(1, round(size_bytes / self.bytes_per_token)) if size_bytes else 0
