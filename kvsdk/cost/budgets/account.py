"""The account that holds calls to budgets. Pure: the clock is an argument.

Money is counted in whole numbers of 1e-12 dollars, as in the ledger, so that what is reserved and let go adds
up to 0 whatever the decimal context of a thread is.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal
from typing import NamedTuple

from kvsdk.cost.budgets.budget import Budget, BudgetState, Every, Question, Scope, Spent, plain
from kvsdk.errors import BudgetExceeded

_PICO = Decimal(10) ** 12
_EXACT = Context(prec=60)


@dataclass(slots=True)
class _Account:
    """One scope in its current window, in 1e-12 dollars. `start` is the window's, None without one."""

    start: datetime | None
    spent: int = 0
    unknown_rows: int = 0
    reserved: int = 0


class Reservation:
    """What one call in flight could cost. The first of `settle` and `release` counts, others do nothing."""

    __slots__ = ("_accounts", "_is_open", "_pico", "_settled")

    def __init__(self, accounts: Sequence[_Account], pico: int, settled: deque[_Settled]) -> None:
        self._accounts = [(account, account.start) for account in accounts]
        self._pico = pico
        self._settled = settled
        self._is_open = True

    def settle(self, usd: Decimal | None) -> None:
        """It cost this much; None where that is unknown: then all that was reserved counts as spent."""
        self._close(self._pico if usd is None else _to_pico(usd, ROUND_CEILING))

    def release(self) -> None:
        """Certainly nothing was billed."""
        self._close(0)

    def _close(self, spent: int) -> None:
        # No lock: a flow that nobody holds any more may be closed by the garbage collector, in a thread that
        # holds the lock already.
        if self._is_open:
            self._is_open = False
            self._settled.append(_Settled(self._accounts, self._pico, spent))


class _Settled(NamedTuple):
    accounts: Sequence[tuple[_Account, datetime | None]]
    reserved: int
    spent: int


class Budgets:
    """The accounts of a client's budgets. Thread-safe.

    A call belongs to the window in which it was sent, also when it ends in a later one. A clock that goes
    back reopens no window: the latest time seen holds.

    Args:
        budgets: All of them must hold.
        has_ledger: Whether what was spent before has to be read first; see `unread`.
    """

    def __init__(self, budgets: Sequence[Budget], *, has_ledger: bool) -> None:
        self._budgets = tuple(budgets)
        self._has_ledger = has_ledger
        self._accounts: dict[Scope, _Account] = {}
        self._settled: deque[_Settled] = deque()
        self._latest_s = 0.0
        self._lock = threading.Lock()
        for budget in self._budgets:
            is_one_scope = budget.per == "client" or (budget.per == "tenant" and budget.tenant is not None)
            if is_one_scope and not self._must_read(budget):
                self._accounts[Scope(budget, budget.tenant, None)] = _Account(_window(budget.every, 0.0)[0])

    def applies(self, tenant: str | None, session: str | None) -> bool:
        """Whether any budget limits such a call."""
        return any(True for _ in self._scopes(tenant, session))

    def unread(self, tenant: str | None, session: str | None, at_s: float) -> list[Question]:
        """What has to be asked of the ledger before such a call; nothing once it was answered."""
        scopes = [scope for scope in self._scopes(tenant, session) if scope not in self._accounts]
        if not scopes:
            return []
        with self._lock:
            self._latest_s = max(self._latest_s, at_s)
            return [
                Question(scope, _columns(scope), _window(scope.budget.every, self._latest_s)[0])
                for scope in scopes
                if self._must_read(scope.budget)
            ]

    def read(self, question: Question, spent: Spent) -> None:
        """Take in the ledger's answer. The first one counts: later ones hold calls of this client's own."""
        account = _Account(question.since, spent.pico_usd, spent.unknown_rows)
        with self._lock:
            self._accounts.setdefault(question.scope, account)

    def reserve(
        self, tenant: str | None, session: str | None, usd: Decimal | None, at_s: float, *, why: str = ""
    ) -> Reservation:
        """Set aside the most that a call could cost, in every budget that limits it, or in none.

        Args:
            tenant: Whose call it is.
            session: The name of its session.
            usd: The most it could cost; None where nobody can know.
            at_s: When it is sent, in seconds since 1970.
            why: Why nobody can know, and what to do.

        Raises:
            BudgetExceeded: It does not fit, or its cost cannot be bounded.
        """
        pico = None if usd is None else _to_pico(usd, ROUND_CEILING)
        with self._lock:
            accounts: list[_Account] = []
            for scope in self._scopes(tenant, session):
                account = self._current(scope, at_s)
                left = _left(scope.budget, account)
                if pico is None or pico > left:
                    raise _refusal(_state(scope, account), usd, why)
                accounts.append(account)
            for account in accounts:
                account.reserved += pico or 0
            return Reservation(accounts, pico or 0, self._settled)

    def states(self, at_s: float) -> tuple[BudgetState, ...]:
        """How the budgets stand, for every scope that has been asked for yet."""
        with self._lock:
            self._latest_s = max(self._latest_s, at_s)
            return tuple(_state(scope, self._current(scope, at_s)) for scope in tuple(self._accounts))

    def _scopes(self, tenant: str | None, session: str | None) -> Iterator[Scope]:
        for budget in self._budgets:
            if budget.per == "client":
                yield Scope(budget, None, None)
            elif budget.per == "tenant":
                if budget.tenant in (None, tenant):
                    yield Scope(budget, tenant, None)
            elif budget.session in (None, session):
                yield Scope(budget, tenant, session)

    def _must_read(self, budget: Budget) -> bool:
        return self._has_ledger and (budget.per != "client" or budget.every is not None)

    def _current(self, scope: Scope, at_s: float) -> _Account:
        """A scope's account, brought to the window of now. The lock is held."""
        while self._settled:
            done = self._settled.popleft()
            for account, start in done.accounts:
                if account.start == start:
                    account.reserved -= done.reserved
                    account.spent += done.spent
        self._latest_s = max(self._latest_s, at_s)
        start, _ = _window(scope.budget.every, self._latest_s)
        account = self._accounts.setdefault(scope, _Account(start))
        if account.start != start:
            account.start, account.spent, account.reserved, account.unknown_rows = start, 0, 0, 0
        return account


