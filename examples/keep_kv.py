"""A model reads a long manual once; its KV stays on disk, and the next process goes on from there.

    pip install "kvsdk" torch transformers
    python examples/keep_kv.py PATH_OF_A_MODEL [FOLDER_OF_THE_STORE]

Run it twice: the second time nothing of the manual is computed. `kvsdk store ls FOLDER` shows what is kept.
"""

import sys
import time
from pathlib import Path

import torch
from kvsdk.kv import Fingerprint, KVSpec, from_dynamic_cache, to_dynamic_cache
from kvsdk.store import Disk, KVStore, Memory
from transformers import AutoModelForCausalLM, AutoTokenizer

MANUAL = " ".join(f"Valve {number} is closed by turning it to the left." for number in range(60))
QUESTION = " How is valve 60 closed? Valve 60 is closed by turning it"


def main(model_path: str, folder: str) -> None:
    """Answer a question about the manual, with what is stored of it."""
    tokenizer = AutoTokenizer.from_pretrained(model_path)
    model = AutoModelForCausalLM.from_pretrained(model_path, dtype=torch.float32)
    spec = KVSpec.from_hf_config(model_path, dtype="float32")
    fingerprint = Fingerprint.of_checkpoint(model_path, spec=spec, layout_era="hf/dynamic")
    manual = tokenizer(MANUAL).input_ids
    whole = manual + tokenizer(QUESTION).input_ids
    started_s = time.perf_counter()
    with KVStore([Memory("1GiB"), Disk(folder, "10GiB")], fingerprint=fingerprint) as store:
        found = store.get(manual[:-1])
        cache = to_dynamic_cache(found.kv) if found else None
        made = model.generate(
            torch.tensor([whole]), past_key_values=cache, max_new_tokens=3, do_sample=False,
            return_dict_in_generate=True,
        )  # fmt: skip
        took_s = time.perf_counter() - started_s
        store.put(manual[:-1], from_dynamic_cache(made.past_key_values), ttl="12h")
    answer = tokenizer.decode(made.sequences[0][len(whole) :])
    print(f"{found.tokens} of {len(whole)} tokens were stored; {took_s:.1f} s;{answer}")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else str(Path.home() / ".cache" / "kvsdk-example"))
