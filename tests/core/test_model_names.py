"""Models whose ids differ by a date."""

from __future__ import annotations

import pytest
from kvsdk.cost.exports.model_names import pair_models


@pytest.mark.parametrize(
    ("ours", "theirs", "lines"),
    [
        ("m", "m", {"m": "m"}),
        ("m", "m-20260101", {"m": "m-20260101", "m-20260101": "m-20260101"}),
        ("m-2026-01-01", "m", {"m": "m", "m-2026-01-01": "m"}),
        ("m@20260101 m-latest", "m", {"m": "m", "m@20260101": "m", "m-latest": "m"}),
        ("m", "m-20260101 m-20260202", {"m": "m", "m-20260101": "m", "m-20260202": "m"}),
        (
            "m m-20260101",
            "m-20260101 m-20260202",
            {"m": "m-20260202", "m-20260101": "m-20260101", "m-20260202": "m-20260202"},
        ),
        (
            "m m-20260202",
            "m-latest m-20260101",
            {"m": "m", "m-latest": "m", "m-20260101": "m", "m-20260202": "m"},
        ),
        ("m-20260101", "m-20260202", {"m-20260101": "m-20260101", "m-20260202": "m-20260202"}),
        ("m", "m-mini m-mini-20260101", {name: name for name in ("m", "m-mini", "m-mini-20260101")}),
        ("gpt-4", "gpt-4-0613", {"gpt-4": "gpt-4", "gpt-4-0613": "gpt-4-0613"}),
    ],
)
def test_pairs(ours: str, theirs: str, lines: dict[str, str]) -> None:
    """Two dates are two models; where one may be several, these are one line."""
    found, notes = pair_models(set(ours.split()), set(theirs.split()))
    assert found == lines
    assert bool(notes) == any(found[model] != model for model in found)
