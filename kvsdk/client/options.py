"""The keywords of a call, and the request made of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import isfinite
from typing import Any, Literal, TypedDict

from kvsdk._text import did_you_mean
from kvsdk.backend import Backend, Capabilities
from kvsdk.errors import InvalidRequest, UnknownKeyword, UnsupportedSetting
from kvsdk.prompt import (
    Image,
    MessagesLike,
    Request,
    ResponseFormat,
    SystemLike,
    Tool,
    ToolResult,
    ToolsLike,
    hoist_system,
    read_messages,
    read_system,
    read_tools,
)
from kvsdk.session import SessionState, SessionTable

OnUnsupported = Literal["raise", "drop"]


class CallOptions(TypedDict, total=False):
    """Keywords of `generate`, `stream`, `explain` and `count_tokens`.

    Attributes:
        system: Instructions before the conversation: a string, or `Text`s with breakpoints.
        tools: `Tool`s, typed functions, or dicts in the OpenAI or the Anthropic shape.
        tool_choice: `"auto"`, `"none"`, `"required"`, or the name of a tool.
        max_tokens: The most tokens to generate (4096).
        stop: A text, or several, that end the answer.
        temperature: Sampling temperature.
        response_format: The answer's shape: a pydantic model or a JSON schema; read it as `reply.parsed`.
        session: A name, or a `Session`.
        tenant: Whose prompt this is; the client's tenant by default.
        cache: `"auto"` places breakpoints at the end of tools, system and last turn.
        strict: Raise `InvalidBreakpoints` rather than change or drop a breakpoint.
        on_unsupported: `"raise"` or `"drop"` settings that the backend does not take.
        timeout_s: The longest the whole call may take, retries included.
        metadata: Labels for the ledger, str to str; never sent.
        extra: Vendor settings by scheme, such as `{"anthropic": {...}}`.
    """

    system: SystemLike
    tools: ToolsLike
    tool_choice: str | None
    max_tokens: int
    stop: str | Sequence[str] | None
    temperature: float | None
    response_format: type | Mapping[str, Any] | None
    session: Any
    tenant: str | None
    cache: Literal["auto"] | None
    strict: bool | None
    on_unsupported: OnUnsupported | None
    timeout_s: float | None
    metadata: Mapping[str, str] | None
    extra: Mapping[str, Mapping[str, Any]] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Defaults:
    """What a client was made with, for calls that do not say otherwise."""

    tenant: str | None = None
    cache: Literal["auto"] | None = None
    strict: bool = False
    on_unsupported: OnUnsupported = "raise"

    def __post_init__(self) -> None:
        _check_tenant(self.tenant)
        _check_choice("cache", self.cache, ("auto", None))
        _check_choice("on_unsupported", self.on_unsupported, ("raise", "drop"))


@dataclass(frozen=True, slots=True)
class CheckedCall:
    """A call's request, and what is not part of it."""

    request: Request
    state: SessionState | None
    strict: bool
    timeout_s: float | None
    metadata: Mapping[str, str]
    notes: tuple[str, ...]


def check_call(
    backend: Backend,
    defaults: Defaults,
    sessions: SessionTable,
    messages: MessagesLike,
    options: CallOptions,
    *,
    is_prewarm: bool = False,
) -> CheckedCall:
    """Check a call's arguments and make a request of them; nothing is sent.

    Raises:
        UnknownKeyword: A keyword that calls do not take.
        InvalidRequest: A value that is wrong; `field` names it.
        UnsupportedSetting: A setting that the backend does not take, unless told to drop it.
    """
    for name in options:
        if name not in CallOptions.__annotations__:
            raise UnknownKeyword(
                f"unknown keyword {name!r}.{did_you_mean(name, CallOptions.__annotations__)}", field=name
            )
    tenant = options.get("tenant") or defaults.tenant
    _check_tenant(tenant)
    state = _session(options.get("session"), tenant, sessions)
    request = replace(
        _request(messages, options, state, tenant, options.get("cache") or defaults.cache),
        is_prewarm=is_prewarm,
        previous_reply_id=state.last_reply_from(backend.scheme, backend.model) if state else None,
    )
    _check_parts(request, backend)
    on_unsupported = options.get("on_unsupported") or defaults.on_unsupported
    _check_choice("on_unsupported", on_unsupported, ("raise", "drop"))
    request, notes = _fit(request, backend, drop=on_unsupported == "drop")
    strict = options.get("strict")
    return CheckedCall(
        request,
        state,
        defaults.strict if strict is None else strict,
        options.get("timeout_s"),
        _labels(options.get("metadata")),
        notes,
    )


def _request(
    messages: MessagesLike,
    options: CallOptions,
    state: SessionState | None,
    tenant: str | None,
    cache: Literal["auto"] | None,
) -> Request:
    _check_choice("cache", cache, ("auto", None))
    turns, system = hoist_system(read_messages(messages), read_system(options.get("system")))
    if not turns:
        raise InvalidRequest("messages holds only system messages; nothing to answer", field="messages")
    tools = read_tools(options.get("tools"))
    return Request(
        messages=turns,
        system=system,
        tools=tools,
        tool_choice=_tool_choice(options.get("tool_choice"), tools),
        max_tokens=_max_tokens(options.get("max_tokens", 4096)),
        stop=_stops(options.get("stop")),
        temperature=_temperature(options.get("temperature")),
        session=state.name if state else None,
        tenant=state.tenant if state and state.tenant else tenant,
        auto_cache=cache == "auto",
        response_format=ResponseFormat.of(options.get("response_format")),
        extra=_extra(options.get("extra")),
    )


