"""What a call costs in CPU time: kvsdk beside the vendors' own SDKs, plain HTTP, and litellm.

    scripts/bench [--rounds N] [--calls N]

Every contender sends the same request to one server on loopback, which is another process. A round is `calls`
sequential calls of each contender in turn; the table has the median round. CPU time is that of this process
with all its threads (`time.process_time`), so kvsdk's ledger writer counts in full.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx2
from anthropic import Anthropic
from contest import Contender, load_litellm, loopback, run, sizes, table
from kvsdk import Client
from kvsdk.cost import Ledger
from openai import OpenAI
from workload import ANTHROPIC_MODEL, MESSAGES, OPENAI_MODEL, OPTIONS, for_litellm


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
    litellm = load_litellm()
    if litellm is None:
        return []
    arguments = {"model": f"{vendor}/{model}", "api_base": base_url, "api_key": "test"}
    arguments |= for_litellm(marks=vendor == "anthropic")
    return [Contender(vendor, "litellm", lambda: litellm.completion(**arguments))]


def main() -> None:
    """Measure and print the table."""
    arguments = sizes(__doc__, calls=50)
    with loopback() as url, ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        found = contenders(url, folder, stack)
        run(found, arguments.rounds, arguments.calls)
    print(table(found, "call"))
    print(f"\n{arguments.rounds} rounds of {arguments.calls} calls, Python {sys.version.split()[0]}")


if __name__ == "__main__":
    main()
