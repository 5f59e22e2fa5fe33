"""The tree of errors."""

from __future__ import annotations

import re

import kvsdk
import pytest
from kvsdk import errors
from kvsdk.backend.http_errors import error_for_status, retry_after_s, server_words


def leaves() -> list[type[kvsdk.KvsdkError]]:
    found = [value for value in vars(errors).values() if isinstance(value, type)]
    return [kind for kind in found if issubclass(kind, kvsdk.KvsdkError)]


def test_every_error_is_public_and_has_one_root() -> None:
    """Each class of the tree is exported, so that it can be caught by name."""
    assert {kind.__name__ for kind in leaves()} <= set(kvsdk.__all__)


def test_the_docstring_draws_the_tree_as_it_is() -> None:
    """Every class stands in the drawing, below its base."""
    drawing = re.findall(r"^([│├└─ ]*)(\w+)", (errors.__doc__ or "").split("```")[1], re.MULTILINE)
    path: list[str] = []
    drawn = {}
    for indent, name in drawing:
        depth = len(indent) // 4
        path[depth:] = [name]
        drawn[name] = path[depth - 1] if depth else "Exception"
    assert drawn == {kind.__name__: kind.__base__.__name__ for kind in leaves() if kind.__base__}


def test_the_text_has_the_place_and_only_what_is_known() -> None:
    """What a support desk asks for is in the text; what is unknown is not."""
    error = kvsdk.RateLimited("too fast", backend="anthropic", model="m", status=429, request_id="req_1")
    assert str(error) == "too fast [backend=anthropic, model=m, status=429, request_id=req_1]"
    assert str(kvsdk.RateLimited("too fast")) == "too fast"


@pytest.mark.parametrize(
    ("kind", "retryable", "billed"),
    [
        (kvsdk.InvalidRequest, False, False),
        (kvsdk.RequestRejected, False, False),
        (kvsdk.RateLimited, True, False),
        (kvsdk.BackendUnavailable, True, None),
        (kvsdk.BackendTimeout, True, None),
        (kvsdk.BackendProtocolError, False, None),
        (kvsdk.StreamTruncated, False, None),
        (kvsdk.DeadlineExceeded, False, None),
    ],
)
def test_each_error_says_whether_to_retry_and_whether_it_cost(
    kind: type[kvsdk.KvsdkError], retryable: bool, billed: bool | None
) -> None:
    """What was refused was not billed; what broke may have been."""
    assert (kind.retryable, kind.billed) == (retryable, billed)


@pytest.mark.parametrize(
    ("status", "kind"),
    [(418, kvsdk.RequestRejected), (529, kvsdk.BackendUnavailable), (599, kvsdk.BackendUnavailable)],
)
def test_an_unlisted_status_has_a_class(status: int, kind: type[kvsdk.KvsdkError]) -> None:
    """4xx is the request's fault, 5xx the server's."""
    assert error_for_status(status) is kind


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({}, None),
        ({"retry-after": "2.5"}, 2.5),
        ({"retry-after": "-3"}, 0.0),
        ({"retry-after-ms": "1500", "retry-after": "9"}, 1.5),
        ({"retry-after-ms": "x", "retry-after": "9"}, 9.0),
        ({"retry-after": "Thu, 01 Jan 1970 00:00:00 GMT"}, 0.0),
        ({"retry-after": "nan"}, None),
        ({"retry-after": "inf"}, None),
    ],
)
def test_retry_after_is_read_as_seconds(headers: dict[str, str], seconds: float | None) -> None:
    """Milliseconds first, then seconds or a date; a date that is over is no wait, nonsense is none."""
    assert retry_after_s(headers) == seconds


def test_a_servers_words_are_short_and_without_the_key() -> None:
    """One line, cut, and the key of the request blotted out; a placeholder key is not looked for."""
    assert server_words("a\n b", {}) == "a b"
    assert server_words("key sk-12345678 bad", {"authorization": "Bearer sk-12345678"}) == "key *** bad"
    assert server_words("none of this", {"authorization": "Bearer none"}) == "none of this"
    assert len(server_words("z" * 1000, {}, 50)) == 51
