"""What an answer cost. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime
from decimal import Decimal
from typing import Any

from kvsdk.backend import Outcome
from kvsdk.cost import list_price
from kvsdk.prompt import Request
from kvsdk.reply import Cost

from kvsdk_openai._facts import is_partitioned, options_ttls, write_factors
from kvsdk_openai._target import Target, has_advice

_ROUNDING = Decimal("1e-6")
"""How far a charge may be from the list's total and still be the same: it arrives as a float."""


def to_cost(
    outcome: Outcome, request: Request, target: Target, *, at: datetime, base_url: str | None
) -> Cost:
    """The server's own word on what was charged, else the list price."""
    charged = _charged(outcome.raw, target.server.cost_field)
    listed = _listed(outcome, request, target, at, base_url)
    return listed if charged is None else _corrected(listed, charged, target)


def _listed(outcome: Outcome, request: Request, target: Target, at: datetime, base_url: str | None) -> Cost:
    server = target.server
    if not server.list_priced:
        return Cost(reason="a server of one's own has no list price")
    if server.name == "azure":
        if target.family is None:
            return Cost(reason="the deployment's model is not known; name it with model=...")
        model = target.family
    else:
        model = outcome.model or target.model
    default_ttl = _default_ttl(request, target)
    marks = [mark for mark in request.marks() if mark is not None]
    return list_price(
        outcome.usage,
        model,
        at=at,
        provider=server.provider,
        api_url=None if server.provider else base_url,
        context=outcome.bill,
        default_ttl=default_ttl,
        asked_ttls={mark.ttl or default_ttl for mark in marks} if target.takes_marks else (),
        write_factors=write_factors() if is_partitioned(model, server) else None,
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


def _corrected(listed: Cost, charged: Decimal, target: Target) -> Cost:
    """A cost whose total is what was charged; the list's parts stay where they add up to that."""
    source = f"{target.server.name} usage.{target.server.cost_field}"
    if listed.total is None or listed.without_cache is None or listed.estimated:
        return Cost(total=charged, price_source=source)
    if abs(listed.total - charged) > charged * _ROUNDING:
        return Cost(total=charged, price_source=source)
    return replace(listed, total=charged, saved=listed.without_cache - charged, price_source=source)
