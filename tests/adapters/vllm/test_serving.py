"""Arguments for a vLLM server: vLLM's own parser, tiers and publisher are the judges."""

from __future__ import annotations

import argparse
import inspect
import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, cast

import pytest
from kvsdk.errors import ConfigurationError, InvalidRequest, KvsdkError

from kvsdk_vllm import NativeTiers, ServeArgs, serve_args
from kvsdk_vllm.store.config import StoreConfig

Parse = Callable[[ServeArgs], argparse.Namespace]
BUCKET = {"bucket": "kv", "endpoint_override": "s3.example:9000", "region": "eu", "scheme": "https"}
ALL_NATIVE = NativeTiers(host="2GiB", fs="/kv", obj={**BUCKET, "prefix": "team"}, p2p="10.0.0.5:5710")


def value_of(made: ServeArgs, flag: str) -> str:
    """The word behind a flag."""
    return made.args[made.args.index(flag) + 1]


def transfer_of(made: ServeArgs) -> dict[str, Any]:
    """What the connector is told."""
    config: dict[str, Any] = json.loads(value_of(made, "--kv-transfer-config"))
    return config


@pytest.fixture(scope="module")
def parse() -> Parse:
    """What `vllm serve` makes of arguments; it exits on what it does not know."""
    args = pytest.importorskip("vllm.entrypoints.launchers.cli_args", reason="vLLM is not installed")
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    parser = args.make_arg_parser(FlexibleArgumentParser())
    return lambda made: parser.parse_args(list(made.args))


# ---------------------------------------------------------------------- as vLLM reads them


def test_vllm_reads_what_every_server_gets(parse: Parse) -> None:
    """Prefix caching, cached tokens in the usage, hashes that agree; the rest as it was asked for."""
    made = serve_args(
        Path("/models/smol"),
        tier=None,
        block_size=32,
        served_model_name="smol",
        host="127.0.0.1",
        port=8123,
        extra=("--max-model-len", "1024", "--enforce-eager"),
    )
    read = parse(made)
    assert read.model_tag == "/models/smol"
    assert (read.enable_prefix_caching, read.enable_prompt_tokens_details) == (True, True)
    assert read.prefix_caching_hash_algo == "sha256_cbor"
    assert (read.block_size, read.served_model_name) == (32, ["smol"])
    assert (read.host, read.port) == ("127.0.0.1", 8123)
    assert (read.max_model_len, read.enforce_eager) == (1024, True)
    assert (read.kv_transfer_config, read.kv_events_config) == (None, None)
    assert dict(made.env) == {"PYTHONHASHSEED": "0"}


def test_vllm_reads_the_store_of_kvsdks_tier(parse: Parse) -> None:
    """The connector gets the store's configuration whole, and a failed load is recomputed."""
    store = StoreConfig(
        memory="2GiB", disk="/kv/it's here", disk_capacity="50GiB", object="s3://b/p", dtype="fp8_e4m3"
    )
    config = parse(serve_args("smol", store=store)).kv_transfer_config
    assert (config.kv_connector, config.kv_connector_module_path) == (
        "KvsdkConnector",
        "kvsdk_vllm.connector",
    )
    assert (config.kv_role, config.kv_load_failure_policy) == ("kv_both", "recompute")
    assert StoreConfig.from_json(json.dumps(config.kv_connector_extra_config)) == store


def test_kvsdks_tier_has_a_default_store() -> None:
    """Without a word about tiers, KV is kept by kvsdk, in a store as `StoreConfig` has it."""
    extra = transfer_of(serve_args("smol"))["kv_connector_extra_config"]
    assert StoreConfig.from_json(json.dumps(extra)) == StoreConfig()


