"""The scheduler's side of a store, without an engine: what is asked, loaded, kept and told."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from kvsdk.kv import Fingerprint, KVSpec
from kvsdk.store import KVStore, Memory
from kvsdk.testing import SlowTier

from kvsdk_vllm.store.jobs import Loaded, Whose
from kvsdk_vllm.store.moving import Mover
from kvsdk_vllm.store.scheduling import Scheduling
from kvsdk_vllm.store.wishes import Keep, Wishes

SPEC = KVSpec(num_layers=2, num_kv_heads=2, head_dim=32, dtype="float32", block_size=16)
LAYOUT = "vllm/0.26+"
TOKENS = list(range(100, 200))


@dataclass
class Asked:
    """As much of a request as is looked at."""

    all_token_ids: list[int]
    kv_transfer_params: Any = None
    request_id: str = "a"
    num_computed_tokens: int = 0
    num_prompt_tokens: int = field(init=False)

    def __post_init__(self) -> None:
        self.num_prompt_tokens = len(self.all_token_ids)

    @property
    def num_tokens(self) -> int:
        return len(self.all_token_ids)


def asked(tokens: list[int] = TOKENS, name: str = "a", **wishes: Any) -> Asked:
    return Asked(list(tokens), Wishes(**wishes).to_params(), name)


def caches(blocks: int = 16) -> list[torch.Tensor]:
    """An engine's KV: `block head token (kv dim)` for each layer."""
    generator = torch.Generator().manual_seed(3)
    return [torch.randn(blocks, 2, 16, 64, generator=generator) for _ in range(2)]


@pytest.fixture
def store() -> Iterator[KVStore]:
    with KVStore([Memory("8MiB")], fingerprint=Fingerprint.for_testing(SPEC), spec=SPEC) as made:
        yield made


@pytest.fixture
def scheduling(store: KVStore) -> Iterator[Scheduling]:
    made = Scheduling(lambda: store, 16)
    yield made
    made.close()


def plan(scheduling: Scheduling, request: Asked, computed: int, blocks: list[int]) -> Any:
    return scheduling.plan([(request, computed)], lambda _: blocks)


def waits_for(scheduling: Scheduling, request: Asked, local_tokens: int = 0) -> int:
    """What is found, however long the store takes."""
    found = scheduling.found(request, local_tokens)
    while found is None:
        found = scheduling.found(request, local_tokens)
    return found


def test_a_breakpoint_is_kept_when_it_is_computed_and_once(scheduling: Scheduling) -> None:
    """40 tokens are 2 blocks of 16; they are there after the step that computes the 32nd."""
    request = asked(keep=(Keep(40, 60.0),))
    scheduling.begin(request, Whose(salt="t"))
    assert plan(scheduling, request, 31, [5, 6, 7]) == ([], [])
    loads, (save,) = plan(scheduling, request, 48, [5, 6, 7])
    assert loads == []
    assert (save.tokens, save.blocks, save.ttl_s, save.whose.salt) == (TOKENS[:32], [5, 6], 60.0, "t")
    assert plan(scheduling, request, 64, [5, 6, 7, 8]) == ([], [])
    assert scheduling.finish(request, [5, 6, 7, 8], 64)[0]


def test_nothing_that_was_not_asked_for_is_kept(scheduling: Scheduling) -> None:
    """Neither a prompt without a breakpoint nor one of less than a block; the blocks are free at once."""
    for number, wishes in enumerate(({}, {"keep": (Keep(15),)}, {"keep": (Keep(0),)})):
        request = asked(name=str(number), **wishes)
        scheduling.begin(request, Whose())
        assert plan(scheduling, request, 100, list(range(7))) == ([], [])
        needs_blocks, _ = scheduling.finish(request, list(range(7)), 100)
        assert not needs_blocks
    assert len(scheduling) == 0


def test_a_breakpoint_ends_with_the_prompt(scheduling: Scheduling) -> None:
    """What is said later is no part of it."""
    request = asked(keep=(Keep(1000),))
    scheduling.begin(request, Whose())
    request.all_token_ids += [7] * 60
    _, (save,) = plan(scheduling, request, 160, list(range(10)))
    assert len(save.tokens) == 96


def test_what_is_stored_is_loaded_behind_what_the_engine_has(scheduling: Scheduling, store: KVStore) -> None:
    """Whole blocks, and never the last token, which is computed to say the next."""
    layers = caches()
    store.put(TOKENS[:80], layers, layout=LAYOUT, blocks=range(5))
    request = asked(TOKENS[:96])
    scheduling.begin(request, Whose())
    assert waits_for(scheduling, request, 32) == 80 - 32
    scheduling.allocated(request, [9, 8, 7, 6, 5, 4], 48)
    (load,), saves = plan(scheduling, request, 0, [])
    assert saves == []
    assert (load.tokens, load.first, load.blocks) == (TOKENS[:80], 32, [9, 8, 7, 6, 5])