# ---------------------------------------------------------------------- windows, states and words


def _window(every: Every | None, at_s: float) -> tuple[datetime | None, datetime | None]:
    """When the window of a time began, and when it ends."""
    if every is None:
        return None, None
    hour = datetime.fromtimestamp(at_s, UTC).replace(minute=0, second=0, microsecond=0)
    if every == "hour":
        return hour, hour + timedelta(hours=1)
    day = hour.replace(hour=0)
    if every == "day":
        return day, day + timedelta(days=1)
    month = day.replace(day=1)
    return month, (month + timedelta(days=31)).replace(day=1)


def _columns(scope: Scope) -> dict[str, str | None]:
    if scope.budget.per == "client":
        return {}
    columns = {"tenant": scope.tenant}
    return columns if scope.budget.per == "tenant" else {**columns, "session": scope.session}


def _left(budget: Budget, account: _Account) -> int:
    return max(0, _to_pico(budget.limit_usd, ROUND_FLOOR) - account.spent - account.reserved)


def _state(scope: Scope, account: _Account) -> BudgetState:
    budget = scope.budget
    ends = None if account.start is None else _window(budget.every, account.start.timestamp())[1]
    return BudgetState(
        budget=budget,
        scope=str(scope),
        limit_usd=budget.limit_usd,
        spent_usd=_to_usd(account.spent),
        reserved_usd=_to_usd(account.reserved),
        left_usd=_to_usd(_left(budget, account)),
        resets_at=ends,
        unknown_rows=account.unknown_rows,
    )


def _refusal(state: BudgetState, needed: Decimal | None, why: str) -> BudgetExceeded:
    spent, reserved, left = (plain(usd) for usd in (state.spent_usd, state.reserved_usd, state.left_usd))
    stands = f"${spent} spent, ${reserved} reserved by calls in flight, ${left} left for {state.scope}"
    if state.resets_at is None:
        resets = "it does not reset"
    else:
        resets = f"it resets at {state.resets_at.isoformat().replace('+00:00', 'Z')}"
    text = f"the budget of {state.budget} ({stands}; {resets})"
    if needed is None:
        text = f"{text} cannot hold this call, whose cost cannot be bounded: {why}"
    else:
        text = (
            f"{text} does not hold this call, which could cost up to ${plain(needed)}; "
            "lower max_tokens, shorten the prompt or raise the budget"
        )
    if state.unknown_rows:
        text += (
            f"; the sum is incomplete: {state.unknown_rows} row(s) of the ledger have no known cost, "
            "so more may have been spent"
        )
    return BudgetExceeded(
        text,
        limit_usd=state.limit_usd,
        spent_usd=state.spent_usd,
        reserved_usd=state.reserved_usd,
        left_usd=state.left_usd,
        needed_usd=needed,
        resets_at=state.resets_at,
        scope=state.scope,
    )


def _to_pico(usd: Decimal, rounding: str) -> int:
    return int(_EXACT.multiply(usd, _PICO).to_integral_value(rounding))


def _to_usd(pico: int) -> Decimal:
    return _EXACT.scaleb(Decimal(pico), -12)
