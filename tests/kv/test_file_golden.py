"""Golden bytes: what a version of the format has written it writes and reads for ever.

Where one of these tests fails, the change needs a new version of the format, not new bytes here.
"""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from kv_files import MLA, SPEC
from kvsdk.kv import LAYOUTS, Fingerprint, KVSpec
from kvsdk.kv.files.file import decompress, open_file, plan_file

TINY = KVSpec(num_layers=1, num_kv_heads=1, head_dim=2, dtype="float16", block_size=2)
FINGERPRINT = Fingerprint(weights_digest="w", kv_dtype="float16", block_size=2)
KEY, PARENT = bytes(range(32)), bytes(range(32, 64))

#: Tokens 2 and 3 of a prompt: keys 0 to 3, values 4 to 7. 0x02b8 + 8 = 704 = 11 * 64 bytes of header.
PLAIN = (
    b"\xb8\x02\x00\x00\x00\x00\x00\x00"
    b'{"__metadata__":{"kvsdk":"'
    rb"{\"checksums\":[\"3c057e2248a32d0b5edaee6682dd3dc3\"],"
    rb"\"fingerprint\":{\"block_size\":2,\"kv_dtype\":\"float16\",\"version\":1,\"weights_digest\":\"w\"},"
    rb"\"first_token\":2,\"format\":1,"
    rb"\"key\":\"000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f\","
    rb"\"layout\":\"trtllm\",\"num_tokens\":2,"
    rb"\"parent\":\"202122232425262728292a2b2c2d2e2f303132333435363738393a3b3c3d3e3f\","
    rb"\"spec\":{\"block_size\":2,\"dtype\":\"float16\",\"head_dim\":2,\"num_kv_heads\":1,\"num_layers\":1}}"
    b'","kvsdk.sha256":"2455f1f1b075de7e4a9a17cf0a244e2f9858838bb242542e52b6daea8ea51af7"},'
    b'"layer.0":{"dtype":"F16","shape":[1,2,1,2,2],"data_offsets":[0,16]}}'
    + b" " * 36
    + bytes.fromhex("0000 003c 0040 0042 0044 0045 0046 0047")
)

#: The same, compressed. Another version of zstd may compress to other bytes; these it has to read.
COMPRESSED = (
    b"\xf8\x02\x00\x00\x00\x00\x00\x00"
    b'{"__metadata__":{"kvsdk":"'
    rb"{\"checksums\":[\"628d0aea50cfa93a717c07fac1bf0421\"],\"codec\":\"zstd\","
    rb"\"fingerprint\":{\"block_size\":2,\"kv_dtype\":\"float16\",\"version\":1,\"weights_digest\":\"w\"},"
    rb"\"first_token\":2,\"format\":1,"
    rb"\"key\":\"000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f\","
    rb"\"layout\":\"trtllm\",\"num_tokens\":2,"
    rb"\"parent\":\"202122232425262728292a2b2c2d2e2f303132333435363738393a3b3c3d3e3f\","
    rb"\"spec\":{\"block_size\":2,\"dtype\":\"float16\",\"head_dim\":2,\"num_kv_heads\":1,\"num_layers\":1},"
    rb"\"stored_bytes\":[31]}"
    b'","kvsdk.sha256":"6586c5292a95e652c10591b45c7e3d02b7a6680edd2f31f7a0e36d8ce245d052"},'
    b'"layer.0":{"dtype":"U8","shape":[31],"data_offsets":[0,31]}}'
    + b" " * 67
    + bytes.fromhex("28b52ffd2010400000000000000000000040000000 3c40424445464701 0000")
)


def test_a_file_is_written_as_ever() -> None:
    """Byte for byte."""
    plan = plan_file(fingerprint=FINGERPRINT, spec=TINY, layout="trtllm", num_tokens=2)
    view = memoryview(bytearray(plan.total_bytes))
    plan.tensors(view)[0][0].copy_(torch.arange(8).view(1, 2, 1, 2, 2))
    plan.seal(view, key=KEY, parent=PARENT, first_token=2)
    assert bytes(view) == PLAIN


@pytest.mark.parametrize("file", [PLAIN, COMPRESSED])
def test_a_file_is_read_as_ever(file: bytes) -> None:
    """With all that its manifest says."""
    manifest, kv, scales = open_file(file)
    assert (manifest.key, manifest.parent, manifest.first_token, manifest.num_tokens) == (KEY, PARENT, 2, 2)
    assert (manifest.fingerprint, manifest.spec, manifest.layout) == (FINGERPRINT, TINY, "trtllm")
    assert manifest.checksums == (bytes.fromhex(file.split(b'[\\"')[1][:32].decode()),)
    assert kv[0].tolist() == [[[[[0, 1], [2, 3]]], [[[4, 5], [6, 7]]]]]
    assert scales is None


