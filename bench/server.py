"""A vendor's server for measurements: answers every POST at once with what is documented for its path.

A body that asks for a stream gets that.

    python bench/server.py            prints its port, serves until its standard input closes

It runs in a process of its own, so that its work is in nobody's CPU time. `GET /last` gives the body of the
last POST, from which the contenders take what they send: all send the same.
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

import streams

MESSAGE: dict[str, Any] = {
    "id": "msg_01",
    "type": "message",
    "role": "assistant",
    "model": "claude-sonnet-5-5",
    "content": [{"type": "text", "text": "Valve A opens first, then B. " * 8}],
    "stop_reason": "end_turn",
    "stop_sequence": None,
    "usage": {
        "input_tokens": 940,
        "cache_creation_input_tokens": 310,
        "cache_read_input_tokens": 6200,
        "cache_creation": {"ephemeral_5m_input_tokens": 310, "ephemeral_1h_input_tokens": 0},
        "output_tokens": 64,
        "service_tier": "standard",
    },
}
RESPONSE: dict[str, Any] = {
    "id": "resp_01",
    "object": "response",
    "created_at": 1796000000,
    "status": "completed",
    "model": "gpt-5.6",
    "output": [
        {
            "id": "msg_01",
            "type": "message",
            "role": "assistant",
            "status": "completed",
            "content": [
                {"type": "output_text", "text": "Valve A opens first, then B. " * 8, "annotations": []}
            ],
        }
    ],
    "parallel_tool_calls": True,
    "tool_choice": "auto",
    "tools": [],
    "service_tier": "default",
    "usage": {
        "input_tokens": 7450,
        "input_tokens_details": {"cached_tokens": 6200, "cache_write_tokens": 310},
        "output_tokens": 64,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": 7514,
    },
}
CHAT: dict[str, Any] = {
    "id": "chatcmpl_01",
    "object": "chat.completion",
    "created": 1796000000,
    "model": "gpt-5.6",
    "choices": [
        {
            "index": 0,
            "finish_reason": "stop",
            "message": {"role": "assistant", "content": "Valve A opens first, then B. " * 8},
        }
    ],
    "usage": {
        "prompt_tokens": 7450,
        "prompt_tokens_details": {"cached_tokens": 6200, "cache_write_tokens": 310},
        "completion_tokens": 64,
        "total_tokens": 7514,
    },
}
BODIES = {"/v1/messages": MESSAGE, "/v1/responses": RESPONSE, "/v1/chat/completions": CHAT}


def _response(body: bytes, status: str = "200 OK") -> bytes:
    head = (
        f"HTTP/1.1 {status}\r\ncontent-type: application/json\r\n"
        f"request-id: req_01\r\nx-request-id: req_01\r\ncontent-length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


ANSWERS = {path: _response(json.dumps(body).encode()) for path, body in BODIES.items()}
STREAMS = {
    "/v1/messages": streams.chunked(streams.of_messages(MESSAGE)),
    "/v1/responses": streams.chunked(streams.of_responses(RESPONSE)),
    "/v1/chat/completions": streams.chunked(streams.of_chat(CHAT)),
}


class Server:
    """Keeps the last body it was sent."""

    def __init__(self) -> None:
        self.last = b"{}"

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer one connection's requests until it closes."""
        while head := await _read_head(reader):
            method, path, _ = head.split("\r\n", 1)[0].split(" ", 2)
            sent = await reader.readexactly(_content_length(head))
            if method == "POST":
                self.last = sent
            answers = STREAMS if json.loads(sent or b"{}").get("stream") else ANSWERS
            answer = _response(self.last) if path == "/last" else answers.get(path.partition("?")[0])
            writer.write(answer or _response(b"{}", "404 Not Found"))
        writer.close()


async def _read_head(reader: asyncio.StreamReader) -> str:
    try:
        return (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    except (asyncio.IncompleteReadError, asyncio.CancelledError, ConnectionError):
        return ""


def _content_length(head: str) -> int:
    for line in head.split("\r\n")[1:]:
        name, _, value = line.partition(":")
        if name.lower() == "content-length":
            return int(value)
    return 0


async def main() -> None:
    """Serve on a free port until the parent goes away."""
    server = await asyncio.start_server(Server().serve, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await asyncio.to_thread(sys.stdin.read)


if __name__ == "__main__":
    asyncio.run(main())
