"""Budgets: what they are made of, and an account that never lets more be promised than there is."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal, localcontext
from pathlib import Path
from typing import Any

import pytest
from kvsdk import Budget, BudgetExceeded, Client, Cost, InvalidRequest
from kvsdk.cost import Ledger, LedgerRow
from kvsdk.cost.budgets.account import Budgets, Reservation
from kvsdk.cost.budgets.budget import BudgetState, Question, Scope, Spent, read_budgets
from kvsdk.cost.budgets.spent import spent

NOON = datetime(2026, 11, 30, 12, 30, tzinfo=UTC)
NOON_S = NOON.timestamp()


def account(*budgets: Budget) -> Budgets:
    return Budgets(budgets, has_ledger=False)


def take(budgets: Budgets, usd: str, at_s: float = NOON_S, tenant: str | None = None) -> Reservation:
    return budgets.reserve(tenant, None, Decimal(usd), at_s)


def standing(budgets: Budgets, at_s: float = NOON_S) -> tuple[Decimal, Decimal, Decimal]:
    """Spent, reserved and left of the only scope."""
    (state,) = budgets.states(at_s)
    return state.spent_usd, state.reserved_usd, state.left_usd


# ---------------------------------------------------------------------- what a caller writes


@pytest.mark.parametrize(
    ("written", "usd"),
    [("10.00", "10"), (10, "10"), (0.1, "0.1"), (Decimal("0.3"), "0.3"), (0, "0"), ("1e-3", "0.001")],
)
def test_money_is_read_as_it_is_written(written: Any, usd: str) -> None:
    """Text, whole numbers, `Decimal`, and floats by their digits: 0.1 is a tenth."""
    assert Budget(written).limit_usd == Decimal(usd)


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"limit_usd": "-1"}, "budget"),
    ({"limit_usd": -0.01}, "budget"),
    ({"limit_usd": "NaN"}, "budget"),
    ({"limit_usd": float("nan")}, "budget"),
    ({"limit_usd": Decimal("sNaN")}, "budget"),
    ({"limit_usd": float("inf")}, "budget"),
    ({"limit_usd": "ten"}, "budget"),
    ({"limit_usd": ""}, "budget"),
    ({"limit_usd": "1,000"}, "budget"),
    ({"limit_usd": "1e13"}, "budget"),
    ({"limit_usd": "1e999999"}, "budget"),
    ({"limit_usd": True}, "budget"),
    ({"limit_usd": None}, "budget"),
    ({"limit_usd": b"5"}, "budget"),
    ({"limit_usd": "1", "per": "user"}, "per"),
    ({"limit_usd": "1", "per": None}, "per"),
    ({"limit_usd": "1", "every": "week"}, "every"),
    ({"limit_usd": "1", "every": "Day"}, "every"),
    ({"limit_usd": "1", "every": 3600}, "every"),
    ({"limit_usd": "1", "tenant": "acme"}, "tenant"),
    ({"limit_usd": "1", "per": "session", "tenant": "acme"}, "tenant"),
    ({"limit_usd": "1", "per": "tenant", "tenant": ""}, "tenant"),
    ({"limit_usd": "1", "per": "tenant", "tenant": 5}, "tenant"),
    ({"limit_usd": "1", "session": "s"}, "session"),
    ({"limit_usd": "1", "per": "tenant", "session": "s"}, "session"),
]


@pytest.mark.parametrize(("options", "field_name"), WRONG, ids=[str(options) for options, _ in WRONG])
def test_a_budget_that_is_none_is_refused(options: dict[str, Any], field_name: str) -> None:
    """With the name of what is wrong."""
    with pytest.raises(InvalidRequest) as caught:
        Budget(**options)
    assert caught.value.field == field_name


def test_a_misspelt_window_gets_a_hint() -> None:
    """The nearest of those there are."""
    with pytest.raises(InvalidRequest, match="Did you mean 'month'"):
        Budget("1", every="months")  # type: ignore[arg-type]


def test_one_budget_or_several_may_be_written() -> None:
    """A budget, money, a list of both, or None; one that is written twice counts once."""
    day = Budget("5", every="day")
    assert read_budgets(None) == read_budgets([]) == ()
    assert read_budgets(day) == (day,)
    assert read_budgets("5.00") == read_budgets(5) == (Budget("5.00"),)
    assert read_budgets(["5.00", day, day]) == (Budget("5"), day)


@pytest.mark.parametrize("wrong", [b"5", {"usd": 5}, object(), ["5", None], [["5"]]])
def test_a_client_refuses_what_is_no_budget(wrong: Any) -> None:
    """When it is made, not at the first call."""
    with pytest.raises(InvalidRequest, match="a budget is money"):
        Client("anthropic:claude-sonnet-5-5", api_key="k", budget=wrong)


# ---------------------------------------------------------------------- the account


def test_what_is_reserved_is_settled_at_what_it_cost() -> None:
    """10 - 4 reserved leaves 6; it cost 1, so 9 are left."""
    budgets = account(Budget("10"))
    call = take(budgets, "4")
    assert standing(budgets) == (0, 4, 6)
    call.settle(Decimal(1))
    assert standing(budgets) == (1, 0, 9)


def test_a_call_that_fits_exactly_is_let_through() -> None:
    """And the smallest amount more is not."""
    budgets = account(Budget("1"))
    take(budgets, "1")
    with pytest.raises(BudgetExceeded):
        take(budgets, "0.000000000001")
    assert standing(budgets) == (0, 1, 0)


def test_a_reservation_is_over_once() -> None:
    """What is settled can be neither settled nor released again."""
    budgets = account(Budget("10"))
    kept, released = take(budgets, "4"), take(budgets, "3")
    kept.settle(None)
    kept.release()
    kept.settle(Decimal(1))
    released.release()
    released.settle(None)
    assert standing(budgets) == (4, 0, 6)


def test_a_call_that_cost_more_than_it_could_is_counted_whole() -> None:
    """The cost is what it is: 12 of 10 are spent, and what is left is nothing, not less."""
    budgets = account(Budget("10"))
    take(budgets, "4").settle(Decimal(12))
    assert standing(budgets) == (12, 0, 0)
    with pytest.raises(BudgetExceeded):
        take(budgets, "0.01")


def test_a_budget_of_nothing_lets_through_what_costs_nothing() -> None:
    """Everything with a cost is refused."""
    budgets = account(Budget(0))
    with pytest.raises(BudgetExceeded):
        take(budgets, "0.000000000001")
    take(budgets, "0").settle(Decimal(0))
    assert standing(budgets) == (0, 0, 0)


def test_less_than_can_be_counted_is_counted_up() -> None:
    """1e-13 dollars count as 1e-12."""
    budgets = account(Budget("1"))
    take(budgets, "1e-13").settle(Decimal("1e-13"))
    assert standing(budgets)[0] == Decimal("1e-12")


def test_sums_are_exact_in_a_narrow_context() -> None:
    """A thread whose decimals have 3 digits does not blur the account: 1234.567 + 0.001 is 1234.568."""
    budgets = account(Budget("10000"))
    with localcontext(prec=3):
        for usd in ("1234.567", "0.001"):
            take(budgets, usd).settle(Decimal(usd))
        assert str(standing(budgets)[0]) == "1234.568000000000"


def test_all_budgets_must_hold() -> None:
    """What one of two refuses is reserved in neither."""
    budgets = account(Budget("10"), Budget("3", per="tenant"))
    with pytest.raises(BudgetExceeded, match="calls without a tenant") as caught:
        take(budgets, "4")
    assert caught.value.limit_usd == 3
    assert [(state.limit_usd, state.reserved_usd) for state in budgets.states(NOON_S)] == [(10, 0), (3, 0)]


def test_each_tenant_has_as_much() -> None:
    """And calls without one are a tenant of their own."""
    budgets = account(Budget("3", per="tenant"))
    for tenant in ("a", "b", None):
        take(budgets, "3", tenant=tenant)
        with pytest.raises(BudgetExceeded):
            take(budgets, "1", tenant=tenant)


def test_a_named_tenant_is_limited_alone() -> None:
    """Others are not, nor are calls without one."""
    budgets = account(Budget("3", per="tenant", tenant="acme"))
    take(budgets, "100", tenant="other")
    take(budgets, "100")
    with pytest.raises(BudgetExceeded, match="tenant 'acme'"):
        take(budgets, "4", tenant="acme")
    assert budgets.applies("acme", None) is True
    assert budgets.applies(None, None) is budgets.applies("other", None) is False


def test_a_session_is_its_tenants() -> None:
    """The same name with two tenants is two sessions; a named one is limited with each."""
    budgets = account(Budget("3", per="session", session="s"))
    for tenant in ("a", "b"):
        budgets.reserve(tenant, "s", Decimal(3), NOON_S)
        with pytest.raises(BudgetExceeded, match=f"session 's' of tenant '{tenant}'"):
            budgets.reserve(tenant, "s", Decimal(1), NOON_S)
    budgets.reserve("a", "another", Decimal(100), NOON_S)
    budgets.reserve("a", None, Decimal(100), NOON_S)


# ---------------------------------------------------------------------- windows

WINDOWS = [
    ("hour", "2026-11-30T12:59:59.999999", "2026-11-30T13:00:00"),
    ("day", "2026-11-30T00:00:00", "2026-12-01T00:00:00"),
    ("day", "2028-02-28T23:59:59", "2028-02-29T00:00:00"),
    ("month", "2026-12-31T23:59:59", "2027-01-01T00:00:00"),
    ("month", "2027-02-01T00:00:00", "2027-03-01T00:00:00"),
    ("month", "2027-01-31T12:00:00", "2027-02-01T00:00:00"),
]


def moment(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


@pytest.mark.parametrize(("every", "at", "resets_at"), WINDOWS)
def test_a_window_ends_at_its_boundary_in_utc(every: Any, at: str, resets_at: str) -> None:
    """A microsecond before it nothing is left; at it, all is."""
    budgets = account(Budget("1", every=every))
    end = moment(resets_at)
    take(budgets, "1", moment(at).timestamp()).settle(None)
    with pytest.raises(BudgetExceeded) as caught:
        take(budgets, "1", (end - timedelta(microseconds=1)).timestamp())
    assert caught.value.resets_at == end
    assert f"it resets at {resets_at}Z" in str(caught.value)
    take(budgets, "1", end.timestamp())


def test_without_a_window_nothing_resets() -> None:
    """Not in a hundred years, and the error says so."""
    budgets = account(Budget("1"))
    take(budgets, "1").settle(None)
    with pytest.raises(BudgetExceeded, match="it does not reset") as caught:
        take(budgets, "1", NOON_S + 100 * 366 * 86_400)
    assert caught.value.resets_at is None


def test_a_clock_that_goes_back_reopens_no_window() -> None:
    """What is left of the latest window holds until that one is over."""
    budgets = account(Budget("10", every="hour"))
    take(budgets, "9", NOON_S).settle(None)
    take(budgets, "8", NOON_S + 3600).settle(None)
    with pytest.raises(BudgetExceeded) as caught:
        take(budgets, "3", NOON_S)
    assert (caught.value.spent_usd, caught.value.resets_at) == (8, moment("2026-11-30T14:00:00"))


def test_a_call_counts_where_it_was_sent() -> None:
    """One that ends after the boundary takes nothing from the new window."""
    budgets = account(Budget("10", every="hour"))
    late = take(budgets, "9", NOON_S)
    take(budgets, "2", NOON_S + 3600)
    assert standing(budgets, NOON_S + 3600) == (0, 2, 8)
    late.settle(Decimal(9))
    assert standing(budgets, NOON_S + 3600) == (0, 2, 8)


# ---------------------------------------------------------------------- what the error says


def test_the_error_has_the_figures() -> None:
    """As attributes and in words: what is left, what was needed, and when it resets."""
    budgets = account(Budget("10.00", per="tenant", every="day"))
    take(budgets, "2.5", tenant="acme").settle(None)
    take(budgets, "4", tenant="acme")
    with pytest.raises(BudgetExceeded) as caught:
        take(budgets, "3.6", tenant="acme")
    error = caught.value
    assert (error.limit_usd, error.spent_usd, error.reserved_usd) == (10, Decimal("2.5"), 4)
    assert (error.left_usd, error.needed_usd) == (Decimal("3.5"), Decimal("3.6"))
    assert error.scope == "tenant 'acme'"
    assert (error.retryable, error.billed) == (False, False)
    assert str(error) == (
        "the budget of $10.00 per tenant every day ($2.50 spent, $4.00 reserved by calls in flight, "
        "$3.50 left for tenant 'acme'; it resets at 2026-12-01T00:00:00Z) does not hold this call, which "
        "could cost up to $3.60; lower max_tokens, shorten the prompt or raise the budget"
    )


def test_a_cost_without_a_bound_is_refused_with_its_reason() -> None:
    """However much is left; without a budget that limits it, it goes through."""
    budgets = account(Budget("1000000", per="tenant", tenant="acme"))
    with pytest.raises(BudgetExceeded, match="cannot be bounded: no price; do this") as caught:
        budgets.reserve("acme", None, None, NOON_S, why="no price; do this")
    assert caught.value.needed_usd is None
    budgets.reserve("other", None, None, NOON_S).settle(None)


# ---------------------------------------------------------------------- many threads


def test_sixty_four_threads_never_promise_more_than_there_is() -> None:
    """Every state that is seen meanwhile holds, and in the end all that was let through is spent."""
    budgets = account(Budget("1.00"))
    is_over = threading.Event()
    seen: list[BudgetState] = []

    def watch() -> None:
        while not is_over.is_set():
            seen.extend(budgets.states(NOON_S))

    def spend(number: int) -> int:
        done = 0
        for turn in range(50):
            try:
                call = take(budgets, "0.01")
            except BudgetExceeded:
                continue
            if (number + turn) % 2:
                call.release()
            else:
                call.settle(Decimal("0.01"))
                done += 1
        return done

    with ThreadPoolExecutor(65) as pool:
        watching = pool.submit(watch)
        spent_calls = sum(pool.map(spend, range(64)))
        is_over.set()
        watching.result()
    assert seen
    assert all(state.spent_usd + state.reserved_usd <= state.limit_usd for state in seen)
    assert spent_calls == 100
    assert standing(budgets) == (1, 0, 0)


# ---------------------------------------------------------------------- what was spent before


def row(number: int, total: str | None, **changes: Any) -> LedgerRow:
    fields: dict[str, Any] = {
        "id": f"row_{number}",
        "operation_id": f"op_{number}",
        "attempt": 1,
        "at": NOON,
        "state": "ok",
        "backend": "anthropic",
        "model": "m",
        "cost": Cost(total=None if total is None else Decimal(total)),
    }
    return LedgerRow(**(fields | changes))


ROWS = (
    row(1, "0.000000000001", tenant="a", session="s"),
    row(2, "2", tenant="a", session="t"),
    row(3, "4", tenant="b", session="s"),
    row(4, "8"),
    row(5, None, tenant="a"),
    row(6, "16", tenant="a", session="s", at=NOON - timedelta(minutes=30, microseconds=1)),
    row(7, "32", tenant="a", session="s", at=NOON - timedelta(minutes=30)),
    row(8, "64", tenant="nul\x00"),
)
ASKED: list[tuple[dict[str, Any], str | None, str | None, str, int]] = [
    # a budget, whose call, what had been spent in its window, rows of unknown cost
    ({"every": "hour"}, "x", None, "110.000000000001", 1),
    ({"per": "tenant"}, "a", None, "50.000000000001", 1),
    ({"per": "tenant", "every": "hour"}, "a", "s", "34.000000000001", 1),
    ({"per": "tenant"}, None, None, "8", 0),
    ({"per": "tenant"}, "nobody", None, "0", 0),
    ({"per": "tenant"}, "nul\x00", None, "64", 0),
    ({"per": "tenant", "tenant": "b"}, "b", None, "4", 0),
    ({"per": "session"}, "a", "s", "48.000000000001", 0),
    ({"per": "session", "session": "s"}, "b", "s", "4", 0),
    ({"per": "session"}, "a", None, "0", 1),
]


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
def filled(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ledger]:
    if request.param == "sqlite":
        where = str(tmp_path_factory.mktemp("ledger") / "costs.db")
    else:
        where = request.getfixturevalue("new_database")("budgets")
    with Ledger(where, durability="batched") as ledger:
        for one in ROWS:
            ledger.append(one)
        yield ledger


@pytest.mark.parametrize(("options", "tenant", "session", "total", "unknown"), ASKED)
def test_what_was_spent_before_is_asked_of_the_ledger(
    filled: Ledger, options: dict[str, Any], tenant: str | None, session: str | None, total: str, unknown: int
) -> None:
    """Of the tenant's or the session's rows in the current window, once; unknown costs are counted."""
    budgets = Budgets([Budget("1000", **options)], has_ledger=True)
    (question,) = budgets.unread(tenant, session, NOON_S)
    budgets.read(question, spent(filled, question))
    assert budgets.unread(tenant, session, NOON_S) == []
    budgets.reserve(tenant, session, Decimal(1), NOON_S)
    (state,) = budgets.states(NOON_S)
    assert (state.spent_usd, state.reserved_usd, state.unknown_rows) == (Decimal(total), 1, unknown)


def test_what_was_spent_may_be_more_than_sixty_four_bits(tmp_path: Path) -> None:
    """Twice nine million dollars, in 1e-12 dollars."""
    with Ledger(tmp_path / "costs.db") as ledger:
        for one in ROWS[:2]:
            ledger.append(
                replace(one, id=f"big_{one.id}", cost=Cost(total=Decimal(9_000_000)), tenant="rich")
            )
        budgets = Budgets([Budget("20000000", per="tenant")], has_ledger=True)
        (question,) = budgets.unread("rich", None, NOON_S)
        assert spent(ledger, question).pico_usd == 18_000_000 * 10**12


def test_a_clients_lifetime_is_asked_of_no_ledger() -> None:
    """It begins with the client."""
    assert Budgets([Budget("1")], has_ledger=True).unread(None, None, NOON_S) == []


def test_the_first_answer_counts() -> None:
    """A later one may hold what this client itself has spent meanwhile."""
    budgets = Budgets([Budget("10", every="day")], has_ledger=True)
    (question,) = budgets.unread(None, None, NOON_S)
    budgets.read(question, Spent(10**12, 0))
    take(budgets, "2").settle(None)
    budgets.read(question, Spent(8 * 10**12, 0))
    assert standing(budgets) == (3, 0, 7)


def test_an_answer_about_a_window_that_is_over_is_dropped() -> None:
    """Midnight passed while the ledger was read: nothing of the new day is spent."""
    budgets = Budgets([Budget("10", every="day")], has_ledger=True)
    (question,) = budgets.unread(None, None, NOON_S)
    assert question == Question(
        Scope(Budget("10", every="day"), None, None), {}, moment("2026-11-30T00:00:00")
    )
    budgets.read(question, Spent(9 * 10**12, 5))
    take(budgets, "10", NOON_S + 86_400)
    (state,) = budgets.states(NOON_S)
    assert (state.spent_usd, state.unknown_rows) == (0, 0)


def test_a_sum_that_is_incomplete_is_said_to_be() -> None:
    """With the number of rows whose cost nobody knows."""
    budgets = Budgets([Budget("1", every="day")], has_ledger=True)
    (question,) = budgets.unread(None, None, NOON_S)
    budgets.read(question, Spent(0, 7))
    with pytest.raises(BudgetExceeded, match=r"incomplete: 7 row\(s\) of the ledger have no known cost"):
        take(budgets, "2")
