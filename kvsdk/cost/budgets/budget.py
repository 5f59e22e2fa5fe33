"""Budgets as values: how much may be spent, by whom, in which time, and how that stands."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal, InvalidOperation
from typing import Any, Literal, NamedTuple, TypeAlias

from kvsdk._text import did_you_mean
from kvsdk.errors import InvalidRequest

Per = Literal["client", "tenant", "session"]
Every = Literal["hour", "day", "month"]
Money: TypeAlias = Decimal | str | float

_PERS = ("client", "tenant", "session")
_EVERYS = ("hour", "day", "month")
_MOST_USD = Decimal(10) ** 12


@dataclass(frozen=True, slots=True, init=False)
class Budget:
    """How much may be spent, by whom, in which time.

    A call is refused before it is sent when the most it could cost does not fit; what counts afterwards is
    what it did cost. With a ledger, what was spent before a scope's first call counts too, whoever spent it,
    except for `per="client"` without a window: that is this client's lifetime. What other clients and
    processes spend meanwhile is not seen.

    Args:
        limit_usd: US dollars as `Decimal`, text or a number; a float is read as it is written (0.1 is 0.1).
        per: `"client"`: all calls together. `"tenant"`: each tenant has that much; calls without one are a
            tenant of their own. `"session"`: each session of each tenant has; calls without one likewise.
        every: `"hour"`, `"day"` or `"month"` in UTC, after which all of it is there again; None for never.
        tenant: With `per="tenant"`: only this one is limited.
        session: With `per="session"`: only sessions of this name are limited.

    Raises:
        InvalidRequest: A value is wrong; `field` names it.
    """

    limit_usd: Decimal
    per: Per
    every: Every | None
    tenant: str | None
    session: str | None

    def __init__(
        self,
        limit_usd: Money,
        *,
        per: Per = "client",
        every: Every | None = None,
        tenant: str | None = None,
        session: str | None = None,
    ) -> None:
        _check_choice("per", per, _PERS)
        if every is not None:
            _check_choice("every", every, _EVERYS)
        _check_name("tenant", tenant, per)
        _check_name("session", session, per)
        values = (_dollars(limit_usd), per, every, tenant, session)
        for name, value in zip(("limit_usd", "per", "every", "tenant", "session"), values, strict=True):
            object.__setattr__(self, name, value)

    def __str__(self) -> str:
        each = "" if self.per == "client" else f" per {self.per}"
        window = f" every {self.every}" if self.every else ""
        return f"${plain(self.limit_usd)}{each}{window}"


def read_budgets(value: object) -> tuple[Budget, ...]:
    """What a caller writes as `budget=`: None, a budget, an amount of money, or a list of them."""
    if value is None:
        return ()
    given: list[Any] = [value]
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):
        given = [*value]
    budgets = [one if isinstance(one, Budget) else Budget(one) for one in given]
    return tuple(dict.fromkeys(budgets))


class Scope(NamedTuple):
    """Whose spending one account counts; None where the budget does not ask, or where there is no name."""

    budget: Budget
    tenant: str | None
    session: str | None

    def __str__(self) -> str:
        per = self.budget.per
        if per == "client":
            return "this client"
        owner = "calls without a tenant" if self.tenant is None else f"tenant {self.tenant!r}"
        if per == "tenant":
            return owner
        words = "calls without a session" if self.session is None else f"session {self.session!r}"
        return words if self.tenant is None else f"{words} of {owner}"


@dataclass(frozen=True, slots=True)
class Question:
    """What a ledger is asked before a scope's first call: how much was spent in its window before.

    Attributes:
        scope: For whom.
        where: Columns that must be equal.
        since: Only what was sent then or later; None for all time.
    """

    scope: Scope
    where: Mapping[str, str | None]
    since: datetime | None


class Spent(NamedTuple):
    """What a ledger's rows add up to, in 1e-12 dollars, and how many of them have no known cost."""

    pico_usd: int
    unknown_rows: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetState:
    """How a budget stands for one scope.

    Attributes:
        budget: The budget.
        scope: For whom, in words, such as `tenant 'acme'`.
        limit_usd: What may be spent.
        spent_usd: What was, in the current window.
        reserved_usd: What calls in flight could still cost.
        left_usd: What another call may cost; never below 0.
        resets_at: When all of it is there again, None for never.
        unknown_rows: Rows of the ledger whose cost is unknown: more may have been spent than `spent_usd`.
    """

    budget: Budget
    scope: str
    limit_usd: Decimal
    spent_usd: Decimal
    reserved_usd: Decimal
    left_usd: Decimal
    resets_at: datetime | None
    unknown_rows: int


# ---------------------------------------------------------------------- what callers write


def plain(usd: Decimal) -> str:
    """Dollars without an exponent and without zeros that say nothing, but at least cents."""
    whole, _, rest = f"{usd:f}".partition(".")
    return f"{whole}.{rest.rstrip('0'):0<2}"


def _dollars(value: Any) -> Decimal:
    if isinstance(value, bool) or not isinstance(value, Decimal | str | int | float):
        raise InvalidRequest(
            f"a budget is money ('10.00', 10 or Decimal), not {type(value).__name__}", field="budget"
        )
    try:
        usd = Decimal(str(value)) if not isinstance(value, Decimal) else value
    except InvalidOperation:
        raise InvalidRequest(f"a budget is money such as '10.00', not {value!r}", field="budget") from None
    if not usd.is_finite() or not 0 <= usd <= _MOST_USD:
        raise InvalidRequest(f"a budget is between 0 and {_MOST_USD} US dollars, not {value}", field="budget")
    return usd


def _check_choice(field: str, value: object, known: Sequence[str]) -> None:
    if value not in known:
        words = " or ".join(repr(item) for item in known)
        raise InvalidRequest(
            f"a budget's {field} is {words}, not {value!r}.{did_you_mean(str(value), known)}", field=field
        )


def _check_name(field: Literal["tenant", "session"], value: object, per: Per) -> None:
    if value is None:
        return
    if not isinstance(value, str) or not value:
        raise InvalidRequest(f"a budget's {field} is a name, not {value!r}", field=field)
    if per != field:
        raise InvalidRequest(
            f"a budget for one {field} is per={field!r}, not per={per!r}; write "
            f"Budget(..., per={field!r}, {field}={value!r})",
            field=field,
        )
