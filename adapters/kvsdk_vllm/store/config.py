"""Which tiers keep an engine's KV, as a value that goes as JSON to where the engine runs."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from os import PathLike, fspath
from typing import TYPE_CHECKING, Any, Literal

from kvsdk.errors import ConfigurationError

if TYPE_CHECKING:
    from kvsdk.kv import Fingerprint, KVSpec
    from kvsdk.store import KVStore, Tier


CONNECTOR: Mapping[str, Any] = {
    "kv_connector": "KvsdkConnector",
    "kv_connector_module_path": "kvsdk_vllm.connector",
    "kv_role": "kv_both",
    "kv_load_failure_policy": "recompute",
}
"""How vLLM finds the connector (`KVTransferConfig`). A failed load is computed anew: vLLM's own choice is to
fail the request."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreConfig:
    """Where a local engine keeps the KV of breakpoints and sessions.

    Attributes:
        memory: How much of the host's memory, such as `"4GiB"`; None for none.
        disk: A folder, which engines may share.
        disk_capacity: How much fits there; None for as much as the disk has.
        object: URL of a bucket, such as `s3://bucket/prefix`.
        object_options: Of the bucket, as `kvsdk.store.Object` takes them.
        policy: Which entries go first when a tier is full.
        dtype: Store in fewer bits, such as `"fp8_e4m3"`; lossy.
        codec: `"zstd"` to compress.
        deadline_s: How long a tier may take for a chunk; then it is computed anew.
    """

    memory: str | int | None = "1GiB"
    disk: str | PathLike[str] | None = None
    disk_capacity: str | int | None = None
    object: str | None = None
    object_options: Mapping[str, Any] = field(default_factory=dict)
    policy: Literal["hints", "lru"] = "hints"
    dtype: str | None = None
    codec: str | None = None
    deadline_s: float = 5.0

    def __post_init__(self) -> None:
        if self.memory is None and self.disk is None and self.object is None:
            raise ConfigurationError("a store needs memory, disk or object", backend="vllm")
        if self.disk_capacity is not None and self.disk is None:
            raise ConfigurationError("disk_capacity is of disk, which is missing", backend="vllm")

    def to_json(self) -> str:
        """As `from_json` reads it."""
        known = {**asdict(self), "disk": None if self.disk is None else fspath(self.disk)}
        return json.dumps(known, sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> StoreConfig:
        """What `to_json` wrote.

        Raises:
            ConfigurationError: It is none.
        """
        try:
            found = json.loads(text)
            unknown = set(found) - {each.name for each in fields(cls)}
            if unknown:
                raise ConfigurationError(
                    f"a store has no {', '.join(sorted(unknown))}; was it configured by another kvsdk?",
                    backend="vllm",
                )
            return cls(**found)
        except (ValueError, TypeError) as error:
            raise ConfigurationError(
                f"this is no configuration of a store: {error}", backend="vllm"
            ) from error

    def tiers(self) -> list[Tier]:
        """The tiers, fastest first; new ones each time."""
        from kvsdk.store import Disk, Memory, Object

        made: list[Tier] = []
        if self.memory is not None:
            made.append(Memory(self.memory))
        if self.disk is not None:
            made.append(Disk(self.disk, self.disk_capacity))
        if self.object is not None:
            made.append(Object(self.object, **self.object_options))
        return made

    def open(self, fingerprint: Fingerprint, *, spec: KVSpec, rank: int = 0) -> KVStore:
        """The store of an engine's KV, or of one device's part of it, which `spec` describes."""
        from kvsdk.store import KVStore

        return KVStore(
            self.tiers(),
            fingerprint=fingerprint,
            spec=spec,
            rank=rank,
            policy=self.policy,
            dtype=self.dtype,
            codec=self.codec,
            deadline_s=self.deadline_s,
        )