def test_vllm_reads_its_own_tiers(parse: Parse) -> None:
    """Host memory in bytes, then folder, peers and bucket, by vLLM's names."""
    config = parse(serve_args("smol", tier="native", native=ALL_NATIVE)).kv_transfer_config
    assert (config.kv_connector, config.kv_connector_module_path) == ("OffloadingConnector", None)
    assert (config.kv_role, config.kv_load_failure_policy) == ("kv_both", "recompute")
    assert config.kv_connector_extra_config == {
        "spec_name": "TieringOffloadingSpec",
        "cpu_bytes_to_use": 2 * 2**30,
        "eviction_policy": "lru",
        "offload_prompt_only": True,
        "secondary_tiers": [
            {"type": "fs", "root_dir": "/kv"},
            {"type": "p2p", "host": "10.0.0.5", "port": 5710},
            {"type": "obj", "store_config": BUCKET, "prefix": "team"},
        ],
    }


def test_vllm_has_these_tiers() -> None:
    """vLLM finds each tier by its type, and its class takes every key that is set."""
    factory = pytest.importorskip("vllm.v1.kv_offload.tiering.factory", reason="vLLM is not installed")
    from vllm.v1.kv_offload.factory import OffloadingSpecFactory
    from vllm.v1.kv_offload.tiering.obj.config import ObjStoreConfig

    config = ALL_NATIVE.to_config(events=True)
    spec = OffloadingSpecFactory.get_spec_cls(config)
    assert spec.__name__ == "TieringOffloadingSpec"
    assert spec.build_metric_definitions(config)
    assert [each["type"] for each in config["secondary_tiers"]] == ["fs", "p2p", "obj"]
    for settings in config["secondary_tiers"]:
        tier = factory.SecondaryTierFactory.get_tier_class(settings)
        named = {name for name in inspect.signature(tier.__init__).parameters if name != "kwargs"}
        assert set(settings) - {"type"} <= named
    ObjStoreConfig(**config["secondary_tiers"][2]["store_config"])


def test_vllm_looks_up_these_keys() -> None:
    """Every key of the configuration is one that vLLM's offloading reads."""
    base = pytest.importorskip("vllm.v1.kv_offload.base", reason="vLLM is not installed")
    import vllm.v1.kv_offload.cpu.spec as host
    import vllm.v1.kv_offload.factory as factory
    import vllm.v1.kv_offload.tiering.spec as tiering

    read = "".join(inspect.getsource(module) for module in (base, host, factory, tiering))
    missing = [key for key in ALL_NATIVE.to_config(events=True) if f'extra_config.get("{key}"' not in read]
    assert not missing


def test_vllm_reads_the_events(parse: Parse) -> None:
    """Events are on, published where it was said, and repeated where it was said."""
    made = serve_args("smol", events_endpoint="tcp://*:5557", replay_endpoint="tcp://127.0.0.1:5558")
    config = parse(made).kv_events_config
    assert (config.enable_kv_cache_events, config.publisher) == (True, "zmq")
    assert (config.endpoint, config.replay_endpoint) == ("tcp://*:5557", "tcp://127.0.0.1:5558")


def test_followed_tiers_publish_too() -> None:
    """With events, vLLM's host memory, folder and bucket say what they store; without, they are silent."""
    native = NativeTiers(fs="/kv", obj=BUCKET)
    silent = transfer_of(serve_args("smol", tier="native", native=native))["kv_connector_extra_config"]
    made = serve_args("smol", tier="native", native=native, events_endpoint="ipc:///run/kv.sock")
    heard = transfer_of(made)["kv_connector_extra_config"]
    assert [each.get("enable_kv_events") for each in silent["secondary_tiers"]] == [None, None]
    assert [each.get("enable_kv_events") for each in heard["secondary_tiers"]] == [True, True]
    assert (silent.get("self_describing_kv_events"), heard["self_describing_kv_events"]) == (None, True)


def test_a_flag_that_vllm_does_not_know_stops_it(parse: Parse) -> None:
    """The parser that judges here lets nothing unknown pass."""
    with pytest.raises(SystemExit):
        parse(serve_args("smol", extra=("--no-such-flag",)))


