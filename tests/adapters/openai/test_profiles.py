"""Vendors that speak Chat Completions: what each is sent, and which a host is."""

from __future__ import annotations

from collections.abc import Callable
from hashlib import sha256
from typing import Any

import kvsdk
import pytest
from asking import ask
from kvsdk import AsyncClient, Client, Message, Text, Tool
from loopback import Loopback, sse
from openai_wire import completion, details, response, stream_of

LOOK = Tool("look", "Looks.", {"type": "object"}, cache=True)
USAGE = {"prompt_tokens": 3000, "completion_tokens": 5}


# ---------------------------------------------------------------------- what is sent

PLAIN: dict[str, Any] = {
    "messages": [
        {"role": "system", "content": "S"},
        {"role": "user", "content": "x"},
    ],
    "max_tokens": 50,
}
LIMITED: dict[str, Any] = {"messages": PLAIN["messages"], "max_completion_tokens": 50}
MARK = {"cache_control": {"type": "ephemeral"}}


def marked(system: dict[str, Any]) -> dict[str, Any]:
    return {
        "messages": [
            {"role": "system", "content": [{"type": "text", "text": "S", **system}]},
            {"role": "user", "content": [{"type": "text", "text": "x", **MARK}]},
        ],
        "max_tokens": 50,
    }


#: profile: the model, the body beside `model` and `tools`, the headers, the status of the breakpoints
SENT: dict[str, tuple[str, dict[str, Any], dict[str, str], str]] = {
    "compatible": ("m", PLAIN, {}, "advisory"),
    "deepseek": ("deepseek-chat", PLAIN | {"user_id": "acme"}, {}, "advisory"),
    "xai": ("grok-4.7", LIMITED, {"x-grok-conv-id": "user-1"}, "advisory"),
    "mistral": ("mistral-large-2512", PLAIN | {"prompt_cache_key": "user-1"}, {}, "advisory"),
    "moonshot": ("kimi-k3", PLAIN | {"prompt_cache_options": {"ttl": "1h"}}, {}, "advisory"),
    "qwen": ("qwen3-max", marked(MARK), {}, "honoured"),
    "openrouter": (
        "anthropic/claude-sonnet-5.5",
        marked({"cache_control": {"type": "ephemeral", "ttl": "1h"}}) | {"session_id": "user-1"},
        {},
        "honoured",
    ),
    "groq": ("openai/gpt-oss-120b", LIMITED, {}, "advisory"),
    "fireworks": (
        "kimi-k3",
        PLAIN | {"prompt_cache_isolation_key": "acme"},
        {"x-session-affinity": "user-1"},
        "advisory",
    ),
    "together": ("Qwen/Qwen3.7-Max", PLAIN, {}, "advisory"),
    "sglang": ("m", PLAIN, {}, "advisory"),
    "vllm": ("m", PLAIN, {}, "advisory"),
}
PROFILES = pytest.mark.parametrize("name", SENT)
HINTS = ("x-grok-conv-id", "x-session-affinity")


@PROFILES
@pytest.mark.parametrize("streams", [False, True])
def test_each_vendor_is_sent_what_it_takes(
    server: Callable[..., Client], loopback: Loopback, name: str, streams: bool
) -> None:
    """One call with marks, a session and a tenant, as each vendor's body and headers."""
    model, expected, headers, status = SENT[name]
    body = completion(model=model)
    loopback.script(sse(stream_of(model, body["usage"], content="A")) if streams else body)
    chat = server(model, profile=name).session("user-1", tenant="acme")
    reply = ask(
        chat,  # type: ignore[arg-type]  # a session calls as its client does
        [Message.user("x", cache=True)],
        streams=streams,
        system=[Text("S", cache="1h")],
        max_tokens=50,
    )
    wanted = {"model": model, **expected}
    if streams:
        wanted["stream"] = True
        if name != "mistral":
            wanted["stream_options"] = {"include_usage": True}
    assert loopback.body == wanted
    sent = {key: value for key in HINTS if (value := loopback.request.headers.get(key))}
    assert sent == headers
    last = reply.cache.breakpoints[-1]
    assert last.status == status


