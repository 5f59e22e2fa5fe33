"""Whose KV is served to whom: each field of a fingerprint, flipped in turn."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from kv_samples import SPEC, is_equal, kv_of, prompt
from kvsdk.errors import InvalidRequest, Unsupported
from kvsdk.kv import Fingerprint, KVSpec
from kvsdk.store import Disk, Hit, KVStore, Memory, Miss, Object
from store_makers import StoreMaker

TOKENS = prompt(300)
KV = kv_of(TOKENS)
OURS = Fingerprint.for_testing(SPEC)
#: Another value for each field.
OTHER: dict[str, Any] = {
    "weights_digest": "1" * 64,
    "config_digest": "2" * 64,
    "tokenizer_digest": "3" * 64,
    "kv_dtype": "bfloat16",
    "kv_scales_digest": "4" * 64,
    "kv_groups": ("sliding",) * 4,
    "sliding_window": 128,
    "context_parallel": 2,
    "layout_era": "vllm/<=0.22",
    "block_size": 32,
    "tensor_parallel": 2,
    "pipeline_parallel": 2,
    "attention_backend": "another",
    "engine_build": "another 2",
    "chat_template_digest": "5" * 64,
}
CLASSES = Fingerprint.classes()


def of_class(name: str) -> list[str]:
    return [field for field, kind in CLASSES.items() if kind == name]


@pytest.fixture(params=["disk", "object"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    """A tier that several stores open in turn, with the sample's KV in it."""

    def make() -> Any:
        return Disk(tmp_path, "64MiB") if request.param == "disk" else Object(tmp_path.as_uri())

    with KVStore([make()], fingerprint=OURS) as store:
        store.put(TOKENS, KV)
    return make


def test_there_is_another_value_for_every_field() -> None:
    """A field that is added later is tried here too."""
    assert set(OTHER) == set(CLASSES)


@pytest.mark.parametrize("field", of_class("refuse"))
def test_kv_of_another_model_is_refused_by_the_fields_name(
    make_store: StoreMaker, place: Any, field: str
) -> None:
    """Nothing of it is read, and the reason says which field differs."""
    store = make_store(place(), fingerprint=replace(OURS, **{field: OTHER[field]}))
    miss = store.get(TOKENS)
    assert isinstance(miss, Miss)
    assert miss.kind == "refused"
    assert f"{field} is" in miss.reason
    assert not [other for other in CLASSES if other != field and f"{other} is" in miss.reason]


@pytest.mark.parametrize("field", of_class("convert"))
def test_what_can_be_converted_is_the_same_or_a_miss(make_store: StoreMaker, place: Any, field: str) -> None:
    """By layout era and block size it is served; a part of another split is not, and the reason says so."""
    store = make_store(place(), fingerprint=replace(OURS, **{field: OTHER[field]}))
    found = store.get(TOKENS)
    if field in ("layout_era", "block_size"):
        assert isinstance(found, Hit)
        assert is_equal(found.kv, KV)
    else:
        assert isinstance(found, Miss)
        assert f"{field} is 2 here and 1 there" in found.reason


@pytest.mark.parametrize("field", of_class("advisory"))
def test_what_only_may_matter_is_served_with_a_note(make_store: StoreMaker, place: Any, field: str) -> None:
    """The note has the field's name."""
    store = make_store(place(), fingerprint=replace(OURS, **{field: OTHER[field]}))
    hit = store.get(TOKENS)
    assert isinstance(hit, Hit)
    assert is_equal(hit.kv, KV)
    assert [note.split()[0] for note in hit.notes] == [field]


def test_ranks_do_not_share(make_store: StoreMaker, tmp_path: Path) -> None:
    """Of two devices each has its own part of the heads under the same tokens."""
    two = replace(OURS, tensor_parallel=2)
    one_head = [tuple(part[:, :1] for part in layer) for layer in KV]
    other_head = [tuple(part[:, 1:] for part in layer) for layer in KV]
    with make_store(Disk(tmp_path, "64MiB"), fingerprint=two, rank=0) as store:
        store.put(TOKENS, one_head)
    with make_store(Disk(tmp_path, "64MiB"), fingerprint=two, rank=1) as store:
        assert "rank is 1 here and 0 there" in str(store.get(TOKENS))
        store.put(TOKENS, other_head)
        assert is_equal(store.get(TOKENS).kv, other_head)
    again = make_store(Disk(tmp_path, "64MiB"), fingerprint=two, rank=0)
    assert is_equal(again.get(TOKENS).kv, one_head)


# ---------------------------------------------------------------------- lossy and compressed


