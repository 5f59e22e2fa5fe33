"""What several tests of conversions need."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from kvsdk.kv.moving import fast


@pytest.fixture(scope="module", params=["compiled", "plain"])
def each_way(request: pytest.FixtureRequest) -> Iterator[None]:
    """All of it with compiled code, and again with torch and numpy alone."""
    if request.param == "compiled":
        if not fast.is_on():
            pytest.skip("numba is not installed")
        yield
    else:
        with fast.off():
            yield
