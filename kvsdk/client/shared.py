"""What both clients do before anything is sent."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from kvsdk.backend import Backend
from kvsdk.backend import backend as find_backend
from kvsdk.client.forecast import Forecast
from kvsdk.client.operation import Operation, Runtime
from kvsdk.client.options import CallOptions, Defaults, OnUnsupported, check_call
from kvsdk.cost.budgets.account import Budgets
from kvsdk.cost.budgets.budget import Budget, BudgetState, Money, read_budgets
from kvsdk.errors import ConfigurationError, Unsupported
from kvsdk.prompt import MessagesLike
from kvsdk.resilience import RetryPolicy
from kvsdk.session import SessionState, SessionTable

if TYPE_CHECKING:
    from kvsdk.cost import Ledger, PriceBook


class ClientBase:
    """The settings, the ledger and the sessions of a client; `Client` says what the arguments are."""

    def __init__(
        self,
        backend: str | Backend,
        *,
        ledger: Ledger | str | Path | None = None,
        prices: PriceBook | str | Path | None = None,
        tenant: str | None = None,
        retry: RetryPolicy | int | bool | None = None,
        budget: Budget | Money | Sequence[Budget | Money] | None = None,
        cache: Literal["auto"] | None = None,
        strict: bool = False,
        on_unsupported: OnUnsupported = "raise",
        **options: Any,
    ) -> None:
        if not isinstance(backend, str) and not hasattr(backend, "encode"):
            raise ConfigurationError(
                f"a backend is 'scheme:target' or a Backend, not {type(backend).__name__}"
            )
        self._defaults = Defaults(tenant=tenant, cache=cache, strict=strict, on_unsupported=on_unsupported)
        budgets = read_budgets(budget)
        self._backend = find_backend(backend, **options)
        self._backend.check()
        self._owns_ledger = isinstance(ledger, str | Path)
        self._ledger = _open_ledger(ledger)
        self._sessions = SessionTable()
        self._runtime = Runtime(
            backend=self._backend,
            retry=RetryPolicy.of(retry),
            has_ledger=self._ledger is not None,
            forecast=Forecast(self._backend),
            prices=_open_prices(prices),
            budgets=Budgets(budgets, has_ledger=self._ledger is not None) if budgets else None,
        )
        self._lock = threading.Lock()

    @property
    def backend(self) -> Backend:
        """The backend behind the client."""
        return self._backend

    @property
    def ledger(self) -> Ledger | None:
        """The ledger the client writes to, if any."""
        return self._ledger

    @property
    def budgets(self) -> tuple[BudgetState, ...]:
        """How the budgets stand, for every scope that was asked for yet: what was spent, what is left."""
        runtime = self._runtime
        return () if runtime.budgets is None else runtime.budgets.states(runtime.wall_clock_s())

    def _operation(
        self, messages: MessagesLike, options: CallOptions, *, is_prewarm: bool = False
    ) -> Operation:
        if is_prewarm and not self._backend.capabilities.prewarm:
            raise Unsupported(
                f"{self._backend.scheme} cannot write a cache without an answer for {self._backend.model}",
                backend=self._backend.scheme,
                model=self._backend.model,
            )
        call = check_call(
            self._backend, self._defaults, self._sessions, messages, options, is_prewarm=is_prewarm
        )
        return Operation(self._runtime, call)

    def _session_state(self, name: str, tenant: str | None) -> SessionState:
        return self._sessions.get(name, tenant or self._defaults.tenant)

    def _close_ledger(self) -> None:
        if self._ledger is not None:
            if self._owns_ledger:
                self._ledger.close()
            else:
                self._ledger.flush()


def _open_ledger(value: Ledger | str | Path | None) -> Ledger | None:
    if value is None:
        return None
    from kvsdk.cost import Ledger

    if isinstance(value, Ledger):
        return value
    if not isinstance(value, str | Path):
        raise ConfigurationError(f"a ledger is a file, a URL or a Ledger, not {type(value).__name__}")
    return Ledger(value)


def _open_prices(value: PriceBook | str | Path | None) -> PriceBook | None:
    if value is None:
        return None
    from kvsdk.cost import PriceBook

    if isinstance(value, PriceBook):
        return value
    if not isinstance(value, str | Path):
        raise ConfigurationError(f"prices is a TOML file or a PriceBook, not {type(value).__name__}")
    return PriceBook(value)
