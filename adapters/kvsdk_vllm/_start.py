"""What has to be put right before a vLLM engine starts in an application's process."""

from __future__ import annotations

import sys
from collections.abc import Generator
from contextlib import contextmanager
from importlib import import_module
from types import ModuleType


class _Vllms:
    """`sys`, as far as vLLM's own modules go."""

    @property
    def modules(self) -> dict[str, ModuleType]:
        """Those that are loaded now."""
        return {name: module for name, module in sys.modules.items() if name.partition(".")[0] == "vllm"}


@contextmanager
def among_vllms_modules() -> Generator[None]:
    """Let vLLM look for its kernels among its own modules only.

    On a CPU it looks at every attribute of every module of the process when it starts (vllm 0.32.0,
    `triton_utils/dispatcher.py`), and ends at the first that does not like it: one of Flask's, or of numba's.
    """
    try:
        dispatcher = import_module("vllm.triton_utils.dispatcher")
    except ImportError:
        yield
        return
    before = getattr(dispatcher, "sys", None)
    if before is not sys:  # another version looks otherwise
        yield
        return
    setattr(dispatcher, "sys", _Vllms())  # noqa: B010
    try:
        yield
    finally:
        setattr(dispatcher, "sys", before)  # noqa: B010
