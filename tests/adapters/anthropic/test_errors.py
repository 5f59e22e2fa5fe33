"""The vendor's errors as ours."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import anthropic
import kvsdk
import pytest
from anthropic_wire import MODEL, message
from asking import ask
from kvsdk import Client
from kvsdk.cost import LedgerRow
from loopback import Loopback, Scripted


def refusal(status: int, kind: str = "some_error", **headers: str) -> Scripted:
    body = {"type": "error", "error": {"type": kind, "message": "The vendor's words"}, "request_id": "req_9"}
    return Scripted(body, status=status, headers={"request-id": "req_9"} | headers)


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
        (413, kvsdk.RequestRejected),
        (422, kvsdk.RequestRejected),
        (429, kvsdk.RateLimited),
        (500, kvsdk.BackendUnavailable),
        (503, kvsdk.BackendUnavailable),
        (504, kvsdk.BackendUnavailable),
        (529, kvsdk.BackendUnavailable),
    ],
)
@pytest.mark.parametrize("streams", [False, True])
def test_each_status_has_its_leaf(
    client: Client, loopback: Loopback, status: int, leaf: type[kvsdk.KvsdkError], streams: bool
) -> None:
    """An HTTP status raises exactly its class, with the vendor's words, its request id and its own error."""
    loopback.script(refusal(status))
    with pytest.raises(kvsdk.BackendError, match="The vendor's words") as caught:
        ask(client, "x", streams=streams)
    error = caught.value
    assert type(error) is leaf
    assert (error.backend, error.model, error.status, error.request_id) == (
        "anthropic",
        MODEL,
        status,
        "req_9",
    )
    assert isinstance(error.__cause__, anthropic.APIStatusError)
    assert len(loopback.bodies) == 1


@pytest.mark.parametrize(
    ("header", "value", "seconds"),
    [("retry-after", "7", 7.0), ("retry-after-ms", "250", 0.25), ("retry-after", "soon", None)],
)
def test_the_wait_that_was_asked_for_is_told(
    client: Client, loopback: Loopback, header: str, value: str, seconds: float | None
) -> None:
    """`retry_after_s` is the header in seconds; nonsense in it is no wait."""
    loopback.script(refusal(429, **{header: value}))
    with pytest.raises(kvsdk.RateLimited) as caught:
        client.generate("x")
    assert caught.value.retry_after_s == seconds


def test_a_date_to_retry_after_is_seconds_from_now(client: Client, loopback: Loopback) -> None:
    """`retry-after` may be a date."""
    in_a_minute = datetime.now(UTC) + timedelta(seconds=60)
    loopback.script(refusal(429, **{"retry-after": format_datetime(in_a_minute, usegmt=True)}))
    with pytest.raises(kvsdk.RateLimited) as caught:
        client.generate("x")
    assert caught.value.retry_after_s is not None
    assert 50 < caught.value.retry_after_s <= 60


def test_no_connection_is_unreachable(connect: Callable[..., Client]) -> None:
    """A port where nothing listens."""
    import socket

    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    with pytest.raises(kvsdk.BackendUnreachable) as caught:
        connect(base_url=f"http://127.0.0.1:{port}").generate("x")
    assert type(caught.value) is kvsdk.BackendUnreachable


def test_a_slow_server_runs_into_the_deadline(connect: Callable[..., Client], loopback: Loopback) -> None:
    """`timeout_s` ends the call, retries included; the last attempt's error is the cause."""
    loopback.script(Scripted(message(), held=True))
    with pytest.raises(kvsdk.DeadlineExceeded, match=r"0\.05") as caught:
        connect(retry=3).generate("x", timeout_s=0.05)
    assert isinstance(caught.value.__cause__, kvsdk.BackendTimeout)
    assert len(loopback.bodies) <= 1


def test_without_retries_a_slow_server_is_a_timeout(
    connect: Callable[..., Client], loopback: Loopback
) -> None:
    """With `retry=False` the attempt's own error is raised."""
    loopback.script(Scripted(message(), held=True))
    with pytest.raises(kvsdk.BackendTimeout):
        connect(retry=False).generate("x", timeout_s=0.05)


def test_a_refused_attempt_costs_nothing_and_is_in_the_ledger(
    client: Client, loopback: Loopback, rows: Callable[[], list[LedgerRow]]
) -> None:
    """A 4xx was not billed: its row costs 0 and names the error; a 5xx may have been: unknown."""
    loopback.script(refusal(400), refusal(500))
    for leaf in (kvsdk.RequestRejected, kvsdk.BackendUnavailable):
        with pytest.raises(leaf):
            client.generate("x")
    refused, failed = rows()
    assert (refused.state, refused.error, refused.cost.total) == ("failed", "RequestRejected", 0)
    assert (failed.state, failed.error, failed.cost.total) == ("failed", "BackendUnavailable", None)
    assert failed.request_id == "req_9"
    assert failed.reply_id is None
