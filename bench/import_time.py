"""What `import kvsdk` costs over starting Python, and that it loads none of the heavy libraries.

scripts/bench, or: python bench/import_time.py [--rounds N]
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import time

HEAVY = (
    "anthropic",
    "openai",
    "torch",
    "numpy",
    "vllm",
    "sqlalchemy",
    "pydantic",
    "genai_prices",
)
LOADED = f"import kvsdk, sys; print(*[name for name in {HEAVY!r} if name in sys.modules])"


def wall_ms(code: str) -> float:
    """How long a fresh Python takes to run some code."""
    started_s = time.perf_counter()
    subprocess.run([sys.executable, "-I", "-c", code], check=True)
    return (time.perf_counter() - started_s) * 1000


def main() -> None:
    """Measure in turn and print the medians."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    options.add_argument("--rounds", type=int, default=15)
    rounds = options.parse_args().rounds
    pairs = [(wall_ms("pass"), wall_ms("import kvsdk")) for _ in range(rounds)]
    bare, imported = (statistics.median(column) for column in zip(*pairs, strict=True))
    loaded = subprocess.run([sys.executable, "-I", "-c", LOADED], check=True, capture_output=True, text=True)
    print(f"import kvsdk: {imported - bare:.0f} ms over bare Python ({imported:.0f} - {bare:.0f} ms)")
    print(f"heavy modules loaded: {loaded.stdout.strip() or 'none'}")


if __name__ == "__main__":
    main()
