"""The backend `vllm:PATH_OR_MODEL`: an engine in this process."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from decimal import Decimal, InvalidOperation
from typing import TYPE_CHECKING, Any

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
    reject_unknown_options,
)
from kvsdk.backend.cache_model import make_model
from kvsdk.errors import BackendNotInstalled, BackendProtocolError, ConfigurationError
from kvsdk.prompt import Request

from kvsdk_vllm._cache_model import VllmCacheModel
from kvsdk_vllm._facts import capabilities
from kvsdk_vllm._reply import EngineReader
from kvsdk_vllm._server import server_backend, without_prewarm_answer
from kvsdk_vllm._translate import to_template, to_tools
from kvsdk_vllm.store.config import StoreConfig

if TYPE_CHECKING:
    from kvsdk_vllm._render import Renderer
    from kvsdk_vllm._shared import SharedEngine

#: Options that are the engine's own arguments, by the same name.
ENGINE_OPTIONS = (
    "block_size",
    "dtype",
    "enforce_eager",
    "gpu_memory_utilization",
    "kv_cache_memory_bytes",
    "max_model_len",
    "max_num_seqs",
    "quantization",
    "seed",
    "tensor_parallel_size",
    "trust_remote_code",
)


class VllmBackend:
    """A vLLM engine in this process; clients with the same model and settings share one.

    On a CPU kvsdk chooses float32, eager execution, blocks of 32 tokens and 1 GiB of KV cache.

    Args:
        model: A folder with a Hugging Face checkpoint, or a model's name.
        engine: The engine's arguments, such as `{"max_model_len": 8192}`.
        chat_template: A chat template (Jinja) instead of the model's.
        tool_parser: The name of vLLM's parser for this model's tool calls, such as `"hermes"`.
        usd_per_hour: What the machine costs; without it, requests have no cost.
        store: Where what is before breakpoints is kept for its TTL, beyond the engine's own cache and end.
    """

    scheme = "vllm"

    def __init__(
        self,
        model: str,
        *,
        engine: Mapping[str, Any] | None = None,
        chat_template: str | None = None,
        tool_parser: str | None = None,
        usd_per_hour: Decimal | None = None,
        store: StoreConfig | None = None,
    ) -> None:
        self.model = os.path.expanduser(model)
        self._engine = dict(engine or {})
        self._chat_template = chat_template
        self._tool_parser = tool_parser
        self._usd_per_hour = usd_per_hour
        self._store = store
        self._block_size: int | None = self._engine.get("block_size")

    @property
    def capabilities(self) -> Capabilities:
        """The block size, and with it the shortest cached prefix, is known once the engine has started."""
        return capabilities(block_size=self._block_size, exact_tokens=True, has_store=self._store is not None)

    def check(self) -> None:
        from importlib.util import find_spec

        if find_spec("vllm") is None:
            raise BackendNotInstalled(
                "vllm is not installed; with a GPU run: pip install 'kvsdk[vllm]'; without one, the README's "
                "section on the local engine has the steps",
                backend=self.scheme,
                model=self.model,
            )
        if self.model.startswith(("/", "./", "../")) and not os.path.isfile(f"{self.model}/config.json"):
            raise ConfigurationError(
                f"{self.model} holds no checkpoint: it has no config.json", backend=self.scheme
            )

    def encode(self, request: Request, *, stream: bool, call_id: str) -> Call:
        body = {"messages": to_template(request), "tools": to_tools(request)}
        return Call(body, stream, extra=request.extra.get(self.scheme, {}), id=call_id, request=request)

    def decode(self, call: Call, answer: Answer) -> Outcome:
        reader = self.reader(call)
        for event in answer.body:
            for _ in reader.feed(event):
                pass
        outcome = reader.outcome()
        if not outcome.complete:
            raise BackendProtocolError("the engine gave no end", backend=self.scheme, model=self.model)
        return without_prewarm_answer(call, outcome)

    def reader(self, call: Call) -> EngineReader:
        return EngineReader(self.model)

    def notes(self, request: Request) -> tuple[str, ...]:
        return ()

    def bill(self, outcome: Outcome, request: Request) -> Bill:
        if outcome.engine is None:
            return Bill(unpriced="the engine did not report the time it took")
        return Bill(engine=replace(outcome.engine, usd_per_hour=self._usd_per_hour))

    def cache_model(self, **switches: Any) -> VllmCacheModel:
        known = {} if self._block_size is None else {"block_size": self._block_size}
        return make_model(VllmCacheModel, {**known, **switches})

    def open(self) -> Channel:
        from kvsdk_vllm._channel import EngineChannel

        return EngineChannel(self._acquire(), self._renderer())

    def open_async(self) -> AsyncChannel:
        from kvsdk_vllm._channel import AsyncEngineChannel

        return AsyncEngineChannel(self._acquire, self._renderer())

    def _acquire(self) -> SharedEngine:
        from kvsdk_vllm._shared import acquire

        shared = acquire(self.model, self._engine, self._store)
        self._block_size = shared.block_size
        return shared

    def _renderer(self) -> Renderer:
        from kvsdk_vllm._render import Renderer

        return Renderer(self._chat_template, self._tool_parser)


def backend(spec: BackendSpec) -> Backend:
    """The entry point: make the backend of an address."""
    if spec.scheme != "vllm":
        return server_backend(spec)
    own = ("chat_template", "tool_parser", "usd_per_hour", "engine", "store")
    reject_unknown_options(spec, (*own, *ENGINE_OPTIONS))
    options = dict(spec.options)
    engine = dict(options.get("engine") or {})
    engine.update({name: options[name] for name in ENGINE_OPTIONS if name in options})
    return VllmBackend(
        spec.target,
        engine=engine,
        chat_template=options.get("chat_template"),
        tool_parser=options.get("tool_parser"),
        usd_per_hour=read_dollars(options.get("usd_per_hour")),
        store=_read_store(options.get("store")),
    )


def _read_store(value: Any) -> StoreConfig | None:
    if value is None or isinstance(value, StoreConfig):
        return value
    raise ConfigurationError(f"store is a StoreConfig, not {value!r}", backend="vllm")


def read_dollars(value: Any) -> Decimal | None:
    """A price as a `Decimal`; a float is read as it is written (0.1 is 0.1)."""
    if value is None:
        return None
    try:
        dollars = Decimal(str(value))
    except InvalidOperation:
        dollars = Decimal(-1)
    if not dollars.is_finite() or dollars < 0:
        raise ConfigurationError(f"usd_per_hour is a price, not {value!r}", backend="vllm")
    return dollars
