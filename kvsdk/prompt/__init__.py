"""What goes in: messages, parts, tools, breakpoints, and the request made of them."""

from kvsdk.prompt.dialects import (
    MessagesLike,
    SystemLike,
    ToolsLike,
    hoist_system,
    read_messages,
    read_system,
    read_tools,
)
from kvsdk.prompt.formats import ResponseFormat
from kvsdk.prompt.messages import Message
from kvsdk.prompt.parts import (
    TTL,
    TTL_SECONDS,
    TTLS,
    Breakpoint,
    CacheMark,
    Digest,
    File,
    Image,
    Part,
    Text,
    Thinking,
    ToolCall,
    ToolResult,
    breakpoint_of,
    digest_of,
    keep_digest,
    with_breakpoint,
)
from kvsdk.prompt.request import Block, Request, Section, place_in_words
from kvsdk.prompt.tools import Tool

__all__ = [
    "TTL",
    "TTLS",
    "TTL_SECONDS",
    "Block",
    "Breakpoint",
    "CacheMark",
    "Digest",
    "File",
    "Image",
    "Message",
    "MessagesLike",
    "Part",
    "Request",
    "ResponseFormat",
    "Section",
    "SystemLike",
    "Text",
    "Thinking",
    "Tool",
    "ToolCall",
    "ToolResult",
    "ToolsLike",
    "breakpoint_of",
    "digest_of",
    "hoist_system",
    "keep_digest",
    "place_in_words",
    "read_messages",
    "read_system",
    "read_tools",
    "with_breakpoint",
]
