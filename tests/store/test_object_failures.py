"""The object tier when its store is down, silent, broken or refusing; and what it must not be or show."""

from __future__ import annotations

import re
import traceback
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from threading import Barrier
from typing import Any
from urllib.parse import quote

import pytest
from broken_servers import free_port, half_server, silent_server
from kvsdk.errors import (
    AuthenticationFailed,
    BackendError,
    BackendTimeout,
    BackendUnavailable,
    BackendUnreachable,
    InvalidRequest,
    RateLimited,
    RequestRejected,
)
from kvsdk.store.tiers.buffers import BufferPool
from kvsdk.store.tiers.object import Object
from kvsdk.store.tiers.tier import Tier
from kvsdk.testing.tier_fixtures import keep, read
from object_server import KEY_ID, SECRET, ObjectServer
from pytest_httpserver import HTTPServer
from werkzeug import Request, Response

Ask = Callable[[Tier, BufferPool], object]
Connect = Callable[..., Object]
MOMENT = timedelta(milliseconds=1)


@pytest.fixture
def on() -> Iterator[Connect]:
    """Makes tiers on a server, closed at the end: until then their threads may still ask."""
    made: list[Object] = []

    def connect(endpoint: str, timeout_s: float = 0.3, **options: Any) -> Object:
        keys = {"endpoint": endpoint.rstrip("/"), "access_key_id": KEY_ID, "secret_access_key": SECRET}
        soon = {"backoff": {"init_backoff": MOMENT, "max_backoff": MOMENT, "base": 2}}
        made.append(Object("s3://bucket", timeout_s=timeout_s, retry_config=soon, **{**keys, **options}))
        return made[-1]

    yield connect
    for tier in made:
        tier.close()


# ---------------------------------------------------------------------- what is asked of it


def test_only_an_absent_object_is_put(on: Connect, httpserver: HTTPServer, pool: BufferPool) -> None:
    """The server is asked to see to it; that it says no is a success, and costs one request."""
    path, condition = "/bucket/kv/0.safetensors", {"If-None-Match": "*"}
    httpserver.expect_ordered_request(path, "PUT", headers=condition).respond_with_data(headers={"ETag": "e"})
    httpserver.expect_ordered_request(path, "PUT", headers=condition).respond_with_data(status=412)
    tier = on(httpserver.url_for(""))
    assert [keep(tier, pool, "kv/0", b"1"), keep(tier, pool, "kv/0", b"1")] == [True, True]
    httpserver.check()
    assert len(httpserver.log) == 2


def test_many_are_looked_up_at_the_same_time(on: Connect) -> None:
    """The server answers nobody before eight have asked, so one after the other would never end."""
    eight = Barrier(8)

    def answer(request: Request) -> Response:
        eight.wait(10)
        return Response(status=404)

    with HTTPServer(host="127.0.0.1", port=0, threaded=True) as server:
        server.expect_request(re.compile(".*"), "HEAD").respond_with_handler(answer)
        tier = on(server.url_for(""), timeout_s=30.0)
        assert tier.contains([f"kv/{number}" for number in range(16)]) == [False] * 16


def test_a_large_entry_that_fails_leaves_no_parts(
    on: Connect, httpserver: HTTPServer, pool: BufferPool
) -> None:
    """The upload is aborted, so that nobody pays for half an entry."""
    path = "/bucket/kv/0.safetensors"
    begun = "<InitiateMultipartUploadResult><UploadId>u</UploadId></InitiateMultipartUploadResult>"
    httpserver.expect_request(path, "HEAD").respond_with_data(status=404)
    httpserver.expect_request(path, "POST").respond_with_data(begun, content_type="application/xml")
    httpserver.expect_request(path, "PUT").respond_with_data(status=403)
    httpserver.expect_request(path, "DELETE", query_string="uploadId=u").respond_with_data(status=204)
    with pytest.raises(AuthenticationFailed):
        keep(on(httpserver.url_for(""), timeout_s=60.0), pool, "kv/0", bytes((64 << 20) + 1))
    assert [request.method for request, _ in httpserver.log][-1] == "DELETE"


# ---------------------------------------------------------------------- a store that does not answer


ASKS = {
    "put": lambda tier, pool: keep(tier, pool, "kv/0", b"1"),
    "get": lambda tier, pool: tier.get("kv/0", pool),
    "contains one": lambda tier, pool: tier.contains(["kv/0"]),
    "contains many": lambda tier, pool: tier.contains([f"kv/{number}" for number in range(40)]),
    "list": lambda tier, pool: tier.list(""),
    "remove": lambda tier, pool: tier.remove("kv/0"),
}
each_ask = pytest.mark.parametrize("ask", ASKS.values(), ids=ASKS)


@each_ask
def test_a_store_that_is_down_is_unreachable(on: Connect, ask: Ask, pool: BufferPool) -> None:
    """Nobody listens: an error that says where."""
    tier = on(f"http://127.0.0.1:{free_port()}")
    with pytest.raises(BackendUnreachable, match=r"s3://bucket: cannot .*\[backend=s3\]") as caught:
        ask(tier, pool)
    assert type(caught.value) is BackendUnreachable


@pytest.mark.timeout(20)  # obstore's own limit is 30 s
@each_ask
def test_a_store_that_never_answers_is_given_up(on: Connect, ask: Ask, pool: BufferPool) -> None:
    """Within `timeout_s` and its half."""
    with silent_server() as endpoint, pytest.raises(BackendTimeout, match="cannot"):
        ask(on(endpoint), pool)


