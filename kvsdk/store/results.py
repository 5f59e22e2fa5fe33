"""What a store answers: a hit or a miss, both values; and what it counted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

MissKind = Literal["absent", "refused", "corrupt", "unavailable", "unconverted"]
"""Why nothing can be served.

- `absent`: nothing is stored under these tokens.
- `refused`: something is, by another model or another way of storing; the reason names the fields.
- `corrupt`: something was, and was not what it should be; it is removed.
- `unavailable`: the tiers did not answer: an error, a deadline, an open breaker.
- `unconverted`: what is stored could not be brought into the layout that was asked for.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hit:
    """KV of a prompt's first tokens.

    Attributes:
        tokens: How many.
        kv: Their KV in the layout that was asked for; `out`, where that was given. What lies in it beyond
            `tokens` is undefined.
        tokens_by_tier: Where they came from, by the tier's name; `writing` is what is on its way to one.
        dtype: What it was stored in.
        codec: What it was compressed with; None for nothing.
        is_lossy: Whether it is only nearly what was put, since the store keeps it in fewer bits.
        is_converted: Whether any of it was stored in another layout or block size, and converted.
        ended_by: Why the hit is not longer; None where all tokens were asked for and are there.
        notes: What differs without harm, such as the engine's build.
    """

    tokens: int
    kv: Any = field(repr=False)
    tokens_by_tier: Mapping[str, int]
    dtype: str
    codec: str | None
    is_lossy: bool
    is_converted: bool
    ended_by: Miss | None
    notes: tuple[str, ...]

    def __bool__(self) -> bool:
        return True


@dataclass(frozen=True, slots=True)
class Miss:
    """Nothing is served; `str()` of it is the reason.

    Attributes:
        reason: In words.
        kind: Which of the few kinds.
    """

    reason: str
    kind: MissKind = "absent"

    @property
    def tokens(self) -> int:
        """Tokens that are served: none."""
        return 0

    def __bool__(self) -> bool:
        return False

    def __str__(self) -> str:
        return self.reason


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """What a put did.

    Attributes:
        tokens: Tokens of the prompt that are stored now, or on their way.
        new_tokens: Those of them that were not there before.
        new_bytes: Bytes of those, as they are stored, once.
    """

    tokens: int
    new_tokens: int
    new_bytes: int
