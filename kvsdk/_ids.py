"""Ids of our own: sortable by time, never a vendor's."""

from __future__ import annotations

import secrets
import time


def new_id(prefix: str) -> str:
    """`prefix_` and 26 hex digits: 12 of milliseconds since 1970, 14 random (56 bits)."""
    return f"{prefix}_{time.time_ns() // 1_000_000:012x}{secrets.token_hex(7)}"