def test_lossy_entries_are_half_as_large_and_said(make_store: StoreMaker, tiers: list[Any]) -> None:
    """fp8 with a scale per head: at most half a step of the format away, and the hit says so."""
    whole = make_store(Memory("64MiB")).put(TOKENS, KV).new_bytes
    store = make_store(*tiers, dtype="fp8_e4m3")
    assert store.put(TOKENS, KV).new_bytes < 0.52 * whole
    store.flush()
    hit = store.get(TOKENS)
    assert isinstance(hit, Hit)
    assert (hit.is_lossy, hit.dtype, hit.tokens) == (True, "float8_e4m3fn", 300)
    for ours, theirs in zip(KV, hit.kv, strict=True):
        for a, b in zip(ours, theirs, strict=True):
            assert not torch.equal(a, b)
            # 3 bits of mantissa: half of 1/8 of the number, or of the smallest step of the head's scale
            allowed = (a.abs().float() / 16).clamp(min=float(a.abs().max()) / 448 * 2**-9 / 2)
            assert ((a.float() - b.float()).abs() <= allowed * 1.01).all()


def test_compressed_entries_are_the_same(make_store: StoreMaker, tiers: list[Any]) -> None:
    """zstd loses nothing, and takes less."""
    whole = make_store(Memory("64MiB")).put(TOKENS, KV).new_bytes
    store = make_store(*tiers, codec="zstd")
    assert store.put(TOKENS, KV).new_bytes < 0.95 * whole
    store.flush()
    hit = store.get(TOKENS)
    assert isinstance(hit, Hit)
    assert (hit.is_lossy, hit.codec) == (False, "zstd")
    assert is_equal(hit.kv, KV)


def test_a_dtype_is_the_same_by_both_of_its_names(make_store: StoreMaker, tmp_path: Path) -> None:
    """What was put as `fp8_e4m3` is served as `float8_e4m3fn`."""
    with make_store(Disk(tmp_path, "64MiB"), dtype="fp8_e4m3") as store:
        store.put(TOKENS, KV)
    assert make_store(Disk(tmp_path, "64MiB"), dtype="float8_e4m3fn").get(TOKENS).tokens == 300


@pytest.mark.parametrize("options", [{"dtype": "fp8_e4m3"}, {"codec": "zstd"}])
def test_forms_of_storing_are_apart(make_store: StoreMaker, place: Any, options: dict[str, Any]) -> None:
    """A store of whole KV never serves lossy KV, nor the other way round, and each says why."""
    with make_store(place(), **options) as store:
        (name,) = options
        assert f"{name} is" in str(store.get(TOKENS))
        store.put(TOKENS, KV)
        store.flush()
        assert store.get(TOKENS).tokens == 300
    plain = make_store(place()).get(TOKENS)
    assert isinstance(plain, Hit)
    assert (plain.is_lossy, plain.codec) == (False, None)


def test_quantised_kv_is_kept_as_it_is(make_store: StoreMaker, tiers: list[Any]) -> None:
    """The engine's own fp8 KV comes back byte for byte; its scales are the fingerprint's business."""
    spec = replace(SPEC, dtype="float8_e4m3fn")
    own = [tuple(part.to(torch.float8_e4m3fn) for part in layer) for layer in KV]
    store = make_store(*tiers, fingerprint=Fingerprint.for_testing(spec))
    store.put(TOKENS, own)
    store.flush()
    hit = store.get(TOKENS)
    assert isinstance(hit, Hit)
    assert not hit.is_lossy
    assert is_equal(hit.kv, own)


def test_quantised_kv_is_not_made_lossy_twice(make_store: StoreMaker) -> None:
    """It has no more bits to give."""
    spec = replace(SPEC, dtype="float8_e4m3fn")
    with pytest.raises(InvalidRequest, match="quantised already"):
        make_store(Memory("1MiB"), fingerprint=Fingerprint.for_testing(spec), dtype="fp8_e4m3")


def test_mla(make_store: StoreMaker, tiers: list[Any]) -> None:
    """One latent for keys and values, in blocks."""
    spec = KVSpec(num_layers=2, num_kv_heads=1, head_dim=48, dtype="bfloat16", block_size=16, kind="mla")
    own = [torch.randn(20, 16, 48).to(torch.bfloat16) for _ in range(2)]
    store = make_store(*tiers, fingerprint=Fingerprint.for_testing(spec))
    store.put(TOKENS, own, layout="vllm/mla")
    store.flush()
    hit = store.get(TOKENS, layout="vllm/mla")
    assert isinstance(hit, Hit)
    assert all(
        torch.equal(a.flatten(0, 1)[:300], b.flatten(0, 1)[:300]) for a, b in zip(own, hit.kv, strict=True)
    )


def test_a_model_whose_kv_cannot_be_moved_is_refused(make_store: StoreMaker) -> None:
    """By the name of its layers' kind, before anything is kept."""
    store = make_store(Memory("1MiB"), fingerprint=replace(OURS, kv_groups=("full", "full", "full", "state")))
    with pytest.raises(Unsupported, match="layers of kind state"):
        store.put(TOKENS, KV[:3])
