"""Files that are broken, foreign, newer or made to do harm: each is told apart, and none gives a tensor."""

from __future__ import annotations

import json
import pickle
import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import safetensors.torch
import torch
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st
from kv_files import MLA, SPEC, forged, joined, made, signed, split
from kvsdk import InvalidFile
from kvsdk.kv.files.file import check_file, compress, decompress, open_file, read_manifest
from kvsdk.kv.files.header import header_of
from kvsdk.kv.files.payload import checksum
from kvsdk.kv.layouts.layout import AXES

FILE = made()
SMALL = compress(FILE).tobytes()
QUANTISED = made("hf/dynamic", replace(SPEC, dtype="float8_e4m3fn"))
HEADER_BYTES = 8 + int.from_bytes(FILE[:8], "little")
START = b'{"__metadata__":{"kvsdk":"'
KINDS = ("truncated", "corrupt", "foreign", "newer")


def fault(file: bytes | bytearray | memoryview, read: Callable[..., Any] = open_file) -> str:
    """How a reader refuses a file; fails where it does not."""
    with pytest.raises(InvalidFile) as caught:
        read(file)
    assert caught.value.kind in KINDS
    assert caught.value.detail in str(caught.value)
    assert 0 < len(caught.value.detail) < 400  # whatever the file has in it
    assert caught.value.detail.isprintable()
    return caught.value.kind


def expected(file: bytes, at: int, size: int) -> str:
    """What a file is with its byte `at` changed, by the plainest of reasons; `size` is its header's now."""
    if at < 8 and not 8 + len(START) <= size <= 1 << 24:
        return "foreign"
    if at < 8 and size > len(file):
        return "truncated"
    return "foreign" if 8 <= at < 8 + len(START) else "corrupt"


def test_an_error_crosses_processes() -> None:
    """With its kind."""
    error = pickle.loads(pickle.dumps(InvalidFile("cut", kind="truncated")))
    assert (error.kind, error.detail, str(error)) == ("truncated", "cut", "cut")


# ---------------------------------------------------------------------- damage


@pytest.mark.parametrize("file", [FILE, SMALL, QUANTISED], ids=["plain", "compressed", "quantised"])
def test_no_flipped_bit_goes_unnoticed(file: bytes) -> None:
    """Each one bit of the file, one after the other."""
    for at in range(len(file)):
        for bit in range(8):
            bad = bytearray(file)
            bad[at] ^= 1 << bit
            size = 8 + int.from_bytes(bad[:8], "little")
            assert fault(bad, check_file) == expected(file, at, size), (at, bit)


@pytest.mark.parametrize("file", [FILE, SMALL, QUANTISED], ids=["plain", "compressed", "quantised"])
def test_a_file_that_is_cut_is_truncated(file: bytes) -> None:
    """After each of its bytes, and before the first."""
    for size in range(len(file)):
        assert fault(file[:size]) == "truncated", size


@pytest.mark.parametrize("extra", [b"\0", b" ", FILE])
def test_a_file_that_goes_on_is_corrupt(extra: bytes) -> None:
    """By a byte, or by another file."""
    assert fault(FILE + extra) == fault(SMALL + extra) == "corrupt"


@settings(max_examples=300, deadline=None)
@given(st.sampled_from([FILE, SMALL, QUANTISED]), st.data())
def test_any_damage_is_noticed(file: bytes, data: st.DataObject) -> None:
    """A piece cut out and something else put in: a file is read as it was written, or not at all."""
    start = data.draw(st.integers(0, len(file)))
    end = data.draw(st.integers(start, min(len(file), start + 600)))
    bad = file[:start] + data.draw(st.binary(max_size=700)) + file[end:]
    if bad == file:
        assert open_file(bad).manifest == read_manifest(file)
    else:
        fault(bad)


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=400), st.integers(0, 500))
def test_no_bytes_at_all_are_a_file(data: bytes, length: int) -> None:
    """Alone, or behind a length, or behind all that every file begins with."""
    fault(data)
    fault(length.to_bytes(8, "little") + data)
    fault(length.to_bytes(8, "little") + START + data)


@pytest.mark.parametrize("size", [0, 1, len(START) - 1, (1 << 24) - 7, 1 << 32, 1 << 63, (1 << 64) - 1])
def test_a_header_of_no_possible_length_is_foreign(size: int) -> None:
    """Below what every header has, or above 16 MiB; nothing of that size is read."""
    assert fault(size.to_bytes(8, "little") + FILE[8:]) == "foreign"