def test_answers_are_offloaded_when_asked_for() -> None:
    """`offload_prompt_only` and the eviction policy go through as they are."""
    native = NativeTiers(offload_prompt_only=False, eviction="arc", host=4096)
    extra = transfer_of(serve_args("smol", tier="native", native=native))["kv_connector_extra_config"]
    assert (extra["offload_prompt_only"], extra["eviction_policy"]) == (False, "arc")
    assert (extra["cpu_bytes_to_use"], extra["secondary_tiers"]) == (4096, [])


# ---------------------------------------------------------------------- environment and command


def test_dev_mode_only_if_asked_for() -> None:
    """vLLM's admin routes stay closed unless someone opens them."""
    assert "VLLM_SERVER_DEV_MODE" not in serve_args("smol").env
    opened = serve_args("smol", dev_mode=True, hash_seed=7)
    assert dict(opened.env) == {"PYTHONHASHSEED": "7", "VLLM_SERVER_DEV_MODE": "1"}
    assert any(text.startswith("Admin routes:") for text in opened.loses)


def test_what_was_made_cannot_be_changed() -> None:
    """A `ServeArgs` is a value, its environment too."""
    made = serve_args("smol")
    with pytest.raises(TypeError):
        cast("dict[str, str]", made.env)["VLLM_SERVER_DEV_MODE"] = "1"
    assert made == serve_args("smol")


def test_the_command_can_be_pasted(tmp_path: Path) -> None:
    """A shell hands exactly these words and this environment to `vllm`, whatever a path has in it."""
    said = tmp_path / "said.json"
    program = tmp_path / "vllm"
    lines = (
        f"#!{sys.executable}",
        "import json, os, sys",
        "seen = {name: os.environ.get(name) for name in ('PYTHONHASHSEED', 'VLLM_SERVER_DEV_MODE')}",
        f"open({str(said)!r}, 'w').write(json.dumps([sys.argv[1:], seen]))",
    )
    program.write_text("\n".join(lines))
    program.chmod(0o755)
    made = serve_args(
        "/models/it's a $HOME `model`; rm",
        store=StoreConfig(disk="/kv/\"quoted\" 'twice' \\ é"),
        dev_mode=True,
        extra=("--chat-template", "a b"),
    )
    path = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    subprocess.run(["sh", "-c", made.command], env=path, check=True)
    words, environment = json.loads(said.read_text())
    assert words == ["serve", *made.args]
    assert environment == {"PYTHONHASHSEED": "0", "VLLM_SERVER_DEV_MODE": "1"}


