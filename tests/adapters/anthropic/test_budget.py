"""Budgets in calls: what could cost too much is not sent, and what was sent counts at what it cost."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import kvsdk
import pytest
from anthropic_wire import MODEL, block, end, message, start, stream, text, text_block
from kvsdk import AsyncClient, Budget, BudgetExceeded, Client, Cost
from kvsdk.cost import Ledger, LedgerRow
from kvsdk.cost.budgets.budget import BudgetState
from loopback import Loopback, Scripted, sse, sse_text
from rawserver import RawServer

Rows = Callable[[], list[LedgerRow]]
Connect = Callable[..., Client]

#: 8 bytes may be 4 tokens, written at 2.50 per million, and 10 tokens are generated at 10: 110 millionths.
ASK = "eight by"
OPTIONS: dict[str, Any] = {"max_tokens": 10}
MOST = Decimal("0.000110")
#: An answer that costs all of it.
DEAREST = {
    "input_tokens": 0,
    "cache_creation_input_tokens": 4,
    "cache_read_input_tokens": 0,
    "cache_creation": {"ephemeral_5m_input_tokens": 4, "ephemeral_1h_input_tokens": 0},
    "output_tokens": 10,
}
#: One that costs 3 x 2 + 2 x 10 = 26 millionths.
CHEAP = {
    "input_tokens": 3,
    "cache_creation_input_tokens": 0,
    "cache_read_input_tokens": 0,
    "output_tokens": 2,
}
COST = Decimal("0.000026")


def only(client: Client | AsyncClient) -> BudgetState:
    (state,) = client.budgets
    return state


def figures(client: Client | AsyncClient) -> tuple[Decimal, Decimal]:
    """What is spent and what is reserved."""
    return only(client).spent_usd, only(client).reserved_usd


def failing(status: int) -> Scripted:
    return Scripted(
        {"type": "error", "error": {"type": "error", "message": "No"}}, status, {"retry-after-ms": "1"}
    )


# ---------------------------------------------------------------------- whole answers


def test_what_could_cost_too_much_is_not_sent(connect: Connect, loopback: Loopback, rows: Rows) -> None:
    """It raises before anything is sent, with the figures, and leaves no row."""
    client = connect(budget=MOST - Decimal("1e-12"))
    with pytest.raises(BudgetExceeded, match=r"could cost up to \$0.00011;") as caught:
        client.generate(ASK, **OPTIONS)
    error = caught.value
    assert (error.needed_usd, error.left_usd) == (MOST, MOST - Decimal("1e-12"))
    assert (error.backend, error.model, error.scope) == ("anthropic", MODEL, "this client")
    assert error.__cause__ is None
    assert loopback.bodies == []
    assert rows() == []


def test_a_call_counts_at_what_it_cost(connect: Connect, loopback: Loopback) -> None:
    """110 millionths are set aside, 26 are spent, so that another call fits into 136."""
    loopback.script(message(usage=CHEAP), message(usage=CHEAP))
    client = connect(budget=MOST + COST)
    reply = client.generate(ASK, **OPTIONS)
    assert reply.cost.total == COST
    assert figures(client) == (COST, 0)
    assert only(client).left_usd == MOST
    client.generate(ASK, **OPTIONS)
    with pytest.raises(BudgetExceeded):
        client.generate(ASK, **OPTIONS)
    assert len(loopback.bodies) == 2


def test_without_a_budget_there_are_none(connect: Connect, loopback: Loopback) -> None:
    """And calls are as before."""
    loopback.script(message())
    client = connect()
    client.generate(ASK)
    assert client.budgets == ()


def test_a_budget_of_nothing_refuses_everything_with_a_cost(connect: Connect, loopback: Loopback) -> None:
    """Whole, streamed and pre-warming."""
    client = connect(budget=0)
    for call in (client.generate, client.prewarm, lambda ask: list(client.stream(ask))):
        with pytest.raises(BudgetExceeded):
            call(ASK)
    assert loopback.bodies == []


def test_what_sends_nothing_costs_nothing(connect: Connect) -> None:
    """`explain` and `count_tokens` need no budget."""
    client = connect(budget=0)
    client.explain(ASK)
    assert client.count_tokens(ASK) > 0
    assert figures(client) == (0, 0)


def test_prewarming_is_bounded_by_its_input(connect: Connect, loopback: Loopback) -> None:
    """4 tokens at 2.50 and one of output at 10 are 20 millionths; 4 written cost 10."""
    loopback.script(message(usage=DEAREST | {"output_tokens": 0}))
    client = connect(budget="0.000020")
    client.prewarm(ASK)
    assert figures(client) == (Decimal("0.000010"), 0)


def test_a_model_without_a_price_is_refused(connect: Connect, loopback: Loopback) -> None:
    """Its cost cannot be bounded, and a budget is never incomplete in silence; the text says what to do."""
    client = connect("claude-unheard-of", budget=1000)
    with pytest.raises(BudgetExceeded, match=r"cannot be bounded.*unheard-of.*prices=\.\.\.") as caught:
        client.generate(ASK)
    assert caught.value.needed_usd is None
    assert loopback.bodies == []


def test_a_dearer_term_of_the_call_is_set_aside(connect: Connect, loopback: Loopback) -> None:
    """`inference_geo: "us"` is 1.1 times the price; its 23 bytes count as input: (31 / 2 -> 16 tokens)."""
    client = connect(budget="0.0001539")
    most = Decimal("1.1") * (16 * Decimal("2.50") + 10 * 10) / 1_000_000
    with pytest.raises(BudgetExceeded) as caught:
        client.generate(ASK, **OPTIONS, extra={"anthropic": {"inference_geo": "us"}})
    assert caught.value.needed_usd == most == Decimal("0.000154")


def test_a_call_that_cannot_be_encoded_leaves_nothing_reserved(connect: Connect, loopback: Loopback) -> None:
    """It is refused by the adapter, after which all of the budget is there."""
    client = connect(budget=MOST)
    with pytest.raises(kvsdk.UnsupportedSetting):
        client.generate(ASK, **OPTIONS, extra={"anthropic": {"top_k": 5}})
    assert figures(client) == (0, 0)
    assert loopback.bodies == []


# ---------------------------------------------------------------------- failures and retries


def test_what_was_refused_is_released(connect: Connect, loopback: Loopback) -> None:
    """A 400 and a 429 are not billed."""
    loopback.script(failing(400), failing(429))
    client = connect(budget=MOST)
    for kind in (kvsdk.RequestRejected, kvsdk.RateLimited):
        with pytest.raises(kind):
            client.generate(ASK, **OPTIONS)
        assert figures(client) == (0, 0)


def test_what_may_have_been_billed_is_kept(connect: Connect, loopback: Loopback) -> None:
    """Nobody knows of a 500, or of an answer that is none: all that was set aside counts as spent."""
    loopback.script(failing(500), {"type": "nonsense"})
    client = connect(budget=2 * MOST)
    for number, kind in enumerate((kvsdk.BackendUnavailable, kvsdk.BackendProtocolError), start=1):
        with pytest.raises(kind):
            client.generate(ASK, **OPTIONS)
        assert figures(client) == (number * MOST, 0)


def test_each_attempt_needs_room(connect: Connect, loopback: Loopback, rows: Rows) -> None:
    """A 500 may have been billed; what is left holds no retry, and the 500 is the cause."""
    loopback.script(failing(500), message(usage=CHEAP))
    client = connect(retry=3, budget=2 * MOST - Decimal("1e-9"))
    with pytest.raises(BudgetExceeded) as caught:
        client.generate(ASK, **OPTIONS)
    assert isinstance(caught.value.__cause__, kvsdk.BackendUnavailable)
    assert caught.value.spent_usd == MOST
    assert len(loopback.bodies) == 1
    assert [(row.attempt, row.state) for row in rows()] == [(1, "failed")]


def test_a_retry_after_a_refusal_takes_the_same_room(connect: Connect, loopback: Loopback) -> None:
    """429, then an answer: one call's worth is enough."""
    loopback.script(failing(429), message(usage=DEAREST))
    client = connect(retry=3, budget=MOST)
    assert client.generate(ASK, **OPTIONS).attempts == 2
    assert figures(client) == (MOST, 0)


