"""One call, several attempts: each is a row, all have one operation id."""

from __future__ import annotations

from collections.abc import Callable

import kvsdk
import pytest
from anthropic_wire import message, stream
from kvsdk import Client, RetryPolicy
from kvsdk.cost import LedgerRow
from loopback import Loopback, Scripted, sse

Rows = Callable[[], list[LedgerRow]]


def limited(**headers: str) -> Scripted:
    body = {"type": "error", "error": {"type": "rate_limit_error", "message": "Slow down"}}
    return Scripted(body, status=429, headers={"retry-after-ms": "1"} | headers)


def test_a_limited_call_is_sent_again(connect: Callable[..., Client], loopback: Loopback, rows: Rows) -> None:
    """429 and then 200: one operation, two attempts, two rows, the same body twice."""
    loopback.script(limited(), message())
    reply = connect(retry=3).generate("x")
    assert reply.attempts == 2
    assert loopback.bodies[0] == loopback.bodies[1]
    first, second = rows()
    assert (first.attempt, first.state, first.error, first.reply_id) == (1, "failed", "RateLimited", None)
    assert (second.attempt, second.state, second.error, second.reply_id) == (2, "ok", None, "msg_1")
    assert first.operation_id == second.operation_id == reply.operation_id
    assert first.id != second.id


def test_a_limited_stream_is_sent_again(
    connect: Callable[..., Client], loopback: Loopback, rows: Rows
) -> None:
    """The same holds for a stream that was refused."""
    loopback.script(limited(), sse(stream("Valve A.")))
    with connect(retry=3).stream("x") as answer:
        assert "".join(answer.text_stream) == "Valve A."
    assert answer.reply.attempts == 2
    assert [row.state for row in rows()] == ["failed", "ok"]


def test_the_vendors_own_retries_are_off(connect: Callable[..., Client], loopback: Loopback) -> None:
    """The SDK would send three times by itself; only our policy decides."""
    loopback.script(*[limited()] * 9)
    with pytest.raises(kvsdk.RateLimited):
        connect(retry=RetryPolicy(attempts=2)).generate("x")
    assert len(loopback.bodies) == 2


def test_no_retry_means_one_attempt(connect: Callable[..., Client], loopback: Loopback) -> None:
    """`retry=False` sends once."""
    loopback.script(limited(), message())
    with pytest.raises(kvsdk.RateLimited):
        connect(retry=False).generate("x")
    assert len(loopback.bodies) == 1


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
