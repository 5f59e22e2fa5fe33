"""Where a request goes, and what of its caching can be said there. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

from kvsdk.prompt import Request, breakpoint_of

from kvsdk_openai._facts import capabilities, is_partitioned, options_ttls, retention, takes_marks
from kvsdk_openai._profiles import Api, Profile


@dataclass(frozen=True, slots=True)
class Target:
    """One API of a server.

    Attributes:
        scheme: What errors call the backend.
        model: The model as it is sent; at Azure a deployment.
        family: The model behind that name, None where it is not known.
        api: Which API.
        server: What the server takes.
    """

    scheme: str
    model: str
    family: str | None
    api: Api
    server: Profile

    @property
    def takes_marks(self) -> bool:
        """Whether this API takes breakpoints for this model."""
        return takes_marks(self.family, self.server) and self.api in self.server.ttls

    @property
    def has_modes(self) -> bool:
        """Whether requests are cached in implicit or in explicit mode."""
        return self.takes_marks and is_partitioned(self.family, self.server)

    def mark(self, part: object) -> dict[str, Any]:
        """The member that puts a piece's breakpoint on the wire; none where it has no breakpoint."""
        mark = breakpoint_of(part)
        if mark is None or not self.takes_marks:
            return {}
        default = self.server.ttls[self.api][0]
        if self.server.marks == "cache_control":
            ttl = {} if mark.ttl in (None, default) else {"ttl": mark.ttl}
            return {"cache_control": {"type": "ephemeral", **ttl}}
        ttl = {"ttl": mark.ttl or default} if self.api == "responses" else {}
        return {"prompt_cache_breakpoint": {"mode": "explicit", **ttl}}


def cache_members(request: Request, target: Target) -> dict[str, Any]:
    """Members of the body that say how the whole request is cached.

    A request with breakpoints goes out in explicit mode, where its changing tail is not written at the write
    rate; one without says nothing, which is implicit mode (developers.openai.com/api/docs/guides/
    prompt-caching, 2026-10-02).
    """
    members: dict[str, Any] = {}
    options = _options(request, target)
    if options:
        members["prompt_cache_options"] = options
    kept = retention(target.family, target.server)
    if kept is not None and has_advice(request, target):
        members["prompt_cache_retention"] = kept
    return members


def has_advice(request: Request, target: Target) -> bool:
    """Whether a breakpoint asks for a TTL that is sent for the whole request."""
    advice = capabilities(target.family, target.api, target.server).advice
    marks = request.marks()
    return any(mark is not None and mark.ttl in advice for mark in marks)


def _options(request: Request, target: Target) -> dict[str, Any]:
    options: dict[str, Any] = {}
    if target.has_modes and request.is_marked:
        options["mode"] = "explicit"
    offered = capabilities(target.family, target.api, target.server)
    if offered.prewarm and request.is_prewarm:
        options["prewarm"] = True
    if offered.diagnostics and request.previous_reply_id:
        options["comparison_response_id"] = request.previous_reply_id
    ttls = options_ttls(target.family, target.server)
    if ttls and has_advice(request, target):
        options["ttl"] = ttls[-1]
    return options


def names(request: Request, target: Target) -> tuple[dict[str, str], dict[str, str]]:
    """What the session and the tenant become: members of the body, and headers.

    Where both have the same member (`prompt_cache_key`), it is a partition for gpt-5.6 and later and carries
    the tenant; for older models it is a routing hint and carries the session, or the tenant without one.
    """
    server, api = target.server, target.api
    session, tenant = server.session.get(api), server.tenant.get(api)
    given = {session: request.session, tenant: request.tenant}
    if session == tenant:
        is_hint = target.family is not None and not is_partitioned(target.family, server)
        given = {tenant: request.session or request.tenant if is_hint else request.tenant}
    members: dict[str, str] = {}
    headers = dict(server.session_headers.get(api, {})) if request.session else {}
    for place, name in given.items():
        if place is not None and name:
            kind, _, key = place.partition(":")
            (headers if kind == "header" else members)[key] = _as_sent(name, server)
    return members, headers


def _as_sent(name: str, server: Profile) -> str:
    return name if re.fullmatch(server.name_pattern, name) else sha256(name.encode()).hexdigest()
