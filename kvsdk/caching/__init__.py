"""Where breakpoints go, what a prompt's prefix is, and why a cache missed. Pure."""

from kvsdk.caching.miss import Seen, cached_blocks, explain_miss, with_diagnosis
from kvsdk.caching.plan import Plan, plan
from kvsdk.caching.prefix import Prefix, PrefixBlock, digest
from kvsdk.caching.tokens import TokenScale

__all__ = [
    "Plan",
    "Prefix",
    "PrefixBlock",
    "Seen",
    "TokenScale",
    "cached_blocks",
    "digest",
    "explain_miss",
    "plan",
    "with_diagnosis",
]