def test_tensors_do_not_change_places() -> None:
    """Of one file, of two files, or in the header."""
    header, payload = split(FILE)
    half = len(payload) // 2
    assert fault(FILE[:HEADER_BYTES] + payload[half:] + payload[:half]) == "corrupt"
    assert fault(FILE[:HEADER_BYTES] + split(made(seed=1))[1]) == "corrupt"
    one, other = header["layer.0"], header["layer.1"]
    assert fault(joined(header | {"layer.0": other, "layer.1": one}, payload)) == "corrupt"


# ---------------------------------------------------------------------- other people's files

FOREIGN = {
    "safetensors": safetensors.torch.save({"kv": torch.zeros(4)}),
    "safetensors with metadata": safetensors.torch.save({"kv": torch.zeros(4)}, {"format": "pt"}),
    "safetensors with our name": safetensors.torch.save({"kv": torch.zeros(4)}, {"kvsdk": "{}"})[:-16],
    "pickle": pickle.dumps({"kv": [0.0] * 100}),
    "zip": b"PK\x03\x04" + bytes(100),
    "gguf": b"GGUF\x03\0\0\0" + bytes(100),
    "zeros": bytes(4096),
    "text": b"Some text that is long enough to have a header.",
    "json": b'{"__metadata__":{"kvsdk":"' + b"x" * 100,
    "arrays": (90_000).to_bytes(8, "little") + b"[" * 90_000,
}


@pytest.mark.parametrize("name", FOREIGN)
def test_what_others_wrote_is_foreign(name: str) -> None:
    """Except for what begins as ours do and is none: that is corrupt."""
    kind = fault(FOREIGN[name])
    assert kind == ("foreign" if name != "safetensors with our name" else "corrupt")


# ---------------------------------------------------------------------- headers that are not the manifest's


def edited(change: Callable[[dict[str, Any]], object]) -> bytes:
    """The file with another header around the same manifest."""
    header, payload = split(FILE)
    change(header)
    return joined(header, payload)


HEADERS: dict[str, Callable[[dict[str, Any]], object]] = {
    "dtype": lambda header: header["layer.1"].update(dtype="BF16"),
    "shape": lambda header: header["layer.1"].update(shape=[2, 2, 16, 4]),
    "offsets": lambda header: header["layer.1"].update(data_offsets=[0, 512]),
    "name": lambda header: header.update({"layer.2": header.pop("layer.1")}),
    "one tensor more": lambda header: header.update(
        {"x": {"dtype": "U8", "shape": [0], "data_offsets": [0, 0]}}
    ),
    "one tensor less": lambda header: header.pop("layer.1"),
    "metadata": lambda header: header["__metadata__"].update(note="x"),
    "order": lambda header: header.update({"layer.0": header.pop("layer.0")}),
    "sha256": lambda header: header["__metadata__"].update({"kvsdk.sha256": "0" * 64}),
    "sha256 in capitals": lambda header: header["__metadata__"].update(
        {"kvsdk.sha256": header["__metadata__"]["kvsdk.sha256"].upper()}
    ),
    "no sha256": lambda header: header["__metadata__"].pop("kvsdk.sha256"),
}


@pytest.mark.parametrize("name", HEADERS)
def test_a_header_that_is_not_its_manifests_is_corrupt(name: str) -> None:
    """Names, shapes, dtypes, offsets: none is taken from the header."""
    bad = edited(HEADERS[name])
    assert bad != FILE
    assert fault(bad) == "corrupt"


def test_padding_is_as_it_must_be() -> None:
    """Not one space more, nor anything else that JSON may have between its words."""
    body = FILE[8:HEADER_BYTES]
    for other in (body + b" " * 64, body.replace(b"  ", b"\t "), body.replace(b',"layer', b', "layer', 1)):
        assert fault(len(other).to_bytes(8, "little") + other + FILE[HEADER_BYTES:]) == "corrupt"


def test_a_doubled_key_is_corrupt() -> None:
    """Of the header, and of the manifest."""
    entry = b'"layer.0":{"dtype":"F16","shape":[1],"data_offsets":[0,2]},'
    body = FILE[8:HEADER_BYTES].rstrip().replace(b'"layer.0"', entry + b'"layer.0"')
    body = body.ljust(len(body) + -(8 + len(body)) % 64)
    assert fault(len(body).to_bytes(8, "little") + body + FILE[HEADER_BYTES:]) == "corrupt"
    text = split(FILE)[0]["__metadata__"]["kvsdk"]
    doubled = text.replace('"num_tokens":6', '"num_tokens":6,"num_tokens":6')
    assert json.loads(doubled) == json.loads(text)
    assert fault(signed(FILE, doubled)) == "corrupt"


