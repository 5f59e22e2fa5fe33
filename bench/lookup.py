"""What it costs to find the longest stored prefix of a prompt among a million blocks: by tokens, and by keys.

    python bench/lookup.py [--quick] [--rounds N]

Prompts of 131,072 tokens, a value at every 16; each four share a head of an eighth. Looked up are all of
them as they were stored, with another second half, and with another first token. The keys' route hashes the
whole prompt (`chain_hashes`) and asks a dict of the same blocks. Every form looks up its prompts once per
round, in turn; CPU time of the thread, of which reading the clock is some tenths of a microsecond. The tree
is handed a prompt that was packed just before. `--quick` has a sixteenth of the prompts, to see that it runs.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
import time
import tracemalloc
from array import array
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

from kvsdk.kv.identity.hashing import chain_hashes, pack_tokens
from kvsdk.store.entries.prefix_tree import PrefixTree

TOKENS = 131_072
BLOCK = 16
BLOCKS = TOKENS // BLOCK
GROUP = 4
HEAD = TOKENS // 8
GROUPS = 34  # 34 * (1,024 + 4 * 7,168) = 1,009,664 blocks
GOAL_US = 50
SLOW_STEP = 4  # forms that begin with the list look up every fourth prompt


class Form(NamedTuple):
    """A way to look up: what is done beforehand, and what is measured."""

    prepare: Callable[[Any], Any]
    look_up: Callable[[Any], int]


def ids(draw: random.Random, tokens: int) -> array[int]:
    """Random ids below 131,072."""
    mask = int.from_bytes(b"\xff\xff\x01\0" * tokens, "little")
    drawn = int.from_bytes(draw.randbytes(4 * tokens), "little") & mask
    return array("I", drawn.to_bytes(4 * tokens, sys.byteorder))


def stored_prompts(groups: int) -> Iterator[array[int]]:
    """Prompts of which each four share a head."""
    draw = random.Random(7)
    for _ in range(groups):
        head = ids(draw, HEAD)
        for _ in range(GROUP):
            yield head + ids(draw, TOKENS - HEAD)


def cases(prompts: list[array[int]]) -> dict[str, tuple[int, list[array[int]]]]:
    """What is looked up, by its name, and how many blocks of it are there."""
    other = ids(random.Random(8), TOKENS)
    half = TOKENS // 2
    return {
        f"all {BLOCKS:,} blocks": (BLOCKS, [prompt[:] for prompt in prompts]),
        f"{BLOCKS // 2:,} blocks": (BLOCKS // 2, [prompt[:half] + other[half:] for prompt in prompts]),
        "none": (0, [array("I", [1 << 20]) + prompt[1:] for prompt in prompts]),
    }


def values(number: int) -> list[tuple[int, int]]:
    """A prompt's values: its number at the end of every block."""
    return [(end, number) for end in range(BLOCK, TOKENS + 1, BLOCK)]


def by_tokens(tree: PrefixTree[int], packed: bytes) -> int:
    """How many blocks the tree has."""
    return tree.longest(packed).end_tokens // BLOCK


def by_packing(tree: PrefixTree[int], prompt: list[int]) -> int:
    """The same from a list of ids."""
    return by_tokens(tree, pack_tokens(prompt))


def by_keys(table: dict[bytes, int], prompt: list[int]) -> int:
    """How many blocks the dict has, hashed from a list of ids; a key says that those before it were there."""
    keys = chain_hashes(prompt, BLOCK)
    low, high = 0, len(keys)
    while low < high:
        middle = (low + high) // 2
        low, high = (middle + 1, high) if keys[middle] in table else (low, middle)
    return low


def every_value(tree: PrefixTree[int], packed: bytes) -> int:
    """As `by_tokens`, and every value is read."""
    return len(list(tree.longest(packed)))


def as_it_is(prompt: Any) -> Any:
    """For forms that begin with the list."""
    return prompt


