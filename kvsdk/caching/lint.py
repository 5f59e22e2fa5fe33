"""What is wrong with one request's prefix, found without sending it. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from kvsdk.backend import Capabilities
from kvsdk.caching.plan import Plan
from kvsdk.caching.prefix import Prefix
from kvsdk.caching.tokens import TokenScale
from kvsdk.caching.volatile import Value, find_values, line_of, named
from kvsdk.prompt import Block, Request, Text, Tool, breakpoint_of
from kvsdk.reply import Finding

_ALWAYS = frozenset({"timestamp", "UUID"})
_AT_AN_EDGE = frozenset({"date", "time", "hash"})
_EDGE = 200
"""Characters at either end of a text, where generated headers and footers stand."""

_CUE = re.compile(
    r"\b(?:today|now|current(?:ly)?|date|time|timestamp|day|updated|generated|created|as of|session|request"
    r"|conversation|trace|span|nonce|uuid|guid|user|run|turn|build|version|commit|seed|id)\b[^\n]{0,32}$",
    re.IGNORECASE,
)
_COUNTER = re.compile(
    r"\W{0,4}(?:request|req|turn|message|msg|step|run|attempt|call|session|conversation|iteration|round|seq)\b"
    r"\W{0,3}(?:no|nr|number|id|count)?\W{0,3}$|\s*[\[(#]{1,2}$",
    re.IGNORECASE,
)


def lint(
    request: Request, plan: Plan, prefix: Prefix, capabilities: Capabilities, scale: TokenScale
) -> tuple[Finding, ...]:
    """Findings of one request, in the order of the prompt.

    Args:
        request: The request as the caller made it.
        plan: Its breakpoints as the backend takes them.
        prefix: Its digest.
        capabilities: The backend's.
        scale: The session's bytes per token, or the default.
    """
    if capabilities.breakpoints == "none":
        return ()
    short = tuple(_too_short(plan, prefix, capabilities, scale))
    return (
        *_volatile(request, plan, capabilities),
        *short,
        *_unmarked(plan, prefix, capabilities, scale),
        *(() if short else _never_read(request, plan, capabilities)),
    )


# ---------------------------------------------------------------------- values that change


def _volatile(request: Request, plan: Plan, capabilities: Capabilities) -> Iterator[Finding]:
    """Values that tend to change, in the tools and system texts that are to be cached."""
    end = len(request.blocks()) - 1 if plan.last_end is None else plan.last_end
    if plan.last_end is None and capabilities.caches_only_at_marks:
        return
    for block in request.blocks()[: end + 1]:
        if block.section == "messages":
            return
        text = _text_of(block)
        found = [value for value in find_values(text) if _is_suspect(text, value)]
        if found:
            yield Finding(block.where, "volatile", _volatile_detail(text, found, block))


def _text_of(block: Block) -> str:
    if isinstance(block.part, Tool):
        return block.part.description
    return block.part.text if isinstance(block.part, Text) else ""


def _is_suspect(text: str, value: Value) -> bool:
    """Whether a value looks as if it were made for this request, rather than part of what is explained."""
    before = text[max(0, value.start - 64) : value.start]
    if value.kind == "number":
        return value.start < 64 and _COUNTER.fullmatch(before) is not None
    is_edge = value.start < _EDGE or value.end > len(text) - _EDGE
    return value.kind in _ALWAYS or _CUE.search(before) is not None or (value.kind in _AT_AN_EDGE and is_edge)


def _volatile_detail(text: str, found: Iterable[Value], block: Block) -> str:
    by_kind: dict[str, list[Value]] = {}
    for value in found:
        by_kind.setdefault(value.kind, []).append(value)
    words = []
    for kind, values in by_kind.items():
        line = line_of(text, values[0])
        count = len(values)
        what = named(kind) if count == 1 else f"{count} {'hashes' if kind == 'hash' else kind + 's'}"
        words.append(f"{what} ({'' if count == 1 else 'the first in '}line {line})")
    inside = "its description has" if block.section == "tools" else "it has"
    return (
        f"{inside} {' and '.join(words)}; if that changes between requests, nothing from there on is read: "
        "move it into the last user message"
    )


# ---------------------------------------------------------------------- breakpoints


def _too_short(
    plan: Plan, prefix: Prefix, capabilities: Capabilities, scale: TokenScale
) -> Iterator[Finding]:
    """Breakpoints that end a prefix which the model does not cache."""
    minimum = capabilities.min_tokens
    if minimum is None or capabilities.breakpoints != "honoured":
        return
    for end in sorted({end for end in plan.ends if end is not None}):
        tokens = scale.tokens(prefix.ends_bytes[end])
        if tokens < minimum:
            yield Finding(
                prefix.blocks[end].where,
                "below_minimum",
                f"the breakpoint ends a prefix of about {tokens} tokens and this model caches none below its "
                f"minimum of {minimum}: move it further back, or leave it out",
            )


def _unmarked(plan: Plan, prefix: Prefix, capabilities: Capabilities, scale: TokenScale) -> Iterator[Finding]:
    """A prompt that could be cached and has no breakpoint."""
    if not capabilities.caches_only_at_marks or plan.last_end is not None or not prefix.blocks:
        return
    if scale.tokens(prefix.size_bytes) < (capabilities.min_tokens or 0):
        return
    stable = [block for block in prefix.blocks if block.section != "messages"]
    where = (stable or list(prefix.blocks))[-1].where
    yield Finding(
        where,
        "no_breakpoint",
        "the request has no breakpoint and this backend caches nothing without one: put cache=True on the "
        "last piece that stays the same, or call with cache='auto'",
    )


def _never_read(request: Request, plan: Plan, capabilities: Capabilities) -> Iterator[Finding]:
    """A breakpoint, asked for, behind the question of a request that is no conversation."""
    blocks = request.blocks()
    if capabilities.breakpoints != "honoured" or request.session is not None or len(request.messages) != 1:
        return
    last = len(blocks) - 1
    if last in plan.ends and breakpoint_of(blocks[last].part) is not None:
        yield Finding(
            blocks[last].where,
            "never_read",
            "the breakpoint stands behind the part that changes every time, so the prefix it ends is written "
            "and never read: move it before the question, or name a session if the conversation goes on",
        )