@PROFILES
def test_marks_and_keys_are_absent_where_they_are_refused(
    server: Callable[..., Client], loopback: Loopback, name: str
) -> None:
    """Byte for byte: not even as null."""
    model, expected, _, _ = SENT[name]
    loopback.script(completion(model=model))
    client = server(model, profile=name)
    client.session("user-1", tenant="acme").generate(
        [Message.user("x", cache="1h")], system=[Text("S", cache=True)], tools=[LOOK]
    )
    text = loopback.request.get_data(as_text=True)
    assert "prompt_cache_breakpoint" not in text
    assert "prompt_cache_retention" not in text
    for member in ("prompt_cache_key", "prompt_cache_options", "cache_control"):
        assert (member in text) is (member in str(expected)), member
    assert "null" not in text


def test_openrouter_takes_marks_on_tools(server: Callable[..., Client], loopback: Loopback) -> None:
    """A tool's mark stands beside its function; no later mark has a longer TTL."""
    loopback.script(completion())
    reply = server("anthropic/claude-sonnet-5.5", profile="openrouter").generate(
        [Message.user("x", cache="1h")], tools=[LOOK]
    )
    (tool,) = loopback.body["tools"]
    assert tool["cache_control"] == {"type": "ephemeral", "ttl": "1h"}
    assert [entry.status for entry in reply.cache.breakpoints] == ["mapped", "honoured"]


def test_qwen_has_one_ttl(server: Callable[..., Client], loopback: Loopback) -> None:
    """Five minutes: a longer one is mapped and no `ttl` is sent."""
    loopback.script(completion())
    reply = server("qwen3-max", profile="qwen").generate([Message.user("x", cache="1h")])
    assert "ttl" not in loopback.request.get_data(as_text=True)
    (entry,) = reply.cache.breakpoints
    assert (entry.status, entry.granted_ttl) == ("mapped", "5m")


@pytest.mark.parametrize(
    ("model", "asked", "sent"),
    [
        ("kimi-k3", "1h", {"ttl": "1h"}),
        ("kimi-k3.1-pro", "12h", {"ttl": "1h"}),
        ("kimi-k3", "5m", None),
        ("kimi-k3", None, None),
        ("kimi-k2.6", "1h", None),
    ],
)
def test_kimi_keeps_a_whole_request_for_an_hour(
    server: Callable[..., Client], loopback: Loopback, model: str, asked: str | None, sent: dict | None
) -> None:
    """Where a breakpoint asks for it, on the models that take it; the report says so."""
    loopback.script(completion(model=model))
    reply = server(model, profile="moonshot").generate([Message.user("x", cache=asked or True)])
    assert loopback.body.get("prompt_cache_options") == sent
    (entry,) = reply.cache.breakpoints
    assert entry.status == "advisory"
    assert ("prompt_cache_options.ttl '1h'" in str(entry.reason)) is (sent is not None)


def test_xai_has_its_key_in_the_body_of_responses(server: Callable[..., Client], loopback: Loopback) -> None:
    """The header is Chat's."""
    loopback.script(response(model="grok-4.7"))
    server("grok-4.7", profile="xai", api="responses").generate("x", session="user-1")
    assert loopback.body["prompt_cache_key"] == "user-1"
    assert "x-grok-conv-id" not in loopback.request.headers


@pytest.mark.parametrize(
    ("name", "session"), [("xai", "a\r\nx-evil: 1"), ("fireworks", "kunde ä"), ("xai", "s" * 65)]
)
def test_a_name_that_is_no_header_is_a_digest(
    server: Callable[..., Client], loopback: Loopback, name: str, session: str
) -> None:
    """Line breaks and other letters never reach a header."""
    loopback.script(completion())
    server("m", profile=name).generate("x", session=session)
    sent = [loopback.request.headers[key] for key in HINTS if key in loopback.request.headers]
    assert sent == [sha256(session.encode()).hexdigest()]
    assert "x-evil" not in loopback.request.headers


