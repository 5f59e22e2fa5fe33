"""vLLM's own offloading tiers, as a value (vLLM 0.32.0)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from os import PathLike, fspath
from typing import Any, Literal

from kvsdk.errors import ConfigurationError

_OBJ_KEYS = ("bucket", "endpoint_override", "region", "scheme", "ca_bundle", "prefix")
_SECRET = re.compile(r"secret|token|password|credential|authorization|sas|(access|account|api).?key", re.I)


@dataclass(frozen=True, slots=True, kw_only=True)
class NativeTiers:
    """Where vLLM's own offloading keeps KV: `OffloadingConnector` with `TieringOffloadingSpec` (vLLM 0.32.0).

    KV goes from the device to the host's memory, and from there to the others, which are asked in the order
    folder, peers, bucket. The device has to be a CUDA, ROCm or XPU one.

    Attributes:
        host: How much of the host's memory, for all devices of the engine together, such as `"16GiB"`.
        fs: A folder, which engines and machines may share. vLLM deletes nothing in it.
        obj: A bucket that speaks S3; needs NIXL. By vLLM's names: `bucket` and `endpoint_override` (a host,
            without scheme), and where needed `scheme` (vLLM's own is `http`), `region`, `ca_bundle` and
            `prefix`. Credentials come from the environment of the server.
        p2p: Address under which peers fetch KV out of this engine's host memory, as `"10.0.0.5:5710"`; needs
            NIXL. Which peer has it, a router must say in each request.
        eviction: What leaves the host's memory first.
        offload_prompt_only: Whether only the KV of prompts is offloaded, as vLLM does by default. A session's
            next turn then finds its earlier prompts, and computes its last answer anew once the device has
            lost it. With False that answer is kept too, at the price of writing what may never be read: for
            long answers, unless the next turn drops them, as reasoning models' templates do.

    Raises:
        ConfigurationError: A field is none.
        InvalidRequest: `host` is no size.
    """

    host: str | int = "16GiB"
    fs: str | PathLike[str] | None = None
    obj: Mapping[str, str] | None = None
    p2p: str | None = None
    eviction: Literal["lru", "arc"] = "lru"
    offload_prompt_only: bool = True

    def __post_init__(self) -> None:
        size(self.host, "native.host")
        if self.fs is not None and not fspath(self.fs):
            raise wrong("native.fs is a folder, not an empty name")
        if self.eviction not in ("lru", "arc"):
            raise wrong(f"native.eviction is 'lru' or 'arc', not {self.eviction!r}")
        if not isinstance(self.offload_prompt_only, bool):
            raise wrong(f"native.offload_prompt_only is True or False, not {self.offload_prompt_only!r}")
        if self.obj is not None:
            _check_bucket(self.obj)
        if self.p2p is not None:
            _address(self.p2p)

    def to_config(self, *, events: bool = False) -> dict[str, Any]:
        """The connector's `kv_connector_extra_config`.

        Args:
            events: Publish what the tiers store and drop, with token ids where vLLM knows them.
        """
        config: dict[str, Any] = {
            "spec_name": "TieringOffloadingSpec",
            "cpu_bytes_to_use": size(self.host, "native.host"),
            "eviction_policy": self.eviction,
            "offload_prompt_only": self.offload_prompt_only,
            "secondary_tiers": self._secondary({"enable_kv_events": True} if events else {}),
        }
        return {**config, "self_describing_kv_events": True} if events else config

    def _secondary(self, publish: Mapping[str, bool]) -> list[dict[str, Any]]:
        tiers: list[dict[str, Any]] = []
        if self.fs is not None:
            tiers.append({"type": "fs", "root_dir": fspath(self.fs), **publish})
        if self.p2p is not None:
            host, port = _address(self.p2p)
            tiers.append({"type": "p2p", "host": host, "port": port})
        if self.obj is not None:
            connection = {name: value for name, value in self.obj.items() if name != "prefix"}
            prefix = {"prefix": self.obj["prefix"]} if "prefix" in self.obj else {}
            tiers.append({"type": "obj", "store_config": connection, **prefix, **publish})
        return tiers


def _check_bucket(obj: Mapping[str, str]) -> None:
    if not isinstance(obj, Mapping) or not all(isinstance(value, str) for value in obj.values()):
        raise wrong("native.obj is a mapping of names to text, such as {'bucket': 'kv', ...}")
    check_no_secrets(obj, "native.obj")
    unknown = sorted(set(obj) - set(_OBJ_KEYS))
    if unknown:
        raise wrong(f"native.obj has no {', '.join(unknown)}; it has {', '.join(_OBJ_KEYS)}")
    for name in ("bucket", "endpoint_override"):
        if not obj.get(name):
            raise wrong(f"native.obj needs {name}")
    if "://" in obj["endpoint_override"]:
        raise wrong("native.obj's endpoint_override is a host without scheme; write the scheme as 'scheme'")
    if obj.get("scheme", "http") not in ("http", "https"):
        raise wrong(f"native.obj's scheme is 'http' or 'https', not {obj['scheme']!r}")


def _address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 2**16 or "/" in host:
        raise wrong(f"native.p2p is HOST:PORT, such as '10.0.0.5:5710', not {text!r}")
    return host, int(port)


def check_no_secrets(options: Mapping[str, Any], field: str) -> None:
    """Credentials have no place in arguments, which every user of the machine can read.

    Raises:
        ConfigurationError: There are some; the text has their names and no values.
    """
    found = _secret_names(options)
    if found:
        raise wrong(
            f"{field} has {', '.join(found)}, and every user of a machine can read its programs' arguments; "
            "leave it out and set it in the server's environment, such as AWS_SECRET_ACCESS_KEY"
        )


def _secret_names(options: Mapping[str, Any]) -> list[str]:
    found: list[str] = []
    for name, value in options.items():
        if _SECRET.search(name):
            found.append(name)
        elif isinstance(value, Mapping):
            found += _secret_names(value)
    return sorted(found)


def size(value: str | int, field: str) -> int:
    """Bytes of a size.

    Raises:
        InvalidRequest: It is none, or not above 0.
    """
    from kvsdk.store.tiers.tier import parse_size

    return parse_size(value, field)


def wrong(message: str) -> ConfigurationError:
    """What is raised for an argument that is none."""
    return ConfigurationError(message, backend="vllm")
