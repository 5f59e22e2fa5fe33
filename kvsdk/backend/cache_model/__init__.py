"""A vendor's cache as a pure model: what a request would read, write and pay in full. Sends nothing.

What is here is what the vendors have in common; each adapter has its vendor's rules in `_cache_model.py`.
Rules carry a grade in their docstrings: *documented* (the vendor says so), *measured* (someone ran it),
*assumed* (nobody says; a switch where it matters).
"""

from kvsdk.backend.cache_model.base import NothingCached, Plan, PrefixModel, make_model
from kvsdk.backend.cache_model.marks import MarkedPrefixes, MarkRules, check_ttls
from kvsdk.backend.cache_model.prefixes import PrefixStore, RecentPrefixes, chain, ends_tokens
from kvsdk.backend.cache_model.values import (
    CacheBlock,
    CacheModel,
    CacheSettings,
    Role,
    TtlTokens,
    key_part,
    one_of,
    split_by_ttl,
    visible_after_s,
)
from kvsdk.reply import Predicted

__all__ = [
    "CacheBlock",
    "CacheModel",
    "CacheSettings",
    "MarkRules",
    "MarkedPrefixes",
    "NothingCached",
    "Plan",
    "Predicted",
    "PrefixModel",
    "PrefixStore",
    "RecentPrefixes",
    "Role",
    "TtlTokens",
    "chain",
    "check_ttls",
    "ends_tokens",
    "key_part",
    "make_model",
    "one_of",
    "split_by_ttl",
    "visible_after_s",
]
