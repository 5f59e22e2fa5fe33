"""The facts in `_facts.toml`, read once."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from functools import cache
from importlib.resources import files
from typing import Any, Literal

from kvsdk.backend import Capabilities
from kvsdk.errors import ConfigurationError

Api = Literal["responses", "chat"]

_GPT = re.compile(r"(?:^|/)gpt-(\d+)(?:\.(\d+))?(?:-|$)")
_MARKABLE = frozenset({"system:text", "user:text", "tool:tool_result"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """What one kind of server takes and reports; see `_facts.toml` for the fields."""

    name: str
    marks: bool
    max_tokens: str
    cache_key: bool
    write_field: str
    list_priced: bool
    provider: str | None = None
    absent_write: int | None = None
    strict_tools: bool = False
    tokenize: str | None = None


@cache
def _facts() -> dict[str, Any]:
    return tomllib.loads(files("kvsdk_openai").joinpath("_facts.toml").read_text("utf-8"))


@cache
def profile(name: str) -> Profile:
    """The profile of this name."""
    table = _facts()["profiles"].get(name)
    if table is None:
        raise ConfigurationError(f"no profile {name!r}; one of {', '.join(_facts()['profiles'])}")
    fields = {key: value for key, value in table.items() if key not in ("source", "date")}
    return Profile(name=name, **fields)


@cache
def write_factors() -> Mapping[str, Decimal]:
    """Write prices by TTL, as multiples of the input price, of the models that take breakpoints."""
    table = _facts()["write_factors"]
    return {key: Decimal(value) for key, value in table.items() if key not in ("source", "date")}


def takes_marks(model: str, server: Profile) -> bool:
    """Whether breakpoints may be sent: gpt-5.6 and later, at OpenAI. Older models answer them with 400."""
    found = _GPT.search(model)
    if not server.marks or found is None:
        return False
    return [int(found[1]), int(found[2] or 0)] >= _facts()["breakpoints"]["first_model"]


@cache
def capabilities(model: str, api: Api, server: Profile) -> Capabilities:
    """What one API of a server does for a model.

    Chat's options take only `30m`, Responses also `12h` (openai 3.57.0,
    `types/chat/completion_create_params.py` and `types/responses/response_create_params.py`, 2026-11-19).
    Assistant text, tools and `instructions` cannot carry a mark. Responses has no stop sequences.
    """
    settings = {"temperature", "tool_choice", "tools"} | ({"stop"} if api == "chat" else set())
    is_openai = server.name == "openai"
    limits = _facts()["breakpoints"]
    if not takes_marks(model, server):
        return Capabilities(
            breakpoints="advisory",
            min_tokens=limits["min_tokens"] if is_openai else None,
            session="affinity" if server.cache_key else "none",
            settings=frozenset(settings),
        )
    return Capabilities(
        breakpoints="honoured",
        ttls=("30m", "12h") if api == "responses" else ("30m",),
        default_ttl="30m",
        max_breakpoints=limits["max"],
        markable=_MARKABLE,
        min_tokens=limits["min_tokens"],
        tenant="partition",
        settings=frozenset(settings),
    )
