"""What one call sets aside in its client's budgets, attempt by attempt, as a flow without I/O."""

from __future__ import annotations

from decimal import Decimal

from kvsdk.backend import Backend, Call
from kvsdk.client.account import Account, Attempt
from kvsdk.cost.budgets.account import Budgets, Reservation
from kvsdk.errors import BudgetExceeded, KvsdkError
from kvsdk.wire import Effect, Flow


class Reserving:
    """The reservation of a call's current attempt; without budgets it does nothing.

    Args:
        budgets: The client's, None without any.
        backend: Named in errors.
        account: Knows what an attempt could cost.
    """

    def __init__(self, budgets: Budgets | None, backend: Backend, account: Account) -> None:
        self._budgets = budgets
        self._backend = backend
        self._account = account
        self._current: Reservation | None = None

    def reserve(
        self, call: Call, attempt: Attempt, timeout_s: float | None, before: BaseException | None
    ) -> Flow[None]:
        """Set aside the most that an attempt could cost.

        Raises:
            BudgetExceeded: It does not fit; `before`, the earlier attempt's error, is its cause.
            LedgerError: What was spent before this client was made cannot be read.
        """
        budgets, request = self._budgets, self._account.plan.request
        tenant, session = request.tenant, request.session
        if budgets is None or not budgets.applies(tenant, session):
            return
        for question in budgets.unread(tenant, session, attempt.at_s):
            budgets.read(question, (yield Effect("spent", (question,))))
        most = self._account.bound(call, attempt, timeout_s)
        try:
            self._current = budgets.reserve(tenant, session, most.usd, attempt.at_s, why=most.why)
        except BudgetExceeded as error:
            error.backend, error.model = self._backend.scheme, self._backend.model
            raise error from before

    def settle(self, usd: Decimal | None) -> None:
        """The attempt cost this much; with None nobody knows, and all that was set aside counts as spent."""
        if self._current is not None:
            self._current.settle(usd)
            self._current = None

    def fail(self, error: BaseException) -> None:
        """The attempt had no answer; it may have been billed unless the error says otherwise."""
        is_free = isinstance(error, KvsdkError) and error.billed is False
        self.settle(Decimal(0) if is_free else None)
