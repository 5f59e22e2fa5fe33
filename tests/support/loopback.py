"""A vendor's server on loopback: it answers what a test scripted and keeps what it was sent."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from io import BytesIO
from itertools import count, pairwise
from typing import Any

from kvsdk.testing import assert_extends
from pytest_httpserver import HTTPServer
from werkzeug import Request, Response


@dataclass
class Scripted:
    """One answer: a JSON body, or raw bytes. A `held` one is not given before the test is over."""

    body: Any
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    content_type: str = "application/json"
    held: bool = False


def sse_text(events: Iterable[Mapping[str, Any] | str]) -> str:
    """Events on the wire: dicts get their `type` as the event's name, strings are data as they are."""
    lines = []
    for event in events:
        if isinstance(event, str):
            lines.append(f"data: {event}\n\n")
        else:
            name = f"event: {event['type']}\n" if "type" in event else ""
            lines.append(f"{name}data: {json.dumps(event, ensure_ascii=False)}\n\n")
    return "".join(lines)


def sse(events: Iterable[Mapping[str, Any] | str], **headers: str) -> Scripted:
    """A whole stream of events as one answer."""
    return Scripted(sse_text(events).encode(), headers=headers, content_type="text/event-stream")


_numbers = count()


class Loopback:
    """The server. Answers are given in the order in which they were scripted, to any thread.

    Each test's server has an address of its own, so a request that an earlier test gave up on and that
    arrives late finds nobody.
    """

    def __init__(self, server: HTTPServer) -> None:
        self._prefix = f"/test-{next(_numbers)}"
        self._answers: list[Scripted] = []
        self._lock = threading.Lock()
        self.released = threading.Event()
        self.bodies: list[dict[str, Any]] = []
        self.prefix_moves = ""
        self.requests: list[Request] = []
        self.url = server.url_for(self._prefix)
        server.expect_request(re.compile(f"{self._prefix}/.*")).respond_with_handler(self._handle)

    @property
    def body(self) -> dict[str, Any]:
        """The body of the one request that was sent."""
        (body,) = self.bodies
        return body

    @property
    def request(self) -> Request:
        """The one request that was sent."""
        (request,) = self.requests
        return request

    def check_prefixes(self) -> None:
        """Each request of a conversation must begin with all of the one before it.

        A request belongs to a conversation when it has a model's turn. A test whose prefix moves, or that
        sends unrelated conversations, gives its reason in `prefix_moves`.
        """
        if self.prefix_moves:
            return
        for before, body in pairwise(self.bodies):
            if _has_an_answer(body):
                assert_extends(before, body)

    def script(self, *answers: Any) -> None:
        """Add answers: `Scripted`, or a JSON body."""
        for answer in answers:
            self._answers.append(answer if isinstance(answer, Scripted) else Scripted(answer))

    def _handle(self, asked: Request) -> Response:
        path = asked.environ["PATH_INFO"].removeprefix(self._prefix)
        data = asked.get_data()
        request = Request({**asked.environ, "PATH_INFO": path, "wsgi.input": BytesIO(data)})
        with self._lock:
            self.requests.append(request)
            self.bodies.append(json.loads(data or b"{}"))
            answer = self._answers.pop(0) if self._answers else _NOTHING
        if answer.held:
            self.released.wait(10)
        payload = answer.body if isinstance(answer.body, bytes) else json.dumps(answer.body).encode()
        return Response(payload, answer.status, dict(answer.headers), content_type=answer.content_type)


def _has_an_answer(body: Mapping[str, Any]) -> bool:
    turns = body.get("messages") or body.get("input") or ()
    kinds = ("function_call", "reasoning")
    return any(
        turn.get("role") == "assistant" or turn.get("type") in kinds
        for turn in turns
        if isinstance(turn, Mapping)
    )


_NOTHING = Scripted({"error": {"message": "nothing scripted"}}, status=400)
