"""From the breakpoints a caller asked for to the marks that a backend takes.

The rules, in order:

1. `cache="auto"` adds breakpoints at the end of the tools, of the system texts and of the last turn.
2. A breakpoint on a piece that cannot carry a mark (empty text, thinking, ...) moves to the nearest earlier
   piece that can; without one it is dropped.
3. A TTL that the backend lacks is rounded down, to the shortest at least; `round="up"` rounds up.
4. Of too many, those that save most stay: the deepest of the system texts, of the messages and of the
   tools, then the others from the deepest on.
5. Where a longer TTL must not follow a shorter one, the earlier ones are lengthened.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import cast

from kvsdk.backend import Capabilities
from kvsdk.errors import InvalidBreakpoints
from kvsdk.prompt import (
    TTL,
    TTL_SECONDS,
    Block,
    Breakpoint,
    Message,
    Part,
    Request,
    Text,
    with_breakpoint,
)
from kvsdk.reply import BreakpointReport, BreakpointStatus


@dataclass(frozen=True, slots=True)
class Plan:
    """A request whose breakpoints are exactly the marks to send, and what became of those asked for.

    `ends[i]` is the index of the block that `breakpoints[i]` ends, or None when it was dropped.
    """

    request: Request
    breakpoints: tuple[BreakpointReport, ...]
    ends: tuple[int | None, ...]

    @property
    def last_end(self) -> int | None:
        """Index of the last block that a kept breakpoint ends."""
        return max((end for end in self.ends if end is not None), default=None)

    @property
    def ttl_s(self) -> int | None:
        """Seconds of the longest TTL granted."""
        granted = [TTL_SECONDS[entry.granted_ttl] for entry in self.breakpoints if entry.granted_ttl]
        return max(granted, default=None)


@dataclass(slots=True)
class _Mark:
    """A breakpoint on its way: `origin` is where it was set, `end` where it is now."""

    origin: int
    end: int
    asked: Breakpoint
    ttl: str | None = None
    status: BreakpointStatus = "honoured"
    reason: str | None = None

    def become(self, status: BreakpointStatus, reason: str) -> None:
        self.status = status
        self.reason = f"{self.reason}; {reason}" if self.reason else reason


def plan(request: Request, capabilities: Capabilities, *, strict: bool = False) -> Plan:
    """Place a request's breakpoints for a backend.

    Raises:
        InvalidBreakpoints: With `strict`, when one cannot be kept exactly as asked.
    """
    blocks = request.blocks()
    marks = [_Mark(index, index, mark) for index, mark in enumerate(request.marks()) if mark is not None]
    if request.auto_cache:
        marks = _with_automatic(marks, blocks, capabilities)
    if not marks:
        return Plan(request, (), ())
    if capabilities.breakpoints == "honoured":
        _place(marks, blocks, capabilities)
    else:
        _advise(marks, capabilities)
    if strict:
        _refuse_changes(marks, blocks)
    sent = {mark.end: mark.ttl for mark in marks if mark.status in ("honoured", "mapped")}
    sent |= {mark.end: mark.asked.ttl for mark in marks if mark.asked.ttl in capabilities.advice}
    reports = tuple(
        BreakpointReport(blocks[mark.origin].where, mark.status, mark.reason, mark.asked.ttl, mark.ttl)
        for mark in marks
    )
    ends = tuple(None if mark.status == "dropped" else mark.end for mark in marks)
    return Plan(_rewrite(request, sent), reports, ends)


def _with_automatic(marks: list[_Mark], blocks: Sequence[Block], capabilities: Capabilities) -> list[_Mark]:
    taken = {mark.origin for mark in marks}
    for section in ("tools", "system", "messages"):
        ends = [index for index, block in enumerate(blocks) if block.section == section]
        if capabilities.breakpoints == "honoured":
            ends = [index for index in ends if _can_carry(blocks[index], capabilities)]
        if ends and ends[-1] not in taken:
            marks.append(_Mark(ends[-1], ends[-1], Breakpoint()))
    return sorted(marks, key=lambda mark: mark.origin)


def _advise(marks: Sequence[_Mark], capabilities: Capabilities) -> None:
    for mark in marks:
        if capabilities.breakpoints == "advisory":
            advice = capabilities.advice.get(mark.asked.ttl or "")
            sent = f", but {advice}" if advice else "; no mark is sent"
            mark.become("advisory", f"the backend caches on its own{sent}")
        else:
            mark.become("dropped", "the backend has no prompt cache")


def _place(marks: list[_Mark], blocks: Sequence[Block], capabilities: Capabilities) -> None:
    for mark in marks:
        _move(mark, blocks, capabilities)
        if mark.status != "dropped":
            _grant_ttl(mark, capabilities)
    _merge(marks)
    _limit(marks, blocks, capabilities)
    if capabilities.ttl_must_not_grow:
        _lengthen(marks)


def _can_carry(block: Block, capabilities: Capabilities) -> bool:
    is_blank = isinstance(block.part, Text) and not block.part.text.strip()
    return not is_blank and f"{block.place}:{block.kind}" in capabilities.markable


def _move(mark: _Mark, blocks: Sequence[Block], capabilities: Capabilities) -> None:
    while mark.end >= 0 and not _can_carry(blocks[mark.end], capabilities):
        mark.end -= 1
    if mark.end == mark.origin:
        return
    block = blocks[mark.origin]
    blank = isinstance(block.part, Text) and not block.part.text.strip()
    why = (
        "an empty text cannot carry a mark"
        if blank
        else f"a {block.kind} of {block.place} cannot carry a mark"
    )
    if mark.end < 0:
        mark.become("dropped", f"{why} and nothing before it can")
    else:
        mark.become("mapped", f"{why}; moved to {blocks[mark.end].where}")


def _grant_ttl(mark: _Mark, capabilities: Capabilities) -> None:
    asked = mark.asked.ttl
    if asked is None:
        mark.ttl = capabilities.default_ttl
        return
    if asked in capabilities.ttls:
        mark.ttl = asked
        return
    if not capabilities.ttls:
        mark.become("mapped", "the backend's marks have no TTL")
        return
    shorter = [ttl for ttl in capabilities.ttls if TTL_SECONDS[ttl] < TTL_SECONDS[asked]]
    longer = [ttl for ttl in capabilities.ttls if TTL_SECONDS[ttl] > TTL_SECONDS[asked]]
    if mark.asked.round == "up":
        mark.ttl = longer[0] if longer else shorter[-1]
    else:
        mark.ttl = shorter[-1] if shorter else longer[0]
    mark.become("mapped", f"TTL {asked} is not offered; {mark.ttl} instead")


def _merge(marks: Sequence[_Mark]) -> None:
    """One mark per block: the one with the longest TTL is sent."""
    by_end: dict[int, list[_Mark]] = {}
    for mark in marks:
        if mark.status != "dropped":
            by_end.setdefault(mark.end, []).append(mark)
    for sharing in by_end.values():
        longest = reduce(_longest, (mark.ttl for mark in sharing))
        for number, mark in enumerate(sharing):
            if number or mark.ttl != longest:
                mark.become("mapped", "shares its mark with another breakpoint")
            mark.ttl = longest


def _limit(marks: Sequence[_Mark], blocks: Sequence[Block], capabilities: Capabilities) -> None:
    ends = sorted({mark.end for mark in marks if mark.status != "dropped"}, reverse=True)
    limit = capabilities.max_breakpoints
    if limit is None or len(ends) <= limit:
        return
    deepest = {
        section: next((end for end in ends if blocks[end].section == section), None) for section in _KEEP
    }
    ranked = [end for end in deepest.values() if end is not None]
    ranked += [end for end in ends if end not in ranked]
    kept = set(ranked[:limit])
    for mark in marks:
        if mark.status != "dropped" and mark.end not in kept:
            mark.ttl = None
            mark.become("dropped", f"at most {limit} breakpoints in a request; others save more")


_KEEP = ("system", "messages", "tools")


def _lengthen(marks: Sequence[_Mark]) -> None:
    longest: str | None = None
    for mark in sorted(marks, key=lambda mark: mark.end, reverse=True):
        if mark.status == "dropped":
            continue
        longest = _longest(longest, mark.ttl)
        if mark.ttl != longest:
            mark.become("mapped", f"TTL lengthened from {mark.ttl}: a later mark has {longest}")
            mark.ttl = longest


def _longest(one: str | None, other: str | None) -> str | None:
    return max((one, other), key=lambda ttl: TTL_SECONDS[ttl] if ttl else 0)


def _refuse_changes(marks: Sequence[_Mark], blocks: Sequence[Block]) -> None:
    changed = [mark for mark in marks if mark.status in ("mapped", "dropped")]
    if changed:
        text = "; ".join(f"{blocks[mark.origin].where}: {mark.reason}" for mark in changed)
        raise InvalidBreakpoints(f"breakpoints cannot be kept as asked: {text}", field="cache")


def _rewrite(request: Request, sent: dict[int, str | None]) -> Request:
    """The request with exactly these marks; whatever does not change is the same object."""
    blocks = request.blocks()
    parts = [
        with_breakpoint(block.part, Breakpoint(cast("TTL | None", sent[index])) if index in sent else None)
        for index, block in enumerate(blocks)
    ]
    if all(part is block.part for part, block in zip(parts, blocks, strict=True)):
        return request
    rest = iter(parts)
    return replace(
        request,
        tools=tuple(next(rest) for _ in request.tools),
        system=tuple(next(rest) for _ in request.system),
        messages=tuple(
            _with_parts(message, tuple(next(rest) for _ in message.parts)) for message in request.messages
        ),
    )


def _with_parts(message: Message, parts: tuple[Part, ...]) -> Message:
    return message if parts == message.parts else replace(message, parts=parts)
