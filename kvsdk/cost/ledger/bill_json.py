"""A bill as JSON, the way the ledger keeps it: what is as usual is left out."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields
from decimal import Decimal
from typing import Any

from kvsdk.backend import Bill, BillLine, EngineTime, Tariff
from kvsdk.usage import Usage

_USUAL = Tariff(model="")
_encode = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False).encode


def to_json(bill: Bill, usage: Usage) -> str:
    """The bill of a row with this usage, which a bill of one line does not repeat."""
    data: dict[str, Any] = {}
    if bill.lines:
        is_one = len(bill.lines) == 1 and bill.lines[0].usage == usage
        data["lines"] = [_of_line(line, with_usage=not is_one) for line in bill.lines]
    if bill.charged_usd is not None:
        data["charged_usd"] = str(bill.charged_usd)
        data["charged_by"] = bill.charged_by
    if bill.engine is not None:
        data["engine"] = _known(bill.engine)
    if bill.unpriced is not None:
        data["unpriced"] = bill.unpriced
    return _encode(data)


def from_json(text: str, usage: Usage) -> Bill:
    """What `to_json` wrote."""
    data = json.loads(text)
    engine, charged = data.get("engine"), data.get("charged_usd")
    return Bill(
        lines=tuple(_to_line(line, usage) for line in data.get("lines", ())),
        charged_usd=None if charged is None else Decimal(charged),
        charged_by=data.get("charged_by"),
        engine=None if engine is None else _to_engine(engine),
        unpriced=data.get("unpriced"),
    )


def _of_line(line: BillLine, *, with_usage: bool) -> dict[str, Any]:
    tariff = line.tariff
    data: dict[str, Any] = {"model": tariff.model}
    if tariff.provider is not None:
        data["provider"] = tariff.provider
    if tariff.api_url is not None:
        data["api_url"] = tariff.api_url
    if tariff.terms:
        data["terms"] = dict(tariff.terms)
    if tariff.default_ttl != _USUAL.default_ttl:
        data["default_ttl"] = tariff.default_ttl
    if tariff.asked_ttls:
        data["asked_ttls"] = tariff.asked_ttls
    if line.calls:
        data["calls"] = dict(line.calls)
    if with_usage:
        data["usage"] = _known(line.usage)
    return data


def _to_line(data: Mapping[str, Any], usage: Usage) -> BillLine:
    tariff = {key: value for key, value in data.items() if key not in ("calls", "usage")}
    tariff["asked_ttls"] = tuple(tariff.get("asked_ttls", ()))
    if "usage" in data:
        counts: dict[str, Any] = dict(data["usage"])
        counts["estimated"] = frozenset(counts.get("estimated", ()))
        usage = Usage(**counts)
    return BillLine(usage=usage, tariff=Tariff(**tariff), calls=data.get("calls", {}))


def _to_engine(data: Mapping[str, Any]) -> EngineTime:
    seconds: dict[str, Any] = dict(data)
    rate = seconds.get("usd_per_hour")
    seconds["usd_per_hour"] = None if rate is None else Decimal(rate)
    return EngineTime(**seconds)


def _known(value: Any) -> dict[str, Any]:
    """The fields of a usage or of an engine's time that are known."""
    data = {}
    for name in (one.name for one in fields(value)):
        item = getattr(value, name)
        if isinstance(item, Decimal):
            item = str(item)
        elif isinstance(item, frozenset):
            item = sorted(item) or None
        elif isinstance(item, Mapping):
            item = dict(item)
        if item is not None:
            data[name] = item
    return data
