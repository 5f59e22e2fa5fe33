"""What reading a stream costs in CPU time: kvsdk beside the vendors' own SDKs, plain HTTP, and litellm.

    scripts/bench [--rounds N] [--calls N]

Every contender asks the same short question and reads the same answer of 200 pieces of text to its end, from
one server on loopback, which is another process. Rounds and CPU time are those of call_overhead.py.
"""

from __future__ import annotations

import asyncio
import sys
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from typing import Any

import httpx2
from anthropic import Anthropic, AsyncAnthropic
from contest import Contender, load_litellm, loopback, run, sizes, table
from kvsdk import AsyncClient, Client
from openai import AsyncOpenAI, OpenAI
from workload import ANTHROPIC_MODEL, OPENAI_MODEL

QUESTION = "Which valve comes first?"
SDKS = {"anthropic": "anthropic", "responses": "openai", "chat": "openai chat"}
PATHS = {"anthropic": "/v1/messages", "responses": "/v1/responses", "chat": "/v1/chat/completions"}


def contenders(url: str, stack: ExitStack) -> list[Contender]:
    """All of them. The vendors' SDKs and plain HTTP send the very body that kvsdk sent."""
    http = stack.enter_context(httpx2.Client())
    loop = stack.enter_context(asyncio.Runner())
    found = []
    for group, path in PATHS.items():
        ours, ours_async = of_kvsdk(group, url, stack, loop)
        ours()
        body = http.get(f"{url}/last").json()
        theirs, theirs_async = of_sdk(group, url, body, stack, loop)
        found += [
            Contender(group, f"{SDKS[group]} SDK", theirs),
            Contender(group, "kvsdk", ours),
            Contender(group, "httpx2 alone", partial(read_lines, http, f"{url}{path}", body)),
            *of_litellm(group, url),
            Contender(f"{group}, async", f"{SDKS[group]} SDK, async", theirs_async),
            Contender(f"{group}, async", "kvsdk", ours_async),
        ]
    return found


def of_sdk(
    group: str, url: str, body: dict[str, Any], stack: ExitStack, loop: asyncio.Runner
) -> tuple[Callable[[], None], Callable[[], None]]:
    """Reading the typed events that the vendor's SDK gives, and the same awaited."""
    settings = {"base_url": url if group == "anthropic" else f"{url}/v1", "api_key": "test"}
    if group == "anthropic":
        client, aclient = Anthropic(**settings), AsyncAnthropic(**settings)
        create, acreate = client.messages.create, aclient.messages.create
    else:
        client, aclient = OpenAI(**settings), AsyncOpenAI(**settings)
        create, acreate = client.responses.create, aclient.responses.create
        if group == "chat":
            create, acreate = client.chat.completions.create, aclient.chat.completions.create
    stack.callback(client.close)
    stack.callback(lambda: loop.run(aclient.close()))

    async def whole() -> None:
        async for _ in await acreate(**body):
            pass

    return lambda: read(create(**body)), lambda: loop.run(whole())


def of_kvsdk(
    group: str, url: str, stack: ExitStack, loop: asyncio.Runner
) -> tuple[Callable[[], None], Callable[[], None]]:
    """Reading with `Client` and with `AsyncClient`."""
    settings: dict[str, Any] = {"base_url": url, "api_key": "test"}
    address = f"anthropic:{ANTHROPIC_MODEL}"
    if group != "anthropic":
        address = f"openai:{OPENAI_MODEL}"
        settings |= {"base_url": f"{url}/v1", "api": group}
    client = stack.enter_context(Client(address, **settings))
    aclient = AsyncClient(address, **settings)
    stack.callback(lambda: loop.run(aclient.aclose()))

    def whole() -> None:
        with client.stream(QUESTION, max_tokens=300) as answer:
            read(answer)

    async def whole_async() -> None:
        async with aclient.stream(QUESTION, max_tokens=300) as answer:
            async for _ in answer:
                pass

    return whole, lambda: loop.run(whole_async())


def of_litellm(group: str, url: str) -> list[Contender]:
    """litellm, where it is installed; it reaches OpenAI through Chat Completions."""
    litellm = load_litellm()
    if litellm is None or group == "responses":
        return []
    vendor, model, base_url = "anthropic", ANTHROPIC_MODEL, url
    if group == "chat":
        vendor, model, base_url = "openai", OPENAI_MODEL, f"{url}/v1"
    arguments = {
        "model": f"{vendor}/{model}",
        "api_base": base_url,
        "api_key": "test",
        "messages": [{"role": "user", "content": QUESTION}],
        "max_tokens": 300,
        "stream": True,
    }
    return [Contender(group, "litellm", lambda: read(litellm.completion(**arguments)))]


def read(events: Iterator[Any]) -> None:
    """Read to the end, and keep nothing."""
    deque(events, maxlen=0)


def read_lines(http: httpx2.Client, url: str, body: dict[str, Any]) -> None:
    """The lines of a stream, not even decoded from JSON."""
    with http.stream("POST", url, json=body) as response:
        read(response.iter_lines())


def main() -> None:
    """Measure and print the table."""
    arguments = sizes(__doc__, calls=20)
    with loopback() as url, ExitStack() as stack:
        found = contenders(url, stack)
        run(found, arguments.rounds, arguments.calls)
    print(table(found, "stream"))
    print(f"\n{arguments.rounds} rounds of {arguments.calls} streams, Python {sys.version.split()[0]}")


if __name__ == "__main__":
    main()
