"""From counts and rates to dollars."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest
from kvsdk import Usage
from kvsdk.cost import Rates, price

MTOK = 1_000_000

SONNET = Rates(
    fresh=Decimal(3),
    read=Decimal("0.30"),
    write={"5m": Decimal("3.75"), "1h": Decimal(6)},
    output=Decimal(15),
    default_ttl="5m",
    source="a test",
)


def own(fresh: str, read: str, output: str, **write: str) -> Rates:
    """Rates of one's own."""
    return Rates(
        fresh=Decimal(fresh),
        read=Decimal(read),
        write={ttl: Decimal(rate) for ttl, rate in write.items()},
        output=Decimal(output),
        default_ttl="5m",
        source="mine",
    )


def test_each_part_has_its_rate() -> None:
    """The parts sum to the total, and the saving is what no cache would have cost, less that."""
    usage = Usage.of_parts(fresh=7, read=12000, write=1500, output=200, write_by_ttl={"5m": 500, "1h": 1000})
    cost = price(usage, SONNET)
    assert cost.input == Decimal(3) * 7 / MTOK
    assert cost.cache_read == Decimal("0.30") * 12000 / MTOK
    assert cost.cache_write == (Decimal("3.75") * 500 + Decimal(6) * 1000) / MTOK
    assert cost.output == Decimal(15) * 200 / MTOK
    assert cost.storage == 0
    assert cost.total == cost.input + cost.cache_read + cost.cache_write + cost.output
    assert cost.without_cache == (Decimal(3) * 13507 + Decimal(15) * 200) / MTOK
    assert cost.saved == cost.without_cache - cost.total
    assert (cost.estimated, cost.low, cost.high, cost.reason) == (False, None, None, None)
    assert cost.price_source == "a test"


def test_a_first_write_costs_more_than_no_cache() -> None:
    """The saving is negative until a read has paid for the write."""
    cost = price(Usage.of_parts(fresh=0, read=0, write=1000, output=0), SONNET)
    assert cost.saved == (Decimal(3) - Decimal("3.75")) * 1000 / MTOK


def test_money_is_never_rounded() -> None:
    """One token at a rate of many digits."""
    rates = own("1.2345678901", "0", "0")
    assert price(Usage.of_total(1, read=0, write=0, output=0), rates).total == Decimal("1.2345678901") / MTOK


@pytest.mark.parametrize("missing", ["input_tokens", "output_tokens"])
def test_without_the_totals_there_is_no_cost(missing: str) -> None:
    """Unknown is None, with the reason; the source of the prices is still told."""
    counts: dict[str, Any] = {"input_tokens": 10, "output_tokens": 10, missing: None}
    cost = price(Usage(**counts), SONNET)
    assert cost.total is None
    assert missing.split("_", maxsplit=1)[0] in str(cost.reason)
    assert cost.price_source == "a test"


def test_an_unreported_cache_gives_an_interval() -> None:
    """2600 tokens, anything from all read to all written for an hour; the total is the upper bound."""
    cost = price(Usage.of_total(2600, output=100), SONNET)
    assert cost.low == (Decimal("0.30") * 2600 + Decimal(15) * 100) / MTOK
    assert cost.high == (Decimal(6) * 2600 + Decimal(15) * 100) / MTOK
    assert cost.total == cost.high
    assert cost.estimated is True
    assert cost.input is cost.cache_read is cost.cache_write is None
    assert "not reported" in str(cost.reason)


def test_what_is_reported_narrows_the_interval() -> None:
    """1600 of 2600 are known to have been read; the other 1000 are fresh or written."""
    cost = price(Usage.of_total(2600, read=1600, output=0), SONNET)
    assert cost.low == (Decimal("0.30") * 1600 + Decimal(3) * 1000) / MTOK
    assert cost.high == (Decimal("0.30") * 1600 + Decimal(6) * 1000) / MTOK


def test_an_interval_of_no_width_is_exact() -> None:
    """Where read, write and fresh cost the same, nothing is unknown of the cost."""
    cost = price(Usage.of_total(2600, output=100), own("2", "2", "10"))
    assert (cost.total, cost.estimated) == ((Decimal(2) * 2600 + Decimal(10) * 100) / MTOK, False)


def test_an_estimated_count_makes_an_estimated_cost() -> None:
    """Also where the rates leave no interval."""
    usage = Usage(input_tokens=100, output_tokens=10, estimated=frozenset({"output_tokens"}))
    assert price(usage, own("2", "2", "10")).estimated is True
    whole = Usage.of_total(100, read=0, write=0, output=10)
    parts = {
        name: getattr(whole, name) for name in ("input_tokens", "cache_read_tokens", "cache_write_tokens")
    }
    counted = Usage(**parts, fresh_tokens=100, output_tokens=10, estimated=frozenset({"output_tokens"}))
    cost = price(counted, SONNET)
    assert cost.estimated is True
    assert "output_tokens" in str(cost.reason)


