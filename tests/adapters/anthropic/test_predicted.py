"""What the documented rules predict, beside what the vendor reports."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest
from anthropic_wire import USAGE, message
from kvsdk import Client, Message, Text, Tool
from loopback import Loopback

MANUAL = "Open the blue valve first. " * 400
QUESTION = "Which valve?"


def _usage(*, read: int = 0, write: int = 0, fresh: int = 0) -> dict[str, Any]:
    split = {"ephemeral_5m_input_tokens": write, "ephemeral_1h_input_tokens": 0}
    counts = {"input_tokens": fresh, "cache_read_input_tokens": read, "cache_creation_input_tokens": write}
    return USAGE | counts | {"cache_creation": split}


def test_the_second_request_is_predicted_to_read_what_the_first_wrote(
    client: Client, loopback: Loopback
) -> None:
    """First all of the marked text is written, then it is read; the counts sum to what was reported."""
    loopback.script(message(usage=_usage(write=2000, fresh=4)), message(usage=_usage(read=2000, fresh=4)))
    system = [Text(MANUAL, cache=True)]
    first, second = (client.generate(QUESTION, system=system).cache.predicted for _ in range(2))
    assert first is not None
    assert second is not None
    assert (first.read_tokens, second.write_tokens) == (0, 0)
    assert first.write_tokens == second.read_tokens == pytest.approx(2000, abs=10)
    assert first.write_by_ttl == {"5m": first.write_tokens}
    assert first.total_tokens == second.total_tokens == 2004


def test_a_request_without_marks_is_predicted_to_be_fresh(client: Client, loopback: Loopback) -> None:
    """This vendor caches only at marks."""
    loopback.script(message(usage=_usage(fresh=2004)))
    predicted = client.generate(QUESTION, system=MANUAL).cache.predicted
    assert predicted is not None
    assert (predicted.read_tokens, predicted.write_tokens, predicted.fresh_tokens) == (0, 0, 2004)


def test_a_changed_tool_is_predicted_to_miss(client: Client, loopback: Loopback) -> None:
    """Tools stand first: with another tool nothing of the prefix is there."""
    loopback.script(*(message(usage=_usage(write=2000, fresh=4)) for _ in range(2)))
    for name in ("look", "find"):
        tool = Tool(name, "", {"type": "object"})
        predicted = client.generate(QUESTION, tools=[tool], system=[Text(MANUAL, cache=True)]).cache.predicted
        assert predicted is not None
        assert predicted.read_tokens == 0


def test_explain_predicts_without_sending(client: Client, loopback: Loopback) -> None:
    """Before the first call a write is predicted, after it a read, with what each would cost."""
    system = [Text(MANUAL, cache=True)]
    before = client.explain(QUESTION, system=system)
    assert loopback.bodies == []
    assert before.predicted is not None
    assert before.predicted.write_tokens == len(MANUAL) // 4
    fresh = before.predicted.fresh_tokens
    assert before.predicted_cost is not None
    assert before.predicted_cost.total == (
        before.predicted.write_tokens * Decimal("2.5") + fresh * Decimal(2)
    ) / Decimal(1_000_000)
    loopback.script(message(usage=_usage(write=2700, fresh=4)))
    client.generate(QUESTION, system=system)
    after = client.explain(QUESTION, system=system).predicted
    assert after is not None
    assert after.read_tokens == before.predicted.write_tokens
    assert len(loopback.bodies) == 1


def test_a_mark_out_of_reach_is_told(client: Client, loopback: Loopback) -> None:
    """35 texts further on, the last mark's 20 positions do not reach the earlier one: the miss says so."""
    chat = client.session("s")
    texts = [Text(f"{number}. {MANUAL[:2000]}") for number in range(50)]
    usages = (_usage(write=5000, fresh=4), _usage(write=22_000, fresh=4))
    loopback.script(*(message(usage=usage) for usage in usages))
    chat.generate([Message.user(*texts[:10], cache=True)])
    miss = chat.generate([Message.user(*texts[:45], cache=True)]).cache.miss
    assert miss is not None
    assert miss.kind == "evicted_or_unknown"
    assert "they do not reach what was cached" in miss.detail
