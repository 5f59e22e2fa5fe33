"""One call, several attempts: each is a row, all have one operation id."""

from __future__ import annotations

from collections.abc import Callable

import kvsdk
import pytest
from anthropic_wire import message
from kvsdk import Client
from kvsdk.cost import LedgerRow
from loopback import Loopback, Scripted

Rows = Callable[[], list[LedgerRow]]


def limited(**headers: str) -> Scripted:
    body = {"type": "error", "error": {"type": "rate_limit_error", "message": "Slow down"}}
    return Scripted(body, status=429, headers={"retry-after-ms": "1"} | headers)


def test_three_attempts_are_the_default(
    connect: Callable[..., Client], loopback: Loopback, rows: Rows
) -> None:
    """After the third the vendor's error is raised."""
    loopback.script(*[limited()] * 4)
    with pytest.raises(kvsdk.RateLimited):
        connect(retry=None).generate("x")
    assert [row.attempt for row in rows()] == [1, 2, 3]
    assert len({row.operation_id for row in rows()}) == 1


def test_a_wait_of_more_than_a_minute_is_not_waited(
    connect: Callable[..., Client], loopback: Loopback
) -> None:
    """`retry-after: 61` raises at once and says how long was asked for."""
    loopback.script(
        Scripted({"error": {"message": "m"}}, status=429, headers={"retry-after": "61"}), message()
    )
    with pytest.raises(kvsdk.RateLimited) as caught:
        connect(retry=3).generate("x")
    assert caught.value.retry_after_s == 61
    assert len(loopback.bodies) == 1


def test_a_wait_beyond_the_deadline_is_not_waited(connect: Callable[..., Client], loopback: Loopback) -> None:
    """When the wait does not fit into `timeout_s` the call gives up at once."""
    loopback.script(limited(**{"retry-after-ms": "30000"}), message())
    with pytest.raises(kvsdk.DeadlineExceeded) as caught:
        connect(retry=3).generate("x", timeout_s=5)
    assert isinstance(caught.value.__cause__, kvsdk.RateLimited)
    assert len(loopback.bodies) == 1


def test_a_refused_call_is_not_sent_again(connect: Callable[..., Client], loopback: Loopback) -> None:
    """A 400 will be a 400 again."""
    loopback.script(Scripted({"error": {"message": "m"}}, status=400), message())
    with pytest.raises(kvsdk.RequestRejected):
        connect(retry=3).generate("x")
    assert len(loopback.bodies) == 1
