"""KV kept across turns, restarts and machines, in tiers, and never served wrong."""

from kvsdk.store.results import Hit, Miss, Stored
from kvsdk.store.stats import LevelStats, StoreStats
from kvsdk.store.store import KVStore
from kvsdk.store.tiers.disk import Disk
from kvsdk.store.tiers.memory import Memory
from kvsdk.store.tiers.object import Object
from kvsdk.store.tiers.tier import Hints, Tier, TierStats

__all__ = [
    "Disk",
    "Hints",
    "Hit",
    "KVStore",
    "LevelStats",
    "Memory",
    "Miss",
    "Object",
    "StoreStats",
    "Stored",
    "Tier",
    "TierStats",
]
