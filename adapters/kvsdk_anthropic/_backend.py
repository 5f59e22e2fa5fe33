"""The backend `anthropic:MODEL`."""

from __future__ import annotations

import os
from typing import Any

from kvsdk.backend import (
    Answer,
    AsyncChannel,
    BackendSpec,
    Bill,
    Call,
    Capabilities,
    Channel,
    Outcome,
    reject_unknown_options,
    require_package,
)
from kvsdk.backend.cache_model import make_model
from kvsdk.errors import MissingCredentials
from kvsdk.prompt import Request

from kvsdk_anthropic._bill import to_bill
from kvsdk_anthropic._cache_model import AnthropicCacheModel
from kvsdk_anthropic._facts import capabilities
from kvsdk_anthropic._reply import MessageReader, to_outcome
from kvsdk_anthropic._translate import to_body


class AnthropicBackend:
    """Anthropic's Messages API.

    Args:
        model: The model's name.
        api_key: The key; from `ANTHROPIC_API_KEY` when None.
        base_url: Another host, without `/v1`; from `ANTHROPIC_BASE_URL` when None.
        diagnostics: Whether to ask, within sessions, why the cache missed; only the Claude API answers that.
    """

    scheme = "anthropic"

    def __init__(
        self,
        model: str,
        *,
        api_key: str | None = None,
        base_url: str | None = None,
        diagnostics: bool = True,
    ) -> None:
        self.model = model
        self._diagnostics = diagnostics
        self._api_key = api_key
        self._base_url = base_url

    @property
    def capabilities(self) -> Capabilities:
        return capabilities(self.model)

    def check(self) -> None:
        require_package("anthropic", extra="anthropic")
        if not (
            self._api_key or os.environ.get("ANTHROPIC_API_KEY") or os.environ.get("ANTHROPIC_AUTH_TOKEN")
        ):
            raise MissingCredentials(
                "no API key: pass api_key=... or set ANTHROPIC_API_KEY", backend=self.scheme, model=self.model
            )

    def encode(self, request: Request, *, stream: bool, call_id: str) -> Call:
        body = to_body(request, self.model)
        if self._diagnostics and request.session is not None:
            # null on the first turn opts in, so that the second has something to be compared with
            body["diagnostics"] = {"previous_message_id": request.previous_reply_id}
        return Call(body, stream, extra=request.extra.get(self.scheme, {}), id=call_id, request=request)

    def decode(self, call: Call, answer: Answer) -> Outcome:
        return to_outcome(answer.body)

    def reader(self, call: Call) -> MessageReader:
        return MessageReader()

    def notes(self, request: Request) -> tuple[str, ...]:
        return ()

    def bill(self, outcome: Outcome, request: Request) -> Bill:
        return to_bill(outcome, request, self.model)

    def cache_model(self, **switches: Any) -> AnthropicCacheModel:
        return make_model(AnthropicCacheModel, switches, self.model)

    def open(self) -> Channel:
        from anthropic import Anthropic

        from kvsdk_anthropic._channel import AnthropicChannel

        client = Anthropic(api_key=self._api_key, base_url=self._base_url, max_retries=0)
        return AnthropicChannel(client, self.model)

    def open_async(self) -> AsyncChannel:
        from anthropic import AsyncAnthropic

        from kvsdk_anthropic._channel import AsyncAnthropicChannel

        client = AsyncAnthropic(api_key=self._api_key, base_url=self._base_url, max_retries=0)
        return AsyncAnthropicChannel(client, self.model)


def backend(spec: BackendSpec) -> AnthropicBackend:
    """The entry point: make the backend of an address."""
    reject_unknown_options(spec, ("api_key", "base_url", "diagnostics"))
    return AnthropicBackend(spec.target, **spec.options)