def cpu_us(form: Form, prompts: list[array[int]], blocks: int) -> float:
    """Microseconds of one lookup, over the form's prompts; preparing them is not counted."""
    taken_ns = 0
    asked = prompts if form.prepare is pack_tokens else [prompt.tolist() for prompt in prompts[::SLOW_STEP]]
    for prompt in asked:
        prepared = form.prepare(prompt)
        started_ns = time.thread_time_ns()
        found = form.look_up(prepared)
        taken_ns += time.thread_time_ns() - started_ns
        if found != blocks:
            raise SystemExit("a lookup found another prefix than is there")
    return taken_ns / 1000 / len(asked)


def lookups_us(
    tree: PrefixTree[int], table: dict[bytes, int], prompts: list[array[int]], blocks: int, rounds: int
) -> dict[str, list[float]]:
    """Every form's microseconds in each round, after one round that is not counted."""
    forms = {
        "tree": Form(pack_tokens, partial(by_tokens, tree)),
        "tree, every value read": Form(pack_tokens, partial(every_value, tree)),
        "packing and tree": Form(as_it_is, partial(by_packing, tree)),
        "keys and dict": Form(as_it_is, partial(by_keys, table)),
    }
    taken: dict[str, list[float]] = {name: [] for name in forms}
    for number in range(rounds + 1):
        for name, form in forms.items():
            found_us = cpu_us(form, prompts, blocks)
            if number:
                taken[name].append(found_us)
    return taken


def built(groups: int) -> tuple[PrefixTree[int], list[float], list[float]]:
    """The tree, and the microseconds of each prompt's insert, and of the same once more."""
    tree: PrefixTree[int] = PrefixTree(max_tokens=1 << 30)
    times: tuple[list[float], list[float]] = ([], [])
    for number, prompt in enumerate(stored_prompts(groups)):
        packed, pairs = pack_tokens(prompt), values(number)
        for taken in times:
            started_ns = time.thread_time_ns()
            tree.insert(packed, pairs)
            taken.append((time.thread_time_ns() - started_ns) / 1000)
    return (tree, *times)


def keyed(groups: int) -> dict[bytes, int]:
    """The same blocks by their keys."""
    table: dict[bytes, int] = {}
    for number, prompt in enumerate(stored_prompts(groups)):
        table.update(dict.fromkeys(chain_hashes(prompt, BLOCK), number))
    return table


def bytes_per_block(build: Callable[[], object], blocks: int) -> float:
    """What an index holds, without the values, which are small numbers here."""
    tracemalloc.start()
    index = build()
    held_bytes, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    del index
    return held_bytes / blocks


def main() -> None:
    """Measure and print the tables."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    options.add_argument("--quick", action="store_true")
    options.add_argument("--rounds", type=int, default=9)
    arguments = options.parse_args()
    groups = GROUPS // 16 if arguments.quick else GROUPS
    rounds = min(arguments.rounds, 2) if arguments.quick else arguments.rounds
    tree, first_us, again_us = built(groups)
    table = keyed(groups)
    print(
        f"{len(tree):,} blocks of {BLOCK} in {groups * GROUP} prompts; goal under {GOAL_US} µs by the tree\n"
    )
    print("| found | form | µs per lookup | fastest to slowest round | times keys and dict |")
    print("|---|---|---|---|---|")
    for title, (blocks, asked) in cases(list(stored_prompts(groups))).items():
        taken = lookups_us(tree, table, asked, blocks, rounds)
        keys_us = statistics.median(taken["keys and dict"])
        for name, times in taken.items():
            median_us = statistics.median(times)
            spread = f"{min(times):,.1f} to {max(times):,.1f}"
            print(
                f"| {title} | {name} | {median_us:,.1f} | {spread} | {median_us / keys_us:.4f} |", flush=True
            )
    first, again = statistics.median(first_us), statistics.median(again_us)
    print(f"\nInsert: {first:,.0f} µs per prompt, {again:,.0f} again.")
    size = len(tree)
    del tree, table
    tree_bytes = bytes_per_block(lambda: built(groups)[0], size)
    dict_bytes = bytes_per_block(lambda: keyed(groups), size)
    print(f"Bytes per block: {tree_bytes:.1f} in the tree, {dict_bytes:.1f} in the dict, without the values.")
    print(f"Python {sys.version.split()[0]}")


if __name__ == "__main__":
    main()
