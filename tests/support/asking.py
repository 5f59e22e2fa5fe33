"""One call, whole or streamed."""

from __future__ import annotations

from typing import Any

from kvsdk import Client, Reply


def ask(client: Client, messages: Any, *, streams: bool, **options: Any) -> Reply:
    """Call and read to the end."""
    if not streams:
        return client.generate(messages, **options)
    with client.stream(messages, **options) as answer:
        list(answer)
    return answer.reply
