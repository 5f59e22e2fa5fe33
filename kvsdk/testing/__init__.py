"""For authors of adapters: the tests that every backend passes, and views of the bodies that are sent.

This room imports pytest (`pip install "kvsdk[testing]"`); nothing else in kvsdk does.
"""

import pytest

_ROOMS = ("bodies", "conformance", "failures", "fixtures", "prompts", "replies")
pytest.register_assert_rewrite(*(f"kvsdk.testing.{room}" for room in _ROOMS))

from kvsdk.testing.bodies import assert_extends, breakpoints, prefix_blocks  # noqa: E402  rewritten first
from kvsdk.testing.conformance import BackendConformance  # noqa: E402
from kvsdk.testing.fixtures import API_KEY  # noqa: E402
from kvsdk.testing.server import VendorServer  # noqa: E402

__all__ = [
    "API_KEY",
    "BackendConformance",
    "VendorServer",
    "assert_extends",
    "breakpoints",
    "prefix_blocks",
]
