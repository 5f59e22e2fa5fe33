"""What an answer is billed for. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal
from typing import Any

from kvsdk.backend import Bill, BillLine, Outcome, Tariff
from kvsdk.prompt import Request

from kvsdk_openai._facts import options_ttls
from kvsdk_openai._target import Target, has_advice

_TOOLS = {"web_search_call": "web_search", "file_search_call": "file_search"}


def to_bill(
    outcome: Outcome, request: Request, target: Target, *, base_url: str | None, region: str | None
) -> Bill:
    """Tokens at the vendor's list price, beside the server's own word on what it charged."""
    server = target.server
    if not server.list_priced:
        return Bill(unpriced="a server of one's own has no list price")
    model = outcome.model or target.model
    if server.name == "azure":
        if target.family is None:
            return Bill(unpriced="the deployment's model is not known; name it with model=...")
        model = target.family
    default_ttl = _default_ttl(request, target)
    marks = [mark for mark in request.marks() if mark is not None] if target.takes_marks else []
    tariff = Tariff(
        model=model,
        provider=server.provider,
        api_url=None if server.provider else base_url,
        terms={**outcome.terms, **({"region": region} if region else {})},
        default_ttl=default_ttl,
        asked_ttls=tuple(sorted({mark.ttl or default_ttl for mark in marks})),
    )
    charged = _charged(outcome.raw, server.cost_field)
    return Bill(
        lines=(BillLine(usage=outcome.usage, tariff=tariff, calls=outcome.calls),),
        charged_usd=charged,
        charged_by=None if charged is None else f"{server.name} usage.{server.cost_field}",
    )


def _default_ttl(request: Request, target: Target) -> str:
    """The TTL of a write that says none: the one sent for the whole request, or the marks' default."""
    server = target.server
    if server.options_ttl:
        longer = options_ttls(target.family, server)
        return longer[-1] if longer and has_advice(request, target) else server.options_ttl[0]
    return "5m" if server.marks == "cache_control" else "30m"


def _charged(raw: Mapping[str, Any], field: str | None) -> Decimal | None:
    usage = raw.get("usage")
    value = usage.get(field) if field and isinstance(usage, Mapping) else None
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return Decimal(str(value)) if is_number else None


def to_terms(body: Mapping[str, Any]) -> dict[str, str]:
    """What the price depends on beside the counts: the tier that the answer says was billed."""
    tier = body.get("service_tier")
    return {"service_tier": tier} if isinstance(tier, str) and tier not in ("default", "auto") else {}


def to_calls(body: Mapping[str, Any]) -> dict[str, int]:
    """Built-in tools that are billed by the call, from a response's items (openai 3.57.0)."""
    calls: dict[str, int] = {}
    for item in body.get("output") or ():
        name = _TOOLS.get(str(item.get("type"))) if isinstance(item, Mapping) else None
        if name is not None:
            calls[name] = calls.get(name, 0) + 1
    return calls
