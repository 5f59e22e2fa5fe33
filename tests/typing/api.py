"""How the API is used, for type checkers: it is checked, never run."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime
from decimal import Decimal
from typing import Literal, assert_type

import kvsdk
from kvsdk import (
    AsyncClient,
    Breakpoint,
    Budget,
    BudgetExceeded,
    Client,
    Message,
    Part,
    Reply,
    Text,
    TextDelta,
    Tool,
    ToolCall,
)
from kvsdk.cost import (
    EngineBill,
    Ledger,
    LedgerRow,
    PriceBook,
    Report,
    allocate,
    engine_uses,
    reconcile,
    report,
    rerate,
)


def look(valve: str) -> str:
    """Looks at a valve."""
    return valve


def whole(client: Client) -> None:
    reply = client.generate(
        [Message.user("x", cache="1h"), {"role": "user", "content": "y"}],
        system=[Text("S", cache=Breakpoint("30m", round="up"))],
        tools=[Tool.from_function(look), look, {"name": "turn", "input_schema": {}}],
        max_tokens=300,
        stop=["END"],
        metadata={"team": "blue"},
        extra={"anthropic": {"thinking": {"type": "disabled"}}},
        timeout_s=5,
    )
    assert_type(reply, Reply)
    assert_type(reply.parts, tuple[Part, ...])
    assert_type(reply.tool_calls, tuple[ToolCall, ...])
    assert_type(reply.usage.input_tokens, int | None)
    assert_type(reply.cost.total, Decimal | None)
    assert_type(
        reply.stop_reason,
        Literal["end_turn", "max_tokens", "tool_use", "stop_sequence", "refusal", "paused", "other"],
    )
    client.generate([reply.message, *(Message.tool(call.id, "out") for call in reply.tool_calls)])


def streamed(client: Client) -> None:
    chat = client.session("user-42", tenant="acme")
    with chat.stream("x") as answer:
        assert_type(answer.text_stream, Iterator[str])
        for event in answer:
            if isinstance(event, TextDelta):
                assert_type(event.text, str)
    assert_type(answer.reply, Reply)
    assert_type(client.count_tokens("x"), kvsdk.TokenCount)
    assert_type(client.explain("x"), kvsdk.Explanation)


async def awaited(client: AsyncClient) -> None:
    assert_type(await client.generate("x"), Reply)
    async with client.session("user-42").stream("x") as answer:
        assert_type(answer.text_stream, AsyncIterator[str])
        async for event in answer:
            assert_type(event, kvsdk.Event)
    assert_type(answer.reply, Reply)


def books() -> None:
    with Ledger("costs.db", durability="batched") as ledger, Client("anthropic:m", ledger=ledger) as client:
        assert_type(client.backend, kvsdk.Backend)
        assert_type(ledger.rows(tenant="acme"), Iterator[LedgerRow])
        assert_type(report(ledger, by=["tenant", "day"]), Report)
        assert_type(rerate(ledger, PriceBook("contract.toml")).changed, int)
        assert_type(reconcile(ledger, "usage.json").matches, bool)
        engine = EngineBill(gpu="H100", gpus=8, usd_per_gpu_hour="2.50")
        shares = allocate(
            engine_uses(ledger), engine, start=datetime(2026, 11, 1, tzinfo=UTC), end=datetime.now(UTC)
        )
        assert_type(shares.idle_usd, Decimal)


def spent() -> None:
    limits: list[Budget | str] = ["100", Budget("5.00", per="tenant", every="day")]
    with Client("anthropic:m", budget=limits, prices="contract.toml") as client:
        try:
            client.generate("x")
        except BudgetExceeded as error:
            assert_type(error.left_usd, Decimal | None)
        assert_type(client.budgets[0].left_usd, Decimal)


def wrong(client: Client) -> None:
    """Each line is an error, and the checkers must say so: an ignore that is not needed is one too."""
    client.generate("x", max_token=5)  # type: ignore[call-arg]  # pyrefly: ignore[unexpected-keyword]
    client.generate("x", max_tokens="5")  # type: ignore[arg-type]  # pyrefly: ignore[bad-argument-type]
    Text("x", cache="2h")  # type: ignore[arg-type]  # pyrefly: ignore[bad-argument-type]
