"""Where a prompt's prefixes end, as the ledger keeps it. Pure."""

from __future__ import annotations

from hashlib import sha256

from kvsdk.caching import Plan, Prefix, TokenScale
from kvsdk.cost.ledger.row import PrefixMark

_DIGEST_DIGITS = 16


def prefix_marks(
    plan: Plan, prefix: Prefix, before: Prefix | None, input_tokens: int | None
) -> tuple[PrefixMark, ...]:
    """The breakpoints as they were asked for, the prompt's end, and what it has in common with the last one.

    Args:
        plan: Its breakpoints.
        prefix: The prompt.
        before: The session's last prompt, None without one.
        input_tokens: The total that was reported; sizes in between are bytes scaled to it.
    """
    ends: dict[int, str | None] = {len(prefix.blocks) - 1: ""}
    shared = prefix.common_blocks(before) if before is not None else 0
    if shared:
        ends[shared - 1] = ""
    for entry, end in zip(plan.breakpoints, plan.ends, strict=True):
        if end is not None:
            ends[end] = entry.requested_ttl
    scale = TokenScale.measured(prefix.size_bytes, input_tokens)
    so_far, begins = sha256(), 0
    marks: list[PrefixMark] = []
    for end in sorted(ends):
        so_far.update(b"".join([block.digest for block in prefix.blocks[begins : end + 1]]))
        begins = end + 1
        digest = so_far.hexdigest()[:_DIGEST_DIGITS]
        marks.append(PrefixMark(scale.tokens(prefix.ends_bytes[end]), digest, ends[end]))
    return tuple(marks)
