"""What the same tokens would cost on another backend, at its list price. Always an estimate."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime

from kvsdk.backend import Outcome, backend
from kvsdk.prompt import Message, Request
from kvsdk.reply import Cost
from kvsdk.usage import Usage


def price_elsewhere(
    usage: Usage, address: str, *, prefix_tokens: int | None, at: datetime, prefix_is_warm: bool
) -> Cost:
    """The list price of a request's tokens on another backend that caches its prefix.

    The prefix is taken as one breakpoint: read when it is warm, written when not, and neither when it is
    shorter than the model caches. The tokens are those that were counted here; another model's tokenizer
    counts others.

    Args:
        usage: What was counted here.
        address: The other backend, such as `"anthropic:claude-sonnet-5-5"`. Its SDK is not needed.
        prefix_tokens: Tokens up to the breakpoint, None without one.
        at: The day of the price.
        prefix_is_warm: Whether an earlier request has left the prefix in that backend's cache.
    """
    other = backend(address)
    total = usage.input_tokens
    if total is None:
        return Cost(reason="the count of input tokens is not known")
    prefix = min(prefix_tokens or 0, total)
    if prefix < (other.capabilities.min_tokens or 0):
        prefix = 0
    read, write = (prefix, 0) if prefix_is_warm else (0, prefix)
    counts = Usage.of_total(total, read=read, write=write, output=usage.output_tokens)
    cost = other.cost(Outcome.of_usage(other.model, counts), Request(messages=(Message.user("-"),)), at)
    return replace(cost, estimated=True, reason=cost.reason or "tokens as counted by another tokenizer")