# ---------------------------------------------------------------------- streams


def test_a_stream_counts_at_what_it_cost(connect: Connect, loopback: Loopback) -> None:
    """All is set aside while it runs, and settled when it ends."""
    loopback.script(sse([start(CHEAP), *text_block(0, "Valve", " A."), *end(output_tokens=2)]))
    client = connect(budget=MOST)
    with client.stream(ASK, **OPTIONS) as answer:
        assert client.budgets[0].reserved_usd == 0
        next(answer)
        assert figures(client) == (0, MOST)
        list(answer)
    assert answer.reply.cost.total == COST
    assert figures(client) == (COST, 0)


def test_a_stream_that_is_never_read_takes_nothing(connect: Connect, loopback: Loopback) -> None:
    """It is sent when its first event is asked for."""
    client = connect(budget=MOST)
    with client.stream(ASK, **OPTIONS):
        pass
    client.stream(ASK, **OPTIONS)
    assert figures(client) == (0, 0)
    assert loopback.bodies == []


#: 3 tokens in at 2, then 20 bytes, so at least 5 tokens, out at 10: 56 millionths.
BEGUN = [start(CHEAP | {"output_tokens": 1}), *text_block(0, *["word "] * 4)[:-1]]
PART = Decimal("0.000056")


def test_a_stream_that_is_left_counts_what_had_arrived(connect: Connect, raw_server: RawServer) -> None:
    """The cost of its partial reply."""
    raw_server.answer([sse_text(BEGUN).encode()], ending="open")
    client = connect(base_url=raw_server.url, budget=MOST)
    with client.stream(ASK, **OPTIONS) as answer:
        pieces = answer.text_stream
        for _ in range(4):
            next(pieces)
    assert answer.reply.cost.total == PART
    assert figures(client) == (PART, 0)


