"""vLLM's connector: `KvsdkConnector`.

In `kv_transfer_config`, `kv_connector_module_path` is `kvsdk_vllm.connector`, `kv_connector_extra_config` a
`StoreConfig` as JSON, and `kv_load_failure_policy` `recompute`: by default vLLM ends requests whose KV does
not come.

Written for `KVConnectorBase_V1` of vLLM 0.32.0, which calls it experimental.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from kvsdk.errors import ConfigurationError
from kvsdk.store import KVStore
from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1,
    KVConnectorMetadata,
    KVConnectorRole,
    KVConnectorWorkerMetadata,
    SupportsHMA,
)

from kvsdk_vllm.store.config import StoreConfig
from kvsdk_vllm.store.identity import check_groups, describe, lora_digest
from kvsdk_vllm.store.jobs import Load, Loaded, Save, Whose
from kvsdk_vllm.store.moving import Mover
from kvsdk_vllm.store.scheduling import Scheduling
from kvsdk_vllm.store.shared import Lease

if TYPE_CHECKING:
    import torch
    from vllm.config import VllmConfig
    from vllm.forward_context import ForwardContext
    from vllm.v1.core.kv_cache_manager import KVCacheBlocks
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.kv_cache_interface import KVCacheConfig
    from vllm.v1.outputs import KVConnectorOutput
    from vllm.v1.request import Request


@dataclass
class Plan(KVConnectorMetadata):
    """What the worker does in a step."""

    loads: list[Load] = field(default_factory=list)
    saves: list[Save] = field(default_factory=list)
    preempted: set[str] = field(default_factory=set)


@dataclass
class Done(KVConnectorWorkerMetadata):
    """What became of loads, by request."""

    loaded: dict[str, Loaded] = field(default_factory=dict)

    def aggregate(self, other: KVConnectorWorkerMetadata) -> Done:
        """Of several workers: a request has what all of them have."""
        assert isinstance(other, Done)
        merged = dict(self.loaded)
        for name, result in other.loaded.items():
            before = merged.get(name)
            merged[name] = result if before is None or result.missing > before.missing else before
        return Done(merged)


class KvsdkConnector(KVConnectorBase_V1, SupportsHMA):
    """Keeps what breakpoints and sessions ask for in a `KVStore`, and loads what is there.

    Saves and loads run beside the engine's steps. A block that does not come, or not in time, is computed.

    Raises:
        ConfigurationError: The model has layers whose KV cannot be kept, by their kinds, or failed loads
            would end requests.
    """

    def __init__(
        self, vllm_config: VllmConfig, role: KVConnectorRole, kv_cache_config: KVCacheConfig
    ) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        check_groups(kv_cache_config)
        transfer = self._kv_transfer_config
        if transfer.kv_load_failure_policy != "recompute":
            raise ConfigurationError(
                "kv_load_failure_policy='fail' ends requests whose KV is lost; set it to 'recompute'",
                backend="vllm",
            )
        self._config = StoreConfig.from_json(json.dumps(transfer.kv_connector_extra_config or {}))
        self._block = kv_cache_config.kv_cache_groups[0].kv_cache_spec.block_size
        self._lease: Lease | None = None
        self._mover: Mover | None = None
        self._scheduling = Scheduling(self._store, self._block) if role is KVConnectorRole.SCHEDULER else None
        self._running: dict[str, Request] = {}

    # ------------------------------------------------------------------ scheduler

    def on_new_request(self, request: Request) -> None:
        """Look at what it asks for."""
        assert self._scheduling is not None
        self._running[request.request_id] = request
        self._scheduling.begin(request, _whose(request))

    def get_num_new_matched_tokens(
        self, request: Request, num_computed_tokens: int
    ) -> tuple[int | None, bool]:
        """How many tokens the store has behind those of the engine."""
        assert self._scheduling is not None
        found = self._scheduling.found(request, num_computed_tokens)
        return found, bool(found)

    def update_state_after_alloc(
        self, request: Request, blocks: KVCacheBlocks, num_external_tokens: int
    ) -> None:
        """There is room for them."""
        assert self._scheduling is not None
        if num_external_tokens:
            self._scheduling.allocated(request, blocks.get_block_ids()[0], num_external_tokens)

    def build_connector_meta(self, scheduler_output: SchedulerOutput) -> Plan:
        """What the worker does in this step."""
        assert self._scheduling is not None
        state = scheduler_output.kv_connector_block_state

        def blocks_of(name: str) -> list[int]:
            found = None if state is None else state.get_block_ids(name)
            return [] if found is None else found[0]

        loads, saves = self._scheduling.plan(self._steps(scheduler_output), blocks_of)
        return Plan(loads, saves, scheduler_output.preempted_req_ids or set())

    def update_connector_output(self, connector_output: KVConnectorOutput) -> None:
        """What the worker says."""
        assert self._scheduling is not None
        done = connector_output.kv_connector_worker_meta
        if isinstance(done, Done):
            self._scheduling.hear(done.loaded)

    def request_finished_all_groups(
        self, request: Request, block_ids: tuple[list[int], ...]
    ) -> tuple[bool, dict[str, Any] | None]:
        """It has ended: whether its blocks are still needed, and what it is told."""
        assert self._scheduling is not None
        self._running.pop(request.request_id, None)
        computed = request.num_computed_tokens - request.num_in_flight_tokens
        return self._scheduling.finish(request, block_ids[0], computed)

    def request_finished(self, request: Request, block_ids: list[int]) -> tuple[bool, dict[str, Any] | None]:
        """The same, of engines with one group of layers."""
        return self.request_finished_all_groups(request, (block_ids,))

    def _steps(self, scheduler_output: SchedulerOutput) -> Iterable[tuple[Request, int]]:
        for name, tokens in scheduler_output.num_scheduled_tokens.items():
            request = self._running.get(name)
            if request is not None:
                yield request, request.num_computed_tokens + tokens

    # ------------------------------------------------------------------ worker

    def register_kv_caches(self, kv_caches: dict[str, torch.Tensor]) -> None:
        """The engine's KV, by the names of its layers."""
        layers = [kv_caches[name] for name in sorted(kv_caches, key=_numbers)]
        found = describe(self._vllm_config, layers)
        assert found.layout is not None
        self._lease = Lease(self._config, found, self._rank())
        self._mover = Mover(self._lease.store, layers, found.layout, self._block)

    def start_load_kv(self, forward_context: ForwardContext, **kwargs: Any) -> None:
        """Begin with the loads of the step."""
        for load in self._plan().loads:
            self._moving().load(load)

    def wait_for_layer_load(self, layer_name: str) -> None:
        """Loads are awaited by the scheduler."""

    def save_kv_layer(
        self, layer_name: str, kv_layer: torch.Tensor, attn_metadata: Any, **kwargs: Any
    ) -> None:
        """Blocks are saved whole, after the step."""

    def wait_for_save(self) -> None:
        """Begin with the saves of the step."""
        for save in self._plan().saves:
            self._moving().save(save)

    def get_finished(self, finished_req_ids: set[str]) -> tuple[set[str] | None, set[str] | None]:
        """Requests that are saved, and requests that are loaded."""
        saved, loaded = self._moving().finished(finished_req_ids)
        return saved or None, loaded or None

    def get_block_ids_with_load_errors(self) -> set[int]:
        """Blocks that did not come."""
        return self._moving().bad_blocks()

    def build_connector_worker_meta(self) -> Done | None:
        """What became of loads."""
        loaded = self._moving().loaded()
        return Done(loaded) if loaded else None

    def handle_preemptions(self, kv_connector_metadata: KVConnectorMetadata) -> None:
        """Blocks of preempted requests will be overwritten: what is being saved of them is finished first.

        vLLM calls this in every step, whether there are any or not.
        """
        assert isinstance(kv_connector_metadata, Plan)
        self._moving().wait(kv_connector_metadata.preempted)

    # ------------------------------------------------------------------ both

    def shutdown(self) -> None:
        """Finish what is being saved, and close the store."""
        if self._mover is not None:
            self._mover.close()
        if self._scheduling is not None:
            self._scheduling.close()
        if self._lease is not None:
            self._lease.release()

    def _store(self) -> KVStore:
        if self._lease is None:
            self._lease = Lease(self._config, describe(self._vllm_config, None), self._rank())
        return self._lease.store

    def _rank(self) -> int:
        """Of the worker; the scheduler looks where the first one does."""
        return 0 if self._scheduling is not None else self._vllm_config.parallel_config.rank

    def _plan(self) -> Plan:
        found = self._get_connector_metadata()
        assert isinstance(found, Plan)
        return found

    def _moving(self) -> Mover:
        assert self._mover is not None
        return self._mover


def _whose(request: Request) -> Whose | None:
    """Under whose keys its KV is; None where that is not of token ids."""
    if request.prompt_embeds is not None:
        return None
    lora = request.lora_request
    return Whose(
        salt=request.cache_salt,
        lora=None if lora is None else _lora(lora.lora_path),
        media=tuple((each.mm_position.offset, each.identifier) for each in request.mm_features),
    )


@lru_cache(maxsize=256)
def _lora(folder: str) -> str:
    return lora_digest(folder)


def _numbers(name: str) -> list[int]:
    """A layer's place: of `model.layers.11.self_attn` behind that of `model.layers.2.self_attn`."""
    return [int(number) for number in re.findall(r"\d+", name)]
