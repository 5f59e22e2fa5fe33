"""One call, as every adapter reads it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, TypeAlias

from kvsdk.prompt.formats import ResponseFormat
from kvsdk.prompt.messages import Message
from kvsdk.prompt.parts import KINDS, Breakpoint, Part, Text, breakpoint_of
from kvsdk.prompt.tools import Tool

Section = Literal["tools", "system", "messages"]


class Block(NamedTuple):
    """One cacheable piece of a prompt: a tool, a system text or a message's part.

    `message` is the index of the message, or None outside of messages; `position` is the piece's index in its
    message or section; `place` is where it stands
    (`"tools"`, `"system"` or the message's role) and `kind` what it is (`"tool"` or a part's kind).
    """

    section: Section
    message: int | None
    position: int
    place: str
    kind: str
    part: Part | Tool

    @property
    def where(self) -> str:
        """Its place in words that a caller recognises, such as `messages[2].parts[0]`."""
        return place_in_words(self.section, self.message, self.position)


def place_in_words(section: Section, message: int | None, position: int) -> str:
    """The place of a piece as a caller recognises it."""
    return f"{section}[{position}]" if message is None else f"messages[{message}].parts[{position}]"


ToolChoice: TypeAlias = str
"""`"auto"`, `"none"`, `"required"`, or the name of one of the tools."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A prompt and its settings, checked, and the same for every backend.

    Attributes:
        messages: The conversation, oldest first.
        system: Instructions that stand before it.
        tools: Tools the model may call.
        tool_choice: `"auto"`, `"none"`, `"required"`, the name of a tool, or None for the vendor's default.
        max_tokens: The most tokens to generate.
        stop: Texts that end the answer.
        temperature: Sampling temperature, or None for the backend's default.
        session: Name of the conversation this belongs to.
        tenant: Whose prompt this is; caches are kept apart by tenant where the backend can.
        auto_cache: Whether kvsdk places breakpoints itself.
        response_format: The shape that the answer's text must have, or None.
        is_prewarm: Whether only the cache is to be written, without an answer.
        previous_reply_id: The backend's id of the session's last response, for its own cache diagnostics.
        extra: Vendor settings by scheme, passed through; an adapter reads its own part only.
    """

    messages: tuple[Message, ...]
    system: tuple[Text, ...] = ()
    tools: tuple[Tool, ...] = ()
    tool_choice: ToolChoice | None = None
    max_tokens: int = 4096
    stop: tuple[str, ...] = ()
    temperature: float | None = None
    session: str | None = None
    tenant: str | None = None
    auto_cache: bool = False
    response_format: ResponseFormat | None = None
    is_prewarm: bool = False
    previous_reply_id: str | None = None
    extra: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    _blocks: tuple[Block, ...] | None = field(default=None, init=False, repr=False, compare=False)
    _marks: tuple[Breakpoint | None, ...] | None = field(default=None, init=False, repr=False, compare=False)

    def blocks(self) -> tuple[Block, ...]:
        """Every piece in the order in which prefixes grow: tools, system, messages. Worked out once."""
        if self._blocks is None:
            object.__setattr__(self, "_blocks", tuple(self._walk()))
        assert self._blocks is not None
        return self._blocks

    def marks(self) -> tuple[Breakpoint | None, ...]:
        """The breakpoint of each of `blocks()`, or None. Worked out once."""
        if self._marks is None:
            object.__setattr__(self, "_marks", tuple([breakpoint_of(block.part) for block in self.blocks()]))
        assert self._marks is not None
        return self._marks

    @property
    def is_marked(self) -> bool:
        """Whether it has any breakpoint."""
        return any(self.marks())

    def _walk(self) -> Iterator[Block]:
        for index, tool in enumerate(self.tools):
            yield Block("tools", None, index, "tools", "tool", tool)
        for index, text in enumerate(self.system):
            yield Block("system", None, index, "system", "text", text)
        for number, message in enumerate(self.messages):
            for index, part in enumerate(message.parts):
                yield Block("messages", number, index, message.role, KINDS[type(part)], part)