# ---------------------------------------------------------------------- manifests with a right sha256


def test_a_forged_manifest_that_is_right_is_read() -> None:
    """So that the tests below refuse what is wrong, not how it is forged."""
    assert forged(FILE, lambda manifest: None) == FILE
    other = forged(FILE, lambda manifest: manifest.update(first_token=7, key="ab" * 32))
    assert open_file(other).manifest.first_token == 7


TEXTS = {
    "empty": "",
    "no object": "[]",
    "not JSON": "{",
    "deep": "[" * 100_000,
    "deep inside": '{"format":1,"spec":' + '{"a":' * 100_000,
    "huge number": '{"format":1,"first_token":' + "9" * 5000 + "}",
    "not ASCII": '{"format":1,"layout":"\u2028"}',
    "half a character": '{"format":1,"layout":"\ud800"}',
}


@pytest.mark.parametrize("name", TEXTS)
def test_a_manifest_that_is_no_manifest_is_corrupt(name: str) -> None:
    """Whatever JSON can be made of."""
    assert fault(signed(FILE, TEXTS[name])) == "corrupt"


def test_only_the_canonical_text_counts() -> None:
    """The same manifest in other words is not what was written."""
    text = split(FILE)[0]["__metadata__"]["kvsdk"]
    manifest = json.loads(text)
    assert json.dumps(manifest, sort_keys=True, separators=(",", ":")) == text
    for other in (
        json.dumps(manifest, sort_keys=True),
        json.dumps(dict(reversed(manifest.items())), separators=(",", ":")),
        text + " ",
        text.replace("vllm", "\\u0076llm"),
        text.replace('"num_tokens":6', '"num_tokens":6e0'),
        text.replace('"first_token":256', '"first_token":NaN'),
        text.replace('"first_token":256', '"first_token":Infinity'),
        text.replace('"first_token":256', '"first_token":1e999'),
        text.replace('"first_token":256', '"first_token":-0'),
    ):
        assert other != text
        assert fault(signed(FILE, other)) == "corrupt"


NEWER: dict[str, Callable[[dict[str, Any]], object]] = {
    "format": lambda manifest: manifest.update(format=2),
    "format and all else": lambda manifest: (manifest.clear(), manifest.update(format=3, something="else")),
    "field": lambda manifest: manifest.update(something=None),
    "codec": lambda manifest: manifest.update(codec="lz5"),
    "layout": lambda manifest: manifest.update(layout="vllm/9.99"),
    "fingerprint's version": lambda manifest: manifest["fingerprint"].update(version=2),
    "fingerprint's version of 4,000 digits": lambda manifest: manifest["fingerprint"].update(
        version=10**3999
    ),
    "fingerprint's field": lambda manifest: manifest["fingerprint"].update(something="else"),
    "fingerprint's field that clears the screen": lambda manifest: manifest["fingerprint"].update(
        {"\x1b[2J\n" * 100: 1}
    ),
    "format of 4,000 digits": lambda manifest: manifest.update(format=10**3999),
    "field that clears the screen": lambda manifest: manifest.update({"\x1b[2J\n" * 100: 1}),
    "spec's field": lambda manifest: manifest["spec"].update(something=1),
    "dtype": lambda manifest: manifest["spec"].update(dtype="float4"),
    "kind": lambda manifest: manifest["spec"].update(kind="mqa"),
    "kind of layer": lambda manifest: manifest["spec"].update(layer_kinds=["full", "fuller"]),
}


@pytest.mark.parametrize("name", NEWER)
def test_what_a_newer_kvsdk_may_have_written_is_newer(name: str) -> None:
    """Versions, fields and words that nothing here knows: not guessed at, and not called damage."""
    assert fault(forged(FILE, NEWER[name])) == "newer"


FIELDS = json.loads(split(FILE)[0]["__metadata__"]["kvsdk"])
SPEC_FIELDS = FIELDS["spec"]
ODD = (None, True, -1, 1.5, "1", "", [], {}, [1], 2**32, 2**64, 10**30, [[]], {"version": 1})


