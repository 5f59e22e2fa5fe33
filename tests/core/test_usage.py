"""Meters: what is known, what is not, and what sums to what."""

from __future__ import annotations

import pytest
from kvsdk import InvalidRequest, Usage


def test_of_total_works_out_what_is_fresh() -> None:
    """Fresh is the rest of the total."""
    usage = Usage.of_total(3000, read=2048, write=900, output=5)
    assert usage.fresh_tokens == 3000 - 2048 - 900


def test_of_parts_sums_to_the_total() -> None:
    """The total is the sum of the three parts."""
    assert Usage.of_parts(fresh=7, read=12000, write=1500).input_tokens == 7 + 12000 + 1500


@pytest.mark.parametrize(("read", "write"), [(None, 900), (2048, None), (None, None)])
def test_an_unknown_part_leaves_fresh_unknown(read: int | None, write: int | None) -> None:
    """Nothing is worked out of what is not known."""
    assert Usage.of_total(3000, read=read, write=write).fresh_tokens is None


def test_of_parts_with_a_part_unknown_is_an_estimate() -> None:
    """The sum of the known parts, and the meter says that it is one."""
    usage = Usage.of_parts(fresh=4522, read=None, write=4511)
    assert usage.input_tokens == 4522 + 4511
    assert [usage.meter(name) for name in ("input_tokens", "cache_read_tokens", "fresh_tokens")] == [
        "estimated",
        "absent",
        "reported",
    ]


def test_nothing_is_known_of_nothing() -> None:
    """An empty usage has no zeros."""
    usage = Usage()
    assert usage.input_tokens is usage.output_tokens is usage.hit_rate is None
    assert usage.is_consistent


def test_the_hit_rate_is_between_0_and_1_or_unknown() -> None:
    """Read by total; unknown for nothing sent, nothing reported, or counts that do not fit."""
    assert Usage.of_total(4000, read=1000, write=0).hit_rate == 1000 / 4000
    assert Usage.of_total(4000, read=0, write=0).hit_rate == 0
    assert Usage.of_total(0, read=0, write=0).hit_rate is None
    assert Usage.of_total(4000).hit_rate is None
    assert Usage.of_total(10, read=5000, write=0).hit_rate is None


def test_counts_that_do_not_fit_are_kept_and_said() -> None:
    """More cached than sent: the counts stay, fresh is unknown."""
    usage = Usage.of_total(10, read=5000, write=0)
    assert (usage.cache_read_tokens, usage.fresh_tokens, usage.is_consistent) == (5000, None, False)


def test_a_negative_count_is_refused() -> None:
    """It can only be a mistake, and the error names the meter."""
    with pytest.raises(InvalidRequest, match="output_tokens is -1"):
        Usage(output_tokens=-1)
