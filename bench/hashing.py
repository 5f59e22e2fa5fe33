"""What the keys of a prompt's blocks cost: ours by form of the token ids, and vLLM's, in one run.

    python bench/hashing.py [--tokens N] [--block-size N] [--rounds N]

vLLM's forms are written anew here from what they hash: (parent, tuple of the block's ids, extra keys), as a
pickle or as canonical CBOR (cbor2), one call per block. CPU time; every form once per round, in turn. Forms
whose library is not installed are left out.
"""

from __future__ import annotations

import argparse
import importlib.util
import pickle
import random
import statistics
import struct
import sys
import time
from array import array
from collections.abc import Callable
from functools import partial
from hashlib import sha256
from typing import Any

from kvsdk.kv.identity.hashing import chain_hashes, pack_tokens, vllm_block_hashes

BASE = "kvsdk, list"


def vllm_form(ids: list[int], block_size: int, dumps: Callable[[Any], bytes]) -> list[bytes]:
    """vLLM's chain over one serialisation."""
    parent = sha256(dumps("vllm-none-hash")).digest()
    keys = []
    for start in range(0, len(ids) - block_size + 1, block_size):
        parent = sha256(dumps((parent, tuple(ids[start : start + block_size]), None))).digest()
        keys.append(parent)
    return keys


def struct_chain(ids: list[int], block_size: int) -> list[bytes]:
    """The plain way: sha256(parent | ids), packed block by block."""
    form = struct.Struct(f"<{block_size}I")
    parent = bytes(32)
    keys = []
    for start in range(0, len(ids) - block_size + 1, block_size):
        parent = sha256(parent + form.pack(*ids[start : start + block_size])).digest()
        keys.append(parent)
    return keys


def forms(ids: list[int], block_size: int) -> dict[str, Callable[[], object]]:
    """Every form by its name."""
    packed = array("I", ids)
    found: dict[str, Callable[[], object]] = {
        BASE: partial(chain_hashes, ids, block_size),
        "kvsdk, tuple": partial(chain_hashes, tuple(ids), block_size),
        "kvsdk, array('I')": partial(chain_hashes, packed, block_size),
    }
    if importlib.util.find_spec("numpy"):
        import numpy

        found["kvsdk, numpy uint32"] = partial(chain_hashes, numpy.array(ids, "u4"), block_size)
        found["kvsdk, numpy int64"] = partial(chain_hashes, numpy.array(ids, "i8"), block_size)
    if importlib.util.find_spec("torch"):
        import torch

        found["kvsdk, torch int64"] = partial(chain_hashes, torch.tensor(ids), block_size)
    found["kvsdk, list, chunks of 256"] = partial(chain_hashes, ids, 256)
    found["packing alone, list"] = partial(pack_tokens, ids)
    found["sha256 alone, one call"] = partial(sha256, packed.tobytes())
    found["sha256(parent, struct.pack)"] = partial(struct_chain, ids, block_size)
    pickled = partial(pickle.dumps, protocol=5)
    found["vLLM's sha256 (pickle)"] = partial(vllm_form, ids, block_size, pickled)
    found["kvsdk's vllm_block_hashes, sha256"] = partial(vllm_block_hashes, ids, block_size)
    if importlib.util.find_spec("cbor2"):
        import cbor2

        coded = partial(cbor2.dumps, canonical=True)
        found["vLLM's sha256_cbor"] = partial(vllm_form, ids, block_size, coded)
    cbor = partial(vllm_block_hashes, ids, block_size, algorithm="sha256_cbor")
    found["kvsdk's vllm_block_hashes, sha256_cbor"] = cbor
    return found


def measure(contenders: dict[str, Callable[[], object]], rounds: int) -> dict[str, list[float]]:
    """CPU seconds of each form in each round, after one round that is not counted."""
    taken: dict[str, list[float]] = {name: [] for name in contenders}
    for number in range(rounds + 1):
        for name, call in contenders.items():
            started_s = time.process_time()
            call()
            if number:
                taken[name].append(time.process_time() - started_s)
    return taken


def main() -> None:
    """Measure and print the table."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    options.add_argument("--tokens", type=int, default=131_072)
    options.add_argument("--block-size", type=int, default=16)
    options.add_argument("--rounds", type=int, default=25)
    arguments = options.parse_args()
    draw = random.Random(7)
    ids = [draw.randrange(128_000) for _ in range(arguments.tokens)]
    taken = measure(forms(ids, arguments.block_size), arguments.rounds)
    base_s = statistics.median(taken[BASE])
    print(f"{arguments.tokens:,} tokens, blocks of {arguments.block_size}\n")
    print("| form | CPU ms | Mtok/s | µs per block | times kvsdk's list | fastest to slowest ms |")
    print("|---|---|---|---|---|---|")
    for name, times in taken.items():
        median_s = statistics.median(times)
        rate, per_block = (
            arguments.tokens / median_s / 1e6,
            median_s * 1e6 / (arguments.tokens // arguments.block_size),
        )
        spread = f"{min(times) * 1e3:.2f} to {max(times) * 1e3:.2f}"
        ratio = median_s / base_s
        print(f"| {name} | {median_s * 1e3:.2f} | {rate:.1f} | {per_block:.2f} | {ratio:.2f} | {spread} |")
    print(f"\nPython {sys.version.split()[0]}")


if __name__ == "__main__":
    main()
