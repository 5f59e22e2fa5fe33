"""KV caches as one algebra: what they are made of, where each element lies, and how one becomes another.

Nothing here loads PyTorch before a tensor is touched.
"""

from kvsdk.kv.certificate import Certificate, Difference, verify_equal
from kvsdk.kv.convert import convert
from kvsdk.kv.detect import detect_layout
from kvsdk.kv.fingerprint import Fingerprint, Mismatch
from kvsdk.kv.hashing import chain_hashes, key_root, vllm_block_hashes
from kvsdk.kv.hf import from_dynamic_cache, to_dynamic_cache
from kvsdk.kv.layout import Layout
from kvsdk.kv.registry import LAYOUTS
from kvsdk.kv.reshard import reshard
from kvsdk.kv.spec import KVGroup, KVSpec

__all__ = [
    "LAYOUTS",
    "Certificate",
    "Difference",
    "Fingerprint",
    "KVGroup",
    "KVSpec",
    "Layout",
    "Mismatch",
    "chain_hashes",
    "convert",
    "detect_layout",
    "from_dynamic_cache",
    "key_root",
    "reshard",
    "to_dynamic_cache",
    "verify_equal",
    "vllm_block_hashes",
]
