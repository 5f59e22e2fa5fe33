"""The vendor's SDK, sync and async, with its retries off."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from kvsdk.backend import Answer, Call
from kvsdk.backend.http_errors import server_words
from kvsdk.errors import BackendProtocolError

from kvsdk_openai._errors import our_errors
from kvsdk_openai._facts import Api

if TYPE_CHECKING:
    import httpx2
    from openai import AsyncOpenAI, AsyncStream, OpenAI, Stream

DEFAULT_TIMEOUT_S = 600.0


class OpenAIChannel:
    """Sends through `openai.OpenAI`."""

    def __init__(
        self, client: OpenAI, api: Api, scheme: str, model: str, *, tokenize_url: str | None = None
    ) -> None:
        self._client = client
        self._tokenize_url = tokenize_url
        resource = client.responses if api == "responses" else client.chat.completions
        self._create: Any = resource.with_raw_response.create
        self._scheme = scheme
        self._model = model

    def send(self, call: Call, timeout_s: float | None) -> Answer:
        with our_errors(self._scheme, self._model):
            response = self._create(**_arguments(call, timeout_s))
            return Answer(_decode(response.http_response, self._scheme, self._model), _id(response, call))

    def stream(self, call: Call, timeout_s: float | None) -> OpenAIEvents:
        from openai import Stream

        with our_errors(self._scheme, self._model):
            response = self._create(**_arguments(call, timeout_s), stream=True)
            if not _is_stream(response.http_response):
                response.http_response.read()
                raise _not_understood(response.http_response, "no event stream", self._scheme, self._model)
            events = response.parse(to=Stream[object])
            return OpenAIEvents(events, _id(response, call), self._scheme, self._model)

    def count_tokens(self, call: Call, timeout_s: float | None) -> int | None:
        if self._tokenize_url is None:
            return None
        with our_errors(self._scheme, self._model):
            found = self._client.post(self._tokenize_url, cast_to=object, **_tokenize(call, timeout_s))
            return _count(found, self._scheme, self._model)

    def close(self) -> None:
        self._client.close()


class OpenAIEvents:
    """The decoded events of a stream; `cast_to=object` spares the SDK's typed ones."""

    def __init__(self, events: Stream[object], request_id: str | None, scheme: str, model: str) -> None:
        self._events = events
        self._scheme = scheme
        self._model = model
        self.request_id = request_id

    def __iter__(self) -> OpenAIEvents:
        return self

    def __next__(self) -> Any:
        try:
            return next(self._events)
        except StopIteration:
            raise
        except Exception:
            with our_errors(self._scheme, self._model):  # for an error only: it takes longer than an event
                raise

    def close(self) -> None:
        self._events.close()


class AsyncOpenAIChannel:
    """Sends through `openai.AsyncOpenAI`."""

    def __init__(
        self, client: AsyncOpenAI, api: Api, scheme: str, model: str, *, tokenize_url: str | None = None
    ) -> None:
        self._client = client
        self._tokenize_url = tokenize_url
        resource = client.responses if api == "responses" else client.chat.completions
        self._create: Any = resource.with_raw_response.create
        self._scheme = scheme
        self._model = model

    async def send(self, call: Call, timeout_s: float | None) -> Answer:
        with our_errors(self._scheme, self._model):
            response = await self._create(**_arguments(call, timeout_s))
            return Answer(_decode(response.http_response, self._scheme, self._model), _id(response, call))

    async def stream(self, call: Call, timeout_s: float | None) -> AsyncOpenAIEvents:
        from openai import AsyncStream

        with our_errors(self._scheme, self._model):
            response = await self._create(**_arguments(call, timeout_s), stream=True)
            if not _is_stream(response.http_response):
                await response.http_response.aread()
                raise _not_understood(response.http_response, "no event stream", self._scheme, self._model)
            events = response.parse(to=AsyncStream[object])
            return AsyncOpenAIEvents(events, _id(response, call), self._scheme, self._model)

    async def count_tokens(self, call: Call, timeout_s: float | None) -> int | None:
        if self._tokenize_url is None:
            return None
        with our_errors(self._scheme, self._model):
            found = await self._client.post(self._tokenize_url, cast_to=object, **_tokenize(call, timeout_s))
            return _count(found, self._scheme, self._model)

    async def close(self) -> None:
        await self._client.close()


class AsyncOpenAIEvents:
    """The decoded events of a stream."""

    def __init__(self, events: AsyncStream[object], request_id: str | None, scheme: str, model: str) -> None:
        self._events = events
        self._scheme = scheme
        self._model = model
        self.request_id = request_id

    def __aiter__(self) -> AsyncOpenAIEvents:
        return self

    async def __anext__(self) -> Any:
        try:
            return await anext(self._events)
        except StopAsyncIteration:
            raise
        except Exception:
            with our_errors(self._scheme, self._model):
                raise

    async def close(self) -> None:
        await self._events.close()


def _arguments(call: Call, timeout_s: float | None) -> dict[str, Any]:
    """What the SDK's method takes.

    The body goes in as `extra_body`, which is sent as it is and wins over arguments. A message given as an
    argument is held against every type of item there is: 13 ms for forty of them (openai 3.57.0, 2026-11-30).
    """
    is_chat = "messages" in call.body  # its method cannot be called without these two
    return {
        **({"model": call.body["model"], "messages": ()} if is_chat else {}),
        "extra_headers": call.headers or None,
        "extra_body": {**call.body, **call.extra},
        "timeout": DEFAULT_TIMEOUT_S if timeout_s is None else timeout_s,
    }


def _id(response: Any, call: Call) -> str | None:
    """The server's id of the request, or the one we gave it where it sends none (vLLM)."""
    given: str | None = response.request_id
    return given or call.headers.get("X-Request-Id")


def _tokenize(call: Call, timeout_s: float | None) -> dict[str, Any]:
    members = {name: call.body[name] for name in ("model", "messages", "tools") if name in call.body}
    timeout = DEFAULT_TIMEOUT_S if timeout_s is None else timeout_s
    return {"body": {**members, "add_generation_prompt": True}, "options": {"timeout": timeout}}


def _count(found: object, scheme: str, model: str) -> int:
    count = found.get("count") if isinstance(found, dict) else None
    if not isinstance(count, int):
        raise BackendProtocolError(f"not a count of tokens: {str(found)[:200]}", backend=scheme, model=model)
    return count


def _decode(response: httpx2.Response, scheme: str, model: str) -> Any:
    try:
        return json.loads(response.content)
    except ValueError as error:
        raise _not_understood(response, "no JSON", scheme, model) from error


def _is_stream(response: httpx2.Response) -> bool:
    return response.headers.get("content-type", "").startswith("text/event-stream")


def _not_understood(response: httpx2.Response, what: str, scheme: str, model: str) -> BackendProtocolError:
    return BackendProtocolError(
        f"the answer is {what}; it starts with: {server_words(response.text, response.request.headers)}",
        backend=scheme,
        model=model,
        status=response.status_code,
        request_id=response.headers.get("x-request-id"),
    )
