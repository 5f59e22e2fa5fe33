"""How contenders are measured beside each other: CPU time of this process, in rounds, interleaved."""

from __future__ import annotations

import argparse
import gc
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

SETTLE_S = 0.05
"""After a round, so that what its threads still do is counted there."""


@dataclass
class Contender:
    """One way to do it. `group` names those that are compared with the group's SDK."""

    group: str
    name: str
    call: Callable[[], Any]
    finish: Callable[[], None] = lambda: None
    ms_per_call: list[float] = field(default_factory=list)

    def measure(self, calls: int) -> None:
        """One round; what is left to write is written within it."""
        started_s = time.process_time()
        for _ in range(calls):
            self.call()
        self.finish()
        time.sleep(SETTLE_S)
        self.ms_per_call.append((time.process_time() - started_s) / calls * 1000)

    @property
    def is_sdk(self) -> bool:
        """Whether the others of the group are compared with it."""
        return " SDK" in self.name

    @property
    def median_ms(self) -> float:
        """CPU time per call, of the median round."""
        return statistics.median(self.ms_per_call)


@contextmanager
def loopback() -> Iterator[str]:
    """The address of a server in a process of its own."""
    script = Path(__file__).with_name("server.py")
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, str(script)], **pipes) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        yield f"http://127.0.0.1:{int(process.stdout.readline())}"
        process.stdin.close()


def load_litellm() -> Any:
    """The module, or None where it is not installed."""
    os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")  # else it looks for prices on the network
    try:
        import litellm
    except ImportError:
        return None
    litellm.telemetry = False
    return litellm


def run(contenders: list[Contender], rounds: int, calls: int) -> None:
    """Measure all of them, interleaved."""
    for contender in contenders:
        for _ in range(3):
            contender.call()
    gc.collect()
    gc.freeze()  # else everyone pays for walking through the modules of the largest library
    for _ in range(rounds):
        for contender in contenders:
            contender.measure(calls)


def table(contenders: list[Contender], per: str) -> str:
    """The result as a Markdown table, ratios first."""
    sdk_ms = {one.group: one.median_ms for one in contenders if one.is_sdk}
    lines = [
        f"| | times the vendor's SDK | CPU ms per {per} | fastest to slowest round |",
        "|---|---|---|---|",
    ]
    for one in contenders:
        name = one.name if one.is_sdk else f"{one.name} ({one.group})"
        spread = f"{min(one.ms_per_call):.2f} to {max(one.ms_per_call):.2f}"
        lines.append(f"| {name} | {one.median_ms / sdk_ms[one.group]:.2f} | {one.median_ms:.2f} | {spread} |")
    return "\n".join(lines)


def sizes(what: str | None, *, calls: int) -> argparse.Namespace:
    """The command line's `rounds` and `calls`."""
    options = argparse.ArgumentParser(description=what, formatter_class=argparse.RawTextHelpFormatter)
    options.add_argument("--rounds", type=int, default=9)
    options.add_argument("--calls", type=int, default=calls)
    return options.parse_args()
