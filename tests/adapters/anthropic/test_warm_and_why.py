"""Pre-warming, and what the vendor itself says of a miss."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import kvsdk
import pytest
from anthropic_wire import USAGE, end, message, start, text_block
from asking import ask
from kvsdk import Client, Text
from loopback import Loopback, sse

MANUAL = "Open the blue valve first. " * 200
COLD = USAGE | {
    "input_tokens": 10,
    "cache_read_input_tokens": 0,
    "cache_creation_input_tokens": 1000,
    "cache_creation": {"ephemeral_5m_input_tokens": 1000, "ephemeral_1h_input_tokens": 0},
}


def test_prewarming_asks_for_no_answer(client: Client, loopback: Loopback) -> None:
    """`max_tokens` is 0, the prefix carries its mark, and the write is paid for."""
    loopback.script(message(content=[], stop_reason="max_tokens", usage=COLD | {"output_tokens": 0}))
    reply = client.prewarm("-", system=[Text(MANUAL, cache=True)])
    assert loopback.body["max_tokens"] == 0
    assert loopback.body["system"][0]["cache_control"] == {"type": "ephemeral", "ttl": "5m"}
    assert (reply.text, reply.usage.output_tokens, reply.usage.cache_write_tokens) == ("", 0, 1000)
    assert reply.cost.total == (10 * Decimal(2) + 1000 * Decimal("2.5")) / 1_000_000


@pytest.mark.parametrize(
    "options",
    [
        {"tools": [kvsdk.Tool("look", "", {"type": "object"})], "tool_choice": "look"},
        {"response_format": {"type": "object"}},
    ],
)
def test_what_a_prewarming_request_cannot_have_is_refused(
    options: dict[str, Any], client: Client, loopback: Loopback
) -> None:
    """What the vendor answers with 400 is refused before it is sent."""
    with pytest.raises(kvsdk.UnsupportedSetting, match="pre-warming"):
        client.prewarm("-", **options)
    assert loopback.bodies == []


def test_a_session_names_its_last_message(client: Client, loopback: Loopback) -> None:
    """The first turn opts in with null, the next names the last message; without a session none is asked."""
    loopback.script(message(id="msg_1"), message(id="msg_2"), message(id="msg_3"))
    chat = client.session("s")
    chat.generate("One")
    chat.generate("Two")
    client.generate("Three")
    asked = [body.get("diagnostics", "nothing") for body in loopback.bodies]
    assert asked == [{"previous_message_id": None}, {"previous_message_id": "msg_1"}, "nothing"]


def test_diagnostics_can_be_turned_off(connect: Any, loopback: Loopback) -> None:
    """For hosts that do not know them, `diagnostics=False` sends none."""
    loopback.script(message())
    connect(diagnostics=False).session("s").generate("One")
    assert "diagnostics" not in loopback.body


@pytest.mark.parametrize("streams", [False, True])
@pytest.mark.parametrize(
    ("named", "kind"),
    [
        ("model_changed", "model"),
        ("system_changed", "system"),
        ("tools_changed", "tools"),
        ("messages_changed", "messages"),
    ],
)
def test_the_vendors_reason_completes_ours(
    named: str, kind: str, streams: bool, client: Client, loopback: Loopback
) -> None:
    """Where the prompt did not change for us, the vendor's word stands, with its number of tokens."""
    reason = {"cache_miss_reason": {"type": named, "cache_missed_input_tokens": 900}}
    first, second = message(usage=COLD), message(usage=COLD, diagnostics=reason)
    if streams:
        loopback.script(first, sse([start(usage=COLD, diagnostics=reason), *text_block(0, "Hi"), *end()]))
    else:
        loopback.script(first, second)
    chat = client.session("s")
    chat.generate("One", system=[Text(MANUAL, cache=True)])
    miss = ask(client, "One", streams=streams, session=chat, system=[Text(MANUAL, cache=True)]).cache.miss
    assert miss is not None
    assert miss.kind == kind
    assert "about 900 tokens" in miss.detail


