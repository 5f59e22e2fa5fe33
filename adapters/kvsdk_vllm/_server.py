"""The backend `vllm+http(s)://HOST#MODEL`: a `vllm serve` elsewhere.

It speaks Chat Completions, so the OpenAI adapter carries the calls (found by its address, never imported),
with a profile for what vLLM takes and reports. What is added here are the ids that vLLM understands (vllm
0.32.0): the request's in `X-Request-Id`, the session's in the body, and the tenant's salt.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from kvsdk.backend import (
    Answer,
    AsyncChannel,
    Backend,
    BackendSpec,
    Bill,
    Call,
    Capabilities,
    Channel,
    Outcome,
    Reader,
)
from kvsdk.backend import backend as find_backend
from kvsdk.backend.cache_model import make_model
from kvsdk.errors import ConfigurationError
from kvsdk.prompt import Request

from kvsdk_vllm._cache_model import VllmCacheModel
from kvsdk_vllm._facts import PREWARM_NOTE, capabilities
from kvsdk_vllm._salt import tenant_salt

_NO_DETAILS = "start the server with --enable-prompt-tokens-details to see what it read from its cache"


class VllmServerBackend:
    """A vLLM server.

    Args:
        scheme: `"vllm+http"` or `"vllm+https"`.
        chat: The backend that carries Chat Completions to it.
    """

    def __init__(self, scheme: str, chat: Backend) -> None:
        self.scheme = scheme
        self.model = chat.model
        self._chat = chat

    @property
    def capabilities(self) -> Capabilities:
        return capabilities(block_size=None, exact_tokens=True)

    def check(self) -> None:
        self._chat.check()

    def encode(self, request: Request, *, stream: bool, call_id: str) -> Call:
        call = self._chat.encode(request, stream=stream, call_id=call_id)
        extra: dict[str, Any] = {}
        if request.session is not None:
            extra["session_id"] = request.session
        salt = tenant_salt(request.tenant)
        if salt is not None:
            extra["cache_salt"] = salt
        if request.is_prewarm:
            extra["max_tokens"] = 1
        extra.update(request.extra.get("vllm", {}))
        return replace(call, headers={"X-Request-Id": call_id}, extra=extra)

    def decode(self, call: Call, answer: Answer) -> Outcome:
        return without_prewarm_answer(call, _with_note(self._chat.decode(call, answer)))

    def reader(self, call: Call) -> Reader:
        return _Reader(self._chat.reader(call))

    def notes(self, request: Request) -> tuple[str, ...]:
        return ()

    def bill(self, outcome: Outcome, request: Request) -> Bill:
        return Bill(unpriced="a server does not say how long it was busy with a request")

    def cache_model(self, **switches: Any) -> VllmCacheModel:
        return make_model(VllmCacheModel, switches)

    def open(self) -> Channel:
        return self._chat.open()

    def open_async(self) -> AsyncChannel:
        return self._chat.open_async()


class _Reader:
    def __init__(self, inner: Reader) -> None:
        self._inner = inner
        self.feed = inner.feed

    def outcome(self) -> Outcome:
        return _with_note(self._inner.outcome())


def without_prewarm_answer(call: Call, outcome: Outcome) -> Outcome:
    """The outcome as it is; of a pre-warming request its meters, and none of its one token's text."""
    if call.request is None or not call.request.is_prewarm:
        return outcome
    return replace(outcome, parts=(), notes=(*outcome.notes, PREWARM_NOTE))


def _with_note(outcome: Outcome) -> Outcome:
    if not outcome.complete or outcome.usage.cache_read_tokens is not None:
        return outcome
    return replace(outcome, notes=(*outcome.notes, _NO_DETAILS))


def server_backend(spec: BackendSpec) -> VllmServerBackend:
    """The backend of an address such as `vllm+http://127.0.0.1:8000#smollm2`."""
    host, mark, model = spec.target.partition("#")
    if not host.startswith("//") or not mark or not model:
        raise ConfigurationError(
            f"{spec.scheme}:{spec.target} is no address of a model; write 'vllm+http://HOST:PORT#MODEL'",
            backend="vllm",
        )
    path = host.rstrip("/")
    base = path if path.endswith("/v1") else f"{path}/v1"
    address = f"openai+{spec.scheme.partition('+')[2]}:{base}#{model}"
    chat = find_backend(address, profile="vllm", scheme=spec.scheme, **spec.options)
    return VllmServerBackend(spec.scheme, chat)
