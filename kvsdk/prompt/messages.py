"""Messages: a role and its parts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from kvsdk.errors import InvalidRequest
from kvsdk.prompt.parts import (
    KINDS,
    Breakpoint,
    CacheMark,
    Image,
    Part,
    Text,
    ToolCall,
    ToolResult,
    with_breakpoint,
)

Role = Literal["user", "assistant", "system", "tool"]
ROLES: tuple[Role, ...] = ("user", "assistant", "system", "tool")
Content: TypeAlias = str | Part | Iterable[str | Part]

_ALLOWED: dict[str, tuple[str, ...]] = {
    "user": ("text", "image", "file"),
    "system": ("text",),
    "assistant": ("text", "tool_call", "thinking"),
    "tool": ("tool_result",),
}


@dataclass(frozen=True, slots=True)
class Message:
    """One turn.

    Make it with `Message.user(...)`, `.assistant(...)`, `.system(...)` or `.tool(...)`; `cache=` marks the
    last part.
    """

    role: Role
    parts: tuple[Part, ...]

    def __post_init__(self) -> None:
        if self.role not in ROLES:
            raise InvalidRequest(f"unknown role {self.role!r}; one of {', '.join(ROLES)}", field="role")
        for part in self.parts:
            kind = KINDS.get(type(part), type(part).__name__)
            if kind not in _ALLOWED[self.role]:
                raise InvalidRequest(f"a {self.role} message cannot hold a {kind}", field="content")

    @property
    def text(self) -> str:
        """The text parts, joined."""
        return "".join(part.text for part in self.parts if isinstance(part, Text))

    @property
    def tool_calls(self) -> tuple[ToolCall, ...]:
        """The tool calls among the parts."""
        return tuple(part for part in self.parts if isinstance(part, ToolCall))

    @classmethod
    def user(cls, *content: Content, cache: CacheMark = None) -> Message:
        """What the user said."""
        return cls("user", _parts(content, cache))

    @classmethod
    def assistant(cls, *content: Content, cache: CacheMark = None) -> Message:
        """What the model said."""
        return cls("assistant", _parts(content, cache))

    @classmethod
    def system(cls, *content: Content, cache: CacheMark = None) -> Message:
        """Instructions in the middle of a conversation. At its start, `system=` of the call is the place."""
        return cls("system", _parts(content, cache))

    @classmethod
    def tool(
        cls,
        call_id: str,
        content: str | Sequence[Text | Image],
        *,
        is_error: bool = False,
        cache: CacheMark = None,
    ) -> Message:
        """What a tool gave back for the call `call_id`: text, or texts and images."""
        return cls("tool", (ToolResult(call_id, content, is_error, cache),))


def _parts(content: Iterable[Content], cache: CacheMark) -> tuple[Part, ...]:
    parts = [Text(part) if isinstance(part, str) else part for item in content for part in _listed(item)]
    mark = Breakpoint.of(cache)
    if mark is not None and parts:
        parts[-1] = with_breakpoint(parts[-1], mark)
    return tuple(parts)


def _listed(item: Content) -> Iterable[str | Part]:
    if isinstance(item, str) or type(item) in KINDS:
        return (item,)  # type: ignore[return-value]  # KINDS holds every part
    if not isinstance(item, Iterable):
        raise InvalidRequest(f"a message holds texts and parts, not {type(item).__name__}", field="content")
    return item
