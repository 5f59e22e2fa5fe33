"""What a vLLM engine does with its cache, seen from outside: its KV events and its metrics.

`KvEvents` receives the events, `Residency` says from them what is in the cache and for how long it stays, and
`EngineMetrics` are the engine's own counters.
"""

from kvsdk_vllm.observe.events import KvEvents
from kvsdk_vllm.observe.lifetimes import Lifetimes
from kvsdk_vllm.observe.metrics import EngineInterval, EngineMetrics
from kvsdk_vllm.observe.residency import Residency
from kvsdk_vllm.observe.shares import CacheShare, ResidentBlock
from kvsdk_vllm.observe.values import (
    AllBlocksCleared,
    BlockHash,
    BlockRemoved,
    BlockStored,
    Gap,
    KvEvent,
    Restarted,
)

__all__ = [
    "AllBlocksCleared",
    "BlockHash",
    "BlockRemoved",
    "BlockStored",
    "CacheShare",
    "EngineInterval",
    "EngineMetrics",
    "Gap",
    "KvEvent",
    "KvEvents",
    "Lifetimes",
    "Residency",
    "ResidentBlock",
    "Restarted",
]
