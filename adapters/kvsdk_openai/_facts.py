"""What a server does for a model, from the facts in `_facts.toml`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache

from kvsdk.backend import Capabilities
from kvsdk.prompt import TTL_SECONDS

from kvsdk_openai._profiles import Api, Profile, facts, profile

__all__ = ["Api", "Profile", "capabilities", "profile", "retention", "takes_marks"]

_GPT = re.compile(r"(?:^|/)gpt-(\d+)(?:\.(\d+))?(?:-|$)")
_DATED = r"(-\d{4}-\d{2}-\d{2})?"


def takes_marks(model: str | None, server: Profile) -> bool:
    """Whether breakpoints may be sent.

    `cache_control`: to every model. `prompt_cache_breakpoint`: to gpt-5.6 and later, at OpenAI and Azure;
    older models answer with 400 `prompt_cache_options is not supported on this model`.
    """
    if server.marks != "prompt_cache_breakpoint":
        return server.marks == "cache_control"
    found = _GPT.search(model or "")
    return found is not None and [int(found[1]), int(found[2] or 0)] >= facts()["breakpoints"]["first_model"]


def is_partitioned(model: str | None, server: Profile) -> bool:
    """Whether the cache key keeps caches apart, instead of being a hint where to look."""
    return takes_marks(model, server) and server.marks == "prompt_cache_breakpoint"


def retention(model: str | None, server: Profile) -> str | None:
    """What `prompt_cache_retention` an older model takes so that a prefix outlives an hour, if any.

    gpt-5.5 and gpt-5.5-pro know only `24h` (openai 3.57.0, responses/response_create_params.py, 2026-11-19).
    """
    if not server.retention or model is None:
        return None
    known = any(re.fullmatch(pattern + _DATED, model) for pattern in facts()["retention"]["models"])
    return "24h" if known else None


def options_ttls(model: str | None, server: Profile) -> tuple[str, ...]:
    """The TTLs that `prompt_cache_options` may name for a whole request, beside the default."""
    takes = server.options_ttl and re.fullmatch(server.options_models, model or "")
    return server.options_ttl[1:] if takes else ()


@cache
def capabilities(model: str | None, api: Api, server: Profile) -> Capabilities:
    """What one API of a server does for a model (None: a deployment that does not say which).

    Chat's options take only `30m`, Responses also `12h` (openai 3.57.0,
    `types/chat/completion_create_params.py` and `types/responses/response_create_params.py`, 2026-11-19).
    Assistant text, tools and `instructions` cannot carry a mark. Responses has no stop sequences.
    """
    settings = {"temperature", "tool_choice", "tools", *server.settings}
    settings -= {"stop"} if api == "responses" else set()
    ttls = server.ttls.get(api, ())
    is_marked = takes_marks(model, server) and bool(ttls)
    is_partition = is_partitioned(model, server)
    has_tenant = is_partition or server.tenant.get(api) not in (None, server.session.get(api))
    has_session = api in server.session and not (is_partition or _is_unnamed(model, server))
    return Capabilities(
        breakpoints="honoured" if is_marked else "advisory",
        ttls=tuple(sorted(ttls, key=TTL_SECONDS.__getitem__)) if is_marked else (),
        default_ttl=ttls[0] if is_marked else None,
        max_breakpoints=facts()["breakpoints"]["max"] if is_marked else None,
        ttl_must_not_grow=server.ttl_must_not_grow and is_marked,
        markable=frozenset(server.markable) if is_marked else frozenset(),
        min_tokens=server.min_tokens,
        session="affinity" if has_session else "none",
        tenant="partition" if has_tenant else "none",
        settings=frozenset(settings),
        parts=frozenset(server.parts),
        prewarm=server.prewarm and is_partition and api == "responses",
        diagnostics=server.diagnostics and is_partition and api == "responses",
        advice={} if is_marked else _advice(model, server),
    )


def _advice(model: str | None, server: Profile) -> Mapping[str, str]:
    kept = retention(model, server)
    if kept is not None:
        words = f"prompt_cache_retention {kept!r} asks it to keep the prefix: up to that long, no promise"
        return dict.fromkeys(facts()["retention"]["asked"], words)
    ttls = options_ttls(model, server)
    if not ttls:
        return {}
    asked = [ttl for ttl, seconds in TTL_SECONDS.items() if seconds >= TTL_SECONDS[ttls[-1]]]
    return dict.fromkeys(asked, f"prompt_cache_options.ttl {ttls[-1]!r} is sent for the whole request")


def _is_unnamed(model: str | None, server: Profile) -> bool:
    return model is None and server.marks == "prompt_cache_breakpoint"