def test_deepseeks_tenants_are_letters_and_digits(server: Callable[..., Client], loopback: Loopback) -> None:
    """`user_id` takes no other characters: a digest, always the same."""
    loopback.script(completion())
    server("deepseek-chat", profile="deepseek").generate("x", tenant="me@acme.com")
    assert loopback.body["user_id"] == sha256(b"me@acme.com").hexdigest()


# ---------------------------------------------------------------------- which profile

HOSTS = {
    "api.openai.com": "openai",
    "eu.api.openai.com": "openai",
    "unit.openai.azure.com": "azure",
    "api.deepseek.com": "deepseek",
    "api.x.ai": "xai",
    "us-east-1.api.x.ai": "xai",
    "api.mistral.ai": "mistral",
    "api.moonshot.ai": "moonshot",
    "api.moonshot.cn": "moonshot",
    "dashscope-intl.aliyuncs.com": "qwen",
    "openrouter.ai": "openrouter",
    "api.groq.com": "groq",
    "api.fireworks.ai": "fireworks",
    "api.together.xyz": "together",
    "notopenrouter.ai": "compatible",
    "api.deepseek.com.evil.example": "compatible",
    "localhost": "compatible",
}


@pytest.mark.parametrize(("host", "name"), HOSTS.items())
def test_a_host_has_its_profile(host: str, name: str) -> None:
    """Chosen by the host's name, and as if it were named; a host that only looks like one is unknown."""
    address = f"openai+https://{host}/v1#gpt-5.6-sol"
    by_host, by_name = kvsdk.backend(address), kvsdk.backend(address, profile=name)
    assert by_host.capabilities == by_name.capabilities
    assert by_host._server.name == name  # type: ignore[attr-defined]


def test_a_base_url_of_another_vendor_has_that_vendors_profile() -> None:
    """`openai:` with DeepSeek's address is no OpenAI: Chat, and no cache key."""
    made = kvsdk.backend("openai:deepseek-chat", base_url="https://api.deepseek.com", api_key="k")
    assert (made.capabilities.tenant, made.capabilities.session) == ("partition", "none")
    assert "stop" in made.capabilities.settings


def test_a_vendors_key_goes_to_that_vendor_alone(
    server: Callable[..., Client], loopback: Loopback, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`DEEPSEEK_API_KEY` is read for DeepSeek's hosts, not for another that has its profile."""
    monkeypatch.setenv("DEEPSEEK_API_KEY", "sk-belongs-to-deepseek")
    loopback.script(completion())
    server("deepseek-chat", profile="deepseek").generate("x")
    assert loopback.request.headers["authorization"] == "Bearer none"
    theirs = kvsdk.backend("openai+https://api.deepseek.com#deepseek-chat")
    assert theirs._client_arguments()["api_key"] == "sk-belongs-to-deepseek"  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", ["deepseek", "openrouter", "moonshot"])
async def test_async_calls_are_the_same(loopback: Loopback, name: str) -> None:
    """Body and counts of an async call, whole and streamed."""
    model, expected, _, _ = SENT[name]
    usage = {
        "prompt_tokens": 3000,
        "completion_tokens": 5,
        "prompt_cache_hit_tokens": 7,
        **details(cached_tokens=7),
    }
    loopback.script(completion(model=model, usage=usage), sse(stream_of(model, usage, content="A")))
    async with AsyncClient(f"openai+{loopback.url}/v1#{model}", profile=name, retry=False) as client:
        options: dict[str, Any] = {
            "system": [Text("S", cache="1h")],
            "max_tokens": 50,
            "session": client.session("user-1", tenant="acme"),
        }
        turns = [Message.user("x", cache=True)]
        reply = await client.generate(turns, **options)
        async with client.stream(turns, **options) as answer:
            [event async for event in answer]
    assert loopback.bodies[0] == {"model": model, **expected}
    assert loopback.bodies[1].keys() - loopback.bodies[0].keys() == {"stream", "stream_options"}
    assert reply.usage == answer.reply.usage
    assert (reply.usage.cache_read_tokens, reply.usage.cache_write_tokens) == (7, 0)
