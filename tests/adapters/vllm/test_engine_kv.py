"""KV between the real engine and transformers: each is the other's oracle.

The prompt comes in turns, with another one after each, so that its blocks are scattered in the engine's cache
as they are in use: the first turns' blocks are read from the prefix cache and lie apart from the later ones.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import kvsdk
import pytest
import torch
from engine_kv import Run, block_size, layers_of, run
from hf_model import Pairs, continue_greedily, differences, first_tokens, load, prefill
from kvsdk.kv import KVSpec, convert, detect_layout, from_dynamic_cache, verify_equal

from kvsdk_vllm._engine import EngineThread
from kvsdk_vllm._shared import acquire, release

pytestmark = [pytest.mark.engine, pytest.mark.timeout(600)]

TOLERANCE = 3e-5
"""Of the largest number among a layer's keys or values."""

GPU = "vllm/0.26+"
TOKENS = 333  # 10 blocks of 32, and 13 of an 11th
WHOLE = 320
TURNS = (75, 180, 250)
SAID = 12
STORY = "".join(
    f"On day {day} the {who} crossed the {what} and wrote down what it cost. "
    for day in range(30)
    for who, what in (("ferryman", "river"), ("miller", "marsh"))
)


@pytest.fixture(scope="module")
def engine(model: Path, engine_options: dict[str, Any], local: kvsdk.Client) -> Iterator[EngineThread]:
    """The thread of the engine that all tests share."""
    local.generate("Hi", max_tokens=1)
    shared = acquire(str(model), engine_options)
    yield shared.thread
    release(shared)


@pytest.fixture(scope="module")
def prompt(model: Path) -> list[int]:
    return first_tokens(model, STORY, TOKENS)


@pytest.fixture(scope="module")
def spec(model: Path, engine: EngineThread) -> KVSpec:
    return KVSpec.from_hf_config(model, dtype="float32", block_size=block_size(engine))


@pytest.fixture(scope="module")
def layout(engine: EngineThread, spec: KVSpec) -> str:
    """The engine's layout as it is found from its version, its tensors and where it runs."""
    import vllm

    return detect_layout(vllm.__version__, layers_of(engine), spec, platform="cpu")


@pytest.fixture(scope="module")
def told(engine: EngineThread, prompt: list[int]) -> Run:
    """The prompt in the engine, and what it says to it."""
    for turn, end in enumerate(TURNS):
        run(engine, prompt[:end], 2)
        run(engine, [turn + 5] * 40, 2)
    return run(engine, prompt, SAID)


@pytest.fixture(scope="module")
def oracle(model: Path) -> Any:
    """The same checkpoint in transformers."""
    return load(model, torch.float32)


@pytest.fixture(scope="module")
def expected(oracle: Any, prompt: list[int]) -> Pairs:
    """The prompt's KV as transformers computes it."""
    return from_dynamic_cache(prefill(oracle, prompt))


def take(engine: EngineThread, layout: str, spec: KVSpec, told: Run) -> Pairs:
    """The prompt's KV out of the engine, read as this layout."""
    found: Pairs = convert(
        layers_of(engine), layout, "hf/dynamic", spec, src_blocks=told.blocks, num_tokens=TOKENS
    )
    return found


def test_the_engines_kv_is_transformers_own(
    engine: EngineThread, layout: str, spec: KVSpec, told: Run, expected: Pairs
) -> None:
    """Every layer's keys and values of 333 tokens are those that transformers computes, within 3e-5.

    That is of the largest number in a layer. The largest difference seen is 6e-6 of it; in absolute numbers
    4.1e-5 among keys of up to 21, and 2.5e-5 among values of up to 11.
    """
    assert layout == "vllm/0.26+cpu"
    assert any(after != before + 1 for before, after in pairwise(told.blocks))
    found = differences(take(engine, layout, spec, told), expected)
    assert len(found) == 2 * spec.num_layers
    assert max(found) < TOLERANCE


def test_the_gpus_layout_does_not_read_it(
    engine: EngineThread, spec: KVSpec, told: Run, expected: Pairs
) -> None:
    """The tensors' shape is that of a GPU's, but read so, no layer's keys or values are near."""
    import vllm

    assert detect_layout(vllm.__version__, layers_of(engine), spec) == GPU
    found = differences(take(engine, GPU, spec, told), expected)
    assert len(found) == 2 * spec.num_layers
    assert min(found) > 0.5


def test_transformers_goes_on_from_the_engines_kv(
    engine: EngineThread, layout: str, spec: KVSpec, told: Run, oracle: Any, prompt: list[int]
) -> None:
    """It says what the engine says; read as the GPU's layout, it says something else."""
    kv, wrong = (take(engine, name, spec, told) for name in (layout, GPU))
    assert continue_greedily(oracle, kv, prompt, SAID) == told.tokens
    assert continue_greedily(oracle, wrong, prompt, SAID) != told.tokens


def test_the_engine_goes_on_from_transformers_kv(
    engine: EngineThread, layout: str, spec: KVSpec, told: Run, expected: Pairs, prompt: list[int]
) -> None:
    """Written over the blocks of its prefix cache, transformers' KV makes it say what it said with its own.

    That it reads them is seen from zeros there, and from the same KV in the GPU's layout.
    """
    layers, blocks = layers_of(engine), told.blocks[: WHOLE // spec.block_size]

    def say() -> list[int]:
        again = run(engine, prompt, SAID)
        assert again.blocks[: len(blocks)] == blocks
        assert again.cached_tokens == WHOLE
        return again.tokens

    def write(name: str) -> None:
        convert(expected, "hf/dynamic", name, spec, num_tokens=WHOLE, dst_blocks=blocks, out=layers)

    assert say() == told.tokens
    for layer in layers:
        layer[blocks] = 0
    assert say() != told.tokens
    write(GPU)
    assert say() != told.tokens
    write(layout)
    assert verify_equal(
        layers, layout, expected, "hf/dynamic", spec, num_tokens=WHOLE, a_blocks=blocks
    ).equal  # the tokens alone would not show blocks in another order: keys carry their positions
    assert say() == told.tokens
