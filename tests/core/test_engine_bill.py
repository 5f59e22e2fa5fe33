"""Closing the books on an engine of one's own."""

from __future__ import annotations

import doctest
import itertools
import math
from dataclasses import replace
from decimal import Decimal
from fractions import Fraction

import pytest
from engine_times import A_TENTH_OF_A_CENT_A_SECOND, AT, after, by_tokens, divide, measured
from hypothesis import given, settings
from hypothesis import strategies as st
from kvsdk import InvalidRequest, Usage
from kvsdk.cost.engine import allocation as engine_bill
from kvsdk.cost.engine.allocation import EngineBill, EngineUse, SkippedUse, allocate, span
from kvsdk.cost.prices.machine import machine_cost

PICO = Decimal("1e-12")
KINDS = ("prefill", "load", "store", "decode")
MANY = settings(max_examples=200, deadline=None)


# ---------------------------------------------------------------------- the method's own words


def test_the_worked_example_is_so() -> None:
    """The numbers in the module's docstring are what comes out."""
    found = doctest.testmod(engine_bill)
    assert found.attempted > 5
    assert found.failed == 0


# ---------------------------------------------------------------------- any uses, any period


QUARTERS = st.integers(-40, 120).map(lambda quarters: quarters / 4)
LENGTHS = st.integers(0, 60).map(lambda quarters: quarters / 4)
TOKENS = st.none() | st.integers(0, 5000)


@st.composite
def token_uses(draw: st.DrawFn) -> EngineUse:
    total_s = draw(LENGTHS)
    ttft_s = draw(st.none() | st.integers(0, int(total_s * 4)).map(lambda quarters: quarters / 4))
    return by_tokens(draw(QUARTERS), total_s, draw(TOKENS), draw(TOKENS), ttft_s=ttft_s)


@st.composite
def roomy_uses(draw: st.DrawFn) -> EngineUse:
    """Measured, each phase with at most a twelfth of its time, so that twelve never exceed the period."""
    quarters = st.integers(0, 20).map(lambda number: number / 4)
    queue_s, prefill, decode = (draw(quarters) for _ in range(3))
    parts = st.fractions(0, Fraction(1, 12)).map(float)
    return measured(
        draw(QUARTERS),
        queue_s + prefill + decode,
        queue_s=queue_s,
        ttft_s=queue_s + prefill,
        prefill_s=prefill * draw(parts),
        decode_s=decode * draw(parts),
    )


@st.composite
def wild_uses(draw: st.DrawFn) -> EngineUse:
    """Measured, with seconds that may have no room in the request, and times that do not fit."""
    seconds = st.floats(0, 20)
    return measured(
        draw(QUARTERS),
        draw(st.none() | LENGTHS | seconds),
        ttft_s=draw(st.none() | LENGTHS),
        queue_s=draw(st.none() | seconds),
        **{f"{kind}_s": draw(seconds) for kind in KINDS},
    )


RATES = st.decimals(0, 1000, places=6).map(lambda rate: EngineBill(usd_per_hour=rate))


@MANY
@given(st.lists(token_uses() | roomy_uses() | wild_uses(), max_size=12), QUARTERS, LENGTHS, RATES)
def test_shares_and_idle_are_the_bill(
    uses: list[EngineUse], start: float, length: float, bill: EngineBill
) -> None:
    """Any requests, overlapping in any way, over any period: nothing negative, and the sum is exact."""
    found = divide(uses, start + length, start, bill)
    assert found.total_usd == round(Decimal(repr(length)) * bill.usd_per_hour / 3600, 12)
    assert found.idle_usd >= 0
    assert found.idle_s >= 0
    for share in found.shares:
        assert all(getattr(share, f"{kind}_usd") >= 0 for kind in KINDS)
        assert all(getattr(share, f"{kind}_s") >= 0 for kind in KINDS)
    busy_s = sum(share.busy_s for share in found.shares)
    assert math.isclose(busy_s + found.idle_s, length, abs_tol=1e-9)


