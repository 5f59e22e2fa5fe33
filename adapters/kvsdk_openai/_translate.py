"""A request as a call of `POST /responses` or `POST /chat/completions`. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kvsdk.backend import Call
from kvsdk.errors import InvalidRequest
from kvsdk.prompt import Request

from kvsdk_openai._chat_body import to_chat
from kvsdk_openai._responses_body import to_responses
from kvsdk_openai._target import Target, cache_members, names

_UNNAMED = "this deployment's model is not known: no marks are sent; name it with model=..."
_EXPLICIT = "explicit mode: only what the breakpoints end is written to the cache"
_IMPLICIT = "no breakpoint: implicit mode writes the whole prompt at the write rate"


def to_call(request: Request, target: Target, *, stream: bool, call_id: str) -> Call:
    """The call that carries a planned request.

    Raises:
        UnsupportedSetting: A part that this API has no place for.
        InvalidRequest: Vendor settings that exclude each other.
    """
    if target.api == "responses":
        body = to_responses(request, target)
    else:
        body = to_chat(request, target, stream=stream)
    members, headers = names(request, target)
    body |= cache_members(request, target)
    body |= members
    if request.temperature is not None:
        body["temperature"] = request.temperature
    for name in target.server.never:
        body.pop(name, None)
    extra = request.extra.get("azure" if target.scheme == "azure" else "openai", {})
    return Call(body, stream, headers, extra=_extra(body, extra), id=call_id, request=request)


def notes(request: Request, target: Target) -> tuple[str, ...]:
    """How a planned request is cached, in words: the mode, where there is one."""
    if target.server.marks == "prompt_cache_breakpoint" and target.family is None:
        return (_UNNAMED,)
    if not target.has_modes:
        return ()
    return (_EXPLICIT,) if request.is_marked else (_IMPLICIT,)


def _extra(body: Mapping[str, Any], extra: Mapping[str, Any]) -> dict[str, Any]:
    """The caller's own members; an object is added to ours of the same name, and wins.

    `conversation` and `previous_response_id` exclude each other (openai 3.57.0,
    `types/responses/response_create_params.py`, 2026-11-19).
    """
    if extra.get("conversation") and extra.get("previous_response_id"):
        raise InvalidRequest(
            "extra has both conversation and previous_response_id; OpenAI takes one of them", field="extra"
        )
    merged = dict(extra)
    for name, value in extra.items():
        ours = body.get(name)
        if isinstance(value, Mapping) and isinstance(ours, Mapping):
            merged[name] = {**ours, **value}
    return merged