def test_vllm_is_not_imported() -> None:
    """Arguments can be made without vLLM, and importing the function loads no store either."""
    code = (
        "import sys; from kvsdk_vllm import serve_args, NativeTiers;"
        "early = [name for name in ('vllm', 'torch', 'obstore') if name in sys.modules];"
        "serve_args('m', dev_mode=True, events_endpoint='tcp://*:5557');"
        "serve_args('m', tier='native', native=NativeTiers(fs='/kv'));"
        "print(early, [name for name in ('vllm', 'torch', 'zmq') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "[] []", done.stderr


# ---------------------------------------------------------------------- what is kept and lost


def topics(texts: tuple[str, ...]) -> set[str]:
    """What sentences are about: their first words."""
    return {text.partition(":")[0] for text in texts}


@pytest.mark.parametrize(
    ("made", "keeps", "loses"),
    [
        (
            serve_args("m", store=StoreConfig(disk="/kv")),
            {"Breakpoints", "Sessions", "Identity", "Checksums", "Tenants", "Proof"},
            {"Speed", "Hybrid models", "Several devices"},
        ),
        (
            serve_args("m", tier="native", native=NativeTiers(fs="/kv", offload_prompt_only=False)),
            {"Speed", "Hybrid models", "Tenants", "Sessions"},
            {"Breakpoints", "Identity", "Checksums", "Proof", "CPU engines", "Space"},
        ),
        (
            serve_args("m", tier=None),
            {"Speed", "Hybrid models", "Tenants", "Identity and checksums"},
            {"Breakpoints", "Sessions"},
        ),
    ],
    ids=["kvsdk", "native", "none"],
)
def test_each_choice_says_what_it_is_worth(made: ServeArgs, keeps: set[str], loses: set[str]) -> None:
    """Each promise of kvsdk is named once, on one side, as a whole sentence."""
    assert keeps <= topics(made.keeps)
    assert loses <= topics(made.loses)
    assert not keeps & topics(made.loses)
    assert not loses & topics(made.keeps)
    assert all(text.endswith(".") and "\n" not in text for text in (*made.keeps, *made.loses))


@pytest.mark.parametrize(
    ("store", "lasts"),
    [
        (StoreConfig(), False),
        (StoreConfig(disk="/kv"), True),
        (StoreConfig(memory=None, object="s3://b/p"), True),
    ],
)
def test_sessions_need_a_store_that_lasts(store: StoreConfig, lasts: bool) -> None:
    """Memory alone ends with the engine; a disk or a bucket does not."""
    made = serve_args("m", store=store)
    assert ("Sessions" in topics(made.keeps), "Sessions" in topics(made.loses)) == (lasts, not lasts)


def test_a_bucket_alone_keeps_no_ttl() -> None:
    """An object tier forgets by age, so breakpoints' TTLs are on the side of the losses."""
    made = serve_args("m", store=StoreConfig(memory=None, object="s3://b/p"))
    assert "Breakpoints" in topics(made.loses)
    assert "Machines" in topics(made.keeps)


def test_a_lossy_store_is_allowed_and_said() -> None:
    """Fewer bits are the user's choice; that answers may differ is said."""
    made = serve_args("m", store=StoreConfig(dtype="fp8_e4m3"))
    assert any("fp8_e4m3, which is lossy" in text for text in made.loses)
    assert "Proof" not in topics(made.keeps)


@pytest.mark.parametrize("prompt_only", [True, False])
def test_answers_that_are_not_offloaded_are_said(prompt_only: bool) -> None:
    """With vLLM's default a session's answers are lost, and only then is it said."""
    made = serve_args("m", tier="native", native=NativeTiers(fs="/kv", offload_prompt_only=prompt_only))
    assert any("offload_prompt_only" in text for text in made.loses) is prompt_only


def test_only_a_tcp_endpoint_is_open_to_other_machines() -> None:
    """Events have token ids; a socket in the file system is no loss."""
    near = serve_args("m", events_endpoint="ipc:///run/kv.sock")
    far = serve_args("m", events_endpoint="tcp://*:5557")
    assert ("Events" in topics(near.loses), "Events" in topics(far.loses)) == (False, True)


# ---------------------------------------------------------------------- the events endpoint

HEARD = ["tcp://*:5557", "tcp://*:0", "ipc:///run/kv.sock", "inproc://kv"]
UNHEARD = ["tcp://127.0.0.1:5557", "tcp://localhost:5557", "tcp://0.0.0.0:5557", "tcp://10.0.0.5:5557"]
FAILING = ["tcp://[::1]:5557", "tcp://[::]:5557", "tcp://*", "tcp://*:99999", "udp://*:5557", "", "ipc://"]


@pytest.mark.parametrize("endpoint", HEARD)
def test_endpoints_that_vllm_binds_pass(endpoint: str) -> None:
    """A subscriber can connect to each of these, as vLLM's publisher itself says."""
    serve_args("m", events_endpoint=endpoint)
    events = pytest.importorskip("vllm.distributed.kv_events", reason="vLLM is not installed")
    assert events.ZmqEventPublisher._is_bind_endpoint(endpoint)


@pytest.mark.parametrize("endpoint", UNHEARD)
def test_endpoints_that_vllm_connects_to_are_refused(endpoint: str) -> None:
    """vLLM would connect there and be heard by nobody; the error says so and names the way out."""
    with pytest.raises(ConfigurationError, match=r"connects to an events_endpoint.*ipc:///.*tcp://\*:PORT"):
        serve_args("m", events_endpoint=endpoint)
    events = pytest.importorskip("vllm.distributed.kv_events", reason="vLLM is not installed")
    assert not events.ZmqEventPublisher._is_bind_endpoint(endpoint)


@pytest.mark.parametrize("endpoint", FAILING)
def test_endpoints_that_vllm_cannot_bind_are_refused(endpoint: str) -> None:
    """The error names the argument and the way out."""
    with pytest.raises(ConfigurationError, match=r"events_endpoint.*ipc:///.*tcp://\*:PORT"):
        serve_args("m", events_endpoint=endpoint)


def free_port() -> int:
    """A port that nobody has."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@pytest.mark.parametrize("kind", ["ipc", "tcp"])
def test_a_subscriber_hears_vllms_publisher(kind: str, tmp_path: Path, parse: Parse) -> None:
    """With the configuration that was made, vLLM's publisher is heard by who connects."""
    zmq = pytest.importorskip("zmq")
    from vllm.distributed.kv_events import AllBlocksCleared, EventBatch, EventPublisherFactory

    port = free_port()
    endpoint = f"ipc://{tmp_path}/kv.sock" if kind == "ipc" else f"tcp://*:{port}"
    made = serve_args("m", events_endpoint=endpoint, replay_endpoint=f"ipc://{tmp_path}/again.sock")
    publisher = EventPublisherFactory.create(parse(made).kv_events_config)
    listener = zmq.Context.instance().socket(zmq.SUB)
    try:
        listener.setsockopt(zmq.SUBSCRIBE, b"")
        listener.connect(endpoint.replace("*", "127.0.0.1"))
        for _ in range(100):  # what was sent before the subscription arrived is gone
            publisher.publish(EventBatch(ts=0.0, events=[AllBlocksCleared()]))
            if listener.poll(100):
                break
        assert b"AllBlocksCleared" in listener.recv_multipart(zmq.NOBLOCK)[2]
    finally:
        listener.close(linger=0)
        publisher.shutdown()


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"replay_endpoint": "tcp://127.0.0.1:5558"}, "events_endpoint"),
        ({"events_endpoint": "ipc:///a", "replay_endpoint": "ipc:///a"}, "one of its own"),
        ({"events_endpoint": "ipc:///a", "replay_endpoint": "127.0.0.1:5558"}, "replay_endpoint is such as"),
        ({"events_endpoint": 5557}, "events_endpoint is text"),
    ],
)
def test_bad_pairs_of_endpoints_are_refused(settings: Mapping[str, Any], said: str) -> None:
    """A replay needs events, and an endpoint of its own."""
    with pytest.raises(ConfigurationError, match=said):
        serve_args("m", **settings)


