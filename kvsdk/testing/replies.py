"""Standard tests: what a reply and a stream say."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import get_args

from kvsdk.client import AsyncClient, Client
from kvsdk.cost import LedgerRow
from kvsdk.prompt import Message, Part
from kvsdk.reply import End, Event, PartEnd, Reply, StopReason, TextDelta
from kvsdk.testing.fixtures import Fixtures, script
from kvsdk.testing.server import VendorServer

_METERS = ("input_tokens", "cache_read_tokens", "cache_write_tokens", "fresh_tokens", "output_tokens")


class ReplyTests(Fixtures):
    """Fields, counts, cost and events."""

    def test_a_reply_is_filled(self, client: Client, vendor_server: VendorServer | None) -> None:
        """Ids, origin, content, end and times of an answer are there."""
        script(vendor_server)
        reply = client.generate("Which valve?", session="s-1", **self.call_options)
        assert reply.id
        assert reply.request_id
        assert reply.operation_id
        assert (reply.backend, reply.session, reply.attempts) == (client.backend.scheme, "s-1", 1)
        assert reply.model
        assert reply.parts
        assert reply.stop_reason in get_args(StopReason)
        assert reply.latency.total_s > 0
        assert isinstance(reply.raw, Mapping)
        assert reply.message == Message("assistant", reply.parts)

    def test_the_text_is_the_servers(self, client: Client, scripted: VendorServer) -> None:
        """The answer's text arrives to the character."""
        text = 'Öffnen: "A" \\ \u2028 🔧\n\tthen B.'
        scripted.whole(text)
        reply = client.generate("x", **self.call_options)
        assert reply.text == text
        assert reply.stop_reason == "end_turn"

    def test_the_parts_of_usage_sum_to_the_total(
        self, client: Client, vendor_server: VendorServer | None
    ) -> None:
        """What was read, what was written and what was neither are the input; input and output are known."""
        script(vendor_server)
        usage = client.generate("Which valve?", **self.call_options).usage
        assert usage.input_tokens is not None
        assert usage.output_tokens is not None
        parts = [usage.cache_read_tokens, usage.cache_write_tokens, usage.fresh_tokens]
        known = [part for part in parts if part is not None]
        assert sum(known) == usage.input_tokens if len(known) == 3 else sum(known) <= usage.input_tokens
        if usage.cache_write_by_ttl is not None:
            assert sum(usage.cache_write_by_ttl.values()) == usage.cache_write_tokens

    def test_unknown_is_none(self, client: Client, scripted: VendorServer) -> None:
        """Of an answer without counts nothing is made up: no meter, no hit rate, no total."""
        scripted.without_usage("Valve A.")
        reply = client.generate("x", **self.call_options)
        assert reply.text == "Valve A."
        assert {name: getattr(reply.usage, name) for name in _METERS} == dict.fromkeys(_METERS)
        assert reply.cache.hit_rate is None
        assert reply.cost.total is None
        assert reply.cost.reason

    def test_a_cost_is_exact_or_has_a_reason(
        self, client: Client, vendor_server: VendorServer | None
    ) -> None:
        """A total is a `Decimal` and the sum of its parts; without one there is a reason."""
        script(vendor_server)
        cost = client.generate("Which valve?", **self.call_options).cost
        if cost.total is None:
            assert cost.reason
            return
        parts = [cost.input, cost.cache_read, cost.cache_write, cost.output, cost.storage]
        assert isinstance(cost.total, Decimal)
        assert cost.estimated or cost.total == sum(part for part in parts if part is not None)

    # ------------------------------------------------------------------ streams

    def test_a_stream_says_what_the_whole_answer_says(
        self, client: Client, vendor_server: VendorServer | None
    ) -> None:
        """Its pieces join to the text; parts, counts and end are those of the answer in one piece."""
        script(vendor_server)
        whole = client.generate("Which valve?", **self.call_options)
        script(vendor_server, streams=True)
        with client.stream("Which valve?", **self.call_options) as stream:
            events = list(stream)
        assert _text(events) == whole.text == stream.reply.text
        assert stream.reply.parts == whole.parts
        assert stream.reply.stop_reason == whole.stop_reason
        assert stream.reply.usage.output_tokens == whole.usage.output_tokens
        if vendor_server is not None:  # else the second one reads what the first has left in the cache
            assert stream.reply.usage == whole.usage
            assert stream.reply.cost == whole.cost

    def test_a_stream_ends_with_its_parts_and_its_reply(
        self, client: Client, vendor_server: VendorServer | None
    ) -> None:
        """Text first, then the part it has become, and at last the reply, with a time to the first token."""
        script(vendor_server, streams=True)
        with client.stream("Which valve?", **self.call_options) as stream:
            events = list(stream)
        assert isinstance(events[0], TextDelta)
        assert _ended(events) == stream.reply.parts
        assert events[-1] == End(stream.reply)
        latency = stream.reply.latency
        assert latency.ttft_s is not None
        assert 0 <= latency.ttft_s <= latency.total_s

    def test_the_async_client_says_the_same(
        self, client: Client, aclient: Callable[[], AsyncClient], vendor_server: VendorServer | None
    ) -> None:
        """Awaited, an answer and a stream are those of the sync client."""
        script(vendor_server)
        expected = client.generate("Which valve?", **self.call_options)
        script(vendor_server)
        script(vendor_server, streams=True)

        async def ask() -> tuple[Reply, list[Event], Reply]:
            async with aclient() as twin:
                whole = await twin.generate("Which valve?", **self.call_options)
                async with twin.stream("Which valve?", **self.call_options) as stream:
                    events = [event async for event in stream]
                return whole, events, stream.reply

        whole, events, streamed = asyncio.run(ask())
        assert whole.parts == streamed.parts == expected.parts
        assert whole.stop_reason == streamed.stop_reason == expected.stop_reason
        assert _text(events) == expected.text
        assert _ended(events) == streamed.parts
        assert events[-1] == End(streamed)
        if vendor_server is not None:
            assert whole.usage == streamed.usage == expected.usage
            assert whole.cost == streamed.cost == expected.cost

    # ------------------------------------------------------------------ the ledger

    def test_a_row_says_what_the_reply_says(
        self, client: Client, vendor_server: VendorServer | None, rows: Callable[[], list[LedgerRow]]
    ) -> None:
        """Ids, counts, cost and labels of a call are in its one row."""
        script(vendor_server)
        reply = client.generate(
            "x", session="s-1", tenant="acme", metadata={"team": "valves"}, **self.call_options
        )
        (row,) = rows()
        assert (row.state, row.attempt, row.error) == ("ok", 1, None)
        assert (row.operation_id, row.reply_id, row.request_id) == (
            reply.operation_id,
            reply.id,
            reply.request_id,
        )
        assert (row.backend, row.model, row.stop_reason) == (reply.backend, reply.model, reply.stop_reason)
        assert (row.session, row.tenant, row.metadata) == ("s-1", "acme", {"team": "valves"})
        assert row.usage == reply.usage
        assert row.cost == reply.cost
        assert timedelta(0) <= datetime.now(UTC) - row.at < timedelta(minutes=5)


def _ended(events: list[Event]) -> tuple[Part, ...]:
    return tuple(event.part for event in events if isinstance(event, PartEnd))


def _text(events: list[Event]) -> str:
    return "".join(event.text for event in events if isinstance(event, TextDelta))