def test_a_stream_that_breaks_counts_what_had_arrived(connect: Connect, raw_server: RawServer) -> None:
    """The same."""
    raw_server.answer([sse_text(BEGUN).encode()], ending="reset")
    client = connect(base_url=raw_server.url, budget=MOST)
    with client.stream(ASK, **OPTIONS) as answer, pytest.raises(kvsdk.StreamTruncated):
        list(answer)
    assert figures(client) == (PART, 0)


def test_a_stream_that_is_forgotten_counts_whole(connect: Connect, loopback: Loopback) -> None:
    """Nobody reads it to its end or closes it; what it cost is unknown."""
    loopback.script(sse(stream("a", "b")))
    client = connect(budget=MOST, ledger=None)
    answer = client.stream(ASK, **OPTIONS)
    next(answer)
    assert figures(client) == (0, MOST)
    del answer
    gc.collect()
    assert figures(client) == (MOST, 0)


def test_a_stream_of_nonsense_counts_what_had_arrived(connect: Connect, loopback: Loopback) -> None:
    """What its first event said was used; nothing stays reserved."""
    loopback.script(sse([start(CHEAP), *block(0, text(""), [{"type": "text_delta", "text": 5}])]))
    client = connect(budget=MOST)
    with client.stream(ASK, **OPTIONS) as answer, pytest.raises(kvsdk.KvsdkError):
        list(answer)
    assert figures(client) == (COST, 0)


async def test_a_cancelled_call_counts_whole(loopback: Loopback) -> None:
    """The task is cancelled while it waits for its answer, which may be billed all the same."""
    loopback.script(Scripted(message(usage=CHEAP), held=True))
    client = AsyncClient(f"anthropic:{MODEL}", base_url=loopback.url, api_key="k", budget=MOST)
    async with client:
        task = asyncio.create_task(client.generate(ASK, **OPTIONS))
        await asyncio.sleep(0)  # lets the task run up to where it waits
        assert figures(client) == (0, MOST)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert figures(client) == (MOST, 0)


async def test_a_call_that_is_dropped_counts_whole(loopback: Loopback) -> None:
    """Its coroutine is closed while it waits, as when its event loop ends."""
    client = AsyncClient(f"anthropic:{MODEL}", base_url=loopback.url, api_key="k", budget=MOST)
    async with client:
        call = client.generate(ASK, **OPTIONS)
        call.send(None)
        assert figures(client) == (0, MOST)
        call.close()
        assert figures(client) == (MOST, 0)


# ---------------------------------------------------------------------- whose budget


