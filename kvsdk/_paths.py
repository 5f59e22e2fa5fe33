"""Where kvsdk keeps what it makes."""

from __future__ import annotations

import os
from pathlib import Path


def cache_dir() -> Path:
    """`KVSDK_CACHE_DIR`, else `kvsdk` in the user's cache directory (`XDG_CACHE_HOME` or `~/.cache`)."""
    own = os.environ.get("KVSDK_CACHE_DIR")
    if own:
        return Path(own).expanduser()
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser() / "kvsdk"
