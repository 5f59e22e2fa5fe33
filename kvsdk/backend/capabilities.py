"""What a backend can do with a request, as data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    """What a backend does with breakpoints, sessions and settings.

    Attributes:
        breakpoints: `honoured`: marks are sent and decide what is cached; `advisory`: the backend caches on
            its own and no mark is sent; `none`: it does not cache.
        ttls: TTLs that a mark may carry, shortest first; empty where a mark has none.
        default_ttl: The TTL of a mark that names none.
        max_breakpoints: The most marks in one request, None without a limit.
        ttl_must_not_grow: Whether a longer TTL must not follow a shorter one (Anthropic).
        markable: Which pieces can carry a mark, as `"place:kind"`, such as `"user:text"`.
        min_tokens: The shortest prefix that is cached, or None where there is no such limit or none known.
        caches_only_at_marks: Whether nothing is cached without a mark.
        session: What a session's name becomes: `affinity` (a routing hint), `label`, or `none`.
        tenant: What a tenant becomes: `partition` (caches are apart) or `none`.
        settings: Names of the optional settings it takes: `temperature`, `stop`, `tool_choice`, `tools`,
            `response_format`.
        parts: Kinds of parts that its prompts may hold beside text, tool calls, tool results and thinking.
        prewarm: Whether its cache can be written without an answer.
        diagnostics: Whether it says itself why a cache missed, given the session's last response.
        advice: Where `breakpoints` is `advisory`: what is sent for the whole request, in words, by the TTL
            that one of its breakpoints asks for. Such breakpoints stay in the planned request.
        exact_tokens: Whether tokens can be counted exactly without a request.
    """

    breakpoints: Literal["honoured", "advisory", "none"]
    ttls: tuple[str, ...] = ()
    default_ttl: str | None = None
    max_breakpoints: int | None = None
    ttl_must_not_grow: bool = False
    markable: frozenset[str] = frozenset()
    min_tokens: int | None = None
    caches_only_at_marks: bool = False
    session: Literal["affinity", "label", "none"] = "none"
    tenant: Literal["partition", "none"] = "none"
    settings: frozenset[str] = frozenset({"temperature", "stop", "tool_choice", "tools"})
    exact_tokens: bool = False
    parts: frozenset[str] = frozenset()
    prewarm: bool = False
    diagnostics: bool = False
    advice: Mapping[str, str] = field(default_factory=dict)
