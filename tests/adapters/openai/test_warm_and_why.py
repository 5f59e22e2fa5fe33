"""Writing the cache without an answer, and the vendor's own word on a miss."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import kvsdk
import pytest
from kvsdk import AsyncClient, Client, Message, Text
from loopback import Loopback, sse
from openai_wire import MODEL, OLD_MODEL, RESPONSES_USAGE, completion, output_text, response, response_stream

COLD: dict[str, Any] = RESPONSES_USAGE | {
    "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 2900},
}


def miss(reason: str, **more: int) -> dict[str, Any]:
    return {"type": "cache_miss", "reason": reason, "cache_missed_tokens": 1200, **more}


def test_prewarm_writes_without_an_answer(client: Client, loopback: Loopback) -> None:
    """The prompt with its marks, `prewarm`, no stream; the reply has the counts and the cost."""
    warm = response(usage=COLD | {"output_tokens": 0}) | {"output": []}
    loopback.script(warm)
    reply = client.prewarm([Message.user("x")], system=[Text("S", cache="12h")])
    assert loopback.body["prompt_cache_options"] == {"mode": "explicit", "prewarm": True}
    assert "stream" not in loopback.body
    assert (reply.text, reply.usage.cache_write_tokens, reply.usage.output_tokens) == ("", 2900, 0)
    assert reply.cost.total == reply.cost.input + reply.cost.cache_write  # type: ignore[operator]


async def test_prewarm_works_from_async_code(loopback: Loopback) -> None:
    """Without a mark the vendor places its own."""
    loopback.script(response(usage=COLD) | {"output": []})
    async with AsyncClient(f"openai:{MODEL}", base_url=f"{loopback.url}/v1", api_key="k") as client:
        await client.prewarm("x")
    assert loopback.body["prompt_cache_options"] == {"prewarm": True}


@pytest.mark.parametrize(("model", "api"), [(MODEL, "chat"), (OLD_MODEL, "responses"), ("gpt-4o", "chat")])
def test_prewarm_is_refused_where_there_is_none(
    connect: Callable[..., Client], loopback: Loopback, model: str, api: str
) -> None:
    """Chat has no prewarm, nor have models before gpt-5.6."""
    with pytest.raises(kvsdk.Unsupported):
        connect(model, api=api).prewarm("x")
    assert loopback.bodies == []


def test_a_session_asks_what_its_last_response_left(client: Client, loopback: Loopback) -> None:
    """From the second request on, with the id of the first; with a mark beside the mode."""
    chat = client.session("user-1")
    loopback.script(response(id="resp_a"), response(id="resp_b"), response(id="resp_c"))
    chat.generate("x")
    chat.generate("x")
    chat.generate([Message.user("x", cache=True)])
    assert [body.get("prompt_cache_options") for body in loopback.bodies] == [
        None,
        {"comparison_response_id": "resp_a"},
        {"mode": "explicit", "comparison_response_id": "resp_b"},
    ]


@pytest.mark.parametrize(("model", "api"), [(MODEL, "chat"), (OLD_MODEL, "responses")])
def test_nothing_is_asked_where_there_are_no_diagnostics(
    connect: Callable[..., Client], loopback: Loopback, model: str, api: str
) -> None:
    """They belong to Responses and to gpt-5.6 and later."""
    body = completion() if api == "chat" else response()
    loopback.script(body, body)
    chat = connect(model, api=api).session("user-1")
    chat.generate("x")
    chat.generate("x")
    assert "comparison" not in loopback.requests[1].get_data(as_text=True)


REASONS = [
    ("model_changed", "model", None),
    ("tools_changed", "tools", None),
    ("input_changed", "messages", None),
    ("context_compacted", "messages", None),
    ("prompt_cache_key_changed", "settings", "prompt_cache_key"),
    ("text_format_changed", "settings", "text.format"),
    ("reasoning_effort_changed", "settings", "reasoning.effort"),
    ("verbosity_changed", "settings", "text.verbosity"),
    ("service_tier_changed", "settings", "service_tier"),
    ("brand_new", "evicted_or_unknown", None),
]


@pytest.mark.parametrize(("reason", "kind", "where"), REASONS)
@pytest.mark.parametrize("streams", [False, True])
def test_each_reason_has_a_kind(
    client: Client, loopback: Loopback, reason: str, kind: str, where: str | None, streams: bool
) -> None:
    """The vendor's reason, with the tokens that it cost."""
    body = response(output_text("A"), usage=COLD, prompt_cache_diagnostics=miss(reason))
    if streams:
        loopback.script(sse([*response_stream("A")[:-1], {"type": "response.completed", "response": body}]))
        with client.stream([Message.user("x", cache=True)]) as answer:
            list(answer)
        found = answer.reply.cache.miss
    else:
        loopback.script(body)
        found = client.generate([Message.user("x", cache=True)]).cache.miss
    assert found is not None
    assert (found.kind, found.where) == (kind, where)
    assert reason in found.detail
    assert "1200 tokens" in found.detail


def test_the_vendors_word_completes_ours(client: Client, loopback: Loopback) -> None:
    """We know the place, the vendor that it was so."""
    chat = client.session("user-1")
    diagnostics = miss("input_changed", comparison_reusable_tokens=2900)
    loopback.prefix_moves = "the first message changes, to be found"
    loopback.script(response(usage=COLD), response(usage=COLD, prompt_cache_diagnostics=diagnostics))
    chat.generate([Message.user("one", cache=True)])
    found = chat.generate([Message.user("other", cache=True)]).cache.miss
    assert found is not None
    assert (found.kind, found.where) == ("messages", "messages[0].parts[0]")
    assert "about 1200 tokens" in found.detail
    assert "a prefix of 2900" in found.detail


@pytest.mark.parametrize(
    ("diagnostics", "note"),
    [
        ({"type": "cache_hit"}, None),
        ({"type": "comparison_response_not_found"}, "no longer has the session's last response"),
        ({"type": "unavailable"}, "no cache diagnostics"),
        ({"type": "brand_new"}, "brand_new"),
        (None, None),
    ],
)
def test_no_comparison_is_no_reason(
    client: Client, loopback: Loopback, diagnostics: dict[str, Any] | None, note: str | None
) -> None:
    """A hit says nothing; what could not be compared is a note."""
    loopback.script(response(prompt_cache_diagnostics=diagnostics))
    cache = client.generate([Message.user("x", cache=True)]).cache
    assert cache.miss is None
    added = [one for one in cache.notes if "mode" not in one]
    assert len(added) == (note is not None)
    assert all(str(note) in one for one in added)
