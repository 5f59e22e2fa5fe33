"""What the fixture `make_store` is: makes stores of the sample model, closed at the test's end."""

from __future__ import annotations

from collections.abc import Callable

from kvsdk.store import KVStore

StoreMaker = Callable[..., KVStore]
