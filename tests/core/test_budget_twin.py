"""The account of budgets against a naive twin that keeps every call and adds all of them up each time."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from kvsdk import Budget, BudgetExceeded
from kvsdk.cost.budgets.account import Budgets, Reservation
from kvsdk.cost.budgets.budget import BudgetState, Scope

NOON_S = datetime(2026, 11, 30, 12, 30, tzinfo=UTC).timestamp()
FORMATS = {None: "", "hour": "%Y-%m-%d %H", "day": "%Y-%m-%d", "month": "%Y-%m"}


@dataclass
class Call:
    at_s: float
    tenant: str | None
    session: str | None
    reserved: int
    spent: int | None = None


@dataclass
class Twin:
    """Keeps every call and adds all of them up each time, in whole numbers."""

    budgets: tuple[Budget, ...]
    calls: list[Call] = field(default_factory=list)
    latest_s: float = 0.0

    def label(self, budget: Budget, at_s: float) -> str:
        return datetime.fromtimestamp(at_s, UTC).strftime(FORMATS[budget.every])

    def limits(self, budget: Budget, tenant: str | None, session: str | None) -> bool:
        return budget.tenant in (None, tenant) and budget.session in (None, session)

    def is_same(self, budget: Budget, call: Call, tenant: str | None, session: str | None) -> bool:
        is_owner = {
            "client": True,
            "tenant": call.tenant == tenant,
            "session": (call.tenant, call.session) == (tenant, session),
        }[budget.per]
        return is_owner and self.label(budget, call.at_s) == self.label(budget, self.latest_s)

    def sums(self, budget: Budget, tenant: str | None, session: str | None) -> tuple[int, int]:
        same = [call for call in self.calls if self.is_same(budget, call, tenant, session)]
        return sum(call.spent or 0 for call in same), sum(
            call.reserved for call in same if call.spent is None
        )

    def reserve(self, at_s: float, tenant: str | None, session: str | None, amount: int) -> Call | None:
        self.latest_s = max(self.latest_s, at_s)
        for budget in self.budgets:
            limit = int(budget.limit_usd * 10**12)
            if (
                self.limits(budget, tenant, session)
                and sum(self.sums(budget, tenant, session)) + amount > limit
            ):
                return None
        self.calls.append(Call(self.latest_s, tenant, session, amount))
        return self.calls[-1]


def dollars(pico: int) -> Decimal:
    return Decimal(pico) / 10**12


NAMES = st.sampled_from(["a", "b", None])
BUDGETS = st.builds(
    lambda pico, every, who: Budget(dollars(pico), every=every, **who),
    st.integers(0, 30),
    st.sampled_from([None, "hour", "day", "month"]),
    st.sampled_from(
        [
            {},
            {"per": "tenant"},
            {"per": "session"},
            {"per": "tenant", "tenant": "a"},
            {"per": "session", "session": "a"},
        ]
    ),
)
STEPS = st.one_of(
    st.tuples(st.just("reserve"), NAMES, NAMES, st.integers(0, 12)),
    st.tuples(st.just("settle"), st.integers(0, 9), st.integers(0, 12), st.none()),
    st.tuples(st.just("keep"), st.integers(0, 9), st.none(), st.none()),
    st.tuples(st.just("release"), st.integers(0, 9), st.none(), st.none()),
    st.tuples(st.just("clock"), st.integers(-40, 40), st.sampled_from([60, 3600, 86_400]), st.none()),
)


def check(states: tuple[BudgetState, ...], scopes: dict[tuple[Budget, str], Any], twin: Twin) -> None:
    for state in states:
        used, held = twin.sums(
            state.budget, *scopes.get((state.budget, state.scope), (state.budget.tenant, None))
        )
        limit = int(state.limit_usd * 10**12)
        assert (state.spent_usd, state.reserved_usd) == (dollars(used), dollars(held)), state
        assert state.left_usd == dollars(limit - used - held)
        assert state.spent_usd + state.reserved_usd <= state.limit_usd
        if state.resets_at is not None:
            end_s = state.resets_at.timestamp()
            assert twin.label(state.budget, end_s - 1e-3) == twin.label(state.budget, twin.latest_s)
            assert twin.label(state.budget, end_s) != twin.label(state.budget, twin.latest_s)


@settings(max_examples=300, deadline=None)
@given(st.lists(BUDGETS, min_size=1, max_size=3, unique=True), st.lists(STEPS, max_size=40))
def test_the_account_is_that_of_a_naive_twin(given_budgets: list[Budget], steps: list[Any]) -> None:
    """Whatever is reserved, settled, kept and released, in any order and on any clock.

    Each call costs at most what was reserved for it, so what is spent and reserved never exceeds a limit.
    """
    budgets, twin = Budgets(given_budgets, has_ledger=False), Twin(tuple(given_budgets))
    scopes: dict[tuple[Budget, str], Any] = {}
    open_calls: list[tuple[Reservation, Call]] = []
    now_s = NOON_S
    for step, first, second, third in steps:
        if step == "clock":
            now_s += first * second
        elif step == "reserve":
            expected = twin.reserve(now_s, first, second, third)
            try:
                held = budgets.reserve(first, second, dollars(third), now_s)
            except BudgetExceeded:
                assert expected is None
            else:
                assert expected is not None
                open_calls.append((held, expected))
            for budget in given_budgets:
                session = second if budget.per == "session" else None
                scopes[budget, str(Scope(budget, first, session))] = (first, second)
        elif open_calls:
            held, call = open_calls.pop(first % len(open_calls))
            call.spent = {"keep": call.reserved, "release": 0}.get(step, min(second or 0, call.reserved))
            if step == "release":
                held.release()
            else:
                held.settle(None if step == "keep" else dollars(call.spent))
        twin.latest_s = max(twin.latest_s, now_s)
        check(budgets.states(now_s), scopes, twin)
