"""The suite that an adapter's tests inherit."""

from __future__ import annotations

from typing import Any

from kvsdk.testing.failures import FailureTests
from kvsdk.testing.prompts import PromptTests
from kvsdk.testing.replies import ReplyTests


class BackendConformance(ReplyTests, PromptTests, FailureTests):
    """What every backend must do, as tests. Inherit it, and say how the backend is reached and scripted.

    ```python
    class TestMyBackend(BackendConformance):
        @pytest.fixture
        def backend_address(self) -> str:
            return "mine:some-model"

        @pytest.fixture
        def backend_options(self, vendor_server: MyServer) -> dict[str, Any]:
            return {"base_url": vendor_server.url, "api_key": API_KEY}

        @pytest.fixture
        def vendor_server(self) -> Iterator[MyServer]:   # a VendorServer
            ...
    ```

    Without `vendor_server` the tests that need scripted answers are skipped, which is right for an engine
    that runs in process. What a test expects follows from the backend's `Capabilities`. The standard tests
    cannot be overridden: a backend that cannot pass one is not one yet. Tests of its own may stand beside
    them.
    """

    def __init_subclass__(cls, **arguments: Any) -> None:
        super().__init_subclass__(**arguments)
        standard = [name for name in dir(BackendConformance) if name.startswith("test_")]
        overridden = [
            name for name in standard if getattr(cls, name) is not getattr(BackendConformance, name)
        ]
        if overridden:
            raise TypeError(f"{cls.__name__} overrides standard tests: {', '.join(overridden)}")
