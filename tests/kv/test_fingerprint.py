"""Fingerprints: which difference refuses, which converts, and what a checkpoint's digests depend on."""

from __future__ import annotations

import json
import os
from dataclasses import fields, replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from kvsdk.errors import ConfigurationError, InvalidRequest
from kvsdk.kv.identity.fingerprint import Difference, Fingerprint, Mismatch
from kvsdk.kv.models.spec import KVSpec

SPEC = KVSpec(num_layers=4, num_kv_heads=2, head_dim=8, dtype="float16", block_size=16)
OURS = Fingerprint.for_testing(SPEC)

REFUSE: dict[str, Any] = {
    "weights_digest": "0" * 64,
    "config_digest": "1" * 64,
    "tokenizer_digest": "2" * 64,
    "kv_dtype": "bfloat16",
    "kv_scales_digest": "3" * 64,
    "kv_groups": ("full", "sliding", "full", "sliding"),
    "sliding_window": 4096,
    "context_parallel": 2,
}
CONVERT: dict[str, Any] = {
    "layout_era": "sglang/layer-first",
    "block_size": 32,
    "tensor_parallel": 2,
    "pipeline_parallel": 2,
}
ADVISORY: dict[str, Any] = {
    "attention_backend": "FLASHINFER",
    "engine_build": "0.33.0",
    "chat_template_digest": "4" * 64,
}


def explain(**changes: Any) -> Mismatch:
    """Of ours and the same with other values."""
    found = OURS.explain_mismatch(replace(OURS, **changes))
    assert found is not None
    return found


def test_every_field_has_its_class() -> None:
    """A field that is added needs one, and a row in these tables."""
    expected = {
        **dict.fromkeys(REFUSE, "refuse"),
        **dict.fromkeys(CONVERT, "convert"),
        **dict.fromkeys(ADVISORY, "advisory"),
    }
    assert Fingerprint.classes() == expected
    assert [field.name for field in fields(Fingerprint)] == list(expected)


def test_the_same_is_no_mismatch() -> None:
    """Nor are equal fingerprints made apart."""
    assert OURS.explain_mismatch(Fingerprint.for_testing(SPEC)) is None


@pytest.mark.parametrize("name", REFUSE)
def test_a_refuse_field_refuses(name: str) -> None:
    """Another value there, alone, refuses; the text names the field, and keys differ."""
    found = explain(**{name: REFUSE[name]})
    assert found == Mismatch(refused=(Difference(name, getattr(OURS, name), REFUSE[name]),))
    assert found.is_refused
    assert str(found).startswith(f"the KV cannot be used: {name} is ")
    assert replace(OURS, **{name: REFUSE[name]}).digest() != OURS.digest()


@pytest.mark.parametrize("name", CONVERT)
def test_a_convert_field_asks_for_conversion(name: str) -> None:
    """It does not refuse, and the keys stay: the KV is found and converted."""
    found = explain(**{name: CONVERT[name]})
    assert found == Mismatch(converted=(Difference(name, getattr(OURS, name), CONVERT[name]),))
    assert not found.is_refused
    assert str(found).startswith(f"to be converted: {name} is ")
    assert replace(OURS, **{name: CONVERT[name]}).digest() == OURS.digest()


@pytest.mark.parametrize("name", ADVISORY)
def test_an_advisory_field_is_only_said(name: str) -> None:
    """It does not refuse, and the keys stay."""
    found = explain(**{name: ADVISORY[name]})
    assert found == Mismatch(advisory=(Difference(name, getattr(OURS, name), ADVISORY[name]),))
    assert not found.is_refused
    assert str(found).startswith(f"worth knowing: {name} is ")
    assert replace(OURS, **{name: ADVISORY[name]}).digest() == OURS.digest()


def test_a_mismatch_reads_well() -> None:
    """All classes in one sentence; layers are counted and unknown is said."""
    found = explain(kv_dtype="bfloat16", kv_groups=REFUSE["kv_groups"], block_size=32, engine_build=None)
    assert str(found) == (
        "the KV cannot be used: kv_dtype is 'float16' here and 'bfloat16' there, "
        "kv_groups is 4 full here and 2 full and 2 sliding there; "
        "to be converted: block_size is 16 here and 32 there; "
        "worth knowing: engine_build is 'testing 1' here and unknown there"
    )


