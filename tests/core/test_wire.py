"""One flow, two drivers."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from kvsdk import TextDelta
from kvsdk.wire import Cancelled, Done, Effect, Emit, Flow, Machine, aadvance, advance


class IO:
    """Does effects by noting them."""

    def __init__(self) -> None:
        self.done: list[Any] = []

    def double(self, number: int) -> int:
        self.done.append(number)
        return number * 2

    def fail(self) -> None:
        self.done.append("fail")
        raise OSError("disk")


class AsyncIO(IO):
    """The same, awaited."""

    async def double(self, number: int) -> int:  # type: ignore[override]
        await asyncio.sleep(0)
        return super().double(number)

    async def fail(self) -> None:  # type: ignore[override]
        await asyncio.sleep(0)
        super().fail()


def run_sync(flow: Flow[Any]) -> tuple[list[Any], Any, list[Any]]:
    """What a flow emitted, what it gave back, and what was done for it."""
    machine, io, events = Machine(flow), IO(), []
    step = advance(machine, io, machine.resume(None))
    while isinstance(step, Emit):
        events.append(step.event)
        step = advance(machine, io, machine.resume(None))
    return events, step.value, io.done


def run_async(flow: Flow[Any]) -> tuple[list[Any], Any, list[Any]]:
    async def run() -> tuple[list[Any], Any, list[Any]]:
        machine, io, events = Machine(flow), AsyncIO(), []
        step = await aadvance(machine, io, machine.resume(None))
        while isinstance(step, Emit):
            events.append(step.event)
            step = await aadvance(machine, io, machine.resume(None))
        return events, step.value, io.done

    return asyncio.run(run())


BOTH = pytest.mark.parametrize("run", [run_sync, run_async])


@BOTH
def test_effects_are_done_in_order_and_answered(run: Any) -> None:
    """Each effect's result comes back to its `yield`; events go out; the value is the flow's."""

    def flow() -> Flow[int]:
        two = yield Effect("double", (1,))
        yield Emit(TextDelta(f"{two}"))
        four = yield Effect("double", (two,))
        yield Emit(TextDelta(f"{four}"))
        return four + 1

    assert run(flow()) == ([TextDelta("2"), TextDelta("4")], 5, [1, 2])


@BOTH
def test_an_effects_error_can_be_handled_by_the_flow(run: Any) -> None:
    """It is raised at the `yield`."""

    def flow() -> Flow[str]:
        try:
            yield Effect("fail")
        except OSError as error:
            yield Effect("double", (7,))
            return f"saw {error}"
        return "not reached"

    assert run(flow()) == ([], "saw disk", ["fail", 7])


@BOTH
def test_an_error_that_is_not_handled_comes_out(run: Any) -> None:
    """As it is."""

    def flow() -> Flow[None]:
        yield Effect("fail")

    with pytest.raises(OSError, match="disk"):
        run(flow())


def test_a_reader_that_leaves_is_seen_by_the_flow() -> None:
    """It can do effects before it ends."""

    def flow() -> Flow[str]:
        try:
            yield Emit(TextDelta("a"))
        except Cancelled:
            yield Effect("double", (9,))
            return "left"
        return "not reached"

    machine, io = Machine(flow()), IO()
    assert advance(machine, io, machine.resume(None)) == Emit(TextDelta("a"))
    assert advance(machine, io, machine.fail(Cancelled())) == Done("left")
    assert io.done == [9]
