"""KV caches as one algebra: what they are made of, where each element lies, and how one becomes another.

Nothing here loads PyTorch before a tensor is touched.
"""

from kvsdk.kv.files.file import Opened
from kvsdk.kv.files.manifest import Manifest
from kvsdk.kv.files.saving import load, load_manifest, save
from kvsdk.kv.identity.fingerprint import Fingerprint, Mismatch
from kvsdk.kv.identity.hashing import chain_hashes, key_root, vllm_block_hashes
from kvsdk.kv.layouts.detect import detect_layout
from kvsdk.kv.layouts.dynamic_cache import from_dynamic_cache, to_dynamic_cache
from kvsdk.kv.layouts.layout import Layout
from kvsdk.kv.layouts.registry import LAYOUTS
from kvsdk.kv.models.spec import KVGroup, KVSpec
from kvsdk.kv.moving.certificate import Certificate, Difference, verify_equal
from kvsdk.kv.moving.convert import convert
from kvsdk.kv.moving.reshard import reshard

__all__ = [
    "LAYOUTS",
    "Certificate",
    "Difference",
    "Fingerprint",
    "KVGroup",
    "KVSpec",
    "Layout",
    "Manifest",
    "Mismatch",
    "Opened",
    "chain_hashes",
    "convert",
    "detect_layout",
    "from_dynamic_cache",
    "key_root",
    "load",
    "load_manifest",
    "reshard",
    "save",
    "to_dynamic_cache",
    "verify_equal",
    "vllm_block_hashes",
]
