"""The scheduler's side: what is loaded for a request, what is kept of it, and what it is told in the end.

Nothing here blocks: a store that does not answer at once is asked again in the next step.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeoutError
from dataclasses import dataclass, field
from typing import Any, Protocol

from kvsdk.store import KVStore

from kvsdk_vllm.store.jobs import Load, Loaded, Save, Whose
from kvsdk_vllm.store.wishes import KEY, Wishes

logger = logging.getLogger("kvsdk.vllm")

_PATIENCE_S = 0.01
"""How long a step waits for tiers that answer at once, such as memory and disk."""
_PROBES = 4


class EngineRequest(Protocol):
    """What is read of vLLM's `Request` (0.32.0)."""

    request_id: str
    num_computed_tokens: int
    num_prompt_tokens: int

    @property
    def kv_transfer_params(self) -> Mapping[str, Any] | None: ...
    @property
    def num_tokens(self) -> int: ...
    @property
    def all_token_ids(self) -> Sequence[int]: ...


@dataclass(slots=True)
class _Known:
    """One request."""

    wishes: Wishes
    whose: Whose
    probe: Future[int] | None = None
    load: Load | None = None
    loaded: Loaded | None = None
    saved: set[int] = field(default_factory=set)
    kept_tokens: int = 0
    is_given_up: bool = False

    @property
    def is_loading(self) -> bool:
        """Whether its tokens are counted as computed though they are still to come."""
        return self.load is not None and self.loaded is None


class Scheduling:
    """Knows the requests of an engine. Used by the scheduler's thread alone.

    Args:
        store_of: The store; asked for when the first request needs it.
        block_size: Tokens of the engine's blocks.
    """

    def __init__(self, store_of: Callable[[], KVStore], block_size: int) -> None:
        self._store_of = store_of
        self._block = block_size
        self._requests: dict[str, _Known] = {}
        self._loads: list[Load] = []
        self._last_saves: list[Save] = []
        self._probes = ThreadPoolExecutor(_PROBES, thread_name_prefix="kvsdk-probe")

    def __len__(self) -> int:
        """Requests that have begun and not ended."""
        return len(self._requests)

    def begin(self, request: EngineRequest, whose: Whose | None) -> None:
        """A request has come. With `whose` None its KV is not of its tokens alone: nothing is done."""
        if whose is not None:
            self._requests[request.request_id] = _Known(Wishes.of(request.kv_transfer_params), whose)

    def found(self, request: EngineRequest, local_tokens: int) -> int | None:
        """How many tokens behind those of the engine the store has; None where that is not known yet."""
        known = self._requests.get(request.request_id)
        limit = self._whole(request.num_tokens - 1)  # one token is always computed
        if known is None or not known.wishes.load or known.is_given_up or limit <= local_tokens:
            return 0
        if known.saved:  # preempted: vLLM cannot wait for a load and a save of one request that is aborted
            return 0
        if known.probe is None:
            tokens, whose = list(request.all_token_ids[:limit]), known.whose.before(limit)
            known.probe = self._probes.submit(self._probe, tokens, whose)
        try:
            there = self._whole(known.probe.result(_PATIENCE_S))
        except FutureTimeoutError:
            return None
        return max(0, there - local_tokens)

    def allocated(self, request: EngineRequest, blocks: Sequence[int], external_tokens: int) -> None:
        """The engine has made room for what is to be loaded."""
        known = self._requests.get(request.request_id)
        if known is None or not external_tokens or known.probe is None:
            return
        end = self._whole(known.probe.result())
        known.load = Load(
            request=request.request_id,
            tokens=list(request.all_token_ids[:end]),
            first=end - external_tokens,
            blocks=list(blocks[: end // self._block]),
            whose=known.whose.before(end),
        )
        known.probe = known.loaded = None  # should it be preempted, the store is asked anew
        self._loads.append(known.load)

    def plan(
        self,
        requests: Iterable[tuple[EngineRequest, int]],
        blocks_of: Callable[[str], Sequence[int]],
    ) -> tuple[list[Load], list[Save]]:
        """What the worker does in this step.

        Args:
            requests: Those of the step, and how many of their tokens will be computed after it.
            blocks_of: A request's blocks.
        """
        saves, loads = list(self._last_saves), list(self._loads)
        self._last_saves.clear()
        self._loads.clear()
        for request, computed in requests:
            known = self._requests.get(request.request_id)
            if known is not None:
                saves += self._due(known, request, computed, blocks_of)
        return loads, saves

    def hear(self, loaded: Mapping[str, Loaded]) -> None:
        """What became of loads. Of a request that did not get all, the rest is computed."""
        for name, result in loaded.items():
            known = self._requests.get(name)
            if known is not None:
                known.loaded = result
                known.is_given_up = known.is_given_up or result.missing > 0

    def finish(
        self, request: EngineRequest, blocks: Sequence[int], computed: int
    ) -> tuple[bool, dict[str, Any] | None]:
        """A request has ended: whether its blocks are still needed, and what it is told.

        Args:
            request: Which.
            blocks: Its blocks.
            computed: Of how many of its tokens there is KV.
        """
        known = self._requests.pop(request.request_id, None)
        if known is None:
            return False, None
        end = 0 if known.is_loading else self._whole(min(computed, request.num_tokens - 1))
        if known.wishes.session is not None and end and end not in known.saved:
            self._last_saves.append(self._save(known, request, end, blocks, None))
        return bool(known.saved), {KEY: _told(known)}

    def close(self) -> None:
        """Let go of the threads."""
        self._probes.shutdown(wait=False, cancel_futures=True)

    def _probe(self, tokens: list[int], whose: Whose) -> int:
        try:
            return self._store_of().probe(tokens, tenant=whose.salt, lora=whose.lora, media=whose.media)
        except Exception:  # the prompt is computed; raised into the scheduler it would end the engine
            logger.exception("the store could not be asked")
            return 0

    def _due(
        self,
        known: _Known,
        request: EngineRequest,
        computed: int,
        blocks_of: Callable[[str], Sequence[int]],
    ) -> list[Save]:
        """The breakpoints that this step reaches."""
        made = []
        for keep in known.wishes.keep:
            end = self._whole(min(keep.tokens, request.num_prompt_tokens))
            if end and end <= computed and end not in known.saved:
                blocks = blocks_of(request.request_id)
                made.append(self._save(known, request, end, blocks, keep.ttl_s))
        return made

    def _save(
        self, known: _Known, request: EngineRequest, end: int, blocks: Sequence[int], ttl_s: float | None
    ) -> Save:
        known.saved.add(end)
        known.kept_tokens = max(known.kept_tokens, end)
        return Save(
            request=request.request_id,
            tokens=list(request.all_token_ids[:end]),
            blocks=list(blocks[: end // self._block]),
            whose=known.whose.before(end),
            ttl_s=ttl_s,
            session=known.wishes.session,
            pin=known.wishes.pin,
        )

    def _whole(self, tokens: int) -> int:
        """Tokens of whole blocks."""
        return max(0, tokens) // self._block * self._block


def _told(known: _Known) -> dict[str, Any]:
    loaded = known.loaded or Loaded()
    return {
        "kept_tokens": known.kept_tokens,
        "loaded_tokens": dict(loaded.tokens),
        "missing_tokens": loaded.missing,
        "load_s": loaded.seconds,
        "reason": loaded.reason or known.wishes.problem,
    }
