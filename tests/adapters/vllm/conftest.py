"""One engine in process and one server for all engine tests; both are real vLLM on the CPU."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any

import kvsdk
import pytest
from kvsdk.cli.demo_model import ensure_demo_model
from vllm_server import free_port, wait_until_up

ENGINE = {"max_model_len": 1024, "max_num_seqs": 8, "kv_cache_memory_bytes": 256 << 20}
START_S = 300


@pytest.fixture(scope="session")
def model() -> Path:
    """The demo's checkpoint."""
    return ensure_demo_model()


@pytest.fixture(scope="session")
def address(model: Path) -> str:
    """The in-process backend's address."""
    return f"vllm:{model}"


@pytest.fixture(scope="session")
def engine_options() -> dict[str, Any]:
    """The shared engine's settings; a client that names the same ones gets that engine."""
    return dict(ENGINE)


@pytest.fixture(scope="session")
def local(address: str) -> Iterator[kvsdk.Client]:
    """A client of the engine that all tests share."""
    with kvsdk.Client(address, usd_per_hour="3.6", **ENGINE) as client:
        yield client


@pytest.fixture(scope="session")
def server(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A vLLM server's `host:port`, serving the model as `smol`."""
    port = free_port()
    log = tmp_path_factory.mktemp("server") / "log.txt"
    with (
        log.open("w") as out,
        subprocess.Popen(
            _command(model, port), stdout=out, stderr=subprocess.STDOUT, env=_environment()
        ) as process,
    ):
        try:
            wait_until_up(port, process, log, within_s=START_S)
            yield f"127.0.0.1:{port}"
        finally:
            process.terminate()


def _command(model: Path, port: int) -> list[str]:
    template = files("kvsdk_vllm").joinpath("templates/chatml_tools.jinja")
    flags = {
        "--model": model,
        "--served-model-name": "smol",
        "--host": "127.0.0.1",
        "--port": port,
        "--dtype": "float32",
        "--max-model-len": 1024,
        "--max-num-seqs": 4,
        "--block-size": 32,
        "--tool-call-parser": "hermes",
        "--chat-template": template,
    }
    switches = ["--enforce-eager", "--enable-prompt-tokens-details", "--enable-auto-tool-choice"]
    pairs = [str(word) for pair in flags.items() for word in pair]
    return [sys.executable, "-m", "vllm.entrypoints.openai.api_server", *pairs, *switches]


def _environment() -> dict[str, str]:
    settings = {
        "HF_HUB_OFFLINE": "1",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "VLLM_LOGGING_LEVEL": "WARNING",
        "VLLM_NO_USAGE_STATS": "1",
    }
    inherited = {
        name: value for name, value in os.environ.items() if name != "VLLM_ENABLE_V1_MULTIPROCESSING"
    }
    return {**inherited, **settings}
