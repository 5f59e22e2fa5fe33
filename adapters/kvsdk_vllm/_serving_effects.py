"""What a choice of tiers keeps of kvsdk's promises, and what it gives up, in plain sentences.

About vLLM they are read in its source, version 0.32.0.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kvsdk_vllm._native_tiers import NativeTiers
    from kvsdk_vllm.store.config import StoreConfig

_Effect = tuple[bool, str]
"""Whether it is kept, and a sentence."""


def effects(
    store: StoreConfig | None, native: NativeTiers | None, *, dev_mode: bool, events_endpoint: str | None
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """What is kept, and what is lost.

    Args:
        store: Of a server whose KV a `KVStore` keeps.
        native: Of a server that offloads on its own.
        dev_mode: Whether vLLM's admin routes are open.
        events_endpoint: Where KV events are published, if they are.
    """
    found = [*_tier(store, native), *_usage(has_tier=store is not None or native is not None)]
    found += [*_invalidation(dev_mode, native), *_publishing(events_endpoint)]
    return tuple(text for kept, text in found if kept), tuple(text for kept, text in found if not kept)


def _tier(store: StoreConfig | None, native: NativeTiers | None) -> Iterator[_Effect]:
    if store is not None:
        return _of_store(store)
    return _of_nothing() if native is None else _of_native(native)


def _of_store(store: StoreConfig) -> Iterator[_Effect]:
    lasts = store.disk is not None or store.object is not None
    if store.memory is None and store.disk is None:
        yield False, "Breakpoints: a bucket keeps no TTL; it forgets by age, or never."
    else:
        yield True, "Breakpoints: the whole blocks of the prefix up to one are kept for its TTL."
    if lasts:
        yield True, "Sessions: they go on where they were after a restart of the engine."
    else:
        yield False, "Sessions: the store is in memory alone, so a restart of the engine ends them."
    if store.object is not None:
        yield True, "Machines: what one engine puts into the bucket, the others find."
    yield True, "Identity: only KV of the same weights, config, tokenizer and dtype is loaded."
    yield True, "Checksums: every byte is checked on every load; what is damaged is computed anew."
    yield True, "Tenants: each has its own salt in the engine and its own keys in the store."
    if store.dtype is None:
        yield True, "Proof: KV comes out as it went in, conversions are compared, and a miss has its reason."
    else:
        yield False, f"Proof: KV is stored as {store.dtype}, which is lossy: answers may differ."
    yield (
        False,
        "Speed: the CPU reads, checks and copies what is loaded; vLLM's own offloading checks nothing.",
    )
    yield False, "Hybrid models: layers with a sliding window or a state are refused."
    yield False, "Several devices: KV of one tensor-parallel size is a miss under another."


def _of_native(native: NativeTiers) -> Iterator[_Effect]:
    lasts = native.fs is not None or native.obj is not None
    yield True, "Speed: KV moves between device and host beside the computation, unchecked."
    yield True, "Hybrid models: every group of layers that vLLM caches by prefix is offloaded."
    yield True, "Tenants: the salt is in the hash that names a block, in memory, files and buckets alike."
    if lasts:
        yield True, "Sessions: their prompts are found again after a restart of the engine."
        yield False, "Space: vLLM deletes nothing from the folder or bucket; remove old files yourself."
    else:
        yield False, "Sessions: host memory goes with the engine, so a restart ends them."
    if native.offload_prompt_only:
        yield (
            False,
            "Sessions: answers are not offloaded (offload_prompt_only); the next turn may compute them.",
        )
    yield False, "Breakpoints: a TTL has no effect, and nothing is pinned."
    if lasts or native.p2p is not None:
        yield False, "Identity: KV is found by the model's name, dtype and block size, whatever its weights."
    else:
        yield True, "Identity: KV never leaves the engine that made it."
    yield False, "Checksums: none; of a file only the length is checked."
    yield False, "Proof: nothing shows that what was loaded is what was stored."
    if native.p2p is not None:
        yield False, "Peers: each request must name its source in kv_transfer_params; kvsdk does not do that."
    yield False, "CPU engines: it needs a CUDA, ROCm or XPU device."


def _of_nothing() -> Iterator[_Effect]:
    yield True, "Tenants: each has its own salt in the engine."
    yield True, "Identity and checksums: KV never leaves the engine that made it."
    yield True, "Speed: no request does more than it would without kvsdk."
    yield True, "Hybrid models: whatever vLLM itself caches by prefix."
    yield False, "Breakpoints: a TTL has no effect; a prefix stays until the engine needs its blocks."
    yield False, "Sessions: they end when the engine needs their blocks, or restarts."


def _usage(*, has_tier: bool) -> Iterator[_Effect]:
    yield True, "Usage: every reply says how many tokens came out of a cache."
    if has_tier:
        yield False, "Usage: after a failed load, vLLM still counts the lost tokens as read from a cache."


def _invalidation(dev_mode: bool, native: NativeTiers | None) -> Iterator[_Effect]:
    if not dev_mode:
        yield False, 'invalidate("all"): vLLM has no route for it without dev_mode=True.'
        return
    yield True, 'invalidate("all"): the route for it is open.'
    yield (
        False,
        "Admin routes: they have no lock; whoever reaches the port can empty, pause and stop the engine.",
    )
    if native is not None and (native.fs is not None or native.obj is not None):
        yield False, 'invalidate("all"): vLLM empties device and host; folder and bucket keep theirs.'


def _publishing(endpoint: str | None) -> Iterator[_Effect]:
    if endpoint is None:
        return
    yield True, "Events: what the engine stores and drops can be followed."
    if endpoint.startswith("tcp://"):
        yield False, "Events: they have the prompts' token ids, for every machine that reaches the port."