@each_ask
@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (429, RateLimited),
        (500, BackendUnavailable),
        (503, BackendUnavailable),
        (401, AuthenticationFailed),
        (403, AuthenticationFailed),
        (400, RequestRejected),
    ],
)
def test_a_store_that_refuses_is_an_error_of_its_kind(
    on: Connect, httpserver: HTTPServer, pool: BufferPool, ask: Ask, status: int, kind: type
) -> None:
    """Tried three times where that may help, once where it cannot."""
    httpserver.expect_request(re.compile(".*")).respond_with_data("<Error><Code>No</Code></Error>", status)
    with pytest.raises(BackendError) as caught:
        ask(on(httpserver.url_for(""), timeout_s=30.0), pool)
    assert type(caught.value) is kind
    assert caught.value.status == status
    if ask is not ASKS["contains many"]:
        assert len(httpserver.log) == (3 if status in (429, 500, 503) else 1)


@pytest.mark.parametrize("closes", [True, False])
def test_half_an_entry_is_none(on: Connect, pool: BufferPool, closes: bool) -> None:
    """The line is cut or dead in the middle: an error, and the memory is given back."""
    with half_server(closes=closes) as endpoint, pytest.raises(BackendError, match="cannot get kv/0"):
        on(endpoint).get("kv/0", pool)


def test_a_bucket_that_is_not_there_takes_nothing(object_server: ObjectServer, pool: BufferPool) -> None:
    """To put is an error, to read is a miss."""
    tier = Object("s3://no-such-bucket", **object_server.options)
    with pytest.raises(RequestRejected, match="404"):
        keep(tier, pool, "kv/0", b"1")
    assert read(tier, pool, "kv/0") is None


def test_a_folder_that_cannot_be_written_is_an_error(tmp_path: Path, pool: BufferPool) -> None:
    """A file stands where a folder should: what the system says is passed on."""
    (tmp_path / "kv").write_bytes(b"in the way")
    with pytest.raises(BackendError, match="cannot put kv/0"):
        keep(Object(tmp_path.as_uri()), pool, "kv/0", b"1")


# ---------------------------------------------------------------------- what is shown


@each_ask
def test_no_error_shows_a_credential(
    on: Connect, httpserver: HTTPServer, pool: BufferPool, ask: Ask, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not even one that the server repeats, plain or quoted; and no other error is carried along."""
    monkeypatch.setenv("AWS_SESSION_TOKEN", "token-of-the-environment")
    words = f"{KEY_ID} {SECRET} {quote(SECRET, safe='')} token-of-the-environment header-value"
    httpserver.expect_request(re.compile(".*")).respond_with_data(words, 403)
    headers = {"x-secret": "header-value"}
    tier = on(httpserver.url_for(""), client_options={"default_headers": headers}, timeout_s=30.0)
    with pytest.raises(BackendError) as caught:
        ask(tier, pool)
    error = caught.value
    shown = f"{tier!r} {error!r} {''.join(traceback.format_exception(error))}"
    for secret in words.split():
        assert secret not in shown
    assert "list-type" not in shown  # a URL's query may be a signature
    assert error.__context__ is None
    assert repr(tier) == "Object('s3://bucket')"


@pytest.mark.parametrize(
    ("url", "options", "field"),
    [
        ("", {}, "url"),
        ("bucket", {}, "url"),
        ("/some/folder", {}, "url"),
        ("ftp://host/path", {}, "url"),
        ("https://bucket.s3.amazonaws.com/x", {}, "url"),
        ("s3://", {}, "url"),
        ("s3://bucket//x//y", {}, "url"),
        ("s3://bucket/../x", {}, "url"),
        ("s3://key:SECRET-WORD@bucket", {}, "url"),
        ("s3://bucket?token=SECRET-WORD", {}, "url"),
        ("s3://bucket#SECRET-WORD", {}, "url"),
        ("s3://[bucket", {}, "url"),
        ("file://relative/path", {}, "url"),
        ("file:///nowhere/at/all", {"mkdir": False}, "url"),
        ("memory://somewhere", {}, "url"),
        (None, {}, "url"),
        (b"s3://bucket", {}, "url"),
        ("s3://bucket", {"sceret_access_key": "SECRET-WORD"}, "url"),
        ("s3://bucket", {"secret_access_key": 5}, "url"),
        ("s3://bucket", {"allow_http": True, "secret_access_key": "SECRET-WORD"}, "url"),
        ("az://container", {"account_name": "a", "account_key": "SECRET-WORD!"}, "url"),
        ("gs://bucket", {"service_account_key": "SECRET-WORD"}, "url"),
        ("s3://bucket", {"client_options": {"timeuot": "1s"}}, "url"),
        ("s3://bucket", {"client_options": "SECRET-WORD"}, "client_options"),
        ("s3://bucket", {"retry_config": {"max_retires": 1}}, "max_retires"),
        ("memory://", {"region": "x"}, "region"),
        ("file:///tmp", {"client_options": {}}, "client_options"),
        ("memory://", {"timeout_s": 0}, "timeout_s"),
        ("memory://", {"timeout_s": "5"}, "timeout_s"),
        ("memory://", {"timeout_s": float("nan")}, "timeout_s"),
        ("memory://", {"timeout_s": float("inf")}, "timeout_s"),
        ("memory://", {"max_age_s": -1}, "max_age_s"),
        ("memory://", {"max_age_s": True}, "max_age_s"),
    ],
)
def test_what_cannot_be_is_refused_at_once(url: Any, options: dict[str, Any], field: str) -> None:
    """Nothing is sent, the argument is named, and no secret is shown."""
    with pytest.raises(InvalidRequest) as caught:
        Object(url, **options)
    assert caught.value.field == field
    assert "SECRET-WORD" not in "".join(traceback.format_exception(caught.value))
    assert caught.value.__context__ is None