@MANY
@given(
    st.lists(token_uses() | roomy_uses(), max_size=12),
    st.lists(QUARTERS, min_size=3, max_size=5, unique=True).map(sorted),
    RATES,
)
def test_periods_side_by_side_add_up(uses: list[EngineUse], edges: list[float], bill: EngineBill) -> None:
    """A request's shares of the parts of a period are its share of the whole, but for the rounding."""
    named = [replace(use, id=str(number)) for number, use in enumerate(uses)]
    whole = divide(named, edges[-1], edges[0], bill)
    parts = [divide(named, end, start, bill) for start, end in itertools.pairwise(edges)]
    if whole.is_scaled or any(part.is_scaled for part in parts):
        raise AssertionError("these uses have room")
    crumbs = PICO * len(parts)
    assert abs(sum(part.total_usd for part in parts) - whole.total_usd) <= crumbs
    shares = {share.use.id: share for share in whole.shares}
    sums = {id: dict.fromkeys(KINDS, Decimal(0)) for id in shares}
    for part in parts:
        for share in part.shares:
            for kind in KINDS:
                sums[share.use.id][kind] += getattr(share, f"{kind}_usd")
    for id, share in shares.items():
        for kind in KINDS:
            assert 0 <= getattr(share, f"{kind}_usd") - sums[id][kind] <= crumbs


@MANY
@given(
    st.lists(token_uses() | roomy_uses(), max_size=6),
    st.integers(-10, 20),
    st.integers(0, 30),
)
def test_a_walk_in_small_steps_finds_the_same(uses: list[EngineUse], start: int, length: int) -> None:
    """The naive way: go through the period by quarters of a second, and look at every request in each."""
    named = [replace(use, id=str(number)) for number, use in enumerate(uses)]
    found = divide(named, start + length, start)
    walked = walk(named, start, start + length)
    shares = {share.use.id: share for share in found.shares}
    for use in named:
        for kind in ("prefill", "decode"):
            got = getattr(shares[use.id], f"{kind}_s") if use.id in shares else 0.0
            assert math.isclose(got, walked[use.id, kind], abs_tol=1e-9)


def walk(uses: list[EngineUse], start: int, end: int) -> dict[tuple[str, str], float]:
    """Seconds by request and kind, found by looking at everything in every quarter of a second."""
    got = {(use.id, kind): 0.0 for use in uses for kind in ("prefill", "decode")}
    for number in range((end - start) * 4):
        now = start + number / 4 + 1 / 8
        left, weights = 1 / 4, {}
        for use in uses:
            begins = (use.at - AT).total_seconds()
            assert use.total_s is not None
            ends = begins + use.total_s
            if not begins <= now < ends:
                continue
            if use.engine is not None:
                assert use.engine.queue_s is not None
                assert use.ttft_s is not None
                computes, first = begins + use.engine.queue_s, begins + use.ttft_s
                if computes <= now < first:
                    used = use.engine.prefill_s / (first - computes) / 4
                    got[use.id, "prefill"] += used
                    left -= used
                elif now >= first:
                    used = use.engine.decode_s / (ends - first) / 4
                    got[use.id, "decode"] += used
                    left -= used
                continue
            fresh = use.usage.input_tokens or 1
            output = use.usage.output_tokens or 1
            if use.ttft_s is None:
                weights[use.id, "prefill"] = fresh / use.total_s
                weights[use.id, "decode"] = output / use.total_s
            elif now < begins + use.ttft_s:
                weights[use.id, "prefill"] = fresh / use.ttft_s
            else:
                weights[use.id, "decode"] = output / (use.total_s - use.ttft_s)
        for key, weight in weights.items():
            got[key] += left * weight / sum(weights.values())
    return got


@MANY
@given(st.floats(0, 1e5), st.floats(0, 1e5), st.decimals(0, 1000, places=4))
def test_a_whole_requests_share_is_its_cost(prefill_s: float, decode_s: float, rate: Decimal) -> None:
    """At the same dollars per hour, a request inside the period has the cost of its reply, to the digit."""
    use = measured(0, 3e5, prefill_s=prefill_s, decode_s=decode_s)
    assert use.engine is not None
    (share,) = divide([use], 3e5, bill=EngineBill(usd_per_hour=rate)).shares
    cost = machine_cost(replace(use.engine, usd_per_hour=rate))
    assert (share.prefill_usd, share.decode_usd, share.total_usd) == (cost.input, cost.output, cost.total)
    assert (share.prefill_s, share.decode_s) == (prefill_s, decode_s)


# ---------------------------------------------------------------------- measured, cut by an edge


PHASES = {"queue_s": 1.0, "load_s": 2.0, "prefill_s": 0.5, "decode_s": 0.25, "store_s": 2.0, "ttft_s": 4.0}
"""From 0: queue to 1, load to 3, prefill to 4, decode to 8, store to 10."""


