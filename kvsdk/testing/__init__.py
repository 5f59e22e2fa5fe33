"""For authors of adapters and tiers: the tests that every backend and every tier passes, and what tests need.

This room imports pytest (`pip install "kvsdk[testing]"`); nothing else in kvsdk does.
"""

import pytest

_ROOMS = ("bodies", "conformance", "failures", "fixtures", "prompts", "replies")
_TIER_ROOMS = ("tier_entries", "tier_fixtures", "tier_hints", "tier_life", "tiers")
pytest.register_assert_rewrite(*(f"kvsdk.testing.{room}" for room in (*_ROOMS, *_TIER_ROOMS)))

from kvsdk.testing.bodies import assert_extends, breakpoints, prefix_blocks  # noqa: E402  rewritten first
from kvsdk.testing.conformance import BackendConformance  # noqa: E402
from kvsdk.testing.faulty import FaultyTier, Stuck  # noqa: E402
from kvsdk.testing.fixtures import API_KEY  # noqa: E402
from kvsdk.testing.server import VendorServer  # noqa: E402
from kvsdk.testing.tiers import TierConformance  # noqa: E402
from kvsdk.testing.wrappers import Call, CountingTier, SlowTier, WrapperTier  # noqa: E402

__all__ = [
    "API_KEY",
    "BackendConformance",
    "VendorServer",
    "TierConformance",
    "Call",
    "CountingTier",
    "FaultyTier",
    "SlowTier",
    "Stuck",
    "WrapperTier",
    "assert_extends",
    "breakpoints",
    "prefix_blocks",
]
