"""Breakpoints and cache keys on OpenAI's wire."""

from __future__ import annotations

from collections.abc import Callable
from hashlib import sha256

import pytest
from kvsdk import Client, InvalidBreakpoints, Message, Text, Tool, ToolCall
from kvsdk.testing import breakpoints
from loopback import Loopback
from openai_wire import MODEL, OLD_MODEL, completion, response

MARK = "prompt_cache_breakpoint"


def prompt() -> list[Message]:
    return [
        Message.user("a"),
        Message.assistant(ToolCall("c1", "look")),
        Message.tool("c1", "1 bar", cache=True),
        Message.user("b", "c", cache=True),
    ]


def test_responses_marks_stand_at_their_pieces(client: Client, loopback: Loopback) -> None:
    """Marks on system text, tool result and user text, in explicit mode, each with its TTL."""
    loopback.script(response())
    reply = client.generate(prompt(), system=[Text("S", cache="12h"), Text("T")])
    assert list(breakpoints(loopback.body)) == [
        "input[0].content[0]",
        "input[3].output[0]",
        "input[4].content[1]",
    ]
    assert loopback.body["input"][0]["content"][0] == {
        "type": "input_text",
        "text": "S",
        MARK: {"mode": "explicit", "ttl": "12h"},
    }
    assert loopback.body["input"][3]["output"] == [
        {"type": "input_text", "text": "1 bar", MARK: {"mode": "explicit", "ttl": "30m"}}
    ]
    assert loopback.body["prompt_cache_options"] == {"mode": "explicit"}
    assert [entry.status for entry in reply.cache.breakpoints] == ["honoured"] * 3


def test_chat_marks_have_no_ttl(chat: Client, loopback: Loopback) -> None:
    """Chat's options know 30m only, which is the default: the mark names none."""
    loopback.script(completion())
    chat.generate(prompt(), system=[Text("S", cache="30m"), Text("T")])
    assert list(breakpoints(loopback.body)) == [
        "messages[0].content[0]",
        "messages[3].content[0]",
        "messages[4].content[1]",
    ]
    assert loopback.body["messages"][3]["content"] == [
        {"type": "text", "text": "1 bar", MARK: {"mode": "explicit"}}
    ]
    assert loopback.body["prompt_cache_options"] == {"mode": "explicit"}


@pytest.mark.parametrize(
    ("api", "asked", "granted"),
    [
        ("responses", "5m", "30m"),
        ("responses", "1h", "30m"),
        ("responses", "12h", "12h"),
        ("chat", "5m", "30m"),
        ("chat", "12h", "30m"),
    ],
)
def test_ttls_are_rounded_to_those_of_the_api(
    connect: Callable[..., Client], loopback: Loopback, api: str, asked: str, granted: str
) -> None:
    """Down, and to the shortest where there is no shorter one."""
    loopback.script(response() if api == "responses" else completion())
    reply = connect(api=api).generate([Message.user("x", cache=asked)])
    (entry,) = reply.cache.breakpoints
    assert (entry.requested_ttl, entry.granted_ttl) == (asked, granted)
    assert entry.status == ("honoured" if asked == granted else "mapped")


def test_pieces_that_cannot_carry_a_mark_give_it_to_an_earlier_one(
    client: Client, loopback: Loopback
) -> None:
    """Assistant text cannot be marked; a mark on a tool has nothing before it and is dropped."""
    loopback.script(response())
    reply = client.generate(
        [Message.user("a"), Message.assistant("b", cache=True), Message.user("c")],
        tools=[Tool("look", "", {"type": "object"}, cache=True)],
    )
    assert list(breakpoints(loopback.body)) == ["input[0].content[0]"]
    assert [entry.status for entry in reply.cache.breakpoints] == ["dropped", "mapped"]


def test_at_most_four_marks_are_sent(client: Client, loopback: Loopback) -> None:
    """More would be dropped by the vendor in silence."""
    loopback.script(response())
    reply = client.generate([Message.user(*(Text(str(number), cache=True) for number in range(7)))])
    assert len(breakpoints(loopback.body)) == 4
    assert [entry.status for entry in reply.cache.breakpoints].count("dropped") == 3


def test_automatic_breakpoints(client: Client, loopback: Loopback) -> None:
    """`cache="auto"` marks the system's end and the last turn's; tools cannot be marked here."""
    loopback.script(response())
    client.generate(
        [Message.user("a")], system=["S", "T"], tools=[Tool("look", "", {"type": "object"})], cache="auto"
    )
    assert list(breakpoints(loopback.body)) == ["input[0].content[1]", "input[1].content[0]"]


def test_without_a_breakpoint_the_mode_is_the_vendors(client: Client, loopback: Loopback) -> None:
    """No marks, no options: caching stays implicit, not switched off."""
    loopback.script(response())
    client.generate("x", system="S")
    assert "prompt_cache" not in loopback.request.get_data(as_text=True)


