"""How rows come to be written: each at once, or in batches behind the caller."""

from __future__ import annotations

import atexit
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from kvsdk.errors import LedgerError

Record = dict[str, Any]
Write = Callable[[Sequence[Record]], None]


class Writer(Protocol):
    """Takes rows from many threads and hands them to a function that writes them."""

    def put(self, record: Record) -> None: ...

    def flush(self) -> None: ...

    def close(self) -> None: ...


@dataclass(slots=True)
class _Ticket:
    record: Record
    is_done: bool = False
    error: BaseException | None = None


class CommitWriter:
    """A row is written when `put` returns. Threads that wait for each other share a transaction."""

    def __init__(self, write: Write) -> None:
        self._write = write
        self._waiting: deque[_Ticket] = deque()
        self._turn = threading.Lock()

    def put(self, record: Record) -> None:
        ticket = _Ticket(record)
        self._waiting.append(ticket)
        with self._turn:
            if not ticket.is_done:
                self._write_all()
        if ticket.error is not None:
            raise ticket.error

    def _write_all(self) -> None:
        tickets = [self._waiting.popleft() for _ in range(len(self._waiting))]
        error: BaseException | None = None
        try:
            self._write([ticket.record for ticket in tickets])
        except BaseException as raised:  # noqa: BLE001  every caller whose row was in it must hear of it
            error = raised
        for ticket in tickets:
            ticket.error, ticket.is_done = error, True

    def flush(self) -> None:
        """There is nothing behind."""

    def close(self) -> None:
        """There is nothing behind, and a row that comes later is still written."""


class BatchWriter:
    """Rows are written in batches by a thread of its own, at most `BATCH_S` or `BATCH_ROWS` behind.

    That thread is woken for the first row of a batch and for the one that fills it, not for each: waking a
    thread costs a caller more than writing down a row. Who would be further ahead than a batch waits.
    """

    BATCH_ROWS = 256
    BATCH_S = 0.2

    def __init__(self, write: Write) -> None:
        self._write = write
        self._rows: list[Record] = []
        self._added = self._done = 0
        self._changed = threading.Condition()
        self._is_urgent = False
        self._is_closed = False
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="kvsdk-ledger", daemon=True)
        self._thread.start()
        atexit.register(self.close)

    def put(self, record: Record) -> None:
        with self._changed:
            self._raise_pending()
            self._changed.wait_for(lambda: self._is_closed or self._added - self._done < self.BATCH_ROWS)
            if self._is_closed:
                raise LedgerError("the ledger is closed")
            self._rows.append(record)
            self._added += 1
            if len(self._rows) == 1 or self._added - self._done == self.BATCH_ROWS:
                self._changed.notify_all()

    def flush(self) -> None:
        with self._changed:
            added = self._added
            self._is_urgent = self._done < added
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._done >= added)
            self._raise_pending()

    def close(self) -> None:
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        self._thread.join()
        atexit.unregister(self.close)
        self._raise_pending()

    def _raise_pending(self) -> None:
        error, self._error = self._error, None
        if error is not None:
            raise error

    def _run(self) -> None:
        while batch := self._next_batch():
            failure: BaseException | None = None
            try:
                self._write(batch)
            except Exception as error:  # noqa: BLE001  the thread must live on, or flush waits for ever
                failure = error
            with self._changed:
                self._error = failure or self._error
                self._done += len(batch)
                self._changed.notify_all()

    def _next_batch(self) -> list[Record]:
        """The rows of the next `BATCH_S` seconds, or what there is when it is urgent; none at the end."""
        with self._changed:
            self._changed.wait_for(lambda: self._rows or self._is_closed)
            self._changed.wait_for(self._is_due, timeout=self.BATCH_S)
            batch, self._rows = self._rows, list[Record]()
            self._is_urgent = False
            return batch

    def _is_due(self) -> bool:
        return self._is_urgent or self._is_closed or len(self._rows) >= self.BATCH_ROWS
