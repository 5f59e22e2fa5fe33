"""What a vendor's own report says was used or billed, per UTC day and model. No I/O.

Read as JSON that was saved from these endpoints: one page, a list of pages, or JSON Lines of pages.

| vendor    | usage                                | costs                                  |
|-----------|--------------------------------------|----------------------------------------|
| OpenAI    | `organization/usage/completions`     | `organization/costs`                   |
| Anthropic | `organizations/usage_report/messages`| `organizations/cost_report`            |
|           | `organizations/analytics/usage…`     | `organizations/analytics/cost…`        |

Documented, read 2026-11-30: fields and units of OpenAI's reports are those of the types of openai 3.57.0,
those of Anthropic's analytics of anthropic 2.14.0, and those of its two older reports of
platform.claude.com/docs/en/api/admin. OpenAI's `input_tokens` include what was read and written, and its
amounts are dollars; Anthropic's counts are parts, and its amounts are cents (`"123.45"` is $1.23). OpenAI's
costs have no model but a `line_item`, whose form is not documented: public code has seen
`"gpt-5.5-2026-04-23, cached input"`, `"priority | gpt-5.6-sol, output"` and `"web search tool calls"`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import Any, Literal

from kvsdk.cost.exports.json_reading import WHOLE, Place, cents, count, dollars, moment, pages, part, text
from kvsdk.usage import Usage

Vendor = Literal["anthropic", "openai"]
Kind = Literal["usage", "costs"]

_HOUR = timedelta(hours=1)
_ONE_EACH = "save each report in a file of its own"
_BUCKETS = "export with buckets of one day or one hour in UTC"
_REPORTS = "known are OpenAI's completions usage and costs, and Anthropic's usage and cost reports"


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportLine:
    """One result of a report. What the report does not say is None.

    Attributes:
        day: In UTC.
        model: The vendor's id; None where the report is not grouped by model, and for what belongs to none.
        item: What a cost without a model is for, such as `"web search tool calls"`.
        requests: Requests counted.
        usage: Token counts.
        cost_usd: What was billed, in dollars.
        list_cost_usd: What it was before a discount.
    """

    day: date
    model: str | None = None
    item: str | None = None
    requests: int | None = None
    usage: Usage = field(default_factory=Usage)
    cost_usd: Decimal | None = None
    list_cost_usd: Decimal | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Export:
    """A report as a whole.

    Attributes:
        name: Where it is from, for messages.
        vendor: Whose it is; also the scheme of the ledger's rows that it is about.
        kind: Token counts or dollars; None where it has no result, so that it says that nothing was used.
        lines: Its results, in its order; a model may have several on a day.
        hours: The start of each hour that it covers, in UTC.
        is_complete: Whether its last page is there.
    """

    name: str
    vendor: Vendor
    kind: Kind | None
    lines: tuple[ExportLine, ...]
    hours: frozenset[datetime]
    is_complete: bool = True

    @property
    def is_by_model(self) -> bool:
        """Whether results are grouped by model; if not, only whole days can be compared."""
        is_by_item = self.vendor == "openai" and any(line.item is not None for line in self.lines)
        return is_by_item or any(line.model is not None for line in self.lines)


def parse_export(content: str, *, name: str) -> Export:
    """Read a report.

    Args:
        content: What was saved.
        name: Its file, for messages.

    Raises:
        InvalidRequest: It is no JSON, another report or a mixture, not in dollars, has a bucket that is not
            of hours of one day, or has one twice. The message names the file and the place in it.
    """
    reader = _Reader(name)
    page: Mapping[str, Any] = {}
    for where, page in pages(content, Place(name)):
        reader.add_page(page, where)
    if reader.vendor is None:
        raise Place(name).wrong("has no bucket, so it covers no day", "export a range of days")
    more = page.get("has_more")
    is_complete = not more if isinstance(more, bool) else page.get("next_page") is None
    return Export(
        name=name,
        vendor=reader.vendor,
        kind=reader.kind,
        lines=tuple(reader.lines),
        hours=frozenset(reader.spans),
        is_complete=is_complete,
    )


# ---------------------------------------------------------------------- buckets and results


class _Reader:
    """Takes in pages; every bucket once."""

    def __init__(self, name: str) -> None:
        self.vendor: Vendor | None = None
        self.kind: Kind | None = None
        self.lines: list[ExportLine] = []
        self.spans: dict[datetime, tuple[datetime, datetime]] = {}
        self._file = Place(name)
        self._seen: set[tuple[datetime, datetime, str]] = set()

    def add_page(self, page: Mapping[str, Any], place: Place) -> None:
        for index, bucket in enumerate(page["data"]):
            where = place / "data" / index
            if not isinstance(bucket, dict):
                raise where.wrong("is no bucket", WHOLE)
            vendor = _vendor(bucket, where)
            if self.vendor not in (None, vendor):
                raise where.wrong("is another vendor's", _ONE_EACH)
            self.vendor = vendor
            self._add_bucket(bucket, where)

    def _add_bucket(self, bucket: Mapping[str, Any], where: Place) -> None:
        results = bucket.get("results")
        group = bucket.get("group")
        if results is None and isinstance(group, dict):  # Anthropic's newer reports: one result each
            result = {**group, **part(bucket, "usage"), **part(bucket, "cost")}
            day = self._cover(bucket, where, json.dumps(group, sort_keys=True, default=str))
            self._add_result(result, day, where)
            return
        if not isinstance(results, list):
            raise where.wrong("has no list `results`", _REPORTS)
        day = self._cover(bucket, where, "")
        for index, result in enumerate(results):
            self._add_result(result, day, where / "results" / index)

    def _cover(self, bucket: Mapping[str, Any], where: Place, group: str) -> date:
        """Mark the bucket's hours; the day that it lies in."""
        names = ("start_time", "end_time") if self.vendor == "openai" else ("starting_at", "ending_at")
        start, end = (moment(bucket.get(name), where / name) for name in names)
        midnight = start.replace(hour=0, minute=0, second=0, microsecond=0)
        is_whole = (start - midnight) % _HOUR == (end - midnight) % _HOUR == timedelta(0)
        if not is_whole or not start < end <= midnight + timedelta(days=1):
            raise where.wrong(f"runs from {start:%Y-%m-%dT%H:%M:%SZ} to {end:%Y-%m-%dT%H:%M:%SZ}", _BUCKETS)
        hours = [start + number * _HOUR for number in range((end - start) // _HOUR)]
        if (start, end, group) in self._seen or any(
            self.spans.get(hour, (start, end)) != (start, end) for hour in hours
        ):
            raise where.wrong(f"covers {start:%Y-%m-%dT%H:%MZ} again", "save each page once")
        self._seen.add((start, end, group))
        self.spans.update(dict.fromkeys(hours, (start, end)))
        return start.date()

    def _add_result(self, result: Any, day: date, where: Place) -> None:
        if not isinstance(result, dict):
            raise where.wrong("is no result", WHOLE)
        read = _openai_line if self.vendor == "openai" else _anthropic_line
        kind, line = read(result, day, where)
        if self.kind not in (None, kind):
            raise where.wrong(f"is of {kind}, others are of {self.kind}", _ONE_EACH)
        self.kind = kind
        self.lines.append(line)


def _vendor(bucket: Mapping[str, Any], where: Place) -> Vendor:
    if "start_time" in bucket:
        return "openai"
    if "starting_at" in bucket:
        return "anthropic"
    raise where.wrong("has neither `start_time` nor `starting_at`", _REPORTS)


def _openai_line(result: Mapping[str, Any], day: date, where: Place) -> tuple[Kind, ExportLine]:
    kind = result.get("object")
    if kind == "organization.costs.result" or (kind is None and "amount" in result):
        item = text(result, "line_item", where)
        model = None if item is None else model_of_item(item)
        amount = result.get("amount")
        is_unknown = amount is None or (isinstance(amount, dict) and amount.get("value") is None)
        cost = None if is_unknown else dollars(amount, "value", where / "amount")
        return "costs", ExportLine(day=day, model=model, item=None if model else item, cost_usd=cost)
    if kind in (None, "organization.usage.completions.result") and "num_model_requests" in result:
        usage = _openai_usage(result, where)
        requests = count(result, "num_model_requests", where)
        return "usage", ExportLine(
            day=day, model=text(result, "model", where), requests=requests, usage=usage
        )
    raise where.wrong(f"is of a report that is not known (object {kind!r})", _REPORTS)


def _openai_usage(result: Mapping[str, Any], where: Place) -> Usage:
    names = {"30m": "input_cache_write_30m_tokens", "12h": "input_cache_write_12h_tokens"}
    counts = {ttl: count(result, name, where) for ttl, name in names.items()}
    known = {ttl: tokens for ttl, tokens in counts.items() if tokens is not None}
    return Usage.of_total(
        count(result, "input_tokens", where),
        read=count(result, "input_cached_tokens", where),
        write=count(result, "input_cache_write_tokens", where),
        output=count(result, "output_tokens", where),
        write_by_ttl=known or None,
    )


def _anthropic_line(result: Mapping[str, Any], day: date, where: Place) -> tuple[Kind, ExportLine]:
    if result.get("rbac_group_id") is not None:
        raise where.wrong("is of a group of users, and such groups overlap", "export without `rbac_group_id`")
    model = text(result, "model", where)
    requests = count(result, "requests", where)
    if "amount" in result:
        item = None
        if model is None:
            item = text(result, "description", where) or text(result, "cost_type", where)
        listed = None if result.get("list_amount") is None else cents(result, "list_amount", where)
        return "costs", ExportLine(
            day=day,
            model=model,
            item=item,
            requests=requests,
            cost_usd=cents(result, "amount", where),
            list_cost_usd=listed,
        )
    if "uncached_input_tokens" in result:
        usage = _anthropic_usage(result, where)
        return "usage", ExportLine(day=day, model=model, requests=requests, usage=usage)
    raise where.wrong("is of a report that is not known", _REPORTS)


def _anthropic_usage(result: Mapping[str, Any], where: Place) -> Usage:
    created, inside = part(result, "cache_creation"), where / "cache_creation"
    counts = {ttl: count(created, f"ephemeral_{ttl}_input_tokens", inside) for ttl in ("5m", "1h")}
    known = {ttl: tokens for ttl, tokens in counts.items() if tokens is not None}
    return Usage.of_parts(
        fresh=count(result, "uncached_input_tokens", where),
        read=count(result, "cache_read_input_tokens", where),
        write=sum(known.values()) if len(known) == len(counts) else None,
        output=count(result, "output_tokens", where),
        write_by_ttl=known or None,
    )


def model_of_item(item: str) -> str | None:
    """The model of an OpenAI `line_item`: `"priority | gpt-x, cached input"` is of `gpt-x`.

    None where it is of none, such as `"web search tool calls"`: a model's id has a digit or a hyphen.
    """
    head, comma, _ = item.rpartition(" | ")[2].partition(",")
    words = head.split()
    if not words or (len(words) > 1 and not comma):
        return None
    return words[0] if any(letter.isdigit() or letter in "-:" for letter in words[0]) else None