def test_a_text_never_shows_two_values_alike() -> None:
    """Digests with one start, and layers in another order, are written out."""
    mine, other = "a" * 64, "a" * 63 + "b"
    assert str(Difference("weights_digest", mine, "b" * 64)) == (
        "weights_digest is aaaaaaaaaaaa… here and bbbbbbbbbbbb… there"
    )
    assert other in str(Difference("weights_digest", mine, other))
    assert "('full', 'sliding')" in str(Difference("kv_groups", ("full", "sliding"), ("sliding", "full")))


@pytest.mark.parametrize("name", REFUSE)
def test_unknown_in_a_refuse_field_refuses_even_unknown(name: str) -> None:
    """On one side or on both; and there are no keys, which two unknowns would share."""
    unknown = replace(OURS, **{name: None})
    value = getattr(OURS, name)
    for mine, other, pair in (
        (unknown, OURS, (None, value)),
        (OURS, unknown, (value, None)),
        (unknown, unknown, (None, None)),
    ):
        assert mine.explain_mismatch(other) == Mismatch(refused=(Difference(name, *pair),))
    with pytest.raises(ConfigurationError, match=f"no keys while {name} of its fingerprint is unknown"):
        unknown.digest()


def test_unknown_on_both_sides_converts_and_advises_nothing() -> None:
    """Nothing shows that two unknown layouts are the same; of two unknown builds there is nothing to say."""
    unknown = replace(OURS, layout_era=None, engine_build=None)
    found = unknown.explain_mismatch(unknown)
    assert found == Mismatch(converted=(Difference("layout_era", None, None),))


def test_the_digest_is_fixed() -> None:
    """A golden digest: canonical JSON of the REFUSE fields after a domain."""
    text = json.dumps(
        {name: getattr(OURS, name) for name in REFUSE}, sort_keys=True, separators=(",", ":")
    ).encode()
    assert OURS.digest() == sha256(b"kvsdk.kv.fingerprint.1\0" + text).digest()
    assert OURS.digest().hex() == "6aad8d5c80fbf48e74566a576ad2baac308495dc292753682034c6d97d77b52e"


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({"num_layers": 5}, "config_digest"),
        ({"num_kv_heads": 1}, "config_digest"),
        ({"head_dim": 16}, "config_digest"),
        ({"head_dim_v": 4}, "config_digest"),
        ({"kind": "mla"}, "config_digest"),
        ({"dtype": "bfloat16"}, "kv_dtype"),
        ({"dtype": "float8_e4m3fn"}, "kv_scales_digest"),
        ({"layer_kinds": ("full", "sliding", "full", "full")}, "kv_groups"),
    ],
)
def test_the_testing_fingerprint_is_the_specs(changes: dict[str, Any], name: str) -> None:
    """Another shape or dtype refuses, and every field is known."""
    found = OURS.explain_mismatch(Fingerprint.for_testing(replace(SPEC, **changes)))
    assert found is not None
    assert name in {each.field for each in found.refused}
    assert None not in {getattr(OURS, field) for field in Fingerprint.classes()}


# ------------------------------------------------------------------ JSON


def test_json_keeps_every_field() -> None:
    """Known and unknown ones; unknown ones are not written."""
    partly = replace(OURS, weights_digest=None, tensor_parallel=None, engine_build="ü\ud800")
    assert Fingerprint.from_json(partly.to_json()) == partly
    assert Fingerprint.from_json(OURS.to_json().encode()) == OURS
    assert not {"weights_digest", "tensor_parallel"} & json.loads(partly.to_json()).keys()


def test_a_missing_field_is_unknown_and_refuses() -> None:
    """What an older version did not write is not taken to be the same."""
    found = json.loads(OURS.to_json())
    del found["context_parallel"]
    older = Fingerprint.from_json(json.dumps(found))
    assert older.context_parallel is None
    mismatch = OURS.explain_mismatch(older)
    assert mismatch is not None
    assert mismatch.refused == (Difference("context_parallel", 1, None),)


