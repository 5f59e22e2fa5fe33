"""The backends `openai:MODEL` and `openai+http(s)://HOST/v1#MODEL`."""

from __future__ import annotations

import os
from datetime import datetime
from typing import Any

from kvsdk.backend import (
    Answer,
    AsyncChannel,
    BackendSpec,
    CacheModel,
    Call,
    Capabilities,
    Channel,
    Outcome,
    Reader,
    reject_unknown_options,
    require_package,
)
from kvsdk.cost import list_price
from kvsdk.errors import ConfigurationError, MissingCredentials
from kvsdk.prompt import Request, breakpoint_of
from kvsdk.reply import Cost

from kvsdk_openai import _chat, _responses
from kvsdk_openai._cache_model_choice import choose_model
from kvsdk_openai._facts import Api, Profile, capabilities, profile, takes_marks, write_factors
from kvsdk_openai._translate import to_chat, to_responses


class OpenAIBackend:
    """OpenAI, or a server that speaks one of its APIs.

    Args:
        model: The model's name.
        api: `"responses"` or `"chat"`.
        server: What the server takes and reports.
        scheme: The name that replies, errors and the ledger give the backend.
        api_key: The key; from `OPENAI_API_KEY` when None. A compatible server may need none.
        base_url: Another host, with `/v1`; from `OPENAI_BASE_URL` when None.
    """

    def __init__(
        self,
        model: str,
        *,
        api: Api = "responses",
        server: Profile | None = None,
        scheme: str = "openai",
        api_key: str | None = None,
        base_url: str | None = None,
    ) -> None:
        if api not in ("responses", "chat"):
            raise ConfigurationError(f"api is 'responses' or 'chat', not {api!r}", backend=scheme)
        self.scheme = scheme
        self.model = model
        self.api: Api = api
        self._server = server or profile("openai")
        self._api_key = api_key
        self._base_url = base_url

    @property
    def capabilities(self) -> Capabilities:
        return capabilities(self.model, self.api, self._server)

    def check(self) -> None:
        require_package("openai", extra="openai")
        needs_key = self._server.name == "openai"
        if needs_key and not (self._api_key or os.environ.get("OPENAI_API_KEY")):
            raise MissingCredentials(
                "no API key: pass api_key=... or set OPENAI_API_KEY", backend=self.scheme, model=self.model
            )

    def encode(self, request: Request, *, stream: bool, call_id: str) -> Call:
        if self.api == "responses":
            body = to_responses(request, self.model, self._server)
        else:
            body = to_chat(request, self.model, self._server, stream=stream)
        return Call(body, stream, extra=request.extra.get("openai", {}), id=call_id, request=request)

    def decode(self, call: Call, answer: Answer) -> Outcome:
        room = _responses if self.api == "responses" else _chat
        return room.to_outcome(answer.body, self._server)

    def reader(self, call: Call) -> Reader:
        room = _responses.ResponseReader if self.api == "responses" else _chat.ChatReader
        return room(self._server)

    def cost(self, outcome: Outcome, request: Request, at: datetime) -> Cost:
        if not self._server.list_priced:
            return Cost(reason="a server of one's own has no list price")
        asked = {mark.ttl or "30m" for block in request.blocks() if (mark := breakpoint_of(block.part))}
        model = outcome.model or self.model
        return list_price(
            outcome.usage,
            model,
            at=at,
            provider=self._server.provider,
            api_url=None if self._server.provider else self._base_url,
            context=outcome.bill,
            default_ttl="30m",
            asked_ttls=asked,
            write_factors=write_factors() if takes_marks(model, self._server) else None,
        )

    def cache_model(self, **switches: Any) -> CacheModel:
        return choose_model(self.model, self.api, self._server, switches)

    def open(self) -> Channel:
        from openai import OpenAI

        from kvsdk_openai._channel import OpenAIChannel

        client = OpenAI(**self._client_arguments())
        url = self._tokenize_url()
        return OpenAIChannel(client, self.api, self.scheme, self.model, tokenize_url=url)

    def open_async(self) -> AsyncChannel:
        from openai import AsyncOpenAI

        from kvsdk_openai._channel import AsyncOpenAIChannel

        client = AsyncOpenAI(**self._client_arguments())
        url = self._tokenize_url()
        return AsyncOpenAIChannel(client, self.api, self.scheme, self.model, tokenize_url=url)

    def _tokenize_url(self) -> str | None:
        if self._server.tokenize is None or self._base_url is None:
            return None
        return self._base_url.removesuffix("/v1") + self._server.tokenize

    def _client_arguments(self) -> dict[str, Any]:
        key = self._api_key
        if key is None and self._server.name != "openai":
            key = "none"  # the SDK wants one; the environment's belongs to OpenAI, not to this server
        return {"api_key": key, "base_url": self._base_url, "max_retries": 0}


def backend(spec: BackendSpec) -> OpenAIBackend:
    """The entry point: make the backend of an address."""
    if spec.scheme == "openai":
        reject_unknown_options(spec, ("api", "api_key", "base_url"))
        return OpenAIBackend(spec.target, **spec.options)
    reject_unknown_options(spec, ("api", "api_key", "profile", "scheme"))
    options: dict[str, Any] = {"api": "chat", **spec.options}
    host, mark, model = spec.target.partition("#")
    if not host.startswith("//") or not mark or not model:
        raise ConfigurationError(
            f"{spec.scheme}:{spec.target} is no address of a model; write 'openai+http://HOST:PORT/v1#MODEL'",
            backend="openai",
        )
    server = profile(options.pop("profile", "compatible"))
    base_url = f"{spec.scheme.partition('+')[2]}:{host}"
    return OpenAIBackend(model, **options, server=server, base_url=base_url)
