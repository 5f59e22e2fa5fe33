"""The backends `openai:MODEL`, `azure:DEPLOYMENT` and `openai+http(s)://HOST/v1#MODEL`."""

from __future__ import annotations

import os
from typing import Any

from kvsdk.backend import (
    Answer,
    AsyncChannel,
    BackendSpec,
    Bill,
    CacheModel,
    Call,
    Capabilities,
    Channel,
    Outcome,
    Reader,
    reject_unknown_options,
    require_package,
)
from kvsdk.errors import ConfigurationError, MissingCredentials
from kvsdk.prompt import Request

from kvsdk_openai import _chat, _responses
from kvsdk_openai._bill import to_bill
from kvsdk_openai._cache_model_choice import choose_model
from kvsdk_openai._facts import Api, Profile, capabilities, profile
from kvsdk_openai._profiles import profile_of, region_of
from kvsdk_openai._target import Target
from kvsdk_openai._translate import notes, to_call


class OpenAIBackend:
    """OpenAI, or a server that speaks one of its APIs.

    Args:
        model: The model's name; at Azure the deployment's.
        api: `"responses"` or `"chat"`.
        server: What the server takes and reports.
        scheme: The name that replies, errors and the ledger give the backend.
        api_key: The key; from `OPENAI_API_KEY`, or the variable of the vendor whose host it is, when None.
            A compatible server may need none.
        base_url: Another host, with `/v1`; from `OPENAI_BASE_URL` when None.
        family: The model behind the name, where a server lets one choose names: Azure.
        region: The region or data zone that the price is of, such as `"eu"`. No answer says it: at OpenAI it
            is in the address (`eu.api.openai.com`), at Azure it has to be named.
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
        family: str | None = None,
        region: str | None = None,
    ) -> None:
        if api not in ("responses", "chat"):
            raise ConfigurationError(f"api is 'responses' or 'chat', not {api!r}", backend=scheme)
        self.scheme = scheme
        self.model = model
        self.api: Api = api
        self._server = server or profile("openai")
        self._api_key = api_key
        self._base_url = base_url
        self._region = region or region_of(base_url)
        is_named = self._server.name != "azure"
        self._target = Target(scheme, model, model if is_named else family, api, self._server)

    @property
    def capabilities(self) -> Capabilities:
        return capabilities(self._target.family, self.api, self._server)

    def check(self) -> None:
        require_package("openai", extra="azure" if self.scheme == "azure" else "openai")
        self._check_address()
        if self._server.name in ("openai", "azure") and not (self._api_key or self._key_from_environment()):
            raise MissingCredentials(
                f"no API key: pass api_key=... or set {self._server.key_env}",
                backend=self.scheme,
                model=self.model,
            )

    def encode(self, request: Request, *, stream: bool, call_id: str) -> Call:
        return to_call(request, self._target, stream=stream, call_id=call_id)

    def decode(self, call: Call, answer: Answer) -> Outcome:
        room = _responses if self.api == "responses" else _chat
        return room.to_outcome(answer.body, self._server)

    def reader(self, call: Call) -> Reader:
        room = _responses.ResponseReader if self.api == "responses" else _chat.ChatReader
        return room(self._server)

    def notes(self, request: Request) -> tuple[str, ...]:
        return notes(request, self._target)

    def bill(self, outcome: Outcome, request: Request) -> Bill:
        return to_bill(outcome, request, self._target, base_url=self._base_url, region=self._region)

    def cache_model(self, **switches: Any) -> CacheModel:
        return choose_model(self._target.family or self.model, self.api, self._server, switches)

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

    def _check_address(self) -> None:
        """Azure has no address of its own: without one, its key would go to OpenAI."""
        if self._server.name == "azure" and self._base_url is None:
            raise ConfigurationError(
                "azure needs the resource's address: pass "
                "base_url='https://RESOURCE.openai.azure.com/openai/v1/' or set AZURE_OPENAI_ENDPOINT",
                backend=self.scheme,
                model=self.model,
            )

    def _client_arguments(self) -> dict[str, Any]:
        self._check_address()
        key = self._api_key
        if key is None and self._server.name != "openai":
            # The SDK wants one, and OpenAI's from the environment does not belong to this server.
            key = self._key_from_environment() or "none"
        return {"api_key": key, "base_url": self._base_url, "max_retries": 0}

    def _key_from_environment(self) -> str | None:
        """The vendor's own variable; at a compatible server only where the host is the vendor's."""
        name = self._server.key_env
        is_theirs = self._server.name in ("openai", "azure") or profile_of(self._base_url) is self._server
        return os.environ.get(name) if name and is_theirs else None


def backend(spec: BackendSpec) -> OpenAIBackend:
    """The entry point: make the backend of an address."""
    if spec.scheme == "azure":
        return _azure(spec)
    if spec.scheme == "openai":
        reject_unknown_options(spec, ("api", "api_key", "base_url", "region"))
        return _at_host(spec.target, dict(spec.options))
    reject_unknown_options(spec, ("api", "api_key", "profile", "scheme", "model", "region"))
    options: dict[str, Any] = {"api": "chat", **spec.options}
    host, mark, model = spec.target.partition("#")
    if not host.startswith("//") or not mark or not model:
        raise ConfigurationError(
            f"{spec.scheme}:{spec.target} is no address of a model; write 'openai+http://HOST:PORT/v1#MODEL'",
            backend="openai",
        )
    base_url = f"{spec.scheme.partition('+')[2]}:{host}"
    name = options.pop("profile", None)
    server = profile(name) if name else profile_of(base_url) or profile("compatible")
    family = options.pop("model", None)
    if family is not None and server.name != "azure":
        raise ConfigurationError("model= names the model of an Azure deployment", backend="openai")
    return OpenAIBackend(model, **options, server=server, base_url=base_url, family=family)


def _at_host(model: str, options: dict[str, Any]) -> OpenAIBackend:
    """OpenAI's backend; a `base_url=` of a host that is known to be another's gets that one's profile."""
    url = options.pop("base_url", None) or os.environ.get("OPENAI_BASE_URL")
    server = profile_of(url)
    if server is not None and server.name not in ("openai", "azure"):
        options = {"api": "chat", **options}
    return OpenAIBackend(model, **options, server=server, base_url=url)


def _azure(spec: BackendSpec) -> OpenAIBackend:
    """A deployment behind Azure's `v1` endpoint, which OpenAI's own client speaks to.

    (learn.microsoft.com/azure/foundry/openai/api-version-lifecycle, 2026-08.) `AZURE_OPENAI_ENDPOINT` is the
    resource's address, with or without `/openai/v1/`.
    """
    reject_unknown_options(spec, ("api", "api_key", "base_url", "model", "region"))
    options = dict(spec.options)
    url = options.pop("base_url", None)
    endpoint = os.environ.get("AZURE_OPENAI_ENDPOINT")
    if url is None and endpoint:
        url = endpoint.rstrip("/").removesuffix("/openai/v1") + "/openai/v1/"
    family = options.pop("model", None)
    server = profile("azure")
    return OpenAIBackend(spec.target, **options, server=server, scheme="azure", base_url=url, family=family)