# ---------------------------------------------------------------------- bad input


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"tier": "redis"}, "tier is 'kvsdk', 'native' or None, not 'redis'"),
        ({"tier": "native", "store": StoreConfig()}, "store says where tier='kvsdk'"),
        ({"tier": None, "store": StoreConfig()}, "store says where tier='kvsdk'"),
        ({"native": NativeTiers()}, "native says where tier='native'"),
        ({"store": {"memory": "1GiB"}}, "store is a StoreConfig, not dict"),
        ({"tier": "native", "native": {"host": "1GiB"}}, "native is a NativeTiers, not dict"),
        ({"store": StoreConfig(memory="many")}, "store.memory is a size"),
        ({"store": StoreConfig(memory=-1)}, "store.memory is a size"),
        ({"store": StoreConfig(disk="/kv", disk_capacity="-5GiB")}, "store.disk_capacity is a size"),
        ({"store": StoreConfig(object_options={"retries": {1, 2}})}, "store.object_options"),
        ({"block_size": 0}, "block_size is a whole number, 1 or more, not 0"),
        ({"block_size": True}, "block_size"),
        ({"block_size": "32"}, "block_size"),
        ({"port": 0}, "port is a whole number, 1 to 65535, not 0"),
        ({"port": 65536}, "port"),
        ({"hash_seed": -1}, "hash_seed"),
        ({"hash_seed": 2**32}, "hash_seed is a whole number, 0 to 4294967295"),
        ({"hash_seed": None}, "hash_seed"),
        ({"dev_mode": "no"}, "dev_mode is True or False, not 'no'"),
        ({"host": ""}, "host is a name"),
        ({"served_model_name": "--enforce-eager"}, "served_model_name is a name"),
        ({"extra": "--enforce-eager"}, "extra is a sequence of words"),
        ({"extra": ("--max-model-len", 1024)}, "extra is a sequence of words"),
        ({"extra": None}, "extra is a sequence of words"),
        ({"extra": ("--kv-transfer-config", "{}")}, "extra has '--kv-transfer-config'"),
        ({"extra": ("--kv_transfer_config={}",)}, "extra has"),
        ({"extra": ("--kv-events-config.topic", "x")}, "extra has"),
        ({"extra": ("--prefix-caching-hash", "xxhash")}, "extra has"),
        ({"extra": ("--kv-offloading-size", "4")}, "extra has"),
    ],
)
def test_bad_arguments_are_refused_by_name(settings: Mapping[str, Any], said: str) -> None:
    """Each error names the argument, before a server is started."""
    with pytest.raises(KvsdkError) as caught:
        serve_args("m", **settings)
    assert isinstance(caught.value, ConfigurationError | InvalidRequest)
    assert said in str(caught.value)


