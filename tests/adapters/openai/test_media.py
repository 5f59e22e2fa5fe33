"""Images and files on both of OpenAI's wires."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable
from typing import Any

import kvsdk
import pytest
from kvsdk import Client, File, Image, Message, Text, ToolCall
from kvsdk.testing import breakpoints
from loopback import Loopback
from openai_wire import completion, response

PNG = b64encode(b"png").decode()
PDF = b64encode(b"pdf").decode()
MARK = "prompt_cache_breakpoint"

PARTS: dict[str, tuple[Image | File, dict[str, Any], dict[str, Any] | None]] = {
    "image by address": (
        Image(url="https://x/y.png"),
        {"type": "input_image", "image_url": "https://x/y.png", "detail": "auto"},
        {"type": "image_url", "image_url": {"url": "https://x/y.png"}},
    ),
    "image as data": (
        Image.from_bytes(b"png", "image/png"),
        {"type": "input_image", "image_url": f"data:image/png;base64,{PNG}", "detail": "auto"},
        {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PNG}"}},
    ),
    "image in detail": (
        Image(url="https://x/y.png", detail="high"),
        {"type": "input_image", "image_url": "https://x/y.png", "detail": "high"},
        {"type": "image_url", "image_url": {"url": "https://x/y.png", "detail": "high"}},
    ),
    "file as data": (
        File.from_bytes("manual.pdf", b"pdf", "application/pdf"),
        {
            "type": "input_file",
            "filename": "manual.pdf",
            "file_data": f"data:application/pdf;base64,{PDF}",
        },
        {
            "type": "file",
            "file": {"filename": "manual.pdf", "file_data": f"data:application/pdf;base64,{PDF}"},
        },
    ),
    "file by id": (
        File("manual.pdf", file_id="file-1"),
        {"type": "input_file", "file_id": "file-1"},
        {"type": "file", "file": {"file_id": "file-1"}},
    ),
    "file by address": (
        File("manual.pdf", url="https://x/m.pdf"),
        {"type": "input_file", "file_url": "https://x/m.pdf"},
        None,
    ),
}
ALL = pytest.mark.parametrize("name", PARTS)


@ALL
def test_each_part_on_responses(client: Client, loopback: Loopback, name: str) -> None:
    """Between texts, in the order given."""
    part, expected, _ = PARTS[name]
    loopback.script(response())
    client.generate([Message.user("a", part, "b")])
    assert loopback.body["input"] == [
        {
            "role": "user",
            "content": [
                {"type": "input_text", "text": "a"},
                expected,
                {"type": "input_text", "text": "b"},
            ],
        }
    ]


@ALL
def test_each_part_on_chat(chat: Client, loopback: Loopback, name: str) -> None:
    """The same; a file's address has no place there and is refused by its own place."""
    part, _, expected = PARTS[name]
    if expected is None:
        with pytest.raises(kvsdk.UnsupportedSetting, match="file's data or id") as caught:
            chat.generate([Message.user("a", part)])
        assert caught.value.field == "messages[0].parts[1]"
        assert loopback.bodies == []
        return
    loopback.script(completion())
    chat.generate([Message.user("a", part, "b")])
    texts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    assert loopback.body["messages"] == [{"role": "user", "content": [texts[0], expected, texts[1]]}]


@ALL
def test_the_vendors_own_dicts_are_sent_as_they_were(client: Client, loopback: Loopback, name: str) -> None:
    """What a caller writes in the shape of Responses arrives in it."""
    _, shape, _ = PARTS[name]
    loopback.script(response())
    client.generate([{"role": "user", "content": [shape]}])
    assert loopback.body["input"][0]["content"] == [shape]


@pytest.mark.parametrize("api", ["responses", "chat"])
def test_images_and_files_carry_marks(connect: Callable[..., Client], loopback: Loopback, api: str) -> None:
    """Where the mark was set, both of them."""
    loopback.script(response() if api == "responses" else completion())
    image = Image(url="https://x/y.png", cache=True)
    file = File("m.pdf", file_id="file-1", cache=True)
    reply = connect(api=api).generate([Message.user(image, file, "Which valve?")])
    at = "input" if api == "responses" else "messages"
    assert list(breakpoints(loopback.body)) == [f"{at}[0].content[0]", f"{at}[0].content[1]"]
    assert [entry.status for entry in reply.cache.breakpoints] == ["honoured"] * 2


def turns(*, cache: Any = None) -> list[Message]:
    pieces = [Text("Here:"), Image(url="https://x/y.png")]
    return [
        Message.user("Show me."),
        Message.assistant(ToolCall("c1", "look")),
        Message.tool("c1", pieces, cache=cache),
    ]


@pytest.mark.parametrize("cache", [None, "12h"])
def test_a_tool_result_with_an_image_is_a_list(client: Client, loopback: Loopback, cache: str | None) -> None:
    """Its mark ends the last piece."""
    loopback.script(response())
    client.generate(turns(cache=cache))
    mark = {MARK: {"mode": "explicit", "ttl": "12h"}} if cache else {}
    assert loopback.body["input"][2] == {
        "type": "function_call_output",
        "call_id": "c1",
        "output": [
            {"type": "input_text", "text": "Here:"},
            {"type": "input_image", "image_url": "https://x/y.png", "detail": "auto", **mark},
        ],
    }


def test_chat_has_no_place_for_an_image_in_a_tool_result(chat: Client, loopback: Loopback) -> None:
    """Refused before anything is sent, by its place."""
    with pytest.raises(kvsdk.UnsupportedSetting, match="text only") as caught:
        chat.generate(turns())
    assert caught.value.field == "messages[2].parts[0]"
    assert loopback.bodies == []


def test_texts_of_a_tool_result_are_one_text(client: Client, loopback: Loopback) -> None:
    """Without an image and without a mark it is plain text."""
    loopback.script(response())
    client.generate([*turns()[:2], Message.tool("c1", [Text("1 "), Text("bar")])])
    assert loopback.body["input"][2]["output"] == "1 bar"


def test_a_server_without_images_refuses_them(server: Callable[..., Client], loopback: Loopback) -> None:
    """DeepSeek's API takes text only."""
    with pytest.raises(kvsdk.UnsupportedSetting, match="images"):
        server(profile="deepseek").generate([Message.user(Image(url="https://x/y.png"))])
    assert loopback.bodies == []