@pytest.mark.parametrize(
    ("start", "end", "parts"),
    [
        (-5, 0, None),
        (0, 1, (1.0, 0, 0, 0, 0)),
        (0.5, 2, (0.5, 1.0, 0, 0, 0)),
        (2, 3.5, (0, 1.0, 0.25, 0, 0)),
        (3.75, 5, (0, 0, 0.125, 0.0625, 0)),
        (7, 9, (0, 0, 0, 0.0625, 1.0)),
        (9.5, 99, (0, 0, 0, 0, 0.5)),
        (10, 99, None),
        (0, 10, (1.0, 2.0, 0.5, 0.25, 2.0)),
    ],
)
def test_an_edge_cuts_each_phase_where_it_lies(
    start: float, end: float, parts: tuple[float, ...] | None
) -> None:
    """Waiting, loading, the prompt until the first token, the answer, storing: one after the other."""
    shares = divide([measured(0, 10, **PHASES)], end, start).shares
    if parts is None:
        assert shares == ()
        return
    (share,) = shares
    assert (share.queue_s, share.load_s, share.prefill_s, share.decode_s, share.store_s) == parts
    assert share.is_cut is not ((start, end) == (0, 10))
    assert not share.is_estimated


def test_without_a_first_token_the_room_goes_by_seconds() -> None:
    """3 seconds of prompt and 1 of answer in 8 seconds: the prompt has the first 6, the answer the last 2."""
    use = measured(0, 8, prefill_s=3.0, decode_s=1.0)
    (share,) = divide([use], 4).shares
    assert (share.prefill_s, share.decode_s) == (3.0 * 4 / 6, 0.0)
    (share,) = divide([use], 8, 7).shares
    assert (share.prefill_s, share.decode_s) == (0.0, 1.0 * 1 / 2)


def test_a_phase_without_room_is_spread_over_the_request() -> None:
    """A first token at once, and yet a second of prompt: half of it lies in the first half."""
    (share,) = divide([measured(0, 10, ttft_s=0.0, prefill_s=1.0, decode_s=0.0)], 5).shares
    assert share.prefill_s == 0.5


@pytest.mark.parametrize("ttft_s", [0.5, 15.0])
def test_a_first_token_out_of_place_is_put_in_place(ttft_s: float) -> None:
    """Before the end of the wait or after the request's: whole inside, it has its seconds, and no more."""
    use = measured(0, 10, queue_s=1.0, ttft_s=ttft_s, prefill_s=1.0, decode_s=2.0)
    assert divide([use], 10).shares[0].busy_s == 3.0
    assert divide([use], 99, 10).shares == ()
    (share,) = divide([use], 5).shares
    assert 0 < share.busy_s < 3.0


def test_the_whole_period_cuts_nothing() -> None:
    """From the first to the end of the last, which is rounded up to a microsecond."""
    uses = [measured(3, 0.0000005), measured(1, 1), SkippedUse("x", "-")]
    assert span(uses) == (after(1), after(3.000001))
    assert span([SkippedUse("x", "-")]) is None
    found = allocate(uses, A_TENTH_OF_A_CENT_A_SECOND, start=after(1), end=after(3.000001))
    assert [share.is_cut for share in found.shares] == [False, False]
    assert found.skipped == (SkippedUse("x", "-"),)


def test_a_request_without_length_is_in_one_period_only() -> None:
    """It belongs to the period that starts when it was sent."""
    use = measured(5, 0.0)
    assert divide([use], 5).shares == ()
    assert divide([use], 10, 5).shares[0].busy_s == 3.0


def test_a_request_without_an_end_is_as_long_as_it_was_computed() -> None:
    """No `total_s`: 1 second of waiting and 3 of computing."""
    (share,) = divide([measured(0, None, queue_s=1.0)], 4).shares
    assert (share.busy_s, share.is_cut) == (3.0, False)
    assert divide([measured(0, None, queue_s=1.0)], 2).shares[0].is_cut


def test_queueing_stands_apart() -> None:
    """Waits are summed, not billed, and unknown where nobody measured one."""
    found = divide([measured(0, 10, queue_s=4.0), measured(0, 10, queue_s=None)], 10)
    assert found.queue_s == 4.0
    assert [share.queue_s for share in found.shares] == [4.0, None]
    assert found.shares[0].total_usd == found.shares[1].total_usd == Decimal("0.003")
    assert divide([by_tokens(0, 5, 1, 1)], 10).queue_s is None