def test_tenants_have_budgets_of_their_own(connect: Connect, loopback: Loopback) -> None:
    """One that has used up its own does not stop another; the client's default tenant is one of them."""
    loopback.script(*[message(usage=DEAREST)] * 2)
    client = connect(budget=Budget(MOST, per="tenant"), tenant="ours")
    client.generate(ASK, **OPTIONS)
    with pytest.raises(BudgetExceeded, match="tenant 'ours'"):
        client.generate(ASK, **OPTIONS)
    client.generate(ASK, **OPTIONS, tenant="theirs")
    assert [(state.scope, state.left_usd) for state in client.budgets] == [
        ("tenant 'ours'", 0),
        ("tenant 'theirs'", 0),
    ]


def test_sessions_have_budgets_of_their_own(connect: Connect, loopback: Loopback) -> None:
    """And calls of no session have one together."""
    loopback.script(*[message(usage=DEAREST)] * 3)
    loopback.prefix_moves = "unrelated calls"
    client = connect(budget=Budget(MOST, per="session"))
    for options in ({"session": "a"}, {"session": "b"}, {}):
        client.generate(ASK, **OPTIONS, **options)
        with pytest.raises(BudgetExceeded):
            client.generate(ASK, **OPTIONS, **options)
    assert [state.scope for state in client.budgets] == [
        "session 'a'",
        "session 'b'",
        "calls without a session",
    ]


def test_all_of_several_must_hold(connect: Connect, loopback: Loopback) -> None:
    """The one that does not is named, and nothing is reserved in the other."""
    client = connect(budget=["1.00", Budget(MOST / 2, every="day")])
    with pytest.raises(BudgetExceeded, match=r"\$0.000055 every day"):
        client.generate(ASK, **OPTIONS)
    assert {state.reserved_usd for state in client.budgets} == {Decimal(0)}
    assert loopback.bodies == []


# ---------------------------------------------------------------------- before this client


def before(path: Path, *rows: tuple[str, datetime, str | None]) -> None:
    """What earlier processes wrote: whose, when, and what it cost."""
    with Ledger(path) as ledger:
        for number, (tenant, at, usd) in enumerate(rows):
            cost = Cost(total=None if usd is None else Decimal(usd))
            ledger.append(
                LedgerRow(
                    id=f"old_{number}",
                    operation_id=f"old_{number}",
                    attempt=1,
                    at=at,
                    state="ok",
                    backend="anthropic",
                    model=MODEL,
                    tenant=tenant,
                    cost=cost,
                )
            )


def test_what_was_spent_before_counts(connect: Connect, loopback: Loopback, ledger_path: Path) -> None:
    """In the current window, of this tenant; each tenant is asked for once, then its own calls add up."""
    now = datetime.now(UTC)
    before(
        ledger_path,
        ("a", now, "0.50"),
        ("a", now - timedelta(days=32), "0.25"),
        ("b", now, "0.99"),
    )
    loopback.script(message(usage=CHEAP), message(usage=CHEAP))
    client = connect(budget=Budget("1.00", per="tenant", every="month"))
    client.generate(ASK, **OPTIONS, tenant="a")
    client.generate(ASK, **OPTIONS, tenant="b")
    spent = {state.scope: state.spent_usd for state in client.budgets}
    assert spent == {"tenant 'a'": Decimal("0.50") + COST, "tenant 'b'": Decimal("0.99") + COST}


def test_without_a_window_all_time_counts(connect: Connect, ledger_path: Path, loopback: Loopback) -> None:
    """For a tenant; rows without a known cost make the sum incomplete, and the error says so."""
    long_ago = datetime(2020, 1, 1, tzinfo=UTC)
    before(ledger_path, ("a", long_ago, "5"), ("a", long_ago, None), ("a", long_ago, None))
    client = connect(budget=Budget(5, per="tenant"))
    with pytest.raises(BudgetExceeded, match=r"2 row\(s\) of the ledger have no known cost") as caught:
        client.generate(ASK, **OPTIONS, tenant="a")
    assert (caught.value.spent_usd, caught.value.left_usd) == (5, 0)
    assert only(client).unknown_rows == 2
    assert loopback.bodies == []