@pytest.mark.parametrize(
    ("wishes", "whose"),
    [
        ({"load": False}, Whose()),
        ({}, Whose(salt="t")),
        ({}, Whose(lora="l")),
        ({}, Whose(media=((3, "i"),))),
    ],
)
def test_what_is_another_ones_is_not_loaded(
    scheduling: Scheduling, store: KVStore, wishes: dict[str, Any], whose: Whose
) -> None:
    """Or not wanted."""
    store.put(TOKENS[:96], caches(), layout=LAYOUT, blocks=range(6))
    request = asked(**wishes)
    scheduling.begin(request, whose)
    assert waits_for(scheduling, request) == 0


def test_an_image_behind_the_prefix_does_not_matter(scheduling: Scheduling, store: KVStore) -> None:
    """Only those that stand in the tokens themselves."""
    assert Whose(media=((3, "a"), (40, "b"))).before(40) == Whose(media=((3, "a"),))
    store.put(TOKENS[:32], caches(), layout=LAYOUT, blocks=range(2))
    request = asked(TOKENS[:40])
    scheduling.begin(request, Whose(media=((38, "image"),)))
    assert waits_for(scheduling, request) == 32


def test_a_request_that_is_not_of_token_ids_is_left_alone(scheduling: Scheduling) -> None:
    """Such as one of embeddings."""
    request = asked(keep=(Keep(64),), session="s")
    scheduling.begin(request, None)
    assert scheduling.found(request, 0) == 0
    assert plan(scheduling, request, 100, list(range(7))) == ([], [])
    assert scheduling.finish(request, list(range(7)), 100) == (False, None)


def test_a_store_that_takes_its_time_holds_up_no_step() -> None:
    """The engine is told to ask again, until the answer is there."""
    slow = SlowTier(Memory("8MiB"), ask_s=0.1)
    with KVStore([slow], fingerprint=Fingerprint.for_testing(SPEC), spec=SPEC) as store:
        store.put(TOKENS[:96], caches(), layout=LAYOUT, blocks=range(6))
        scheduling = Scheduling(lambda: store, 16)
        request = asked()
        scheduling.begin(request, Whose())
        assert scheduling.found(request, 0) is None
        assert waits_for(scheduling, request) == 96
        scheduling.close()


def test_a_store_that_cannot_be_asked_ends_nothing(
    scheduling: Scheduling, store: KVStore, caplog: pytest.LogCaptureFixture
) -> None:
    """Such as one that is closed: it is logged, and the prompt is computed."""
    store.close()
    request = asked()
    scheduling.begin(request, Whose())
    assert waits_for(scheduling, request) == 0
    assert "the store could not be asked" in caplog.text


def test_a_session_keeps_its_turn_at_the_end(scheduling: Scheduling) -> None:
    """Prompt and answer without the last token, which no step has computed; in the step after."""
    request = asked(TOKENS[:30], session="s", pin=True)
    scheduling.begin(request, Whose())
    request.all_token_ids += [7] * 20
    needs_blocks, told = scheduling.finish(request, [3, 1, 2, 0], 49)
    assert needs_blocks
    assert told is not None
    assert told["kvsdk"]["kept_tokens"] == 48
    _, (save,) = scheduling.plan([], lambda _: [])
    assert (save.tokens, save.blocks) == (request.all_token_ids[:48], [3, 1, 2])
    assert (save.session, save.pin) == ("s", True)


def test_what_is_still_to_come_is_never_kept(scheduling: Scheduling, store: KVStore) -> None:
    """vLLM counts tokens as computed from the moment their load is planned; an abort must not save them."""
    store.put(TOKENS[:96], caches(), layout=LAYOUT, blocks=range(6))
    request = asked(session="s")
    scheduling.begin(request, Whose())
    assert waits_for(scheduling, request) == 96
    scheduling.allocated(request, list(range(7)), 96)
    assert scheduling.finish(request, list(range(7)), 96)[0] is False
    assert [len(jobs) for jobs in scheduling.plan([], lambda _: [])] == [1, 0]


