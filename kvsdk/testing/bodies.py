"""What a vendor's body says to its cache: where it has marks, and the prompt that its prefix is made of.

These read bodies as they are sent, of Anthropic's Messages, OpenAI's Responses, Chat Completions and
Bedrock's Converse. They know nothing of kvsdk's own types: a translation is not checked by itself.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

MARKS = ("cache_control", "prompt_cache_breakpoint", "cachePoint")

#: Members whose objects are the caller's own data, where a name means nothing to a vendor.
_OPAQUE = ("input_schema", "inputSchema", "parameters", "schema", "input", "arguments")


def breakpoints(body: Mapping[str, Any]) -> dict[str, Any]:
    """The marks of a body: path of the piece that carries one, such as `system[0]`, to the mark's value.

    A mark on the body as a whole has the path `""`.
    """
    return dict(_marks(body, ""))


def _marks(node: Any, at: str) -> Iterator[tuple[str, Any]]:
    if isinstance(node, list):
        for index, item in enumerate(node):
            yield from _marks(item, f"{at}[{index}]")
    elif isinstance(node, Mapping):
        for name, value in node.items():
            if name in MARKS:
                yield at, value
            elif not (name in _OPAQUE and isinstance(value, Mapping)):
                yield from _marks(value, f"{at}.{name}" if at else name)


# ---------------------------------------------------------------------- the prefix


def prefix_blocks(body: Mapping[str, Any]) -> list[str]:
    """The prompt as blocks of text in the order in which a prefix grows: tools, system, conversation.

    Marks are left out, and a text that stands alone is the same block as a list of that one text. All else
    counts: roles, ids, and the order of an object's keys, because that is the order in which it is rendered.
    """
    tools = (_block("tool", tool) for tool in _items(body, "tools", "toolConfig"))
    system = (block for name in ("instructions", "system") for block in _contents("system", body.get(name)))
    turns = (block for turn in _items(body, "messages", "input") for block in _turn(turn))
    return [block for block in (*tools, *system, *turns) if block]


def assert_extends(body: Mapping[str, Any], next_body: Mapping[str, Any]) -> None:
    """Check that a request begins with all of an earlier one's prompt, so that the cache can serve it.

    Raises:
        AssertionError: It does not; the text has the first block that moved.
    """
    assert next_body.get("model") == body.get("model"), "the next request goes to another model"
    before, after = prefix_blocks(body), prefix_blocks(next_body)
    for index, block in enumerate(before):
        found = after[index] if index < len(after) else "nothing"
        assert found == block, f"block {index} of the prefix moved: it was {block}, and now is {found}"


def _items(body: Mapping[str, Any], *names: str) -> list[Any]:
    """A member that is a list; a plain text stands for one user turn."""
    for name in names:
        value = body.get(name)
        if isinstance(value, Mapping):  # Bedrock's toolConfig
            value = value.get("tools")
        if isinstance(value, str):
            return [{"role": "user", "content": value}]
        if value:
            return list(value)
    return []


def _turn(turn: Mapping[str, Any]) -> Iterator[str]:
    """The blocks of a message; an item of Responses that is no message is one block."""
    if "role" not in turn:
        output = turn.get("output")
        rest = {name: value for name, value in turn.items() if name != "output"}
        yield _block("item", rest)
        yield from _contents("output", output)
        return
    rest = {
        name: value for name, value in turn.items() if name not in ("role", "content", "tool_calls", *MARKS)
    }
    place = f"{turn['role']} {_json(rest)}" if rest else str(turn["role"])
    yield from _contents(place, turn.get("content"))
    for call in turn.get("tool_calls") or ():
        yield _block(place, call)


def _contents(place: str, content: Any) -> Iterator[str]:
    if isinstance(content, str):
        content = [{"text": content}]
    for piece in content or ():
        yield _block(place, piece)


def _block(place: str, piece: Any) -> str:
    """One block; empty for one that is nothing but a mark."""
    plain = _unmarked(piece)
    if not plain:
        return ""
    is_text = set(plain) <= {"type", "text"} and "text" in plain
    return f"{place}: {_json(plain['text'] if is_text else plain)}"


def _unmarked(node: Any) -> Any:
    """The same without marks, and with lone texts as plain ones."""
    if isinstance(node, list):
        pieces = [_unmarked(item) for item in node]
        lone = pieces[0] if len(pieces) == 1 and isinstance(pieces[0], dict) else {}
        return lone["text"] if set(lone) == {"type", "text"} else pieces
    if not isinstance(node, Mapping):
        return node
    return {
        name: value if name in _OPAQUE and isinstance(value, Mapping) else _unmarked(value)
        for name, value in node.items()
        if name not in MARKS
    }


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