def test_more_seconds_than_there_are_fill_the_period() -> None:
    """12 and 6 measured seconds in 9: 6 and 3; who goes by tokens has nothing, and nothing is idle."""
    uses = [
        measured(0, 9, prefill_s=12.0, decode_s=0.0, queue_s=2.0),
        measured(0, 9, prefill_s=0.0, decode_s=6.0),
    ]
    found = divide([*uses, by_tokens(0, 9, 1000, 1000)], 9)
    assert [share.busy_s for share in found.shares] == [6.0, 3.0, 0.0]
    assert found.is_scaled
    assert found.queue_s == 2.0  # as it was measured
    assert (found.idle_s, found.idle_usd) == (0.0, Decimal(0))


def test_estimates_give_way_to_what_was_measured() -> None:
    """15 seconds measured in the first 10 of 20, and tokens in the last 10: they get the 5 that are left."""
    found = divide([measured(0, 10, prefill_s=15.0, decode_s=0.0), by_tokens(10, 10, 0, 50, ttft_s=0.0)], 20)
    assert [share.busy_s for share in found.shares] == [15.0, 5.0]
    assert (found.is_scaled, found.idle_s) == (True, 0.0)


# ---------------------------------------------------------------------- by tokens


def test_alone_it_has_the_engine_to_itself() -> None:
    """One request from 2 to 8: six seconds, its prompt's until the first token; the rest is idle."""
    found = divide([by_tokens(2, 6, 100, 30, ttft_s=1.0)], 10)
    (share,) = found.shares
    assert (share.prefill_s, share.decode_s, found.idle_s) == (1.0, 5.0, 4.0)
    assert 0 <= Decimal("0.006") - share.total_usd <= 2 * PICO  # rounded down, prompt and answer
    assert share.is_estimated


def test_cached_input_was_not_computed() -> None:
    """1000 tokens of which 900 were read count as 100: two equal prompts of which one was read, 10 to 1."""
    cold, warm = (
        EngineUse(
            id="t",
            at=AT,
            total_s=11,
            ttft_s=11,
            usage=Usage.of_total(1000, read=read, write=0, output=0),
        )
        for read in (0, 900)
    )
    found = divide([cold, warm], 11)
    assert [round(share.prefill_s, 9) for share in found.shares] == [10.0, 1.0]


def test_without_a_first_token_a_token_is_a_token() -> None:
    """90 in, 10 out against 40 in, 60 out over the same time: half each, split as their tokens are."""
    found = divide([by_tokens(0, 10, 90, 10), by_tokens(0, 10, 40, 60)], 10)
    assert [(round(s.prefill_s, 9), round(s.decode_s, 9)) for s in found.shares] == [(4.5, 0.5), (2.0, 3.0)]


def test_what_is_not_known_counts_as_one_token() -> None:
    """No count of the output: it counts as 1 beside 4 others."""
    found = divide([by_tokens(0, 10, 0, None, ttft_s=0.0), by_tokens(0, 10, 0, 4, ttft_s=0.0)], 10)
    assert [round(share.busy_s, 9) for share in found.shares] == [2.0, 8.0]


def test_measured_requests_come_first() -> None:
    """4 of 10 seconds were measured; who goes by tokens in that time has the other 6."""
    found = divide([measured(0, 10, prefill_s=0.0, decode_s=4.0, ttft_s=0), by_tokens(0, 10, 1, 1)], 10)
    assert [round(share.busy_s, 9) for share in found.shares] == [4.0, 6.0]
    assert found.idle_s < 1e-9


# ---------------------------------------------------------------------- the bill


def test_an_empty_period_is_idle() -> None:
    """An hour without a request is an hour of idle; no time at all costs nothing."""
    idle = divide([], 3600)
    assert (idle.total_usd, idle.idle_usd, idle.idle_s) == (Decimal("3.6"), Decimal("3.6"), 3600.0)
    assert divide([measured()], 5, 5).total_usd == 0


def test_a_period_that_ends_before_it_starts_is_refused() -> None:
    """The error names the end; a time without a zone is refused too."""
    with pytest.raises(InvalidRequest, match="before it starts") as caught:
        allocate([], A_TENTH_OF_A_CENT_A_SECOND, start=AT, end=after(-1))
    assert caught.value.field == "end"
    with pytest.raises(InvalidRequest, match="time zone"):
        allocate([], A_TENTH_OF_A_CENT_A_SECOND, start=AT.replace(tzinfo=None), end=AT)
