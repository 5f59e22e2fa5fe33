"""Files of KV for tests: small ones that are right, and ones that were forged with a right sha256."""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Callable
from typing import Any

from kvsdk.kv import Fingerprint, KVSpec
from kvsdk.kv.files.file import plan_file

SPEC = KVSpec(num_layers=2, num_kv_heads=2, head_dim=8, dtype="float16", block_size=4)
MLA = KVSpec(num_layers=2, num_kv_heads=1, head_dim=6, dtype="bfloat16", block_size=4, kind="mla")
KEY = bytes(range(32))
PARENT = bytes(range(100, 132))


def made(
    layout: str = "vllm/0.26+", spec: KVSpec = SPEC, num_tokens: int = 6, seed: int = 0, **where: Any
) -> bytes:
    """A file whose payload is random bytes, which every dtype has to carry unchanged."""
    plan = plan_file(
        fingerprint=Fingerprint.for_testing(spec), spec=spec, layout=layout, num_tokens=num_tokens
    )
    view = memoryview(bytearray(plan.total_bytes))
    view[plan.header_bytes :] = random.Random(seed).randbytes(plan.total_bytes - plan.header_bytes)
    plan.seal(view, key=KEY, parent=PARENT, **{"first_token": 256, **where})
    return bytes(view)


def split(file: bytes) -> tuple[dict[str, Any], bytes]:
    """A header as JSON says it, and the payload: what any reader of safetensors sees."""
    size = int.from_bytes(file[:8], "little")
    return json.loads(file[8 : 8 + size]), file[8 + size :]


def joined(header: dict[str, Any], payload: bytes) -> bytes:
    """A file of these, padded as it should be."""
    body = json.dumps(header, separators=(",", ":")).encode()
    body = body.ljust(len(body) + -(8 + len(body)) % 64)
    return len(body).to_bytes(8, "little") + body + payload


def forged(file: bytes, change: Callable[[dict[str, Any]], object]) -> bytes:
    """The file with another manifest, in its canonical form and with the right sha256."""
    manifest = json.loads(split(file)[0]["__metadata__"]["kvsdk"])
    change(manifest)
    return signed(file, json.dumps(manifest, sort_keys=True, separators=(",", ":")))


def signed(file: bytes, text: str) -> bytes:
    """The file with this text in the manifest's place, and the right sha256."""
    header, payload = split(file)
    digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
    header["__metadata__"] = {"kvsdk": text, "kvsdk.sha256": digest}
    return joined(header, payload)
