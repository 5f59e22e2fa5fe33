"""Vendors' usage and cost reports as they are saved from their endpoints."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pytest
from kvsdk import InvalidRequest, Usage
from kvsdk.cost.exports.reading import ExportLine, model_of_item, parse_export

DAY = date(2026, 11, 28)
MIDNIGHT = 1795824000  # 2026-11-28T00:00:00Z


def openai(*results: dict[str, Any], start: int = MIDNIGHT, hours: int = 24, **page: Any) -> dict[str, Any]:
    bucket = {"object": "bucket", "start_time": start, "end_time": start + hours * 3600, "results": results}
    return {"object": "page", "data": [bucket], "has_more": False, "next_page": None, **page}


def anthropic(*results: dict[str, Any], end: str = "2026-11-29T00:00:00Z", **page: Any) -> dict[str, Any]:
    bucket = {"starting_at": "2026-11-28T00:00:00Z", "ending_at": end, "results": results}
    return {"data": [bucket], "has_more": False, "next_page": None, **page}


def openai_usage(**changes: Any) -> dict[str, Any]:
    return {
        "object": "organization.usage.completions.result",
        "input_tokens": 5000,
        "input_cached_tokens": 4000,
        "input_cache_write_tokens": 600,
        "input_cache_write_30m_tokens": 500,
        "input_cache_write_12h_tokens": 100,
        "output_tokens": 1000,
        "num_model_requests": 5,
        "model": "gpt-x-2026-01-01",
        **changes,
    }


def openai_cost(value: Any = 0.06, currency: Any = "usd", **changes: Any) -> dict[str, Any]:
    amount = {"value": value, "currency": currency}
    return {"object": "organization.costs.result", "amount": amount, "line_item": None, **changes}


def anthropic_usage(**changes: Any) -> dict[str, Any]:
    return {
        "uncached_input_tokens": 1500,
        "cache_creation": {"ephemeral_1h_input_tokens": 1000, "ephemeral_5m_input_tokens": 500},
        "cache_read_input_tokens": 200,
        "output_tokens": 500,
        "server_tool_use": {"web_search_requests": 10},
        "model": "claude-x",
        "service_tier": "standard",
        "context_window": "0-200k",
        **changes,
    }


def anthropic_cost(amount: Any = "123.78912", **changes: Any) -> dict[str, Any]:
    return {
        "amount": amount,
        "currency": "USD",
        "cost_type": "tokens",
        "description": "Claude X Usage - Input Tokens",
        "model": "claude-x",
        "token_type": "uncached_input_tokens",
        **changes,
    }


def read(data: Any) -> Any:
    return parse_export(json.dumps(data), name="bill.json")


# ---------------------------------------------------------------------- the shapes


def test_openai_usage_counts_include_the_cached() -> None:
    """5000 in, of which 4000 were read and 600 written: 400 are fresh."""
    export = read(openai(openai_usage()))
    assert (export.vendor, export.kind, export.is_by_model) == ("openai", "usage", True)
    assert export.lines == (
        ExportLine(
            day=DAY,
            model="gpt-x-2026-01-01",
            requests=5,
            usage=Usage(
                input_tokens=5000,
                cache_read_tokens=4000,
                cache_write_tokens=600,
                fresh_tokens=5000 - 4000 - 600,
                output_tokens=1000,
                cache_write_by_ttl={"30m": 500, "12h": 100},
            ),
        ),
    )


def test_counts_that_openai_does_not_give_are_unknown() -> None:
    """An older report has no writes: neither they nor the fresh tokens are known, and no model is."""
    result = openai_usage(model=None)
    for name in [name for name in result if "write" in name]:
        del result[name]
    (line,) = read(openai(result)).lines
    assert (line.usage.input_tokens, line.usage.cache_read_tokens, line.model) == (5000, 4000, None)
    assert (line.usage.cache_write_tokens, line.usage.fresh_tokens, line.cost_usd) == (None, None, None)


def test_openai_costs_are_dollars_and_exact() -> None:
    """`0.1` is a tenth of a dollar, not its nearest float; so is a long number, and one that is text."""
    for text, dollars in (
        ("0.1", "0.1"),
        ("0.12345678901234567890", "0.12345678901234567890"),
        ('"2.5"', "2.5"),
    ):
        content = json.dumps(openai(openai_cost("VALUE"))).replace('"VALUE"', text)
        (line,) = parse_export(content, name="bill.json").lines
        assert line.cost_usd == Decimal(dollars)
        assert (line.requests, line.usage) == (None, Usage())


def test_an_amount_that_openai_leaves_out_is_unknown() -> None:
    """The amount and its value may be null."""
    export = read(openai(openai_cost(None, None), openai_cost(amount=None)))
    assert [line.cost_usd for line in export.lines] == [None, None]


@pytest.mark.parametrize(
    ("item", "model"),
    [
        ("gpt-6.1-sol, cached input", "gpt-6.1-sol"),
        ("gpt-5.5-2026-04-23, input", "gpt-5.5-2026-04-23"),
        ("priority | gpt-5.6-sol, output, long context", "gpt-5.6-sol"),
        ("gpt-audio-mini-2025-12-15 audio, input", "gpt-audio-mini-2025-12-15"),
        ("ft:gpt-4o-mini-2024-07-18:acme::id, output", "ft:gpt-4o-mini-2024-07-18:acme::id"),
        ("o3, input", "o3"),
        ("gpt-4o", "gpt-4o"),
        ("web search tool calls", None),
        ("web search, preview", None),
        ("Vector storage", None),
        (", input", None),
    ],
)
def test_the_model_of_a_line_item(item: str, model: str | None) -> None:
    """The model stands before the comma; an item that is no model's keeps its name."""
    assert model_of_item(item) == model
    (line,) = read(openai(openai_cost(line_item=item))).lines
    assert (line.model, line.item) == (model, None if model else item)


