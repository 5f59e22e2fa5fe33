"""What an answer is billed for. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kvsdk.backend import Bill, BillLine, Outcome, Tariff
from kvsdk.prompt import Request

from kvsdk_anthropic._usage import billed

_USUAL = {"speed": ("standard",), "service_tier": ("standard",), "inference_geo": ("global", "not_available")}


def to_bill(outcome: Outcome, request: Request, model: str) -> Bill:
    """A line for the answer, and one for each helper that has tokens of its own.

    An advisor's tokens are billed at its own model's rates; the server tools are billed with the answer.
    """
    asked = {mark.ttl or "5m" for mark in request.marks() if mark is not None}
    answered = outcome.model or model
    lines = billed(outcome.raw.get("usage") or {})
    tariffs = [
        Tariff(
            model=helper or answered,
            provider="anthropic",
            terms=outcome.terms,
            asked_ttls=tuple(sorted(asked)),
        )
        for helper, _ in lines
    ]
    if len(lines) == 1:
        # the answer's own count, which is complete where a stream's was estimated
        return Bill(lines=(BillLine(usage=outcome.usage, tariff=tariffs[0], calls=outcome.calls),))
    return Bill(
        lines=tuple(
            BillLine(usage=usage, tariff=tariff, calls={} if number else outcome.calls)
            for number, ((_, usage), tariff) in enumerate(zip(lines, tariffs, strict=True))
        )
    )


def to_terms(usage: Mapping[str, Any]) -> dict[str, str]:
    """What the price depends on beside the counts, as the response says it (anthropic 2.14.0, types/usage).

    A batch is a way of processing, as genai-prices calls it, and no tier.
    """
    terms = {}
    for name, usual in _USUAL.items():
        value = usage.get(name)
        if isinstance(value, str) and value not in usual:
            terms[name] = value
    if terms.get("service_tier") == "batch":
        del terms["service_tier"]
        terms["processing"] = "batch"
    return terms


def to_calls(usage: Mapping[str, Any]) -> dict[str, int]:
    """Server tools that are billed by the call: web searches. A fetch costs its tokens only."""
    counts = usage.get("server_tool_use")
    searches = counts.get("web_search_requests") if isinstance(counts, Mapping) else None
    return {"web_search": searches} if isinstance(searches, int) and searches > 0 else {}