def test_more_cached_than_sent_is_an_interval() -> None:
    """10 sent, 5000 cached: the answer is priced between all read and all written, and flagged."""
    cost = price(Usage.of_total(10, read=5000, write=0, output=5), SONNET)
    assert cost.low == (Decimal("0.30") * 10 + Decimal(15) * 5) / MTOK
    assert cost.high == (Decimal(6) * 10 + Decimal(15) * 5) / MTOK
    assert "more tokens cached than sent" in str(cost.reason)


def test_a_rate_of_nothing_is_honoured() -> None:
    """41000 cached tokens at a stated 0 are free; without a stated rate they cost what input costs."""
    usage = Usage.of_total(44000, read=41000, write=0, output=300)
    free = price(usage, own("1.4", "0", "4.4"))
    assert free.total == (Decimal("1.4") * 3000 + Decimal("4.4") * 300) / MTOK
    assumed = price(usage, own("1.4", "1.4", "4.4"))
    assert assumed.total == (Decimal("1.4") * 44000 + Decimal("4.4") * 300) / MTOK


def test_a_calculator_does_not_forget_the_cache() -> None:
    """44000 in, of which 41000 cached, 300 out, at 1.4 / 0.26 / 4.4."""
    cost = price(Usage.of_total(44000, read=41000, write=0, output=300), own("1.4", "0.26", "4.4"))
    expected = Decimal("1.4") * 3000 + Decimal("0.26") * 41000 + Decimal("4.4") * 300
    assert cost.total == expected / MTOK == Decimal("0.01618")


@pytest.mark.parametrize(
    ("asked", "low", "high"),
    [((), "3.75", None), (("5m",), "3.75", None), (("5m", "1h"), "3.75", "6")],
)
def test_an_absent_split_is_the_shortest_unless_longer_was_asked(
    asked: tuple[str, ...], low: str, high: str | None
) -> None:
    """Without the split a request that carried a 1h mark may have written all for an hour."""
    cost = price(Usage.of_parts(fresh=0, read=0, write=1000, output=0), SONNET, asked_ttls=asked)
    if high is None:
        assert (cost.total, cost.estimated) == (Decimal(low) * 1000 / MTOK, False)
    else:
        assert (cost.low, cost.high) == (Decimal(low) * 1000 / MTOK, Decimal(high) * 1000 / MTOK)
        assert (cost.total, cost.estimated) == (cost.high, True)


def test_nothing_written_needs_no_split() -> None:
    """An asked hour that wrote nothing leaves no doubt."""
    cost = price(Usage.of_parts(fresh=10, read=0, write=0, output=0), SONNET, asked_ttls=("1h",))
    assert cost.estimated is False


def test_a_split_that_is_smaller_than_the_count_gives_the_rest_the_usual_rate() -> None:
    """Tokens written outside the split (server tools) are written for the default TTL."""
    usage = Usage.of_parts(fresh=0, read=0, write=1500, output=0, write_by_ttl={"1h": 1000})
    assert price(usage, SONNET).cache_write == (Decimal(6) * 1000 + Decimal("3.75") * 500) / MTOK


def test_a_model_without_a_write_rate_writes_at_its_input_rate() -> None:
    """No premium is made up."""
    usage = Usage.of_total(1000, read=0, write=1000, output=0)
    assert price(usage, own("2", "1", "10")).cache_write == Decimal(2) * 1000 / MTOK


def test_a_ttl_without_a_price_has_no_cost() -> None:
    """Writes kept for a time that has no known price: no total, rather than a wrong one."""
    usage = Usage.of_parts(fresh=7, read=0, write=1500, output=200, write_by_ttl={"5m": 500, "12h": 1000})
    cost = price(usage, SONNET)
    assert cost.total is None
    assert cost.reason == "no price is known for writes kept 12h"


def test_more_writes_by_ttl_than_writes_are_an_interval() -> None:
    """100 written, 500 of them for 5 minutes: no such thing, so at least 100 and at most what was split."""
    usage = Usage.of_parts(fresh=0, read=0, write=100, output=0, write_by_ttl={"5m": 500, "1h": 0})
    cost = price(usage, SONNET)
    assert cost.estimated
    assert cost.low == Decimal("3.75") * 100 / MTOK
    assert cost.total == cost.high == Decimal("3.75") * 500 / MTOK
    assert "more writes" in str(cost.reason)


def test_rates_that_may_not_be_billed_give_an_estimate() -> None:
    """With the reason, and as an interval of one point."""
    from dataclasses import replace

    usage = Usage.of_parts(fresh=10, read=0, write=0, output=0)
    cost = price(usage, replace(SONNET, estimated="a commitment is billed"))
    assert (cost.estimated, cost.reason) == (True, "a commitment is billed")
    assert cost.low == cost.total == cost.high == Decimal(3) * 10 / MTOK


def test_keeping_a_cache_without_a_price_has_no_total() -> None:
    """Not nothing."""
    usage = Usage.of_parts(fresh=10, read=0, write=0, output=0)
    assert price(usage, SONNET, stored_token_hours=Decimal(1)).total is None
