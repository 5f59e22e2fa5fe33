"""The servers in `_facts.toml`, read once."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from typing import Any, Literal
from urllib.parse import urlsplit

from kvsdk.errors import ConfigurationError

Api = Literal["responses", "chat"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """What one kind of server takes and reports; `_facts.toml` says what each field is."""

    name: str
    hosts: tuple[str, ...] = ()
    key_env: str | None = None
    provider: str | None = None
    list_priced: bool = True
    cost_field: str | None = None
    max_tokens: str = "max_tokens"
    never: tuple[str, ...] = ()
    settings: tuple[str, ...] = ("stop", "response_format")
    parts: tuple[str, ...] = ("image",)
    strict_tools: bool = False
    reasoning: str | None = None
    tokenize: str | None = None
    marks: Literal["none", "prompt_cache_breakpoint", "cache_control"] = "none"
    markable: tuple[str, ...] = ()
    ttls: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    ttl_must_not_grow: bool = False
    min_tokens: int | None = None
    session: Mapping[str, str] = field(default_factory=dict)
    tenant: Mapping[str, str] = field(default_factory=dict)
    session_headers: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    name_pattern: str = "[!-~]{1,64}"
    prewarm: bool = False
    diagnostics: bool = False
    retention: bool = False
    options_ttl: tuple[str, ...] = ()
    options_models: str = ""
    read: tuple[str, ...] = ("details.cached_tokens",)
    write: tuple[str, ...] = ("details.cache_write_tokens",)
    absent_read: int | None = None
    absent_write: int | None = None
    free_writes: bool = False
    unreported: str | None = None

    def __hash__(self) -> int:
        return hash(self.name)


@cache
def facts() -> dict[str, Any]:
    """The whole file."""
    return tomllib.loads(files("kvsdk_openai").joinpath("_facts.toml").read_text("utf-8"))


@cache
def profile(name: str) -> Profile:
    """The profile of this name.

    Raises:
        ConfigurationError: There is none; the known ones are named.
    """
    table = facts()["profiles"].get(name)
    if table is None:
        raise ConfigurationError(f"no profile {name!r}; one of {', '.join(facts()['profiles'])}")
    fields: dict[str, Any] = {
        key: tuple(value) if isinstance(value, list) else value
        for key, value in table.items()
        if key not in ("source", "date")
    }
    return Profile(name=name, **fields)


def profile_of(base_url: str | None) -> Profile | None:
    """The profile of the host that an address names, or None: an unknown host."""
    host = urlsplit(base_url or "").hostname or ""
    for name, table in facts()["profiles"].items():
        if any(host == known or host.endswith(f".{known}") for known in table.get("hosts", ())):
            return profile(name)
    return None


def region_of(base_url: str | None) -> str | None:
    """The region of an address of OpenAI's, such as `eu` of `eu.api.openai.com`; None for the global one.

    (openai 3.57.0, `_data_residency.py`: us, eu, ae, au, in, jp.)
    """
    region, _, rest = (urlsplit(base_url or "").hostname or "").partition(".")
    return region if rest == "api.openai.com" else None


def prices() -> Any:
    """The entry point `kvsdk.prices`: what the price library lacks."""
    return facts()["prices"]
