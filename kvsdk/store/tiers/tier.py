"""What a tier of a store is: a place that keeps entries by name, whole or not at all.

A tier knows bytes and names, nothing of KV. The duties of both sides:

- An entry is visible only once it is whole. `put` may be interrupted at any moment, by an error or by the
  death of the process, and what is then there is either the whole entry or nothing.
- An entry never changes; a name stands for its content. `put` of a name that is there changes nothing but
  what is remembered of its use.
- A tier need not check what it reads: the store does, and calls `remove` for what is not what it should be.
- A tier may lose or evict any entry at any time; a reader that has its buffer keeps it.
- What fails raises, whatever the error: the store counts it, opens the tier's breaker and goes on without.
- Every method may be called from several threads at once.
"""

from __future__ import annotations

import builtins
import re
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import pydantic

from kvsdk.errors import InvalidRequest, Unsupported
from kvsdk.store.tiers.buffers import Buffer, BufferPool

PolicyName = Literal["lru", "hints"]
Size = int | str
"""Bytes, as a number or as text such as `"50GiB"`."""

_NAME = re.compile(r"[a-z]{1,16}(?:/[0-9a-z-]{1,100}){1,3}")
_SIZE: pydantic.TypeAdapter[pydantic.ByteSize] = pydantic.TypeAdapter(pydantic.ByteSize)


@dataclass(frozen=True, slots=True, kw_only=True)
class Hints:
    """What the application said of an entry, and where the entry stands in its prefix.

    Attributes:
        depth_tokens: Tokens of the prefix before this entry. Of entries that were used at the same time the
            deepest goes first.
        session: Whose it is.
        expires_at: When it is not to be served any more, seconds since 1970. What is there already keeps the
            later of both. None says nothing: what is new never expires, what is used keeps what it has;
            `math.inf` lifts an expiry.
        pinned: Whether it must not be evicted.
    """

    depth_tokens: int = 0
    session: str | None = None
    expires_at: float | None = None
    pinned: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class TierStats:
    """What a tier holds; None where it cannot say."""

    entries: int | None
    used_bytes: int | None
    capacity_bytes: int | None


class Tier(ABC):
    """One place for entries; see the duties above.

    Attributes:
        name: As it is called in hits, counters and on the command line.
        may_block: Whether a call may take long or never come back. Then it runs in a thread, with a deadline.
        is_remote: Whether a question costs a round trip, so that the store asks no more than it must.
    """

    name: str
    may_block: bool = True
    is_remote: bool = False

    def open(self, *, policy: PolicyName = "hints", clock: Callable[[], float] = time.time) -> None:
        """Get ready; the store does this once. What a killed process left half done is cleaned up here.

        Args:
            policy: Which entries go first when there is no room.
            clock: Seconds since 1970.
        """

    @abstractmethod
    def put(self, name: str, data: Buffer, hints: Hints) -> bool:
        """Keep an entry; False where there is no room for it, even after evicting what may go.

        The tier takes its own hold of `data` if it keeps it beyond the call.
        """

    @abstractmethod
    def get(self, name: str, pool: BufferPool) -> Buffer | None:
        """An entry's bytes, held for the caller, who releases it; None where it is not there.

        Args:
            name: The entry's.
            pool: Where to take memory from.
        """

    @abstractmethod
    def contains(self, names: Sequence[str]) -> builtins.list[bool]:
        """Which of these are there, without reading them."""

    def expiry(self, name: str) -> float | None:
        """When an entry expires, seconds since 1970; None for never, or where the tier does not keep that."""
        return None

    @abstractmethod
    def list(self, prefix: str) -> builtins.list[str]:
        """The names that begin so, sorted."""

    @abstractmethod
    def remove(self, name: str) -> bool:
        """Drop an entry; False where it was not there."""

    def touch(self, names: Sequence[str], hints: Hints) -> None:
        """These were used now, all at once. Names that are not there are skipped.

        `depth_tokens` is left as it was; session, expiry and pin are added.
        """

    def demote(self, names: Sequence[str]) -> None:
        """These go first from now on, since something longer has what they have.

        Names that are not there are skipped.
        """

    def unpin(self, names: Sequence[str]) -> None:
        """These may be evicted again, whoever pinned them. Names that are not there are skipped."""

    def end_session(self, session: str) -> int:
        """The session is over: its pins are lifted and what only it used goes first. How many entries."""
        return 0

    def resize(self, capacity: Size) -> None:
        """Set how much fits from now on; what is too much is evicted at once.

        Raises:
            InvalidRequest: That is no size.
            Unsupported: This tier has no capacity of its own.
        """
        raise Unsupported(f"a {self.name} tier has no capacity to change")

    def collect(self) -> int:
        """Remove what has expired and what nobody finished or refers to; how many entries."""
        return 0

    @abstractmethod
    def stats(self) -> TierStats:
        """What it holds."""

    def sync(self) -> None:
        """Return when everything that was put survives a power cut."""

    def close(self) -> None:
        """Give up what it holds open. Nothing else is called afterwards."""


def is_name(name: object) -> bool:
    """Whether this can be an entry's name: words of small letters, digits and hyphens, slashes between."""
    return isinstance(name, str) and _NAME.fullmatch(name) is not None


def check_name(name: str) -> str:
    """A name as it is; every tier checks, since names become paths.

    Raises:
        InvalidRequest: It is no name: words of small letters, digits and hyphens, with slashes between.
    """
    if not is_name(name):
        raise InvalidRequest(f"{name!r:.80} is no name of an entry", field="name")
    return name


def parse_size(value: Size, field: str = "capacity") -> int:
    """Bytes of a size.

    Raises:
        InvalidRequest: It is none, or not above 0.
    """
    try:
        size = int(_SIZE.validate_python(value))
    except pydantic.ValidationError:
        size = 0
    if size <= 0 or isinstance(value, bool):
        raise InvalidRequest(f"{field} is a size such as '50GiB', not {value!r}", field=field)
    return size