NOT_CORRUPT = [
    # What a newer kvsdk may have written.
    *(("format", value) for value in (2**32, 2**64, 10**30)),
    *(("layout", value) for value in ("", "1")),
    ("spec", {"version": 1}),
    # A fingerprint in which all is unknown: it is one, and equals none.
    ("fingerprint", {"version": 1}),
]
SPEC_NOT_CORRUPT = [
    *(("dtype", value) for value in ("", "1")),
    *(("kind", value) for value in ("", "1")),
    # What the spec may say of models like this one.
    *(("window", value) for value in (3, 2**31 - 1)),
]


@pytest.mark.parametrize(
    ("field", "value"),
    [(field, value) for field in FIELDS for value in ODD if (field, value) not in NOT_CORRUPT],
)
def test_a_field_with_a_wrong_value_is_corrupt(field: str, value: Any) -> None:
    """Another type, a number below or above what there is, or nothing."""
    assert fault(forged(FILE, lambda manifest: manifest.update({field: value}))) == "corrupt"


@pytest.mark.parametrize(
    ("field", "value"),
    [
        (field, value)
        for field in (*SPEC_FIELDS, "head_dim_v", "window", "layer_kinds", "kind")
        for value in (*ODD, 0, 3, 2**31 - 1)
        if (field, value) not in SPEC_NOT_CORRUPT
    ],
)
def test_a_spec_with_a_wrong_value_is_corrupt(field: str, value: Any) -> None:
    """Sizes that the tensors do not have, what is no size, and a default that is said."""
    assert fault(forged(FILE, lambda manifest: manifest["spec"].update({field: value}))) == "corrupt"


@pytest.mark.parametrize("field", sorted(FIELDS))
def test_a_field_that_is_missing_is_corrupt(field: str) -> None:
    """Each is needed."""
    assert fault(forged(FILE, lambda manifest: manifest.pop(field))) == "corrupt"


CORRUPT: dict[str, Callable[[dict[str, Any]], object]] = {
    "more tokens": lambda manifest: manifest.update(num_tokens=9),
    "tokens beyond all": lambda manifest: manifest.update(first_token=2**32 - 5),
    "a default that is said": lambda manifest: manifest.update(rank=0),
    "another known layout": lambda manifest: manifest.update(layout="vllm/0.26+nhd"),
    "a latent's layout": lambda manifest: manifest.update(layout="vllm/mla"),
    "axes that are none": lambda manifest: manifest.update(layout="layer | kv"),
    "an axis of nothing": lambda manifest: manifest.update(layout="layer | () block head token (kv dim)"),
    "axes without room": lambda manifest: manifest.update(layout="layer | kv block (head slot) dim"),
    "a latent in halves": lambda manifest: (
        manifest["spec"].update(kind="mla"),
        manifest.update(layout="layer | block (latent token ; token latent)"),
    ),
    "a layout of any length": lambda manifest: manifest.update(layout="layer | " + "block " * 100_000),
    "a key that is short": lambda manifest: manifest.update(key="ab" * 31),
    "a key in capitals": lambda manifest: manifest.update(key=manifest["key"].upper()),
    "a key with spaces": lambda manifest: manifest.update(key="ab " * 32),
    "a checksum less": lambda manifest: manifest["checksums"].pop(),
    "a checksum more": lambda manifest: manifest["checksums"].append("00" * 16),
    "a short checksum": lambda manifest: manifest["checksums"].__setitem__(0, "00" * 15),
    "checksums in one text": lambda manifest: manifest.update(checksums="00" * 32),
    "a codec without sizes": lambda manifest: manifest.update(codec="zstd"),
    "sizes without a codec": lambda manifest: manifest.update(stored_bytes=[256, 256]),
    "negative sizes": lambda manifest: manifest.update(codec="zstd", stored_bytes=[-256, 768]),
    "sizes that are true": lambda manifest: manifest.update(codec="zstd", stored_bytes=[True, 511]),
    "sizes beyond all": lambda manifest: manifest.update(codec="zstd", stored_bytes=[2**62, 2**62]),
    "a fingerprint's number": lambda manifest: manifest["fingerprint"].update(block_size=0),
    "a fingerprint without version": lambda manifest: manifest["fingerprint"].pop("version"),
    "heads and dims beyond 64 bits": lambda manifest: manifest["spec"].update(
        num_kv_heads=2**31, head_dim=2**31, block_size=2**31
    ),
    "layers beyond all": lambda manifest: manifest["spec"].update(num_layers=2**31),
    "layers in one tensor": lambda manifest: (
        manifest["spec"].update(num_layers=2**31),
        manifest["checksums"].pop(),
        manifest.update(layout="lmcache/2ltd"),
    ),
}


