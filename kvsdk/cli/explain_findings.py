"""The findings of a whole log, grouped. No I/O."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from kvsdk.caching import Prefix
from kvsdk.reply import Finding

_TOOL_SETS = 10_000


@dataclass(slots=True)
class FoundOften:
    """A finding that several requests share, by kind and place.

    Attributes:
        finding: As it was in the first of them.
        first_line: The line of the first.
        requests: How many have it.
        is_constant: Whether the piece it stands in was the same in all of them.
    """

    finding: Finding
    first_line: int
    requests: int = 0
    is_constant: bool = True
    _digest: bytes | None = None

    def count(self, digest: bytes | None) -> None:
        """Count one more request, in which the piece has this digest."""
        self.is_constant &= self.requests == 0 or digest == self._digest
        self._digest = digest
        self.requests += 1

    @property
    def detail(self) -> str:
        """The finding's words, with what the log as a whole shows."""
        if self.finding.kind != "volatile" or self.requests < 2:
            return self.finding.detail
        shown = f"it is the same in all {self.requests} requests" if self.is_constant else "it changed"
        return f"{self.finding.detail} (in this log {shown})"


@dataclass(slots=True)
class FindingBook:
    """Collects findings, and the orders in which the same tools were sent."""

    _found: dict[tuple[str, str], FoundOften] = field(default_factory=dict)
    _orders: dict[tuple[str, ...], tuple[tuple[str, ...], int]] = field(default_factory=dict)

    def __iter__(self) -> Iterator[FoundOften]:
        return iter(sorted(self._found.values(), key=lambda one: -one.requests))

    def __len__(self) -> int:
        return len(self._found)

    def add(self, line: int, findings: Iterable[Finding], prefix: Prefix) -> None:
        """Take in one request's findings."""
        digests = {block.where: block.digest for block in prefix.blocks}
        for finding in findings:
            key = (finding.kind, finding.where)
            self._found.setdefault(key, FoundOften(finding, line)).count(digests.get(finding.where))

    def add_tools(self, line: int, names: Sequence[str]) -> None:
        """Take in one request's tools; the same ones in another order than before are a finding."""
        order, tools = tuple(names), tuple(sorted(names))
        if len(self._orders) >= _TOOL_SETS and tools not in self._orders:
            return
        first, first_line = self._orders.setdefault(tools, (order, line))
        if first == order:
            return
        moved = next(index for index, pair in enumerate(zip(order, first, strict=True)) if pair[0] != pair[1])
        finding = Finding(
            f"tools[{moved}]",
            "tool_order",
            f"line {line} sends the {len(order)} tools of line {first_line} in another order, which "
            "costs the whole prefix each time: sort them by name before sending",
        )
        self._found.setdefault(("tool_order", "tools"), FoundOften(finding, line)).count(None)
