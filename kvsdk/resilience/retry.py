"""One retry policy for every backend, on tenacity."""

from __future__ import annotations

from dataclasses import dataclass

import tenacity

from kvsdk.errors import InvalidRequest, KvsdkError


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """When to send a request again: errors with `retryable` set (408, 409, 429, 5xx, no connection).

    The backend's `retry-after` is obeyed up to `longest_retry_after_s`; beyond, the error is raised at
    once. Without one, the wait doubles from `first_wait_s` to `longest_wait_s`, less up to a quarter at
    random. The vendors' SDKs are run with their own retries off.
    """

    attempts: int = 3
    first_wait_s: float = 0.5
    longest_wait_s: float = 8.0
    longest_retry_after_s: float = 60.0

    def __post_init__(self) -> None:
        if type(self.attempts) is not int or self.attempts < 1:
            raise InvalidRequest(
                f"attempts is a whole number of at least 1, not {self.attempts!r}", field="retry"
            )

    @classmethod
    def of(cls, value: RetryPolicy | int | bool | None) -> RetryPolicy:
        """From what a caller writes as `retry=`: a policy, a number of attempts, False, or None."""
        if value is None or value is True:
            return cls()
        if value is False:
            return cls(attempts=1)
        return value if isinstance(value, RetryPolicy) else cls(attempts=value)

    def begin(self) -> Attempts:
        """Start counting one call's attempts."""
        return Attempts(self)


class Attempts:
    """The attempts of one call. `number` is the current one, from 1."""

    def __init__(self, policy: RetryPolicy) -> None:
        backoff = tenacity.wait_exponential(multiplier=policy.first_wait_s, max=policy.longest_wait_s)
        jitter = tenacity.wait_random(0.75, 1.0)

        def wait(state: tenacity.RetryCallState) -> float:
            asked = _retry_after(state)
            return asked if asked is not None else backoff(state) * jitter(state)

        def is_over(state: tenacity.RetryCallState) -> bool:
            asks_too_long = (_retry_after(state) or 0.0) > policy.longest_retry_after_s
            return asks_too_long or state.attempt_number >= policy.attempts

        self._retrying = tenacity.Retrying(
            retry=tenacity.retry_if_exception(_is_retryable),
            stop=is_over,
            wait=wait,
            reraise=True,
        )
        self._retrying.begin()
        self._state = tenacity.RetryCallState(self._retrying, None, (), {})

    @property
    def number(self) -> int:
        """The current attempt, from 1."""
        return self._state.attempt_number

    def wait_after(self, error: KvsdkError) -> float:
        """Seconds to wait before the next attempt; raises `error` itself when there is none."""
        self._state.set_exception((type(error), error, error.__traceback__))
        wait_s = self._retrying.iter(self._state)
        assert isinstance(wait_s, tenacity.DoSleep)
        self._state.prepare_for_next_attempt()
        return float(wait_s)


def _is_retryable(error: BaseException) -> bool:
    return isinstance(error, KvsdkError) and error.retryable


def _retry_after(state: tenacity.RetryCallState) -> float | None:
    error = state.outcome.exception() if state.outcome else None
    return error.retry_after_s if isinstance(error, KvsdkError) else None