@pytest.mark.parametrize(
    ("changes", "name", "match"),
    [
        ({"rope_digest": "x"}, "rope_digest", "newer kvsdk .* with the fields rope_digest; update kvsdk"),
        ({"version": 2}, "version", r"newer kvsdk \(version 2, here 1\)"),
        ({"version": 0}, "version", "has no version"),
        ({"version": None}, "version", "has no version"),
        ({"version": True}, "version", "has no version"),
        ({"kv_groups": "full"}, "kv_groups", "a tuple of texts"),
        ({"kv_groups": ["full", 1]}, "kv_groups", "a tuple of texts"),
        ({"block_size": 16.0}, "block_size", "a number of at least 1"),
        ({"weights_digest": ["x"]}, "weights_digest", "a text that is not empty"),
    ],
)
def test_json_that_does_not_fit_is_refused(changes: dict[str, Any], name: str, match: str) -> None:
    """Of a newer version, or with values of another type; the error names the field."""
    text = json.dumps({**json.loads(OURS.to_json()), **changes})
    with pytest.raises(InvalidRequest, match=match) as caught:
        Fingerprint.from_json(text)
    assert caught.value.field == name


@pytest.mark.parametrize("text", ["", "{", "[]", "null", "1", "{}", b"\xff\xfe", "[" * 100_000], ids=range(8))
def test_what_is_no_json_object_is_refused(text: str | bytes) -> None:
    """Broken and foreign files give one kind of error."""
    with pytest.raises(InvalidRequest, match="not a fingerprint's JSON"):
        Fingerprint.from_json(text)


@pytest.mark.parametrize(
    ("name", "bad"),
    [
        ("weights_digest", ""),
        ("kv_dtype", 5),
        ("kv_groups", ()),
        ("kv_groups", ["full"]),
        ("sliding_window", -1),
        ("context_parallel", 0),
        ("block_size", True),
        ("tensor_parallel", "2"),
    ],
)
def test_a_value_that_does_not_fit_is_refused(name: str, bad: Any) -> None:
    """The error names the field."""
    with pytest.raises(InvalidRequest, match=f"{name} is ") as caught:
        replace(OURS, **{name: bad})
    assert caught.value.field == name


# ------------------------------------------------------------------ a checkpoint

OLD_NS = 1_600_000_000 * 10**9


