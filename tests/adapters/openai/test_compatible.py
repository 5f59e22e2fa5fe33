"""Servers that speak Chat Completions and are not OpenAI."""

from __future__ import annotations

from collections.abc import Callable

import kvsdk
import pytest
from kvsdk import Client, Message, Text
from loopback import Loopback, sse
from openai_wire import chat_stream, completion, response


def test_nothing_is_sent_that_a_strict_server_refuses(
    server: Callable[..., Client], loopback: Loopback
) -> None:
    """No marks, no options, no key, not even as null; the limit is called `max_tokens`."""
    loopback.script(completion())
    client = server()
    reply = client.session("user-1", tenant="acme").generate(
        [
            Message.user("x", cache="1h"),
            {
                "role": "user",
                "content": [{"type": "text", "text": "y", "cache_control": {"type": "ephemeral"}}],
            },
        ],
        system=[Text("S", cache=True)],
        max_tokens=50,
    )
    assert loopback.body == {
        "model": "some-model",
        "messages": [
            {"role": "system", "content": "S"},
            {"role": "user", "content": "x"},
            {"role": "user", "content": "y"},
        ],
        "max_tokens": 50,
    }
    assert loopback.request.path == "/v1/chat/completions"
    assert [entry.status for entry in reply.cache.breakpoints] == ["advisory"] * 3


def test_a_key_in_the_environment_is_not_sent_to_another_server(
    server: Callable[..., Client], loopback: Loopback, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`OPENAI_API_KEY` belongs to OpenAI; `api_key=` is sent."""
    monkeypatch.setenv("OPENAI_API_KEY", "sk-belongs-to-openai")
    loopback.script(completion(), completion())
    server().generate("x")
    server(api_key="sk-mine").generate("x")
    first, second = (request.headers["authorization"] for request in loopback.requests)
    assert "sk-belongs-to-openai" not in first
    assert second == "Bearer sk-mine"


def test_an_unknown_model_has_no_price(server: Callable[..., Client], loopback: Loopback) -> None:
    """A server of one's own is not priced from a vendor's list, even when its model has a vendor's name."""
    loopback.script(completion(model="gpt-4o"), completion(model="gpt-4o"))
    for client in (server("gpt-4o"), server("gpt-4o", profile="vllm")):
        reply = client.generate("x")
        assert reply.cost.total is None
        assert reply.cost.reason


def test_vllm_reports_its_writes(server: Callable[..., Client], loopback: Loopback) -> None:
    """What vLLM calls created is what was written; details of null are unknown."""
    details = {"cached_tokens": 1600, "created_cache_tokens": 1000}
    usage = {"prompt_tokens": 2600, "completion_tokens": 100}
    loopback.script(
        completion(usage=usage | {"prompt_tokens_details": details}),
        completion(usage=usage | {"prompt_tokens_details": None}),
    )
    client = server(profile="vllm")
    known = client.generate("x").usage
    assert (known.cache_read_tokens, known.cache_write_tokens, known.fresh_tokens) == (1600, 1000, 0)
    unknown = client.generate("x")
    assert unknown.usage.input_tokens == 2600
    assert unknown.usage.cache_read_tokens is None
    assert unknown.usage.cache_write_tokens is None
    assert unknown.cache.hit_rate is None


def test_a_write_count_that_is_missing_is_unknown_at_an_unknown_server(
    server: Callable[..., Client], loopback: Loopback
) -> None:
    """Nothing is assumed of a server that is not known: read is reported, write is not."""
    usage = {"prompt_tokens": 100, "completion_tokens": 5, "prompt_tokens_details": {"cached_tokens": 64}}
    loopback.script(completion(usage=usage))
    reported = server().generate("x").usage
    assert (reported.cache_read_tokens, reported.cache_write_tokens) == (64, None)


def test_streams_work_the_same(server: Callable[..., Client], loopback: Loopback) -> None:
    """Text and usage of a stream."""
    loopback.script(sse(chat_stream("Valve", " A.")))
    with server().stream("x") as answer:
        assert list(answer.text_stream) == ["Valve", " A."]
    assert answer.reply.usage.input_tokens == 3000


def test_the_responses_api_may_be_asked_for(server: Callable[..., Client], loopback: Loopback) -> None:
    """`api="responses"` for a server that has it."""
    from openai_wire import response

    loopback.script(response())
    assert server(api="responses").generate("x").text == "Valve A."
    assert loopback.request.path == "/v1/responses"


@pytest.mark.parametrize(
    "address",
    ["openai+http:localhost/v1#m", "openai+http://127.0.0.1:9/v1", "openai+http://127.0.0.1:9/v1#"],
)
def test_an_address_without_host_or_model_is_refused(address: str) -> None:
    """The error shows how an address is written."""
    with pytest.raises(kvsdk.ConfigurationError, match="#MODEL"):
        Client(address)


def test_an_unknown_profile_is_refused() -> None:
    """And the known ones are named."""
    with pytest.raises(kvsdk.ConfigurationError, match="vllm"):
        Client("openai+http://127.0.0.1:9/v1#m", profile="nothing")


def test_qwens_session_cache_is_asked_for_by_a_header(
    server: Callable[..., Client], loopback: Loopback
) -> None:
    """On its Responses API, in sessions only: it is off by default."""
    loopback.script(response(), response())
    client = server(profile="qwen", api="responses")
    client.generate("x")
    client.session("user-1").generate("x")
    sent = [request.headers.get("x-dashscope-session-cache") for request in loopback.requests]
    assert sent == [None, "enable"]
