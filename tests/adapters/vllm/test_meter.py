"""How the time of an engine's steps is divided, without an engine."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvsdk_vllm._meter import StepMeter, divide

STEPS = st.lists(
    st.tuples(
        st.dictionaries(st.sampled_from("abcd"), st.integers(0, 4096), min_size=1),
        st.floats(0, 10),
        st.floats(0, 1),
    ),
    min_size=1,
)


class Scheduler:
    """What the meter needs of a scheduler: it takes in the results of a batch."""

    def __init__(self) -> None:
        self.taken: list[Any] = []

    def update_from_output(self, batch: Any, results: Any) -> str:
        self.taken.append((batch, results))
        return "outputs"


def watched() -> tuple[StepMeter, Scheduler]:
    scheduler, meter = Scheduler(), StepMeter()
    meter.watch(
        SimpleNamespace(engine_core=SimpleNamespace(engine_core=SimpleNamespace(scheduler=scheduler)))
    )
    return meter, scheduler


def batch(**tokens: int) -> Any:
    return SimpleNamespace(num_scheduled_tokens=tokens)


def test_a_step_is_divided_by_tokens() -> None:
    """A chunk of 30 tokens and two generated ones: 30, 1 and 1 parts of 32; who has none pays nothing."""
    assert divide(3.2, {"prompt": 30, "a": 1, "b": 1, "waiting": 0}) == {
        "prompt": pytest.approx(3.0),
        "a": pytest.approx(0.1),
        "b": pytest.approx(0.1),
    }
    assert divide(1.0, {"waiting": 0}) == {}
    assert divide(1.0, {}) == {}


@given(STEPS)
def test_shares_sum_to_the_busy_time(steps: list[tuple[dict[str, int], float, float]]) -> None:
    """Over any steps, gaps between them included, all shares together are the busy time."""
    meter, scheduler = watched()
    now_s, shared_s = 100.0, 0.0
    ends_s = [now_s]
    for tokens, gap_s, step_s in steps:
        meter.begin(now_s + gap_s)
        now_s += gap_s + step_s
        scheduler.update_from_output(batch(**tokens), None)
        shares = meter.end(now_s, "abcd")
        assert set(shares) == {name for name, count in tokens.items() if count}
        shared_s += sum(shares.values())
        if shares:
            ends_s.append(now_s)
    first_gap_s = steps[0][1]
    assert math.isclose(shared_s, meter.busy_s, abs_tol=1e-9)
    if len(ends_s) > 1:
        assert math.isclose(meter.busy_s, ends_s[-1] - 100.0 - first_gap_s, abs_tol=1e-9)


def test_a_gap_between_steps_belongs_to_the_next() -> None:
    """While requests run, the time between two steps is billed; when nothing is left, it is not."""
    meter, scheduler = watched()
    meter.begin(10.0)
    scheduler.update_from_output(batch(a=5), None)
    assert meter.end(12.0, ["a"]) == {"a": 2.0}
    meter.begin(12.5)
    assert meter.started_s == 12.0
    scheduler.update_from_output(batch(a=1), None)
    assert meter.end(13.0, ["a"]) == {"a": 1.0}
    meter.rest()
    meter.begin(50.0)
    scheduler.update_from_output(batch(b=1), None)
    assert meter.end(51.0, ["b"]) == {"b": 1.0}
    assert meter.busy_s == 2.0 + 1.0 + 1.0


def test_a_step_that_computed_nothing_is_added_to_the_next() -> None:
    """A batch that is only scheduled, or a wait for KV, has no results: its time goes on to the next."""
    meter, scheduler = watched()
    meter.begin(0.0)
    assert meter.end(0.5, ["a"]) == {}
    meter.begin(0.5)
    scheduler.update_from_output(batch(), None)
    assert meter.end(1.0, ["a"]) == {}
    assert meter.busy_s == 0
    meter.begin(1.0)
    scheduler.update_from_output(batch(a=3, b=1), None)
    assert meter.end(2.0, ["a", "b"]) == {"a": 1.5, "b": 0.5}


def test_two_batches_in_one_step_are_one_stretch() -> None:
    """Tokens of all batches whose results came count together."""
    meter, scheduler = watched()
    meter.begin(0.0)
    scheduler.update_from_output(batch(a=1), None)
    scheduler.update_from_output(batch(a=1, b=2), None)
    assert meter.end(1.0, ["a", "b"]) == {"a": 0.5, "b": 0.5}


def test_the_scheduler_gets_its_results_all_the_same() -> None:
    """Watching passes the call on and its answer back."""
    meter, scheduler = watched()
    first = batch(a=1)
    assert meter.is_exact
    assert scheduler.update_from_output(first, "results") == "outputs"
    assert scheduler.taken == [(first, "results")]


@pytest.mark.parametrize(
    "engine", [object(), SimpleNamespace(engine_core=object())], ids=["none", "elsewhere"]
)
def test_without_a_scheduler_the_time_is_divided_evenly(engine: object) -> None:
    """An engine in other processes shows no tokens: all who are in it pay alike."""
    meter = StepMeter()
    meter.watch(engine)
    assert not meter.is_exact
    meter.begin(0.0)
    assert meter.end(3.0, ["a", "b", "waiting"]) == {"a": 1.0, "b": 1.0, "waiting": 1.0}
    assert meter.busy_s == 3.0
