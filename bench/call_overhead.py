"""What a call costs in CPU time: kvsdk beside the vendors' own SDKs, plain HTTP, and litellm.

    scripts/bench [--rounds N] [--calls N]

Every contender sends the same request to one server on loopback, which is another process. A round is `calls`
sequential calls of each contender in turn; the table has the median round. CPU time is that of this process
with all its threads (`time.process_time`), so kvsdk's ledger writer counts in full.
"""

from __future__ import annotations

import argparse
import gc
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2
from anthropic import Anthropic
from kvsdk import Client
from kvsdk.cost import Ledger
from openai import OpenAI
from workload import ANTHROPIC_MODEL, MESSAGES, OPENAI_MODEL, OPTIONS, for_litellm

SETTLE_S = 0.05
"""After a round, so that what its threads still do is counted there."""


@dataclass
class Contender:
    """One way to make the call. `vendor` names the SDK that it is compared with."""

    vendor: str
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


def of_kvsdk(vendor: str, address: str, base_url: str, folder: Path, stack: ExitStack) -> list[Contender]:
    """kvsdk without a ledger, with one that writes in batches, and with one that commits each row."""
    contenders = []
    for durability in (None, "batched", "commit"):
        path = folder / f"{vendor}-{durability}.db"
        ledger = stack.enter_context(Ledger(path, durability=durability)) if durability else None
        client = stack.enter_context(Client(address, base_url=base_url, api_key="test", ledger=ledger))
        contenders.append(
            Contender(
                vendor,
                f"kvsdk, ledger {durability or 'off'}",
                lambda client=client: client.generate(MESSAGES, **OPTIONS),
                ledger.flush if ledger else lambda: None,
            )
        )
    return contenders


def contenders(url: str, folder: Path, stack: ExitStack) -> list[Contender]:
    """All of them. The vendors' SDKs and plain HTTP send the very body that kvsdk sent."""
    http = stack.enter_context(httpx2.Client())
    found = []
    for vendor, model, base_url, path in (
        ("anthropic", ANTHROPIC_MODEL, url, "/v1/messages"),
        ("openai", OPENAI_MODEL, f"{url}/v1", "/v1/responses"),
    ):
        ours = of_kvsdk(vendor, f"{vendor}:{model}", base_url, folder, stack)
        ours[0].call()
        body = http.get(f"{url}/last").json()
        create: Callable[..., Any] = (
            Anthropic(base_url=base_url, api_key="test").messages.create
            if vendor == "anthropic"
            else OpenAI(base_url=base_url, api_key="test").responses.create
        )
        found += [
            Contender(vendor, f"{vendor} SDK", lambda create=create, body=body: create(**body)),
            *ours,
            Contender(
                vendor,
                "httpx2 alone",
                lambda path=path, body=body: http.post(f"{url}{path}", json=body).json(),
            ),
            *of_litellm(vendor, model, base_url),
        ]
    return found


def of_litellm(vendor: str, model: str, base_url: str) -> list[Contender]:
    """litellm, where it is installed; it reaches OpenAI through Chat Completions."""
    os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")  # else it looks for prices on the network
    try:
        import litellm
    except ImportError:
        return []
    litellm.telemetry = False
    arguments = {"model": f"{vendor}/{model}", "api_base": base_url, "api_key": "test"}
    arguments |= for_litellm(marks=vendor == "anthropic")
    return [Contender(vendor, "litellm", lambda: litellm.completion(**arguments))]


def run(rounds: int, calls: int) -> list[Contender]:
    """Measure all contenders, interleaved."""
    with loopback() as url, ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        found = contenders(url, folder, stack)
        for contender in found:
            for _ in range(3):
                contender.call()
        gc.collect()
        gc.freeze()  # else everyone pays for walking through the modules of the largest library
        for _ in range(rounds):
            for contender in found:
                contender.measure(calls)
    return found


def table(found: list[Contender]) -> str:
    """The result as a Markdown table, ratios first."""
    vendor_ms = {one.vendor: one.median_ms for one in found if one.name.endswith(" SDK")}
    lines = ["| | times the vendor's SDK | CPU ms per call | fastest to slowest round |", "|---|---|---|---|"]
    for one in found:
        name = one.name if one.name.endswith(" SDK") else f"{one.name} ({one.vendor})"
        spread = f"{min(one.ms_per_call):.2f} to {max(one.ms_per_call):.2f}"
        lines.append(
            f"| {name} | {one.median_ms / vendor_ms[one.vendor]:.2f} | {one.median_ms:.2f} | {spread} |"
        )
    return "\n".join(lines)


def main() -> None:
    """Measure and print the table."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    options.add_argument("--rounds", type=int, default=9)
    options.add_argument("--calls", type=int, default=50)
    arguments = options.parse_args()
    print(table(run(arguments.rounds, arguments.calls)))
    print(f"\n{arguments.rounds} rounds of {arguments.calls} calls, Python {sys.version.split()[0]}")


if __name__ == "__main__":
    main()
