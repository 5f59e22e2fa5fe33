"""An engine starts beside packages that vLLM's search for its kernels does not like."""

from __future__ import annotations

import sys
import warnings
from types import ModuleType

import pytest

from kvsdk_vllm._start import among_vllms_modules

pytestmark = pytest.mark.engine


class Proxy:
    """As one of Flask's outside of a request."""

    def __getattribute__(self, name: str) -> object:
        raise RuntimeError("working outside of application context")


def test_it_looks_among_its_own_modules_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without that, it ends at such an attribute; afterwards it is as it was."""
    from vllm.triton_utils import dispatcher

    web = ModuleType("web")
    web.request = Proxy()  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "web", web)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # there are attributes that only warn
        with pytest.raises((RuntimeError, AttributeError)):
            dispatcher._rebind_kernels([])
    with among_vllms_modules():
        dispatcher._rebind_kernels([])
        assert all(name.split(".")[0] == "vllm" for name in dispatcher.sys.modules)
    assert dispatcher.sys is sys
