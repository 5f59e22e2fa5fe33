"""Retry, deadline and breaker, with a clock that a test turns."""

from __future__ import annotations

from typing import Any

import pytest
from kvsdk import (
    BackendUnavailable,
    CircuitOpen,
    DeadlineExceeded,
    InvalidRequest,
    RateLimited,
    RequestRejected,
)
from kvsdk.resilience import CircuitBreaker, Deadline, RetryPolicy


class Clock:
    """Seconds that go forward when told to."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


# ---------------------------------------------------------------------- retry


def test_waits_double_less_up_to_a_quarter() -> None:
    """0.5, 1, 2, 4, 8, 8 seconds at most."""
    attempts = RetryPolicy(attempts=7).begin()
    for longest in (0.5, 1, 2, 4, 8, 8):
        wait_s = attempts.wait_after(BackendUnavailable("busy"))
        assert 0.75 * longest <= wait_s <= longest
    assert attempts.number == 7


def test_the_asked_wait_is_kept_exactly() -> None:
    """Neither doubled nor shortened, up to a minute."""
    attempts = RetryPolicy().begin()
    assert attempts.wait_after(RateLimited("slow", retry_after_s=60)) == 60
    assert attempts.wait_after(RateLimited("slow", retry_after_s=0)) == 0


def test_the_last_attempts_error_is_raised() -> None:
    """The very same object."""
    attempts = RetryPolicy(attempts=2).begin()
    attempts.wait_after(BackendUnavailable("one"))
    last = BackendUnavailable("two")
    with pytest.raises(BackendUnavailable) as caught:
        attempts.wait_after(last)
    assert caught.value is last
    assert attempts.number == 2


@pytest.mark.parametrize("error", [RequestRejected("no"), RateLimited("slow", retry_after_s=60.5)])
def test_some_errors_are_raised_at_once(error: Exception) -> None:
    """What will not change, and what would take too long."""
    attempts = RetryPolicy(attempts=9).begin()
    with pytest.raises(type(error)):
        attempts.wait_after(error)  # type: ignore[arg-type]
    assert attempts.number == 1


def test_a_policy_may_be_written_short() -> None:
    """None, True, False, a number, or a policy."""
    policy = RetryPolicy(attempts=5)
    counts = [RetryPolicy.of(value).attempts for value in (None, True, False, 2, policy)]
    assert counts == [3, 3, 1, 2, 5]


@pytest.mark.parametrize("wrong", [0, -1, 1.5, "3", [3]])
def test_a_policy_that_is_none_is_refused(wrong: Any) -> None:
    """Attempts are a whole number of at least 1."""
    with pytest.raises(InvalidRequest, match="attempts") as caught:
        RetryPolicy.of(wrong)
    assert caught.value.field == "retry"


# ---------------------------------------------------------------------- deadline


def test_a_deadline_counts_down() -> None:
    """Never below 0."""
    clock = Clock()
    deadline = Deadline(10, clock)
    clock.now_s += 4
    assert deadline.remaining_s() == 6
    deadline.check()
    deadline.check(wait_s=5.9)
    with pytest.raises(DeadlineExceeded, match="timeout_s=10"):
        deadline.check(wait_s=6)
    clock.now_s += 100
    assert deadline.remaining_s() == 0
    with pytest.raises(DeadlineExceeded):
        deadline.check()


def test_without_a_limit_there_is_no_deadline() -> None:
    """Nothing ever ends it."""
    clock = Clock()
    deadline = Deadline(None, clock)
    clock.now_s += 1e9
    deadline.check(1e9)
    assert deadline.remaining_s() is None


@pytest.mark.parametrize("wrong", [0, -1, float("nan"), "5", True])
def test_a_timeout_that_is_none_is_refused(wrong: Any) -> None:
    """A positive number of seconds."""
    with pytest.raises(InvalidRequest, match="timeout_s"):
        Deadline(wrong, Clock())


# ---------------------------------------------------------------------- breaker


def broken(clock: Clock, failures: int = 3) -> CircuitBreaker:
    breaker = CircuitBreaker("store", clock, failures=failures, rest_s=30)
    for _ in range(failures):
        breaker.check()
        breaker.fail()
    return breaker


def test_a_breaker_opens_after_failures_in_a_row() -> None:
    """It says who failed and how long it rests."""
    clock = Clock()
    breaker = broken(clock)
    clock.now_s += 10
    assert breaker.state == "open"
    with pytest.raises(CircuitOpen, match="store failed 3 times") as caught:
        breaker.check()
    assert caught.value.retry_after_s == 20


def test_a_success_in_between_starts_the_count_again() -> None:
    """Only failures in a row count."""
    breaker = CircuitBreaker("store", Clock(), failures=3)
    for outcome in (breaker.fail, breaker.fail, breaker.succeed, breaker.fail, breaker.fail):
        outcome()
    assert breaker.state == "closed"
    breaker.fail()
    assert breaker.state == "open"


def test_after_its_rest_one_may_try() -> None:
    """The others wait for the outcome."""
    clock = Clock()
    breaker = broken(clock)
    clock.now_s += 30
    assert breaker.state == "half_open"
    breaker.check()
    with pytest.raises(CircuitOpen):
        breaker.check()


def test_a_good_try_closes_and_a_bad_one_opens_again() -> None:
    """A bad one starts a whole new rest."""
    clock = Clock()
    breaker = broken(clock)
    clock.now_s += 30
    breaker.check()
    breaker.fail()
    assert breaker.state == "open"
    clock.now_s += 29
    assert breaker.state == "open"
    clock.now_s += 1
    breaker.check()
    breaker.succeed()
    assert breaker.state == "closed"
    breaker.check()