def test_anthropic_usage_counts_are_parts() -> None:
    """1500 fresh, 200 read, 1000 + 500 written: 3200 in."""
    export = read(anthropic(anthropic_usage()))
    assert (export.vendor, export.kind) == ("anthropic", "usage")
    (line,) = export.lines
    assert line.usage == Usage(
        input_tokens=1500 + 200 + 1000 + 500,
        cache_read_tokens=200,
        cache_write_tokens=1000 + 500,
        fresh_tokens=1500,
        output_tokens=500,
        cache_write_by_ttl={"5m": 500, "1h": 1000},
    )
    assert (line.model, line.requests, line.cost_usd) == ("claude-x", None, None)


@pytest.mark.parametrize("created", [None, {}, {"ephemeral_5m_input_tokens": 500}])
def test_writes_that_anthropic_does_not_give_are_unknown(created: dict[str, int] | None) -> None:
    """Half of them is not all; the total is then an estimate."""
    (line,) = read(anthropic(anthropic_usage(cache_creation=created))).lines
    assert line.usage.cache_write_tokens is None
    assert line.usage.meter("input_tokens") == "estimated"


def test_anthropic_costs_are_cents() -> None:
    """`"123.78912"` is $1.2378912."""
    export = read(anthropic(anthropic_cost()))
    assert export.lines == (ExportLine(day=DAY, model="claude-x", cost_usd=Decimal("1.2378912")),)
    assert export.kind == "costs"


def test_anthropic_costs_of_no_model_keep_their_name() -> None:
    """A web search has a description and no model."""
    result = anthropic_cost(model=None, description="Web Search Usage", cost_type="web_search")
    (line,) = read(anthropic(anthropic_cost(), result)).lines[1:]
    assert (line.model, line.item) == (None, "Web Search Usage")


def test_anthropic_costs_by_type_alone_are_not_by_model() -> None:
    """Without a model in any result, what the cost is for does not make it one."""
    result = anthropic_cost(model=None, description=None, token_type=None)
    assert not read(anthropic(result)).is_by_model
    assert read(openai(openai_cost(line_item="web search tool calls"))).is_by_model


def test_anthropic_analytics_in_buckets() -> None:
    """They have requests, and the list price beside what was billed: $1.20 instead of $1.50."""
    export = read(anthropic(anthropic_cost("120", list_amount="150.0", requests=7)))
    (line,) = export.lines
    assert (line.requests, line.cost_usd, line.list_cost_usd) == (7, Decimal("1.2"), Decimal("1.5"))
    assert read(anthropic(anthropic_usage(requests=7))).lines[0].requests == 7


def item(kind: str, metrics: dict[str, Any], **group: Any) -> dict[str, Any]:
    span = {"starting_at": "2026-11-28T00:00:00Z", "ending_at": "2026-11-29T00:00:00Z"}
    return {**span, "group": {"model": "claude-x", **group}, kind: metrics}


