"""The suite that a tier's tests inherit."""

from __future__ import annotations

from typing import Any

from kvsdk.testing.tier_entries import EntryTests
from kvsdk.testing.tier_hints import HintTests
from kvsdk.testing.tier_life import LifeTests, MemoryTests, ThreadTests


class TierConformance(EntryTests, MemoryTests, ThreadTests, LifeTests, HintTests):
    """What every tier must do, as tests. Inherit it, and say how the tier is made and how to look past it.

    ```python
    class TestMyTier(TierConformance):
        persists = True

        @pytest.fixture(autouse=True)
        def _place(self, tmp_path: Path) -> None:
            self.folder = tmp_path

        def make_tier(self) -> Tier:
            return MyTier(self.folder)

        def raw_set(self, tier: Tier, name: str, data: bytes) -> None:
            (self.folder / name).write_bytes(data)

        def raw_get(self, tier: Tier, name: str) -> bytes | None:
            ...
    ```

    `raw_set` and `raw_get` do not go through the tier: a tier that forgets what it was given, or keeps
    something else and undoes it when it reads, is found out. The standard tests cannot be overridden; tests
    of one's own may stand beside them.
    """

    def __init_subclass__(cls, **arguments: Any) -> None:
        super().__init_subclass__(**arguments)
        standard = [name for name in dir(TierConformance) if name.startswith("test_")]
        overridden = [name for name in standard if getattr(cls, name) is not getattr(TierConformance, name)]
        if overridden:
            raise TypeError(f"{cls.__name__} overrides standard tests: {', '.join(overridden)}")
