"""A tenant's salt: what keeps its blocks apart from other tenants' in the engine's prefix cache."""

from __future__ import annotations

import hmac


def tenant_salt(tenant: str | None, generation: int = 0) -> str | None:
    """The `cache_salt` of a tenant, 32 hex digits; None without a tenant.

    The engine publishes salts in its KV events (vllm 0.32.0), so a tenant's name never is one.
    """
    if tenant is None:
        return None
    return hmac.digest(b"kvsdk tenant salt", f"{generation}:{tenant}".encode(), "sha256").hex()[:32]
