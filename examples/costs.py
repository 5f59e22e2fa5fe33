"""What calls cost, from the ledger.

python examples/costs.py anthropic:claude-sonnet-5-5 costs.db
"""

import sys

import kvsdk
from kvsdk import Text
from kvsdk.cost import Ledger, report

RULES = "Every valve is checked twice a day, at seven in the morning and at seven in the evening. " * 40


def main(address: str, path: str) -> None:
    with kvsdk.Client(address, ledger=path, tenant="acme") as client:
        for name in ("anna", "ben"):
            chat = client.session(name)
            for question in ("When is a valve checked?", "How often?"):
                chat.generate(
                    question,
                    system=[Text(RULES, cache=True)],
                    max_tokens=20,
                    metadata={"feature": "handbook"},
                )
    with Ledger(path) as ledger:
        for line in report(ledger, by=("session", "model")).rows:
            rate = "unknown" if line.hit_rate is None else f"{line.hit_rate:.0%}"
            print(f"{line.group['session']}: {line.requests} requests, hit rate {rate}")
            print(f"  cost {line.cost_usd}, saved by the cache {line.saved_usd}")


if __name__ == "__main__":
    main(*sys.argv[1:3])
