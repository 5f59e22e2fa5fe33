"""OpenAI's errors as ours, of both APIs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import kvsdk
import openai
import pytest
from asking import ask
from kvsdk import Client
from kvsdk.cost import LedgerRow
from loopback import Loopback, Scripted, sse
from openai_wire import MODEL, begun, chunk, completion, response, text_delta

APIS = pytest.mark.parametrize("api", ["responses", "chat"])
STREAMS = pytest.mark.parametrize("streams", [False, True])


def refusal(status: int, **headers: str) -> Scripted:
    body = {"error": {"message": "The vendor's words", "type": "some_error", "code": None, "param": None}}
    return Scripted(body, status=status, headers={"x-request-id": "req_9"} | headers)


@pytest.mark.parametrize(
    ("status", "leaf"),
    [
        (400, kvsdk.RequestRejected),
        (401, kvsdk.AuthenticationFailed),
        (402, kvsdk.RequestRejected),
        (403, kvsdk.AuthenticationFailed),
        (404, kvsdk.ModelNotFound),
        (408, kvsdk.BackendUnavailable),
        (409, kvsdk.BackendUnavailable),
        (422, kvsdk.RequestRejected),
        (429, kvsdk.RateLimited),
        (500, kvsdk.BackendUnavailable),
        (503, kvsdk.BackendUnavailable),
    ],
)
@STREAMS
def test_each_status_has_its_leaf(
    client: Client, loopback: Loopback, status: int, leaf: type[kvsdk.KvsdkError], streams: bool
) -> None:
    """An HTTP status raises exactly its class, with the vendor's words, its request id and its own error."""
    loopback.script(refusal(status, **{"retry-after": "7"}))
    with pytest.raises(kvsdk.BackendError, match="The vendor's words") as caught:
        ask(client, "x", streams=streams)
    error = caught.value
    assert type(error) is leaf
    assert (error.backend, error.model, error.status, error.request_id) == ("openai", MODEL, status, "req_9")
    assert error.retry_after_s == 7
    assert isinstance(error.__cause__, openai.APIStatusError)
    assert len(loopback.bodies) == 1


@APIS
@STREAMS
def test_html_with_status_200_is_a_protocol_error(
    connect: Callable[..., Client], loopback: Loopback, api: str, streams: bool
) -> None:
    """The error has the body's start and the request's id."""
    page = Scripted(b"<html>hotel wifi</html>", content_type="text/html", headers={"x-request-id": "r1"})
    loopback.script(page)
    with pytest.raises(kvsdk.BackendProtocolError, match="hotel wifi") as caught:
        ask(connect(api=api), "x", streams=streams)
    assert (caught.value.backend, caught.value.model, caught.value.request_id) == ("openai", MODEL, "r1")


@pytest.mark.parametrize(
    "body",
    [
        {},
        [],
        None,
        "hello",
        {"output": None},
        {"output": ["hello"]},
        {"output": [{"type": "function_call"}]},
        {"output": [{"type": "message", "content": [{"type": "output_text", "text": 7}]}]},
        response(usage={"input_tokens": "many"}),
        response(usage={"input_tokens": -1, "output_tokens": 1}),
        response(status="failed", output=[], error="words"),
    ],
)
def test_json_that_is_no_response_is_a_protocol_error(client: Client, loopback: Loopback, body: Any) -> None:
    """Whatever does not fit is the backend's fault and never a bare Python error."""
    loopback.script(body)
    with pytest.raises(kvsdk.BackendProtocolError) as caught:
        client.generate("x")
    assert caught.value.model == MODEL


@pytest.mark.parametrize(
    "body",
    [
        {},
        [],
        {"choices": []},
        {"choices": [{"message": None}]},
        {"choices": ["hello"]},
        completion(None, {"id": "c"}),
        completion(usage={"prompt_tokens": "many"}),
        completion(usage=7),
    ],
)
def test_json_that_is_no_completion_is_a_protocol_error(chat: Client, loopback: Loopback, body: Any) -> None:
    """The same for Chat."""
    loopback.script(body)
    with pytest.raises(kvsdk.BackendProtocolError):
        chat.generate("x")


@pytest.mark.parametrize(
    ("api", "events"),
    [
        ("responses", [*begun(), text_delta("A"), text_delta("B") | {"output_index": 9}]),
        ("responses", [*begun(), text_delta("A"), {"type": "response.completed", "response": 5}]),
        ("responses", [*begun(), text_delta("A"), {"type": "response.output_item.done"}]),
        ("chat", [chunk({"content": "A"}), {"choices": ["hello"]}]),
        ("chat", [chunk({"content": "A"}), chunk({"tool_calls": [5]})]),
        ("chat", [chunk({"content": "A"}), "{nonsense"]),
    ],
)
def test_an_event_that_does_not_fit_breaks_the_stream_off(
    connect: Callable[..., Client],
    loopback: Loopback,
    api: str,
    events: list,
    rows: Callable[[], list[LedgerRow]],
) -> None:
    """What had arrived is kept, and billed."""
    loopback.script(sse(events))
    with connect(api=api).stream("x") as answer, pytest.raises(kvsdk.StreamTruncated) as caught:
        list(answer)
    assert caught.value.reply is not None
    assert [row.state for row in rows()] == ["partial"]


@pytest.mark.parametrize(
    ("code", "leaf"),
    [
        ("server_error", kvsdk.BackendUnavailable),
        ("rate_limit_exceeded", kvsdk.RateLimited),
        ("vector_store_timeout", kvsdk.BackendUnavailable),
        ("invalid_image_url", kvsdk.RequestRejected),
        ("image_too_large", kvsdk.RequestRejected),
        ("bio_policy", kvsdk.RequestRejected),
        ("brand_new", kvsdk.BackendUnavailable),
        (429, kvsdk.RateLimited),
        (502, kvsdk.BackendUnavailable),
    ],
)
def test_codes_inside_an_answer(
    client: Client, loopback: Loopback, code: Any, leaf: type[kvsdk.KvsdkError]
) -> None:
    """What the vendor can do nothing about is the request's fault and not tried again."""
    loopback.script(response(status="failed", output=[], error={"code": code, "message": "words"}))
    with pytest.raises(kvsdk.BackendError, match="words") as caught:
        client.generate("x")
    assert type(caught.value) is leaf


def test_two_kinds_of_state_are_refused_before_sending(client: Client, loopback: Loopback) -> None:
    """`conversation` and `previous_response_id` exclude each other: the vendor answers 400."""
    state = {"conversation": "conv_1", "previous_response_id": "resp_1"}
    with pytest.raises(kvsdk.InvalidRequest, match="one of them"):
        client.generate("x", extra={"openai": state})
    assert loopback.bodies == []


@APIS
def test_a_slow_server_runs_into_the_deadline(
    connect: Callable[..., Client], loopback: Loopback, api: str
) -> None:
    """`timeout_s` ends the call."""
    loopback.script(Scripted({}, held=True))
    with pytest.raises(kvsdk.DeadlineExceeded) as caught:
        connect(api=api, retry=3).generate("x", timeout_s=0.05)
    assert isinstance(caught.value.__cause__, kvsdk.BackendTimeout)
