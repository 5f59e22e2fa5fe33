"""Anthropic's meters as ours."""

from __future__ import annotations

import pytest
from anthropic_wire import USAGE, message
from kvsdk import Client
from loopback import Loopback


def test_the_parts_sum_to_the_total(client: Client, loopback: Loopback) -> None:
    """`input_tokens` of the vendor is what follows the last mark; ours is the whole."""
    loopback.script(message(usage=USAGE | {"output_tokens_details": {"thinking_tokens": 50}}))
    usage = client.generate("x").usage
    assert usage.input_tokens == 7 + 1500 + 12000
    assert usage.fresh_tokens == 7
    assert usage.cache_read_tokens == 12000
    assert usage.cache_write_tokens == 1500
    assert usage.cache_write_by_ttl == {"5m": 500, "1h": 1000}
    assert usage.output_tokens == 200
    assert usage.reasoning_tokens == 50
    assert usage.estimated == frozenset()


def test_the_hit_rate_is_read_by_total(client: Client, loopback: Loopback) -> None:
    """The share of the input that came from the cache."""
    loopback.script(message(usage=USAGE))
    assert client.generate("x").cache.hit_rate == 12000 / (7 + 1500 + 12000)


@pytest.mark.parametrize(
    ("theirs", "ours", "total"),
    [
        ("cache_read_input_tokens", "cache_read_tokens", 7 + 1500),
        ("cache_creation_input_tokens", "cache_write_tokens", 7 + 12000),
    ],
)
def test_a_cache_meter_that_is_missing_is_unknown(
    client: Client, loopback: Loopback, theirs: str, ours: str, total: int
) -> None:
    """Absent is None and never 0; the total is then the sum of the rest, and says that it is an estimate."""
    loopback.script(message(usage={name: value for name, value in USAGE.items() if name != theirs}))
    reply = client.generate("x")
    assert getattr(reply.usage, ours) is None
    assert reply.usage.meter(ours) == "absent"
    assert (reply.usage.input_tokens, reply.usage.meter("input_tokens")) == (total, "estimated")
    assert reply.cost.estimated is True


def test_an_absent_split_is_five_minutes_unless_an_hour_was_asked(client: Client, loopback: Loopback) -> None:
    """Without the split a request that carried a 1h mark has a cost interval; one without has a cost."""
    from kvsdk import Message

    usage = {name: value for name, value in USAGE.items() if name != "cache_creation"}
    loopback.script(message(usage=usage), message(usage=usage))
    plain = client.generate([Message.user("x", cache="5m")]).cost
    assert plain.estimated is False
    hour = client.generate([Message.user("x", cache="1h")]).cost
    assert hour.estimated is True
    assert hour.low == plain.total
    assert hour.total == hour.high
    assert hour.high is not None
    assert hour.high > plain.total


def test_an_unknown_model_has_no_price_and_a_reason(client: Client, loopback: Loopback) -> None:
    """A model without a list price has `total=None` and says why."""
    loopback.script(message(model="claude-unheard-of"))
    cost = client.generate("x").cost
    assert cost.total is None
    assert "claude-unheard-of" in str(cost.reason)