def test_anthropic_analytics_in_rows() -> None:
    """The newer reports have a row per bucket and group, which says the same."""
    usage = anthropic_usage(requests=3, total_tokens=3700)
    del usage["model"]
    rows = {"data": [item("usage", usage), item("usage", usage, model="claude-y")], "has_more": False}
    old = read(anthropic(anthropic_usage(requests=3))).lines[0]
    assert read(rows).lines[0] == old
    assert [line.model for line in read(rows).lines] == ["claude-x", "claude-y"]
    costs = {"data": [item("cost", {"amount": "5", "list_amount": "5", "currency": "USD"})]}
    assert read(costs).lines[0].cost_usd == Decimal("0.05")


def test_the_reports_of_these_tests_are_the_vendors() -> None:
    """The vendors' own types take them."""
    from anthropic.types.beta.organization import BetaAnalyticsCostReportTimeBucket as CostBucket
    from anthropic.types.beta.organization import BetaAnalyticsUsageReportTimeBucket as UsageBucket
    from anthropic.types.beta.organization.analytics import BetaAnalyticsCostItem, BetaAnalyticsUsageItem
    from openai.types.admin.organization import UsageCompletionsResponse, UsageCostsResponse

    UsageCompletionsResponse.model_validate(openai(openai_usage()))
    UsageCostsResponse.model_validate(openai(openai_cost()))
    UsageBucket.model_validate(anthropic(anthropic_usage(requests=3))["data"][0])
    cost = {"amount": "120", "list_amount": "150.0", "currency": "USD", "requests": 7}
    CostBucket.model_validate(anthropic(cost)["data"][0])
    BetaAnalyticsCostItem.model_validate(item("cost", cost))
    BetaAnalyticsUsageItem.model_validate(item("usage", anthropic_usage(requests=3, total_tokens=3700)))


# ---------------------------------------------------------------------- pages and time


def test_pages_as_one_as_a_list_and_as_lines() -> None:
    """All three say the same; the last page tells whether the report is whole."""
    first = openai(openai_usage(), has_more=True, next_page="p")
    second = openai(openai_usage(), start=MIDNIGHT + 86400)
    listed = read([first, second])
    lines = parse_export(f"{json.dumps(first)}\n\n{json.dumps(second)}\n", name="bill.json")
    assert listed == lines
    assert [line.day for line in listed.lines] == [DAY, date(2026, 11, 29)]
    assert (len(listed.hours), listed.is_complete) == (48, True)
    assert not read(first).is_complete
    assert not read([second, first]).is_complete
    assert not read({"data": first["data"], "next_page": "p"}).is_complete


def test_a_day_without_results_is_covered() -> None:
    """A bucket may be empty: it says that nothing was used; of which kind is not known."""
    export = read(openai())
    assert (export.lines, export.kind, export.vendor) == ((), None, "openai")
    assert min(export.hours) == datetime(2026, 11, 28, tzinfo=UTC)
    assert max(export.hours) == datetime(2026, 11, 28, 23, tzinfo=UTC)


def test_hours_of_a_day() -> None:
    """Hourly buckets cover their hours; another time zone is brought to UTC."""
    export = read([openai(openai_usage(), start=MIDNIGHT + hour * 3600, hours=1) for hour in (0, 1, 23)])
    assert sorted(hour.hour for hour in export.hours) == [0, 1, 23]
    page = anthropic(anthropic_usage())
    page["data"][0].update(starting_at="2026-11-28T01:00:00+01:00", ending_at="2026-11-28T03:00:00+02:00")
    assert read(page).hours == {datetime(2026, 11, 28, 0, tzinfo=UTC)}


# ---------------------------------------------------------------------- bad files

ANTHROPIC_BUCKET = anthropic()["data"][0]