@pytest.mark.parametrize(
    ("said", "note"),
    [
        (None, None),
        ({"cache_miss_reason": None}, None),
        ({"cache_miss_reason": {"type": "previous_message_not_found"}}, "no longer knows"),
        ({"cache_miss_reason": {"type": "unavailable"}}, "could not compare"),
        ({"cache_miss_reason": {"type": "moon_phase"}}, "moon_phase"),
    ],
)
def test_what_is_no_reason_is_at_most_a_note(
    said: Any, note: str | None, client: Client, loopback: Loopback
) -> None:
    """Pending, unknown and absent comparisons are no misses."""
    loopback.script(message(diagnostics=said))
    cache = client.session("s").generate("One", system=[Text(MANUAL, cache=True)]).cache
    assert cache.miss is None
    assert any(note in one for one in cache.notes) if note else cache.notes == ()


COMPACTED = {
    "input_tokens": 100,
    "output_tokens": 50,
    "cache_read_input_tokens": 9000,
    "cache_creation_input_tokens": 0,
    "iterations": [
        {
            "type": "compaction",
            "input_tokens": 400,
            "output_tokens": 300,
            "cache_read_input_tokens": 150000,
            "cache_creation_input_tokens": 0,
        },
        {
            "type": "message",
            "input_tokens": 100,
            "output_tokens": 50,
            "cache_read_input_tokens": 9000,
            "cache_creation_input_tokens": 0,
        },
    ],
}


def test_a_compaction_is_billed_beside_the_answer(connect: Any, loopback: Loopback) -> None:
    """Its tokens are not in the top-level counts: 159,500 in and 350 out, at 3, 0.30 and 15 dollars."""
    loopback.script(message(model="claude-sonnet-4-5", usage=COMPACTED))
    reply = connect("claude-sonnet-4-5").generate("One")
    assert (reply.usage.input_tokens, reply.usage.output_tokens) == (159_500, 350)
    assert reply.cost.total == (500 * Decimal(3) + 159_000 * Decimal("0.30") + 350 * Decimal(15)) / 1_000_000
    assert reply.raw["usage"] == COMPACTED


def test_an_advisor_is_billed_at_its_own_models_rate(connect: Any, loopback: Loopback) -> None:
    """The answer's tokens at 3 and 15 dollars, the advisor's at 5 and 25."""
    advisor = {
        "type": "advisor_message",
        "model": "claude-opus-4-8",
        "input_tokens": 1000,
        "output_tokens": 10,
        "cache_read_input_tokens": 0,
        "cache_creation_input_tokens": 0,
    }
    usage = {
        "input_tokens": 100,
        "output_tokens": 50,
        "cache_read_input_tokens": 0,
        "cache_creation_input_tokens": 0,
        "iterations": [advisor],
    }
    loopback.script(message(model="claude-sonnet-4-5", usage=usage))
    cost = connect("claude-sonnet-4-5").generate("One").cost
    own = 100 * Decimal(3) + 50 * Decimal(15)
    assert cost.total == (own + 1000 * Decimal(5) + 10 * Decimal(25)) / 1_000_000
    assert "claude-opus-4-8" in str(cost.price_source)


@pytest.mark.parametrize("name", ["temperature", "top_p", "top_k"])
def test_dropped_settings_are_refused_by_name(name: str, client: Client, loopback: Loopback) -> None:
    """What API version 2026-10-21 answers with 400 is not sent, not even through `extra`."""
    with pytest.raises(kvsdk.UnsupportedSetting, match=name):
        client.generate("One", extra={"anthropic": {name: 1}})
    assert loopback.bodies == []


def test_the_automatic_mark_takes_one_of_the_four(client: Client, loopback: Loopback) -> None:
    """A fifth mark through `extra` is refused before the vendor does."""
    system = [Text(f"Part {number}", cache=True) for number in range(4)]
    with pytest.raises(kvsdk.InvalidBreakpoints, match="one more than 4"):
        client.generate("One", system=system, extra={"anthropic": {"cache_control": {"type": "ephemeral"}}})
    assert loopback.bodies == []
