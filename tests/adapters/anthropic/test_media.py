"""Images and documents on the wire."""

from __future__ import annotations

from base64 import b64encode
from pathlib import Path
from typing import Any

import kvsdk
import pytest
from anthropic_wire import message
from kvsdk import Client, File, Image, Message, Text
from loopback import Loopback, Scripted

PNG = b"\x89PNG\r\n\x1a\n"
ENCODED = b64encode(PNG).decode()
PNG_SOURCE = {"type": "base64", "media_type": "image/png", "data": ENCODED}


def _content(client: Client, loopback: Loopback, messages: Any) -> list[dict[str, Any]]:
    loopback.script(message())
    client.generate(messages)
    content: list[dict[str, Any]] = loopback.body["messages"][-1]["content"]
    return content


def test_images_and_documents_have_their_sources(client: Client, loopback: Loopback) -> None:
    """Data, addresses and uploads become the sources of the Messages API; a mark may stand on each."""
    sent = _content(
        client,
        loopback,
        Message.user(
            Image.from_bytes(PNG, "image/png"),
            Image(url="https://example.org/valve.png"),
            File.from_bytes("manual.pdf", b"%PDF", "application/pdf", cache="1h"),
            File("notes.txt", data=b64encode("naïve".encode()).decode(), media_type="text/plain"),
            File("old.pdf", file_id="file_1"),
            "Which valve?",
        ),
    )
    assert sent == [
        {"type": "image", "source": PNG_SOURCE},
        {"type": "image", "source": {"type": "url", "url": "https://example.org/valve.png"}},
        {
            "type": "document",
            "source": {
                "type": "base64",
                "media_type": "application/pdf",
                "data": b64encode(b"%PDF").decode(),
            },
            "title": "manual.pdf",
            "cache_control": {"type": "ephemeral", "ttl": "1h"},
        },
        {
            "type": "document",
            "source": {"type": "text", "media_type": "text/plain", "data": "naïve"},
            "title": "notes.txt",
        },
        {"type": "document", "source": {"type": "file", "file_id": "file_1"}, "title": "old.pdf"},
        {"type": "text", "text": "Which valve?"},
    ]


@pytest.mark.parametrize(
    "part",
    [
        {"type": "image", "source": PNG_SOURCE},
        {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{ENCODED}"}},
        {"type": "input_image", "image_url": f"data:image/png;base64,{ENCODED}"},
    ],
    ids=["anthropic", "chat", "responses"],
)
def test_every_dialects_image_arrives(part: dict[str, Any], client: Client, loopback: Loopback) -> None:
    """An image written as any vendor's dict is sent as this vendor's."""
    sent = _content(client, loopback, [{"role": "user", "content": [part, {"type": "text", "text": "?"}]}])
    assert sent[0] == {"type": "image", "source": PNG_SOURCE}


def test_a_tools_result_may_hold_an_image(client: Client, loopback: Loopback) -> None:
    """Texts and images of a result go out as its content."""
    sent = _content(
        client,
        loopback,
        [
            Message.user("Look"),
            Message.assistant(kvsdk.ToolCall("c1", "look")),
            Message.tool("c1", [Text("A valve:"), Image.from_bytes(PNG, "image/png")]),
        ],
    )
    assert sent[0]["content"] == [
        {"type": "text", "text": "A valve:"},
        {"type": "image", "source": PNG_SOURCE},
    ]


def test_what_the_vendor_cannot_read_is_refused_before_sending(client: Client, loopback: Loopback) -> None:
    """A media type that the API does not list is named, with those it takes."""
    for part in (Image.from_bytes(b"BM", "image/bmp"), File.from_bytes("a.zip", b"PK", "application/zip")):
        with pytest.raises(kvsdk.InvalidRequest, match=r"anthropic takes (images|files) of"):
            client.generate(Message.user(part))
    assert loopback.bodies == []


def test_an_image_over_the_vendors_limit_is_the_vendors_error(client: Client, loopback: Loopback) -> None:
    """Limits of size are the vendor's to keep: its refusal has its words and its request's id."""
    error = {"type": "error", "error": {"type": "request_too_large", "message": "image exceeds 5 MB maximum"}}
    loopback.script(Scripted(error, 413, {"request-id": "req_7"}))
    with pytest.raises(kvsdk.RequestRejected, match="exceeds 5 MB") as caught:
        client.generate(Message.user(Image.from_bytes(PNG * 1000, "image/png")))
    assert (caught.value.status, caught.value.request_id) == (413, "req_7")


def test_a_file_by_path_is_known_by_its_ending(tmp_path: Path) -> None:
    """`from_path` reads the bytes and the media type, and says what it cannot tell."""
    path = tmp_path / "valve.png"
    path.write_bytes(PNG)
    assert Image.from_path(path) == Image.from_bytes(PNG, "image/png")
    with pytest.raises(kvsdk.InvalidRequest, match="does not say what it is"):
        Image.from_path(tmp_path / "valve")
    with pytest.raises(kvsdk.InvalidRequest, match="cannot be read"):
        File.from_path(tmp_path / "none.pdf")


def test_blank_texts_are_left_out(client: Client, loopback: Loopback) -> None:
    """The vendor refuses blank texts, and they say nothing."""
    sent = _content(client, loopback, [Message.user(Text(" \n"), Text("Which valve?"))])
    assert sent == [{"type": "text", "text": "Which valve?"}]
