"""Retry, deadline and circuit breaker: pure, with the clock as an argument."""

from kvsdk.resilience.breaker import CircuitBreaker
from kvsdk.resilience.deadline import Deadline
from kvsdk.resilience.retry import Attempts, RetryPolicy

__all__ = ["Attempts", "CircuitBreaker", "Deadline", "RetryPolicy"]
