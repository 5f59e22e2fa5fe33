"""Where breakpoints go, what a prompt's prefix is, and why a cache missed. Pure."""

from kvsdk.caching.change import Change, first_change
from kvsdk.caching.lint import lint
from kvsdk.caching.miss import (
    Seen,
    cached_blocks,
    expect_miss,
    explain_miss,
    known_traits,
    with_diagnosis,
    with_prediction,
)
from kvsdk.caching.plan import Plan, plan
from kvsdk.caching.prefix import Prefix, PrefixBlock, digest
from kvsdk.caching.tokens import TokenScale
from kvsdk.caching.traits import Trait, traits

__all__ = [
    "Change",
    "Plan",
    "Prefix",
    "PrefixBlock",
    "Seen",
    "TokenScale",
    "Trait",
    "cached_blocks",
    "digest",
    "expect_miss",
    "explain_miss",
    "first_change",
    "known_traits",
    "lint",
    "plan",
    "traits",
    "with_diagnosis",
    "with_prediction",
]