@pytest.mark.parametrize("model", [OLD_MODEL, "gpt-4o", "gpt-5", "o3", "gpt-5-mini-2025-08-07"])
@pytest.mark.parametrize("api", ["responses", "chat"])
def test_older_models_get_no_marks(
    connect: Callable[..., Client], loopback: Loopback, model: str, api: str
) -> None:
    """Before gpt-5.6 a mark is a 400: it stays here and is reported as advisory."""
    loopback.script(response() if api == "responses" else completion())
    turn = Message.user("x", cache="30m")
    reply = connect(model, api=api).generate([turn], system=[Text("S", cache=True)])
    assert "prompt_cache" not in loopback.request.get_data(as_text=True)
    entries = reply.cache.breakpoints
    assert [(entry.status, entry.granted_ttl) for entry in entries] == [("advisory", None)] * 2


@pytest.mark.parametrize(
    ("model", "retained"),
    [
        (OLD_MODEL, True),
        ("gpt-5.5-pro", True),
        ("gpt-5.4-2026-03-05", True),
        ("gpt-5.1-codex-mini", True),
        ("gpt-5", True),
        ("gpt-4.1", True),
        ("gpt-5-mini", False),
        ("gpt-4o", False),
        ("o3", False),
    ],
)
@pytest.mark.parametrize("asked", ["1h", "12h"])
@pytest.mark.parametrize("api", ["responses", "chat"])
def test_older_models_are_asked_to_retain(
    connect: Callable[..., Client], loopback: Loopback, model: str, retained: bool, asked: str, api: str
) -> None:
    """An hour or more becomes `prompt_cache_retention` where the model has it, and nothing elsewhere."""
    loopback.script(response() if api == "responses" else completion())
    reply = connect(model, api=api).generate([Message.user("x", cache=asked)])
    sent = {name: value for name, value in loopback.body.items() if name.startswith("prompt_cache")}
    assert sent == ({"prompt_cache_retention": "24h"} if retained else {})
    assert MARK not in loopback.request.get_data(as_text=True)
    (entry,) = reply.cache.breakpoints
    assert (entry.status, entry.granted_ttl) == ("advisory", None)
    assert ("prompt_cache_retention '24h'" in str(entry.reason)) is retained


@pytest.mark.parametrize("model", [MODEL, "gpt-5.6", "gpt-6-luna", "gpt-6.1-terra", "gpt-10"])
def test_newer_models_get_marks(connect: Callable[..., Client], loopback: Loopback, model: str) -> None:
    """From gpt-5.6 on, whatever the number of digits."""
    loopback.script(response())
    connect(model).generate([Message.user("x", cache=True)])
    assert list(breakpoints(loopback.body)) == ["input[0].content[0]"]


def test_the_mode_is_said_before_and_after(client: Client, loopback: Loopback) -> None:
    """`explain` and the reply have the same sentence."""
    loopback.script(response(), response())
    for messages, word in ((["x"], "implicit mode writes the whole prompt"), (["x"], "explicit mode")):
        turn = Message.user(*messages, cache=word == "explicit mode")
        notes = client.explain([turn]).notes
        assert any(word in note for note in notes)
        assert client.generate([turn]).cache.notes == notes


def test_strict_refuses_what_would_be_changed(client: Client, loopback: Loopback) -> None:
    """Nothing is sent."""
    with pytest.raises(InvalidBreakpoints, match="1h"):
        client.generate([Message.user("x", cache="1h")], strict=True)
    assert loopback.bodies == []


@pytest.mark.parametrize("api", ["responses", "chat"])
def test_the_key_of_newer_models_is_the_tenant(
    connect: Callable[..., Client], loopback: Loopback, api: str
) -> None:
    """There it is a partition: sessions of one tenant share what they can."""
    body = response() if api == "responses" else completion()
    loopback.script(body, body, body)
    client = connect(api=api)
    client.session("user-1", tenant="acme").generate("x")
    client.session("user-2", tenant="acme").generate("x")
    client.generate("x", session="user-3")
    assert [sent.get("prompt_cache_key") for sent in loopback.bodies] == ["acme", "acme", None]


def test_the_key_of_older_models_is_the_session(connect: Callable[..., Client], loopback: Loopback) -> None:
    """There it is a routing hint: one conversation goes to one machine; without one, the tenant."""
    loopback.script(response(), response(), response())
    client = connect(OLD_MODEL)
    client.generate("x", session="user-1")
    client.generate("x", tenant="acme")
    client.generate("x")
    assert [sent.get("prompt_cache_key") for sent in loopback.bodies] == ["user-1", "acme", None]


@pytest.mark.parametrize("name", ["a" * 65, "kunde-ä"])
def test_a_key_that_the_vendor_would_refuse_is_a_digest(
    client: Client, loopback: Loopback, name: str
) -> None:
    """Longer than 64 characters, or not ASCII: its SHA-256, always the same."""
    loopback.script(response())
    client.generate("x", tenant=name)
    assert loopback.body["prompt_cache_key"] == sha256(name.encode()).hexdigest()