def test_a_clients_lifetime_begins_with_it(connect: Connect, ledger_path: Path, loopback: Loopback) -> None:
    """What the ledger holds does not count."""
    before(ledger_path, ("a", datetime.now(UTC), "5"))
    loopback.script(message(usage=CHEAP))
    client = connect(budget=1)
    client.generate(ASK, **OPTIONS)
    assert figures(client) == (COST, 0)


def test_a_ledger_that_cannot_be_read_lets_nothing_through(
    connect: Connect, ledger_path: Path, loopback: Loopback
) -> None:
    """A budget is never incomplete in silence."""
    import sqlite3

    client = connect(budget=Budget(5, every="day"))
    connection = sqlite3.connect(ledger_path)
    connection.execute("DROP TABLE kvsdk_ledger")
    connection.close()
    with pytest.raises(kvsdk.LedgerError, match="cannot be read"):
        client.generate(ASK, **OPTIONS)
    assert loopback.bodies == []


async def test_the_async_client_reads_beside_its_loop(loopback: Loopback, ledger_path: Path) -> None:
    """On a thread, and it counts the same."""
    import threading

    from kvsdk.cost.ledger.ledger import Ledger as Real

    before(ledger_path, ("a", datetime.now(UTC), "0.50"))
    loopback.script(message(usage=CHEAP))
    threads: list[threading.Thread] = []

    class Watched(Real):
        def select(self, query: Any) -> Any:
            threads.append(threading.current_thread())
            return super().select(query)

    with Watched(ledger_path) as ledger:
        options: dict[str, Any] = {"base_url": loopback.url, "api_key": "k", "ledger": ledger}
        async with AsyncClient(f"anthropic:{MODEL}", budget=Budget(1, every="month"), **options) as client:
            await client.generate(ASK, **OPTIONS)
            assert figures(client) == (Decimal("0.50") + COST, 0)
    assert len(threads) == 1
    assert threads[0] is not threading.current_thread()


# ---------------------------------------------------------------------- many callers

CALLERS, FIT = 64, 7


def script_held(loopback: Loopback) -> None:
    loopback.script(*[Scripted(message(usage=DEAREST), held=True)] * CALLERS)


def test_of_sixty_four_threads_exactly_as_many_as_fit_are_sent(connect: Connect, loopback: Loopback) -> None:
    """All of the budget is reserved while their answers are out, then spent; the others are refused."""
    script_held(loopback)
    client = connect(budget=FIT * MOST)
    with ThreadPoolExecutor(CALLERS) as pool:
        waiting = {pool.submit(client.generate, ASK, **OPTIONS) for _ in range(CALLERS)}
        refused: list[BaseException | None] = []
        while len(refused) < CALLERS - FIT:
            done, waiting = wait(waiting, return_when=FIRST_COMPLETED)
            refused += [future.exception() for future in done]
        assert figures(client) == (0, FIT * MOST)
        assert {type(error) for error in refused} == {BudgetExceeded}
        loopback.released.set()
        replies = [future.result() for future in waiting]
    assert len(replies) == len(loopback.bodies) == FIT
    assert figures(client) == (FIT * MOST, 0)


async def test_of_sixty_four_tasks_exactly_as_many_as_fit_are_sent(
    loopback: Loopback, ledger_path: Path
) -> None:
    """The same in one event loop, with what was spent before: one call's worth."""
    before(ledger_path, ("a", datetime.now(UTC), str(MOST)))
    script_held(loopback)
    options: dict[str, Any] = {"base_url": loopback.url, "api_key": "k", "ledger": ledger_path}
    async with AsyncClient(
        f"anthropic:{MODEL}", budget=Budget((FIT + 1) * MOST, every="month"), **options
    ) as client:
        waiting = {asyncio.ensure_future(client.generate(ASK, **OPTIONS)) for _ in range(CALLERS)}
        refused: list[BaseException | None] = []
        while len(refused) < CALLERS - FIT:
            done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            refused += [task.exception() for task in done]
        assert figures(client) == (MOST, FIT * MOST)
        assert {type(error) for error in refused} == {BudgetExceeded}
        loopback.released.set()
        replies = await asyncio.gather(*waiting)
        assert len(replies) == len(loopback.bodies) == FIT
        assert figures(client) == ((FIT + 1) * MOST, 0)
