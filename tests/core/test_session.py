"""Sessions: what they remember, and how they are found again."""

from __future__ import annotations

from typing import Any

import pytest
from anthropic_wire import message
from kvsdk import Client, InvalidRequest, Message, Text
from kvsdk.session import SessionTable
from loopback import Loopback
from openai_wire import response

LONG = "S" * 12000
WRITES = {
    "input_tokens": 5,
    "cache_read_input_tokens": 0,
    "cache_creation_input_tokens": 3000,
    "output_tokens": 1,
}
READS = WRITES | {"cache_read_input_tokens": 3000, "cache_creation_input_tokens": 0}


@pytest.fixture
def client(loopback: Loopback) -> Any:
    with Client("anthropic:claude-sonnet-5-5", base_url=loopback.url, api_key="k", retry=False) as made:
        yield made


def marked(text: str = LONG) -> list[Text]:
    return [Text(text, cache="5m")]


def test_a_session_explains_its_misses(client: Client, loopback: Loopback) -> None:
    """First request, then a hit, then a system that changed, then a cache that lost its entry."""
    loopback.script(*(message(usage=usage) for usage in (WRITES, READS, WRITES, WRITES)))
    chat = client.session("user-42")
    replies = [
        chat.generate("a", system=marked()),
        chat.generate("b", system=marked()),
        chat.generate("c", system=marked("T" * 12000)),
        chat.generate("d", system=marked("T" * 12000)),
    ]
    misses = [reply.cache.miss for reply in replies]
    assert [miss.kind if miss else None for miss in misses] == [
        "first_request",
        None,
        "system",
        "evicted_or_unknown",
    ]
    assert misses[2] is not None
    assert misses[2].where == "system[0]"
    assert all(reply.session == "user-42" for reply in replies)


def test_the_same_name_is_the_same_session(client: Client, loopback: Loopback) -> None:
    """By name in a call, by `client.session`, and by the session itself."""
    loopback.script(*(message(id=f"msg_{number}", usage=WRITES) for number in range(3)))
    chat = client.session("user-42")
    client.generate("a", system=marked(), session="user-42")
    assert chat.state.last_reply_id == "msg_0"
    client.generate("a", system=marked(), session=chat)
    assert client.session("user-42").state is chat.state
    reply = client.session("user-42").generate("a", system=marked())
    assert reply.cache.miss is not None
    assert reply.cache.miss.kind == "evicted_or_unknown"


def test_tenants_have_sessions_of_their_own(client: Client) -> None:
    """The same name under two tenants is two sessions; the client's tenant is the default."""
    assert client.session("user-42", tenant="a").state is not client.session("user-42", tenant="b").state
    assert client.session("user-42").tenant is None
    assert (client.session("user-42", tenant="a").name, client.session("u", tenant="a").tenant) == (
        "user-42",
        "a",
    )


def test_a_call_keeps_its_sessions_tenant(loopback: Loopback) -> None:
    """The client's tenant is used where none is named."""
    loopback.script(response(), response())
    options = {"base_url": f"{loopback.url}/v1", "api_key": "k", "tenant": "ours"}
    with Client("openai:gpt-5.6-sol", **options) as client:
        client.session("u").generate("x")
        client.session("u", tenant="theirs").generate("x")
    assert [body["prompt_cache_key"] for body in loopback.bodies] == ["ours", "theirs"]


def test_a_session_scales_token_estimates(client: Client, loopback: Loopback) -> None:
    """After a reply a count is scaled by what the vendor reported, and says that it is an estimate."""
    usage = {
        "input_tokens": 1000,
        "cache_read_input_tokens": 0,
        "cache_creation_input_tokens": 0,
        "output_tokens": 1,
    }
    loopback.script(message(usage=usage))
    chat = client.session("user-42")
    assert chat.count_tokens("x" * 400) == 400 // 4
    chat.generate("x" * 2000)
    count = chat.count_tokens("x" * 400)
    assert (count, count.is_estimated) == (400 * 1000 // 2000, True)


def test_sessions_keep_no_messages(client: Client, loopback: Loopback) -> None:
    """What is sent is what the caller passed, not what was said before."""
    loopback.script(message(), message())
    chat = client.session("user-42")
    chat.generate("first")
    chat.generate([Message.user("second")])
    assert [len(body["messages"]) for body in loopback.bodies] == [1, 1]


def test_a_sessions_call_names_no_other(client: Client) -> None:
    """`session=` inside a session is a mistake."""
    with pytest.raises(InvalidRequest, match="session="):
        client.session("a").generate("x", session="b")
    with pytest.raises(InvalidRequest, match="name"):
        client.session("")


def test_of_too_many_the_least_recently_used_is_forgotten() -> None:
    """The table does not grow without end."""
    table = SessionTable(limit=2)
    one, two = table.get("1", None), table.get("2", None)
    assert table.get("1", None) is one
    table.get("3", None)
    assert table.get("1", None) is one
    assert table.get("2", None) is not two
