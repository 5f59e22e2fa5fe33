"""What the scheduler's side tells the worker's, and what that answers: values that may cross processes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

Media = tuple[tuple[int, str], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Whose:
    """Under whose keys tokens are kept.

    Attributes:
        salt: The tenant's, as the engine has it.
        lora: Digest of the adapter's content.
        media: Digests of images and the like, by the position of their first token.
    """

    salt: str | None = None
    lora: str | None = None
    media: Media = ()

    def before(self, tokens: int) -> Whose:
        """For so many first tokens: media behind them do not matter."""
        media = tuple(each for each in self.media if each[0] < tokens)
        return Whose(salt=self.salt, lora=self.lora, media=media)


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """Tokens `first` to the end of `tokens` are to be brought into the engine's blocks."""

    request: str
    tokens: Sequence[int]
    first: int
    blocks: Sequence[int]
    whose: Whose


@dataclass(frozen=True, slots=True, kw_only=True)
class Save:
    """These tokens, which lie in these blocks, are to be kept."""

    request: str
    tokens: Sequence[int]
    blocks: Sequence[int]
    whose: Whose
    ttl_s: float | None
    session: str | None
    pin: bool


@dataclass(slots=True, kw_only=True)
class Loaded:
    """What became of a load.

    Attributes:
        tokens: How many came, by tier.
        missing: How many of those that had been found did not come.
        seconds: How long it took.
        reason: Why some did not come.
    """

    tokens: dict[str, int] = field(default_factory=dict)
    missing: int = 0
    seconds: float = 0.0
    reason: str | None = None
