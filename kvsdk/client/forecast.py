"""What a backend's cache should hold, from what this client has sent."""

from __future__ import annotations

from collections.abc import Mapping

from kvsdk.backend import Backend
from kvsdk.backend.cache_model import CacheBlock, CacheModel, CacheSettings
from kvsdk.backend.cache_model.values import Role
from kvsdk.caching import Prefix, TokenScale
from kvsdk.errors import InvalidRequest
from kvsdk.prompt import Request
from kvsdk.reply import Predicted

_KINDS: Mapping[str, str] = {"tool": "text", "tool_call": "tool_use", "file": "document"}
_ROLES: Mapping[str, Role] = {"user": "user", "assistant": "assistant", "tool": "user"}


class Forecast:
    """A client's cache model, fed with its requests. Thread-safe.

    It knows what this client sent and nothing of other processes: where those share a prefix, more is read
    than predicted. Sizes are bytes scaled to the total that the backend reported, so they are estimates.
    """

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._model: CacheModel | None = None

    def predict(self, request: Request, prefix: Prefix, at_s: float, scale: TokenScale) -> Predicted | None:
        """What a planned request would read and write now; None where the model refuses it."""
        return self._ask("predict", request, prefix, at_s, scale)

    def observe(self, request: Request, prefix: Prefix, at_s: float, scale: TokenScale) -> Predicted | None:
        """What a request that was answered should have read and written; later ones build on it."""
        return self._ask("observe", request, prefix, at_s, scale)

    def _ask(
        self, what: str, request: Request, prefix: Prefix, at_s: float, scale: TokenScale
    ) -> Predicted | None:
        if self._model is None:
            self._model = self._backend.cache_model()
        method = self._model.observe if what == "observe" else self._model.predict
        try:
            return method(at_s, _blocks(request, prefix, scale), **_settings(request, self._backend))
        except InvalidRequest:
            return None


def _blocks(request: Request, prefix: Prefix, scale: TokenScale) -> list[CacheBlock]:
    """The request's pieces as a cache sees them; their tokens sum to the whole's. Runs on every call."""
    blocks = []
    before, per_byte = 0, 1 / scale.bytes_per_token
    for (section, message, _, place, kind, _), mark, piece, end_bytes in zip(
        request.blocks(), request.marks(), prefix.blocks, prefix.ends_bytes, strict=True
    ):
        end = round(end_bytes * per_byte)
        blocks.append(
            CacheBlock(
                section,
                -1 if message is None else message,
                _ROLES.get(place, "system"),
                _KINDS.get(kind, kind),
                piece.digest.hex(),
                end - before,
                None if mark is None else mark.ttl,
            )
        )
        before = end
    return blocks


def _settings(request: Request, backend: Backend) -> CacheSettings:
    settings: CacheSettings = {"tool_choice": request.tool_choice}
    if backend.capabilities.tenant == "partition":
        settings["scope"] = request.tenant
    if backend.capabilities.breakpoints == "honoured" and not backend.capabilities.caches_only_at_marks:
        settings["mode"] = "explicit" if request.is_marked else "implicit"
    return settings
