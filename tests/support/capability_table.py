"""The README's table of what becomes of a request on each backend, made from the backends themselves.

`python tests/support/capability_table.py` prints it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import kvsdk
from kvsdk import Backend, File, Image, Message, Text, Tool, ToolCall
from kvsdk.caching import plan
from kvsdk.prompt import TTLS, Request

from kvsdk_vllm import StoreConfig

COLUMNS: Mapping[str, Backend] = {
    "`anthropic:`": kvsdk.backend("anthropic:claude-sonnet-5-5"),
    "`openai:` gpt-5.6 and later": kvsdk.backend("openai:gpt-6.1-terra"),
    'the same, `api="chat"`': kvsdk.backend("openai:gpt-6.1-terra", api="chat"),
    "`openai:` older": kvsdk.backend("openai:gpt-5.5"),
    "`azure:` gpt-5.6 and later": kvsdk.backend("azure:deployment", model="gpt-6.1-terra"),
    "`openai+http:`": kvsdk.backend("openai+http://host/v1#model"),
    "`vllm:`": kvsdk.backend("vllm:model"),
    "`vllm:` with a store": kvsdk.backend("vllm:model", store=StoreConfig()),
    "`vllm+http:`": kvsdk.backend("vllm+http://host#model"),
}

TOOL = Tool("look", "Looks.", {"type": "object"})
PICTURE = Image(url="https://example.org/valve.png", cache=True)
PAPER = File.from_bytes("manual.pdf", b"%PDF", "application/pdf", cache=True)
CALL = ToolCall("c1", "look")


def _ask(*messages: Message, **fields: object) -> Request:
    return Request(messages=(*messages, Message.user("?")), **fields)  # type: ignore[arg-type]


#: What is marked, and a request in which only that is, after a system text that could take the mark.
MARKED: Mapping[str, Request] = {
    "a tool": _ask(tools=(Tool("look", "Looks.", {"type": "object"}, cache=True),)),
    "system text": _ask(system=(Text("s", cache=True),)),
    "user text": _ask(Message.user(Text("u", cache=True)), system=(Text("s"),)),
    "an image": _ask(Message.user(PICTURE), system=(Text("s"),)),
    "a file": _ask(Message.user(PAPER), system=(Text("s"),)),
    "assistant text": _ask(Message.user("u"), Message.assistant("a", cache=True)),
    "a tool call": _ask(Message.user("u"), Message.assistant(CALL, cache=True), tools=(TOOL,)),
    "a tool result": _ask(Message.user("u"), Message.assistant(CALL), Message.tool("c1", "r", cache=True)),
}


def _statuses(request: Request) -> Callable[[Backend], str]:
    def status(backend: Backend) -> str:
        wanted = {block.kind for block in request.blocks()} & {"image", "file"}
        if wanted - backend.capabilities.parts:
            return "refused"
        return plan(request, backend.capabilities).breakpoints[0].status

    return status


def _ttl(ttl: str) -> Callable[[Backend], str]:
    def granted(backend: Backend) -> str:
        request = _ask(system=(Text("s", cache=ttl),))  # type: ignore[arg-type]
        report = plan(request, backend.capabilities).breakpoints[0]
        return f"mapped to {report.granted_ttl}" if report.status == "mapped" else report.status

    return granted


def _setting(name: str) -> Callable[[Backend], str]:
    return lambda backend: "yes" if name in backend.capabilities.settings else "refused"


def _most(backend: Backend) -> str:
    limit = backend.capabilities.max_breakpoints
    return f"{limit}, the others dropped" if limit else "advisory"


def _field(name: str) -> Callable[[Backend], str]:
    def value(backend: Backend) -> str:
        found = getattr(backend.capabilities, name)
        return {True: "yes", False: "-", "none": "-"}.get(found, str(found))

    return value


ROWS: Mapping[str, Callable[[Backend], str]] = {
    **{f"breakpoint on {what}": _statuses(request) for what, request in MARKED.items()},
    **{f"TTL {ttl}": _ttl(ttl) for ttl in TTLS},
    "breakpoints in a request": _most,
    "a session's name is": _field("session"),
    "a tenant is": _field("tenant"),
    **{name: _setting(name) for name in ("tools", "tool_choice", "response_format", "stop", "temperature")},
    "`prewarm`": _field("prewarm"),
    "the backend's own diagnostics": _field("diagnostics"),
    "exact `count_tokens`": _field("exact_tokens"),
}


def table() -> str:
    """The table as Markdown."""
    lines = [["", *COLUMNS], ["---"] * (len(COLUMNS) + 1)]
    lines += [[name, *(cell(backend) for backend in COLUMNS.values())] for name, cell in ROWS.items()]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


if __name__ == "__main__":
    print(table())  # noqa: T201  # that is what it is for
