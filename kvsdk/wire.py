"""Operations as generator flows, and the two drivers that run them.

A flow is plain code that yields *effects* (send this, wait that long, record this row) and gets their
results back. It does no I/O, so one flow serves the sync and the async client and is tested without either.
An effect names a method of the I/O object that a driver is given: `answer = yield Effect("send", call)`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

from kvsdk.reply import Event

T = TypeVar("T")


class Effect(NamedTuple):
    """Something for the driver to do: call `io.<name>(*args)` and send back its result."""

    name: str
    args: tuple[Any, ...] = ()


class Emit(NamedTuple):
    """An event for the reader of a stream; the flow goes on when the reader asks for more."""

    event: Event


@dataclass(frozen=True, slots=True)
class Done:
    """The flow has ended with a value."""

    value: Any


Flow = Generator[Effect | Emit, Any, T]


class Cancelled(Exception):  # a signal between driver and flow, never seen by callers
    """Thrown into a flow whose reader has left."""


class Machine:
    """A flow with its next step. `start` once, then `resume` or `fail` with each effect's outcome."""

    __slots__ = ("_flow",)

    def __init__(self, flow: Flow[Any]) -> None:
        self._flow = flow

    def resume(self, value: Any) -> Effect | Emit | Done:
        """Send a result into the flow."""
        try:
            return self._flow.send(value)
        except StopIteration as stop:
            return Done(stop.value)

    def fail(self, error: BaseException) -> Effect | Emit | Done:
        """Raise an effect's error inside the flow."""
        try:
            return self._flow.throw(error)
        except StopIteration as stop:
            return Done(stop.value)


def advance(machine: Machine, io: Any, step: Effect | Emit | Done) -> Emit | Done:
    """Run a flow until it has an event for its reader or has ended (sync)."""
    while isinstance(step, Effect):
        try:
            value = getattr(io, step.name)(*step.args)
        except BaseException as error:  # noqa: BLE001  whatever it is, the flow decides
            step = machine.fail(error)
        else:
            step = machine.resume(value)
    return step


async def aadvance(machine: Machine, io: Any, step: Effect | Emit | Done) -> Emit | Done:
    """Run a flow until it has an event for its reader or has ended (async)."""
    while isinstance(step, Effect):
        method: Callable[..., Awaitable[Any]] = getattr(io, step.name)
        try:
            value = await method(*step.args)
        except BaseException as error:  # noqa: BLE001  whatever it is, the flow decides
            step = machine.fail(error)
        else:
            step = machine.resume(value)
    return step
