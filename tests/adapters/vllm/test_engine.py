"""The in-process engine, for real."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import kvsdk
import pytest
from kvsdk import Text

pytestmark = [pytest.mark.engine, pytest.mark.timeout(600)]

LORE = "The heron stands at the weir and waits for the eel. " * 30
SETTINGS: dict[str, Any] = {"max_tokens": 8, "temperature": 0}


def test_a_repeated_prefix_is_read_in_whole_blocks(local: kvsdk.Client) -> None:
    """The second question about a text reads all of the first's whole blocks, and the parts sum."""
    session = local.session("heron")
    system = [Text(LORE, cache=True)]
    first = session.generate("Who waits?", system=system, **SETTINGS)
    second = session.generate("Where does it stand?", system=system, **SETTINGS)
    assert first.usage.cache_read_tokens == 0
    assert first.cache.miss is not None
    assert first.cache.miss.kind == "first_request"
    read = second.usage.cache_read_tokens
    assert read is not None
    assert read % 32 == 0
    assert second.usage.hit_rate is not None
    assert second.usage.hit_rate > 0.9
    assert second.cache.miss is None
    assert second.cache.breakpoints[0].status == "advisory"
    for usage in (first.usage, second.usage):
        parts = (usage.cache_read_tokens, usage.cache_write_tokens, usage.fresh_tokens)
        assert sum(part for part in parts if part is not None) == usage.input_tokens


def test_tenants_never_share_blocks(local: kvsdk.Client) -> None:
    """Another tenant's equal prompt reads nothing; the same tenant's reads it."""
    text = f"Tenants. {LORE}"
    for tenant, expected in (("north", False), ("south", False), ("north", True)):
        reply = local.generate("Who?", system=text, tenant=tenant, **SETTINGS)
        assert bool(reply.usage.cache_read_tokens) is expected


def test_ids_are_ours(local: kvsdk.Client) -> None:
    """The request's id is the operation's with the attempt's number."""
    reply = local.generate("Hi", **SETTINGS)
    assert reply.request_id == f"{reply.operation_id}-1"
    assert reply.stop_reason == "max_tokens"
    assert reply.usage.output_tokens == 8


def test_a_stop_text_ends_the_answer(local: kvsdk.Client) -> None:
    """`stop` ends the answer before the text and says so."""
    whole = local.generate("Count: one, two, three", max_tokens=24, temperature=0)
    stop = whole.text.split()[1]
    reply = local.generate("Count: one, two, three", max_tokens=24, temperature=0, stop=stop)
    assert reply.stop_reason == "stop_sequence"
    assert stop not in reply.text


def test_cost_is_the_engines_time(local: kvsdk.Client) -> None:
    """At 3.6 dollars an hour a request costs a tenth of a cent per second of the engine, in two parts."""
    reply = local.generate("Name a lake.", **SETTINGS)
    meters = reply.raw
    seconds = Decimal(repr(meters["prefill_s"])) + Decimal(repr(meters["decode_s"]))
    assert reply.cost.total is not None
    # each of the two parts is rounded down to 1e-12 dollars
    assert 0 <= seconds * Decimal("3.6") / 3600 - reply.cost.total < Decimal("2e-12")
    assert reply.cost.input is not None
    assert reply.cost.output is not None
    assert reply.cost.total == reply.cost.input + reply.cost.output
    assert meters["queue_s"] >= 0  # waiting is known, and in neither part


def test_without_a_price_there_is_no_cost(
    address: str, engine_options: dict[str, Any], local: kvsdk.Client
) -> None:
    """No `usd_per_hour`: the cost is unknown, not zero, and says why."""
    assert local.generate("Hi", **SETTINGS).cost.total is not None
    with kvsdk.Client(address, **engine_options) as unpriced:  # shares the engine
        reply = unpriced.generate("Hi", **SETTINGS)
    assert reply.cost.total is None
    assert reply.cost.reason is not None
    assert "usd_per_hour" in reply.cost.reason


def test_a_prompt_that_does_not_fit_is_refused(local: kvsdk.Client) -> None:
    """A prompt over `max_model_len` is refused with both numbers, and the engine goes on."""
    with pytest.raises(kvsdk.RequestRejected, match=r"tokens; the engine's max_model_len is 1024"):
        local.generate("word " * 2000)
    assert local.generate("Hi", **SETTINGS).text


def test_a_wrong_sampling_setting_is_named(local: kvsdk.Client) -> None:
    """What `extra` passes to the engine is checked before the engine sees it."""
    with pytest.raises(kvsdk.InvalidRequest, match="top_p"):
        local.generate("Hi", extra={"vllm": {"top_p": 7}})


def test_prewarming_writes_what_the_next_call_reads(local: kvsdk.Client) -> None:
    """A pre-warmed text is read by the first question about it; the reply to the pre-warming is empty."""
    system = [Text(f"Pre-warmed. {LORE}", cache=True)]
    warmed = local.prewarm("-", system=system)
    assert warmed.text == ""
    assert warmed.usage.output_tokens == 1
    asked = local.generate("Who waits?", system=system, **SETTINGS)
    assert asked.usage.hit_rate is not None
    assert asked.usage.hit_rate > 0.9