def write(path: Path, content: bytes | str | dict[str, Any], mtime_ns: int = OLD_NS) -> None:
    """A file that was last written long ago."""
    data = json.dumps(content) if isinstance(content, dict) else content
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data.encode() if isinstance(data, str) else data)
    os.utime(path, ns=(mtime_ns, mtime_ns))


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("KVSDK_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache" / "fingerprints"


@pytest.fixture
def folder(tmp_path: Path, cache: Path) -> Path:
    """A checkpoint in two shards."""
    found = tmp_path / "model"
    write(
        found / "config.json", {"rope_theta": 10_000.0, "torch_dtype": "float16", "transformers_version": "5"}
    )
    write(found / "model-00001-of-00002.safetensors", b"one")
    write(found / "model-00002-of-00002.safetensors", b"two")
    write(found / "tokenizer.json", "{}")
    write(found / "tokenizer_config.json", {"add_bos_token": True, "is_local": True})
    write(found / "chat_template.jinja", "{{ messages }}")
    return found


def of(folder: Path, **options: Any) -> Fingerprint:
    return Fingerprint.of_checkpoint(folder, spec=SPEC, **options)


def differing(before: Fingerprint, after: Fingerprint) -> set[str]:
    """The fields with another value."""
    return {name for name in Fingerprint.classes() if getattr(before, name) != getattr(after, name)}


def test_a_checkpoint_gives_every_refuse_field(folder: Path) -> None:
    """So it has keys; what only an engine can say is unknown."""
    found = of(folder)
    assert len(found.digest()) == 32
    assert (found.kv_dtype, found.kv_scales_digest, found.kv_groups) == ("float16", "none", ("full",) * 4)
    assert (found.sliding_window, found.block_size, found.context_parallel) == (0, 16, 1)
    assert found.layout_era is found.attention_backend is found.engine_build is None


@pytest.mark.parametrize(
    ("name", "content", "fields_changed"),
    [
        ("model-00002-of-00002.safetensors", b"twO", {"weights_digest"}),
        ("model-00002-of-00002.safetensors", b"two!", {"weights_digest"}),
        ("another.safetensors", b"", {"weights_digest"}),
        ("config.json", {"rope_theta": 10_001.0, "torch_dtype": "float16"}, {"config_digest"}),
        ("config.json", {"rope_theta": 10_000.0, "torch_dtype": "bfloat16"}, {"config_digest"}),
        ("config.json", {"torch_dtype": "float16", "use_cache": False, "rope_theta": 10_000.0}, set()),
        ("tokenizer.json", '{"a": 1}', {"tokenizer_digest"}),
        ("merges.txt", "a b", {"tokenizer_digest"}),
        ("tokenizer_config.json", {"add_bos_token": False}, {"tokenizer_digest"}),
        ("tokenizer_config.json", {"add_bos_token": True}, set()),
        (
            "tokenizer_config.json",
            {"add_bos_token": True, "chat_template": "x"},
            {"chat_template_digest"},
        ),
        ("chat_template.jinja", "{{ tools }}", {"chat_template_digest"}),
        ("additional_chat_templates/rag.jinja", "x", {"chat_template_digest"}),
        ("README.md", "words", set()),
        ("generation_config.json", {"temperature": 1.0}, set()),
    ],
    ids=str,
)
def test_each_file_changes_its_own_digest(
    name: str, content: Any, fields_changed: set[str], folder: Path
) -> None:
    """Weights, config, tokenizer and template are apart; what leaves KV as it is changes none."""
    before = of(folder)
    write(folder / name, content, OLD_NS + 1)
    assert differing(before, of(folder)) == fields_changed


def test_a_shard_of_another_name_is_another_checkpoint(folder: Path) -> None:
    """So are two shards that change places."""
    before = of(folder)
    one, two = sorted(folder.glob("*.safetensors"))
    two.rename(folder / "other.safetensors")
    assert differing(before, of(folder)) == {"weights_digest"}
    (folder / "other.safetensors").rename(two)
    assert of(folder) == before
    one.rename(folder / "x")
    two.rename(one)
    (folder / "x").rename(two)
    assert differing(before, of(folder)) == {"weights_digest"}


def test_a_copy_elsewhere_has_the_same_fingerprint(folder: Path, tmp_path: Path) -> None:
    """Paths and times are not in it."""
    copy = tmp_path / "elsewhere"
    for path in folder.iterdir():
        write(copy / path.name, path.read_bytes(), OLD_NS + 5)
    assert of(copy) == of(folder)


def test_a_digest_that_is_kept_spares_the_reading(folder: Path, cache: Path) -> None:
    """An entry made up for the file as it is is believed: the file is not read again."""
    before = of(folder)
    entries = list(cache.iterdir())
    assert len(entries) == 2
    for entry in entries:
        found = json.loads(entry.read_bytes())
        entry.write_text(json.dumps({**found, "sha256": "0" * 64}))
    assert differing(before, of(folder)) == {"weights_digest"}


@pytest.mark.parametrize("field", ["path", "size", "mtime_ns", "ctime_ns"])
def test_a_digest_kept_of_another_file_is_not_trusted(field: str, folder: Path, cache: Path) -> None:
    """Path, size or a time that differs: the file is read."""
    before = of(folder)
    for entry in cache.iterdir():
        found = json.loads(entry.read_bytes())
        entry.write_text(json.dumps({**found, "sha256": "0" * 64, field: f"{found[field]}0"}))
    assert of(folder) == before


@pytest.mark.parametrize("junk", [b"", b"[]", b"{", b"\xff", b'{"sha256": 1}', b"{}"], ids=repr)
def test_a_broken_entry_is_not_trusted(junk: bytes, folder: Path, cache: Path) -> None:
    """The file is read, and the entry written anew."""
    before = of(folder)
    for entry in cache.iterdir():
        entry.write_bytes(junk)
    assert of(folder) == before
    assert all(json.loads(entry.read_bytes())["size"] == 3 for entry in cache.iterdir())


def test_a_file_of_this_moment_is_not_kept(folder: Path, cache: Path) -> None:
    """It may change again within one tick of the file system's clock."""
    for path in folder.glob("*.safetensors"):
        os.utime(path)
    of(folder)
    assert not cache.exists()


def test_content_changed_under_the_same_size_and_mtime_is_seen(folder: Path) -> None:
    """The time of the inode's change tells, which nobody can set back."""
    before = of(folder)
    write(folder / "model-00001-of-00002.safetensors", b"ONE")
    assert differing(before, of(folder)) == {"weights_digest"}


def test_a_cache_that_cannot_be_written_costs_time_only(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cache directory is a file: the fingerprint is the same."""
    before = of(folder)
    write(tmp_path / "a_file", b"")
    monkeypatch.setenv("KVSDK_CACHE_DIR", str(tmp_path / "a_file"))
    assert of(folder) == before


@pytest.mark.parametrize(
    ("config", "window"),
    [
        ({}, 0),
        ({"sliding_window": None}, 0),
        ({"sliding_window": 4096}, 4096),
        ({"sliding_window": 4096, "use_sliding_window": False}, 0),
        ({"text_config": {"sliding_window": 512}}, 512),
    ],
    ids=str,
)
def test_the_window_is_the_configs(config: dict[str, Any], window: int, folder: Path) -> None:
    """Of the language part where there is one; what the caller says goes first."""
    write(folder / "config.json", config)
    assert of(folder).sliding_window == window
    assert of(folder, sliding_window=7).sliding_window == 7


def test_what_the_engine_was_told_is_in_the_config(folder: Path) -> None:
    """An override is another config; no override and an empty one are the same."""
    before = of(folder)
    assert of(folder, config_overrides={}) == before
    assert differing(before, of(folder, config_overrides={"rope_theta": 5e5})) == {"config_digest"}
    with pytest.raises(InvalidRequest, match="config_overrides is what JSON can write"):
        of(folder, config_overrides={"a": object()})


def test_what_only_the_engine_knows_is_told(folder: Path) -> None:
    """Each fact lands in its field; one that does not fit is refused before anything is read."""
    facts: dict[str, Any] = {
        "kv_scales_digest": "s",
        "sliding_window": 64,
        "context_parallel": 2,
        "layout_era": "vllm/0.26+",
        "tensor_parallel": 4,
        "pipeline_parallel": 8,
        "attention_backend": "FLASH_ATTN",
        "engine_build": "0.32.0",
    }
    assert differing(of(folder), of(folder, **facts)) == set(facts)
    assert {name: getattr(of(folder, **facts), name) for name in facts} == facts
    with pytest.raises(InvalidRequest, match="tensor_parallel is a number of at least 1"):
        of(folder / "nowhere", tensor_parallel=0)
    with pytest.raises(TypeError, match="tensor_paralel"):
        of(folder / "nowhere", tensor_paralel=2)


def test_scales_of_quantised_kv_are_unknown_until_told(folder: Path) -> None:
    """Without their digest FP8 has no keys."""
    spec = replace(SPEC, dtype="float8_e4m3fn")
    found = Fingerprint.of_checkpoint(folder, spec=spec)
    assert found.kv_scales_digest is None
    with pytest.raises(ConfigurationError, match="kv_scales_digest"):
        found.digest()
    assert Fingerprint.of_checkpoint(folder, spec=spec, kv_scales_digest="s").digest()


def test_the_tokenizer_may_lie_elsewhere(folder: Path, tmp_path: Path) -> None:
    """Without one it is unknown; a folder named for it must have one."""
    before = of(folder)
    elsewhere = tmp_path / "tokenizer"
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        write(elsewhere / name, (folder / name).read_bytes())
        (folder / name).unlink()
    assert differing(before, of(folder)) == {"tokenizer_digest", "chat_template_digest"}
    assert of(folder).tokenizer_digest is None
    assert of(folder, tokenizer_folder=elsewhere) == before
    with pytest.raises(ConfigurationError, match="no file of a tokenizer"):
        of(folder, tokenizer_folder=folder)


def test_a_folder_without_a_whole_checkpoint_is_refused(folder: Path, tmp_path: Path) -> None:
    """No folder, no config, no weights, a shard that the index names and that is not there, broken JSON."""
    with pytest.raises(ConfigurationError, match="no checkpoint can be read from"):
        of(tmp_path / "nowhere")
    write(folder / "model.safetensors.index.json", {"weight_map": {"a": "model-00003.safetensors"}})
    with pytest.raises(ConfigurationError, match=r"has not the file model-00003\.safetensors"):
        of(folder)
    write(folder / "model.safetensors.index.json", {"weight_map": ["a"]})
    with pytest.raises(ConfigurationError, match="has no weight_map"):
        of(folder)
    (folder / "model.safetensors.index.json").unlink()
    for path in folder.glob("*.safetensors"):
        path.unlink()
    with pytest.raises(ConfigurationError, match=r"has no file \*\.safetensors"):
        of(folder)
    for content, match in (("{", "is not JSON"), ("[]", "is not a JSON object")):
        write(folder / "config.json", content)
        with pytest.raises(ConfigurationError, match=match):
            of(folder)
    (folder / "config.json").unlink()
    with pytest.raises(ConfigurationError, match="no checkpoint can be read from"):
        of(folder)