def test_a_load_that_failed_is_not_tried_again(scheduling: Scheduling, store: KVStore) -> None:
    """The rest is computed, and the caller is told why."""
    store.put(TOKENS[:96], caches(), layout=LAYOUT, blocks=range(6))
    request = asked()
    scheduling.begin(request, Whose())
    assert waits_for(scheduling, request) == 96
    scheduling.allocated(request, list(range(7)), 96)
    scheduling.hear({"a": Loaded(tokens={"memory": 32}, missing=64, seconds=0.5, reason="it is corrupt")})
    assert scheduling.found(request, 32) == 0
    _, told = scheduling.finish(request, list(range(7)), 100)
    assert told == {
        "kvsdk": {
            "kept_tokens": 0,
            "loaded_tokens": {"memory": 32},
            "missing_tokens": 64,
            "load_s": 0.5,
            "reason": "it is corrupt",
        }
    }


# ---------------------------------------------------------------------- the worker's side


def moved(mover: Mover, ended: set[str]) -> tuple[set[str], set[str]]:
    """All that is done in the end."""
    saved: set[str] = set()
    loaded: set[str] = set()
    while not (saved or loaded):
        more_saved, more_loaded = mover.finished(ended)
        ended = set()
        saved |= more_saved
        loaded |= more_loaded
    return saved, loaded


def test_kv_goes_out_of_blocks_and_comes_back_into_others(scheduling: Scheduling, store: KVStore) -> None:
    """Into the blocks behind those that the engine has, and no other byte changes."""
    layers = caches()
    mover = Mover(store, layers, LAYOUT, 16)
    request = asked(keep=(Keep(96),))
    scheduling.begin(request, Whose())
    _, (save,) = plan(scheduling, request, 96, [3, 1, 4, 15, 9, 2])
    mover.save(save)
    assert moved(mover, {"a"}) == ({"a"}, set())
    other = asked(TOKENS, name="b")
    scheduling.begin(other, Whose())
    assert waits_for(scheduling, other, 32) == 64
    scheduling.allocated(other, [0, 5, 6, 7, 8, 10, 11], 64)
    (load,), _ = plan(scheduling, other, 0, [])
    before = [layer.clone() for layer in layers]
    mover.load(load)
    assert moved(mover, set()) == (set(), {"b"})
    assert mover.bad_blocks() == set()
    assert mover.loaded()["b"].tokens == {"memory": 64}
    for layer, was in zip(layers, before, strict=True):
        assert torch.equal(layer[[6, 7, 8, 10]], was[[4, 15, 9, 2]])
        rest = [block for block in range(16) if block not in (6, 7, 8, 10)]
        assert torch.equal(layer[rest], was[rest])
    mover.close()


def test_blocks_that_did_not_come_are_named(scheduling: Scheduling, store: KVStore) -> None:
    """Of 96 tokens that had been found only the first 64 are still there."""
    layers = caches()
    mover = Mover(store, layers, LAYOUT, 16)
    store.put(TOKENS[:96], layers, layout=LAYOUT, blocks=range(6))
    request = asked()
    scheduling.begin(request, Whose())
    assert waits_for(scheduling, request) == 96
    scheduling.allocated(request, [7, 8, 9, 10, 11, 12, 13], 96)
    (load,), _ = plan(scheduling, request, 0, [])
    store.remove(TOKENS[:96])
    store.put(TOKENS[:64], layers, layout=LAYOUT, blocks=range(4))
    mover.load(load)
    assert moved(mover, set()) == (set(), {"a"})
    assert mover.bad_blocks() == {11, 12}
    result = mover.loaded()["a"]
    assert (result.tokens, result.missing) == ({"memory": 64}, 32)
    mover.close()


def test_what_cannot_be_saved_ends_nothing(store: KVStore, caplog: pytest.LogCaptureFixture) -> None:
    """A store that is closed under the worker: it is logged, and the blocks are let go."""
    mover = Mover(store, caches(), LAYOUT, 16)
    scheduling = Scheduling(lambda: store, 16)
    request = asked(keep=(Keep(32),))
    scheduling.begin(request, Whose())
    _, (save,) = plan(scheduling, request, 32, [0, 1])
    store.close()
    mover.save(save)
    mover.wait({"a", "unknown"})
    assert moved(mover, {"a"}) == ({"a"}, set())
    assert "KV of a request was not kept" in caplog.text
    mover.close()
    scheduling.close()


def test_folders_of_adapters_are_told_apart_by_content(tmp_path: Path) -> None:
    """Not by their names."""
    from kvsdk_vllm.store.identity import lora_digest

    for name, content in (("one", b"a"), ("two", b"a"), ("three", b"b")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "adapter_model.safetensors").write_bytes(content)
        (tmp_path / name / "README.md").write_text(name)
    one, two, three = (lora_digest(str(tmp_path / name)) for name in ("one", "two", "three"))
    assert one == two != three
