"""The most that one attempt could cost, before it is sent: what budgets set aside. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from decimal import Decimal
from itertools import combinations
from typing import TYPE_CHECKING, Any

from kvsdk.backend import Backend, Bill, Call, EngineTime, Outcome
from kvsdk.cost import rate
from kvsdk.prompt import File, Request
from kvsdk.usage import Usage

if TYPE_CHECKING:
    from kvsdk.cost import PriceBook

BYTES_PER_TOKEN = 2
"""Fewer than in any text of words: half of what is usual, so that twice the usual count is set aside."""

_TERMS = ("service_tier", "speed", "inference_geo")
_USUAL_TERMS = ("auto", "default", "standard", "standard_only", "global")
_OUTPUT_LIMITS = ("max_tokens", "max_output_tokens", "max_completion_tokens")
_UNSEEN: Mapping[str, str] = {
    "previous_response_id": "the vendor adds a conversation that it keeps",
    "conversation": "the vendor adds a conversation that it keeps",
    "prompt": "the vendor adds a prompt that it keeps",
    "mcp_servers": "the vendor adds what the servers answer",
    "web_search_options": "the vendor adds what it finds",
    "plugins": "the vendor adds what they give",
    "model": "another model answers",
    "models": "another model may answer",
    "fallbacks": "another model may answer",
}
"""Members of `extra` after which the prompt that is billed, or its price, is not the one seen here."""

_CALLERS_TOOLS = (
    "function",
    "custom",
    "bash",
    "text_editor",
    "computer",
    "memory",
    "local_shell",
    "apply_patch",
)
"""Starts of the types of tools that the caller runs; any other runs at the vendor and feeds the model."""

_LEAVE = "call it with a client without budget="


@dataclass(frozen=True, slots=True)
class Bound:
    """The most that an attempt could cost; None where nobody can know, and then why, and what to do."""

    usd: Decimal | None
    why: str = ""


def upper_bound(
    backend: Backend,
    request: Request,
    call: Call,
    size_bytes: int,
    *,
    at: datetime,
    timeout_s: float | None,
    prices: PriceBook | None,
) -> Bound:
    """The most that an attempt could cost: twice the usual count of input, at the dearest it can be billed.

    Input may be billed as fresh, as read or as written (at the dearest TTL asked), so the dearest of the
    three is an upper bound of every mix; the prices are those of a prompt as large. Output is taken at its
    limit. On an engine of one's own the whole of `timeout_s` is taken as busy.

    Args:
        backend: Whose bill it will be.
        request: The planned request.
        call: What is sent of it.
        size_bytes: Bytes of the prompt, with images as the text that weighs as much; the shape of the answer
            and `extra` are added here.
        at: When it is sent.
        timeout_s: What is left of the call's time, None without a limit.
        prices: Where prices are looked up; the list by default.
    """
    unseen = _unseen(request, call.extra)
    if unseen is not None:
        return Bound(None, f"{unseen}; leave it out, or {_LEAVE}")
    outcome = replace(
        Outcome.of_usage(backend.model, Usage()), engine=EngineTime(prefill_s=timeout_s or 0.0, decode_s=0.0)
    )
    if timeout_s is None and backend.bill(outcome, request).engine is not None:
        return Bound(None, "an engine of one's own costs by the time; pass timeout_s=")
    most = Decimal(0)
    for usage in _usages(request, call.extra, size_bytes):
        for terms in _terms(call.extra):
            bill = backend.bill(replace(outcome, usage=usage, terms=terms), request)
            cost = rate(bill, at=at, prices=prices)
            if cost.total is None:
                return Bound(None, f"{cost.reason}; {_hint(bill)}")
            most = max(most, cost.total)
    return Bound(most)


def _usages(request: Request, extra: Mapping[str, Any], size_bytes: int) -> Iterator[Usage]:
    """All of the input fresh, all read and all written."""
    if extra:
        size_bytes += _json_bytes(extra)
    if request.response_format is not None:
        size_bytes += _json_bytes(request.response_format.schema)
    tokens = -(-size_bytes // BYTES_PER_TOKEN)
    asked = [_count(extra.get(name)) for name in _OUTPUT_LIMITS]
    output = max(1 if request.is_prewarm else request.max_tokens, *asked)
    output *= max(1, _count(extra.get("n")))
    for read, write in ((0, 0), (tokens, 0), (0, tokens)):
        yield Usage.of_total(tokens, read=read, write=write, output=output)
    for ttl in _ttls(extra):
        yield Usage.of_total(tokens, read=0, write=tokens, output=output, write_by_ttl={ttl: tokens})


def _ttls(value: Any) -> Iterator[str]:
    """TTLs that the caller asks for beside the request's own marks."""
    if isinstance(value, Mapping):
        if isinstance(value.get("ttl"), str):
            yield value["ttl"]
        value = [*value.values()]
    if isinstance(value, Sequence) and not isinstance(value, str):
        for item in value:
            yield from _ttls(item)


def _terms(extra: Mapping[str, Any]) -> Iterator[dict[str, str]]:
    """The usual terms, and each combination of those asked for: an answer may come on any of them."""
    asked = [
        (name, value)
        for name in _TERMS
        if isinstance(value := extra.get(name), str) and value not in _USUAL_TERMS
    ]
    for count in range(len(asked) + 1):
        for chosen in combinations(asked, count):
            yield dict(chosen)


def _unseen(request: Request, extra: Mapping[str, Any]) -> str | None:
    """What makes the vendor bill more than can be seen here, or None."""
    for name, what in _UNSEEN.items():
        if extra.get(name):
            return f"with {name!r} in extra {what}"
    for tool in extra.get("tools") or ():
        kind = tool.get("type") if isinstance(tool, Mapping) else None
        if isinstance(kind, str) and not kind.startswith(_CALLERS_TOOLS):
            return f"the tool {kind!r} in extra runs at the vendor, who bills what it adds to the prompt"
    for block in request.blocks():
        if isinstance(block.part, File) and block.part.data is None:
            return f"{block.where} is a file whose size is not known here; pass its data"
    return None


def _hint(bill: Bill) -> str:
    if bill.engine is not None:
        return "pass usd_per_hour="
    return _LEAVE if bill.unpriced else f"give it a price in a file (prices=...), or {_LEAVE}"


def _json_bytes(value: Mapping[str, Any]) -> int:
    return len(json.dumps(dict(value), ensure_ascii=False, default=str).encode("utf-8", "replace"))


def _count(value: object) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) else 0