def _session(value: Any, tenant: str | None, sessions: SessionTable) -> SessionState | None:
    if value is None:
        return None
    if isinstance(value, str):
        return sessions.get(value, tenant)
    state = getattr(value, "state", value)
    if not isinstance(state, SessionState):
        raise InvalidRequest(f"session is a name or a Session, not {type(value).__name__}", field="session")
    return state


def _fit(request: Request, backend: Backend, *, drop: bool) -> tuple[Request, tuple[str, ...]]:
    """Leave out, or refuse, the settings that a backend does not take."""
    given: dict[str, Any] = {
        "temperature": request.temperature,
        "stop": request.stop or None,
        "tools": request.tools or None,
        "tool_choice": request.tool_choice,
        "response_format": request.response_format,
    }
    capabilities: Capabilities = backend.capabilities
    unsupported = [
        name for name, value in given.items() if value is not None and name not in capabilities.settings
    ]
    if not unsupported:
        return request, ()
    if not drop:
        raise UnsupportedSetting(
            f"{backend.scheme} does not take {', '.join(unsupported)} for {backend.model}; leave it out, or "
            "pass on_unsupported='drop'",
            field=unsupported[0],
            backend=backend.scheme,
            model=backend.model,
        )
    changes: dict[str, Any] = {name: () if name in ("stop", "tools") else None for name in unsupported}
    kept = replace(request, **changes)
    return kept, tuple(f"{name} was left out: {backend.scheme} does not take it" for name in unsupported)


def _check_parts(request: Request, backend: Backend) -> None:
    """Refuse parts that the backend cannot be sent."""
    for block in request.blocks():
        kind = block.kind
        part = block.part
        if isinstance(part, ToolResult) and not isinstance(part.content, str):
            kind = "image" if any(isinstance(piece, Image) for piece in part.content) else kind
        if kind in ("image", "file") and kind not in backend.capabilities.parts:
            raise UnsupportedSetting(
                f"{block.where} holds {kind}s, which {backend.scheme} cannot be sent for {backend.model}",
                field=block.where,
                backend=backend.scheme,
                model=backend.model,
            )


def _tool_choice(value: object, tools: Sequence[Tool]) -> str | None:
    if value is None:
        return None
    if not tools:
        raise InvalidRequest("tool_choice needs tools", field="tool_choice")
    known = ("auto", "none", "required", *(tool.name for tool in tools))
    if not isinstance(value, str) or value not in known:
        raise InvalidRequest(
            f"tool_choice {value!r} is no tool of this call.{did_you_mean(str(value), known)}",
            field="tool_choice",
        )
    return value


def _max_tokens(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise InvalidRequest(f"max_tokens is a whole number of at least 1, not {value!r}", field="max_tokens")
    return value


def _stops(value: str | Sequence[str] | None) -> tuple[str, ...]:
    texts = (value,) if isinstance(value, str) else value or ()
    if not isinstance(texts, Sequence) or not all(isinstance(text, str) for text in texts):
        raise InvalidRequest(f"stop is a text or a list of texts, not {value!r}", field="stop")
    return tuple(text for text in texts if text)


def _temperature(value: float | None) -> float | None:
    is_number = isinstance(value, int | float) and not isinstance(value, bool) and isfinite(value)
    if value is not None and not is_number:
        raise InvalidRequest(f"temperature is a number, not {value!r}", field="temperature")
    return value


def _labels(value: Mapping[str, str] | None) -> Mapping[str, str]:
    _check_object("metadata", value)
    for key, label in (value or {}).items():
        if not isinstance(key, str) or not isinstance(label, str):
            raise InvalidRequest(f"metadata is str to str; {key!r} is {label!r}", field="metadata")
    return dict(value or {})


def _extra(value: Mapping[str, Mapping[str, Any]] | None) -> Mapping[str, Mapping[str, Any]]:
    _check_object("extra", value)
    for scheme, members in (value or {}).items():
        if not isinstance(members, Mapping):
            raise InvalidRequest(
                f"extra is by scheme: {{'anthropic': {{...}}}}; {scheme!r} is {members!r}", field="extra"
            )
    return value or {}


def _check_object(field: str, value: object) -> None:
    if value is not None and not isinstance(value, Mapping):
        raise InvalidRequest(f"{field} is a dict, not {type(value).__name__}", field=field)


def _check_tenant(value: object) -> None:
    if value is not None and not isinstance(value, str):
        raise InvalidRequest(f"tenant is a name, not {type(value).__name__}", field="tenant")


def _check_choice(field: str, value: object, known: tuple[object, ...]) -> None:
    if value not in known:
        words = " or ".join("None" if item is None else repr(item) for item in known)
        raise InvalidRequest(f"{field} is {words}, not {value!r}", field=field)