def test_a_compressed_file_is_unpacked_as_ever() -> None:
    """To what it was."""
    assert decompress(COMPRESSED) == PLAIN


def test_the_page_names_every_field() -> None:
    """`docs/format.md` has the manifest's keys, one and all."""
    page = (Path(__file__).parents[2] / "docs" / "format.md").read_text("utf-8")
    table = page.split("## Manifest")[1].split("## Payload")[0]
    named = {key for row in re.findall(r"^\| (`.*?) \|", table, re.M) for key in re.findall(r"`(\w+)`", row)}
    text = json.loads(json.loads(COMPRESSED[8:760])["__metadata__"]["kvsdk"])
    assert named == {*text, "rank"}


def test_the_page_has_every_layout() -> None:
    """With its axes: no reader in another language has the registry."""
    page = (Path(__file__).parents[2] / "docs" / "format.md").read_text("utf-8")
    block = page.split("## Payload")[1].split("```")[1]
    words = re.findall(r"(\S+/\S+|trtllm)  +(.*?)(?=   |$)", block, re.M)
    assert dict(words) == LAYOUTS


#: sha256 of a file per layout: names, shapes, order and all of the manifest's fields are in it.
DIGESTS = {
    "hf/dynamic": "1ff70337d3c320c38152278dd1911229",
    "lmcache/2ltd": "6c9b2876932125436fdd7a8c4fa21be7",
    "sglang/layer-first": "63a3bc4c1fff5f6d0202afc4dab47bd5",
    "sglang/page-first": "5c174a61f3622584a3e08aed81ed8b33",
    "trtllm": "81d8189b1a15f3ef25e2abc2c449df35",
    "vllm/0.23-0.25": "423ef5f1dcf547dae2844b6ffc2ae13d",
    "vllm/0.26+": "433383719112d7fb39a4e335c638e97b",
    "vllm/0.26+cpu": "6afe4a942b571cb61db2054a3a257a3f",
    "vllm/0.26+nhd": "cd5904e78f8d3542f1506af1c2b6fc99",
    "vllm/<=0.22": "fdf4930e656feece4709fdf16c959d3b",
    "vllm/<=0.22-hnd": "1f18015e98b3ffea1c5f604769fd2a94",
    "vllm/mla": "3b3b10a74ffc1d6e6535485d91f7c0a5",
    "vllm/paged-v0": "9845c8d7a42e846e21704740b5ff67a8",
}


@pytest.mark.parametrize("layout", sorted(LAYOUTS))
def test_every_layout_is_written_as_ever(layout: str) -> None:
    """Quantised, with scales; the payload is 0, 1, ... 255 and again."""
    base = replace(MLA if layout == "vllm/mla" else SPEC, dtype="float8_e4m3fn", head_dim=16)
    spec = replace(base, layer_kinds=("full", "none", "sliding"), window=128)
    plan = plan_file(fingerprint=FINGERPRINT, spec=spec, layout=layout, num_tokens=6, rank=1)
    view = memoryview(bytearray(plan.total_bytes))
    size = plan.total_bytes - plan.header_bytes
    view[plan.header_bytes :] = (bytes(range(256)) * (1 + size // 256))[:size]
    plan.seal(view, key=KEY, first_token=256)
    assert hashlib.sha256(view).hexdigest()[:32] == DIGESTS[layout]


#: What stands behind each name in a file.
AXES = {
    "vllm/<=0.22": "layer | kv block token head dim",
    "vllm/<=0.22-hnd": "layer | kv block head token dim",
    "vllm/0.23-0.25": "layer | block kv token head dim",
    "vllm/0.26+": "layer | block head token (kv dim)",
    "vllm/0.26+nhd": "layer | block token head (kv dim)",
    "vllm/0.26+cpu": "layer | block head (dim token ; token dim)",
    "vllm/paged-v0": "layer kv | block head dim/x token x ; block head dim token",
    "vllm/mla": "layer | block token latent",
    "sglang/layer-first": "kv layer | slot head dim",
    "sglang/page-first": "kv | slot layer head dim",
    "hf/dynamic": "layer kv | batch head token dim",
    "lmcache/2ltd": "| kv layer token (head dim)",
    "trtllm": "layer | block kv head token dim",
}


def test_a_name_means_the_same_axes_for_ever() -> None:
    """Files have layouts by name: a line of the registry that is here may not change, nor go."""
    assert AXES.items() <= LAYOUTS.items()
    assert AXES.keys() == DIGESTS.keys()