@pytest.mark.parametrize("name", CORRUPT)
def test_a_manifest_that_cannot_be_is_corrupt(name: str) -> None:
    """And costs little more memory than the file has bytes."""
    bad = forged(FILE, CORRUPT[name])
    fault(bad)  # what is loaded or kept the first time does not count
    tracemalloc.start()
    try:
        assert fault(bad) == "corrupt"
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 20 * len(bad) + 100_000


WORDS = st.sampled_from([*sorted(AXES), "(", ")", "|", "|", ";", "a"])


@settings(max_examples=300, deadline=None)
@given(st.lists(WORDS, max_size=14), st.booleans())
def test_no_axes_do_harm(words: list[str], is_mla: bool) -> None:
    """Whatever is written where axes should be."""
    layout = " ".join(words)
    file = made("vllm/mla", MLA) if is_mla else FILE
    if layout != json.loads(split(file)[0]["__metadata__"]["kvsdk"])["layout"]:
        bad = forged(file, lambda manifest: manifest.update(layout=layout))
        assert fault(bad) == ("corrupt" if "|" in layout else "newer")


# ---------------------------------------------------------------------- what is packed


def packed(*frames: bytes) -> bytes:
    """A compressed file that has these in place of its two tensors, and a right header for them."""
    manifest = replace(
        check_file(SMALL),
        checksums=tuple(map(checksum, frames)),
        stored_bytes=tuple(map(len, frames)),
    )
    return header_of(manifest) + b"".join(frames)


RAW = split(FILE)[1][:512]
GOOD = split(SMALL)[1][: read_manifest(SMALL).stored_bytes[0]]
zstd = zstandard.ZstdCompressor(level=1).compress
FRAMES = {
    "a bomb": zstd(bytes(1 << 26)),
    "a byte more": zstd(RAW + b"x"),
    "a byte less": zstd(RAW[:-1]),
    "no size": zstandard.ZstdCompressor(write_content_size=False).compress(RAW),
    "two frames": zstd(RAW[:256]) + zstd(RAW[256:]),
    "something behind": GOOD + b"\0",
    "cut": GOOD[:-1],
    "head only": GOOD[:9],
    "a skipped frame": b"\x50\x2a\x4d\x18\x04\0\0\0abcd",
    "no zstd": RAW,
    "a byte": b"x",
    "a size of 2**62": bytes.fromhex("28b52ffd e0")
    + (1 << 62).to_bytes(8, "little")
    + bytes.fromhex("010000"),
    "unknown dictionary": bytes.fromhex("28b52ffd 63 2a000000") + (256).to_bytes(2, "little") + b"\1\0\0",
}


@pytest.mark.parametrize("read", [open_file, decompress])
@pytest.mark.parametrize("name", FRAMES)
def test_what_is_not_the_tensor_is_not_unpacked(name: str, read: Callable[..., Any]) -> None:
    """A frame of another size, with more or less in it, or none; only what the plan says is asked for."""
    asked: list[int] = []

    def alloc(size: int) -> memoryview:
        asked.append(size)
        return memoryview(bytearray(size))

    tracemalloc.start()
    try:
        assert fault(packed(GOOD, FRAMES[name]), lambda file: read(file, alloc=alloc)) == "corrupt"
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert set(asked) <= {len(FILE)}
    assert peak < 200_000


def test_a_claim_that_no_frame_can_keep_asks_for_no_memory() -> None:
    """Two tensors of 2**39 bytes that both frames and manifest claim, in a file of a few thousand."""
    spec = replace(SPEC, head_dim=2**32 - 1)
    raw_bytes = 8 * 2 * 2 * (2**32 - 1) * 2  # tokens, heads, keys and values, elements of 2 bytes
    frame = bytes.fromhex("28b52ffd e0") + raw_bytes.to_bytes(8, "little") + bytes.fromhex("010000")
    manifest = replace(
        check_file(SMALL), spec=spec, checksums=(checksum(frame),) * 2, stored_bytes=(len(frame),) * 2
    )
    bad = header_of(manifest) + frame * 2
    assert check_file(bad) == manifest
    assert fault(bad, lambda file: open_file(file, alloc=pytest.fail)) == "corrupt"


def test_frames_that_are_right_are_read() -> None:
    """So that the test above refuses what is wrong, not how it is forged."""
    assert packed(GOOD, GOOD) != SMALL
    assert bytes(decompress(packed(GOOD, GOOD)))[HEADER_BYTES:] == RAW + RAW
