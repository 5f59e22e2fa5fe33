"""A vendor's server on loopback: it answers what a test scripted and keeps what it was sent."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from pytest_httpserver import HTTPServer
from werkzeug import Request, Response


@dataclass
class Scripted:
    """One answer: a JSON body, or raw bytes."""

    body: Any
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    content_type: str = "application/json"


def sse(events: Iterable[Mapping[str, Any] | str], **headers: str) -> Scripted:
    """A stream of events: dicts get their `type` as the event's name, strings are data as they are."""
    lines = []
    for event in events:
        if isinstance(event, str):
            lines.append(f"data: {event}\n\n")
        else:
            name = f"event: {event['type']}\n" if "type" in event else ""
            lines.append(f"{name}data: {json.dumps(event, ensure_ascii=False)}\n\n")
    return Scripted("".join(lines).encode(), headers=headers, content_type="text/event-stream")


class Loopback:
    """The server. Answers are given in the order in which they were scripted."""

    def __init__(self, server: HTTPServer) -> None:
        self._answers: list[Scripted] = []
        self.bodies: list[dict[str, Any]] = []
        self.requests: list[Request] = []
        self.url = server.url_for("").rstrip("/")
        server.expect_request(_Anything()).respond_with_handler(self._handle)

    def script(self, *answers: Any) -> None:
        """Add answers: `Scripted`, or a JSON body."""
        for answer in answers:
            self._answers.append(answer if isinstance(answer, Scripted) else Scripted(answer))

    def _handle(self, request: Request) -> Response:
        self.requests.append(request)
        self.bodies.append(json.loads(request.get_data() or b"{}"))
        if not self._answers:
            return Response(b'{"error": {"message": "nothing scripted"}}', 400, mimetype="application/json")
        answer = self._answers.pop(0)
        payload = answer.body if isinstance(answer.body, bytes) else json.dumps(answer.body).encode()
        return Response(payload, answer.status, dict(answer.headers), content_type=answer.content_type)


class _Anything:
    """A path that matches every path."""

    def __eq__(self, other: object) -> bool:
        return True

    def __hash__(self) -> int:
        return 0

    def match(self, uri: str) -> bool:
        return True