@pytest.mark.parametrize("model", ["", "--help", 7, None])
def test_a_model_has_a_name(model: Any) -> None:
    """What is no name, or what vLLM would take for a flag, is refused."""
    with pytest.raises(ConfigurationError, match="model is a path or a name"):
        serve_args(model)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"host": "none"}, "native.host is a size"),
        ({"host": None}, "native.host is a size"),
        ({"host": "0GiB"}, "native.host is a size"),
        ({"host": -5}, "native.host is a size"),
        ({"host": True}, "native.host is a size"),
        ({"fs": ""}, "native.fs is a folder"),
        ({"eviction": "fifo"}, "native.eviction is 'lru' or 'arc', not 'fifo'"),
        ({"offload_prompt_only": "no"}, "native.offload_prompt_only is True or False"),
        ({"obj": "s3://bucket"}, "native.obj is a mapping"),
        ({"obj": {"bucket": "b"}}, "native.obj needs endpoint_override"),
        ({"obj": {"endpoint_override": "s3:9000"}}, "native.obj needs bucket"),
        ({"obj": {**BUCKET, "size": "1GiB"}}, "native.obj has no size"),
        ({"obj": {**BUCKET, "scheme": "s3"}}, "scheme is 'http' or 'https', not 's3'"),
        ({"obj": {**BUCKET, "endpoint_override": "https://s3:9000"}}, "without scheme"),
        ({"p2p": "10.0.0.5"}, "native.p2p is HOST:PORT"),
        ({"p2p": "10.0.0.5:0"}, "native.p2p is HOST:PORT"),
        ({"p2p": "tcp://10.0.0.5:5710"}, "native.p2p is HOST:PORT"),
    ],
)
def test_bad_native_tiers_are_refused_by_name(settings: dict[str, Any], said: str) -> None:
    """Each error names the field."""
    with pytest.raises(KvsdkError) as caught:
        NativeTiers(**settings)
    assert isinstance(caught.value, ConfigurationError | InvalidRequest)
    assert said in str(caught.value)


@pytest.mark.parametrize(
    "make",
    [
        lambda: NativeTiers(obj={**BUCKET, "secret_key": "hunter2"}),
        lambda: serve_args("m", store=StoreConfig(object="s3://b", object_options={"secret_key": "hunter2"})),
        lambda: serve_args(
            "m",
            store=StoreConfig(object="s3://b", object_options={"client_options": {"api_key": "hunter2"}}),
        ),
    ],
    ids=["native", "store", "nested"],
)
def test_credentials_do_not_go_into_arguments(make: Callable[[], object]) -> None:
    """Every user of a machine can read arguments: the error says where a secret goes, not what it is."""
    with pytest.raises(ConfigurationError, match="environment") as caught:
        make()
    assert "hunter2" not in str(caught.value)