@pytest.mark.parametrize(
    ("data", "where", "what"),
    [
        (openai(openai_cost(currency="eur")), "data[0].results[0].amount.currency", "in USD"),
        (openai(openai_cost(currency=None)), "data[0].results[0].amount.currency", "in USD"),
        (anthropic(anthropic_cost(currency="EUR")), "data[0].results[0].currency", "in USD"),
        (openai(openai_cost("much")), "data[0].results[0].amount.value", "no amount"),
        (openai(openai_cost("NaN")), "data[0].results[0].amount.value", "no amount"),
        (openai(openai_cost("1e999999")), "data[0].results[0].amount.value", "no amount"),
        (openai(openai_cost(True)), "data[0].results[0].amount.value", "no amount"),
        (openai(openai_cost(amount=5)), "data[0].results[0].amount", "no amount"),
        (anthropic(anthropic_cost(None)), "data[0].results[0].amount", "no amount"),
        (openai(openai_usage(input_tokens=-1)), "data[0].results[0].input_tokens", "no count"),
        (openai(openai_usage(output_tokens=1.5)), "data[0].results[0].output_tokens", "no count"),
        (openai(openai_usage(model="\x1b[31m")), "data[0].results[0].model", "no printable text"),
        (
            anthropic(anthropic_usage(cache_creation={"ephemeral_5m_input_tokens": "9"})),
            "data[0].results[0].cache_creation.ephemeral_5m_input_tokens",
            "no count",
        ),
        (
            openai(openai_usage(object="organization.usage.embeddings.result")),
            "data[0].results[0]",
            "embeddings",
        ),
        (openai({"images": 3}), "data[0].results[0]", "not known"),
        (anthropic({"tokens": 3}), "data[0].results[0]", "not known"),
        (anthropic(anthropic_usage(rbac_group_id="g")), "data[0].results[0]", "overlap"),
        (openai("text"), "data[0].results[0]", "no result"),  # type: ignore[arg-type]
        (openai(openai_usage(), openai_cost()), "data[0].results[1]", "file of its own"),
        ([openai(openai_usage()), anthropic(anthropic_usage())], "[1].data[0]", "another vendor"),
        ([openai(), openai()], "[1].data[0]", "covers 2026-11-28T00:00Z again"),
        ([openai(), openai(hours=3)], "[1].data[0]", "again"),
        ({"data": [item("cost", {"amount": "5", "currency": "USD"})] * 2}, "data[1]", "again"),
        (
            openai(start=MIDNIGHT + 60, hours=1),
            "data[0]",
            "from 2026-11-28T00:01:00Z to 2026-11-28T01:01:00Z",
        ),
        (openai(start=MIDNIGHT + 3600), "data[0]", "one day or one hour"),
        (openai(hours=48), "data[0]", "one day or one hour"),
        (openai(hours=0), "data[0]", "one day or one hour"),
        (openai(hours=-24), "data[0]", "one day or one hour"),
        (anthropic(end="2026-11-28T00:30:00Z"), "data[0]", "one day or one hour"),
        (anthropic(end="2026-11-29T00:00:00"), "data[0].ending_at", "time zone"),
        (anthropic(end="soon"), "data[0].ending_at", "time zone"),
        (openai(start=10**18), "data[0].start_time", "time zone"),
        ({"data": [{"results": []}]}, "data[0]", "start_time"),
        ({"data": [{**ANTHROPIC_BUCKET, "results": None}]}, "data[0]", "no list `results`"),
        ({"data": [3]}, "data[0]", "no bucket"),
        ({"data": {}}, None, "no list `data`"),
        ({"error": {"message": "unauthorized"}}, None, "no list `data`"),
        ([openai(), 3], "[1]", "no list `data`"),
        ({"data": []}, None, "no bucket"),
        ([], None, "no bucket"),
        (3, None, "no list `data`"),
    ],
)
def test_a_bad_report_is_told_with_its_place(data: Any, where: str | None, what: str) -> None:
    """The file, the place in it, and what to do."""
    with pytest.raises(InvalidRequest) as caught:
        read(data)
    assert caught.value.field == where
    assert str(caught.value).startswith(f"bill.json: {where} " if where else "bill.json ")
    assert what in str(caught.value)
    assert ";" in str(caught.value)


@pytest.mark.parametrize(
    ("content", "where"),
    [
        ("", "bill.json is no JSON"),
        ("start,end,amount\n1,2,3\n", "bill.json is no JSON"),
        ('{"data": [', "bill.json is no JSON"),
        ("[" * 100_000, "bill.json is no JSON"),
        (json.dumps(openai()) + '\n{"data": [\n', "bill.json, line 2 is no JSON"),
        (json.dumps(openai()) + "\n7\n", "bill.json, line 2 is no page"),
        (json.dumps(openai(openai_cost("X"))).replace('"X"', "Infinity"), "bill.json is no JSON (Infinity"),
    ],
)
def test_what_is_no_json_is_told(content: str, where: str) -> None:
    """With the line, where it is JSON Lines."""
    with pytest.raises(InvalidRequest, match="save the endpoint's whole answer") as caught:
        parse_export(content, name="bill.json")
    assert str(caught.value).startswith(where)


def test_a_fault_in_json_lines_is_told_with_its_line() -> None:
    """The place has the line and the field."""
    second = openai(openai_cost(currency="eur"), start=MIDNIGHT + 86400)
    with pytest.raises(
        InvalidRequest, match=r"^bill\.json, line 2: data\[0\]\.results\[0\]\.amount\.currency "
    ):
        parse_export(f"{json.dumps(openai())}\n{json.dumps(second)}", name="bill.json")
