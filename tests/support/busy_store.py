"""A process that puts, gets, promotes and evicts without end: to be killed.

python busy_store.py FOLDER SEED
"""

from __future__ import annotations

import random
import sys

import torch
from kv_samples import SPEC, kv_of, prompt
from kvsdk.kv import Fingerprint
from kvsdk.store import Disk, KVStore, Memory

#: Eight conversations that share a beginning, 300 to 600 tokens each.
PROMPTS = [prompt(256) + prompt(50 * (number + 1), seed=number + 1) for number in range(7)]
#: What fits on disk: about five of their thirteen chunks.
CAPACITY = "2500KiB"


def main(folder: str, seed: int) -> None:
    """Say when it begins; never end."""
    torch.set_num_threads(1)
    chance = random.Random(seed)
    whole = [kv_of(tokens) for tokens in PROMPTS]
    tiers = [Memory("1200KiB"), Disk(folder, CAPACITY)]
    with KVStore(tiers, fingerprint=Fingerprint.for_testing(SPEC)) as store:
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        while True:
            at = chance.randrange(len(PROMPTS))
            if chance.random() < 0.5:
                store.put(PROMPTS[at], whole[at], session=str(at), pin=chance.random() < 0.1)
            else:
                store.get(PROMPTS[at])
            if chance.random() < 0.1:
                store.end_session(str(at))
            if chance.random() < 0.05:
                store.collect()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
