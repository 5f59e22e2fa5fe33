"""A real `vllm serve` with a store, started by the words of `serve_args`: what it keeps outlives it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from processes import SEARCH
from vllm_server import free_port, wait_until_up

from kvsdk_vllm import StoreConfig, serve_args
from kvsdk_vllm.store.wishes import KEY, Keep, Wishes

pytestmark = [pytest.mark.engine, pytest.mark.timeout(400)]

START_S = 180
CPU = ("--dtype", "float32", "--enforce-eager", "--max-model-len", "1024", "--max-num-seqs", "2")
ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_NO_USAGE_STATS": "1",
}
MANUAL = "Open the blue suction valve first, then the red delivery valve. " * 24


@contextmanager
def serving(model: Path, store: StoreConfig, log: Path) -> Generator[str]:
    """A server's address; it is killed, with all of its processes, at once."""
    port = free_port()
    words = serve_args(
        str(model),
        store=store,
        served_model_name="smol",
        host="127.0.0.1",
        port=port,
        block_size=32,
        extra=CPU,
    )
    inherited = {name: value for name, value in SEARCH.items() if name != "VLLM_ENABLE_V1_MULTIPROCESSING"}
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", *words.args]
    with log.open("w") as out:
        process = subprocess.Popen(
            command,
            stdout=out,
            stderr=subprocess.STDOUT,
            env={**inherited, **ENVIRONMENT, **words.env},
            start_new_session=True,
        )
    try:
        wait_until_up(port, process, log, within_s=START_S)
        yield f"http://127.0.0.1:{port}"
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def ask(address: str, wishes: Wishes) -> dict[str, Any]:
    """A question about the manual."""
    messages = [{"role": "system", "content": MANUAL}, {"role": "user", "content": "Which valve is first?"}]
    body = {"model": "smol", "messages": messages, "max_tokens": 6, "temperature": 0}
    data = json.dumps({**body, "kv_transfer_params": wishes.to_params()}).encode()
    request = urllib.request.Request(
        f"{address}/v1/chat/completions", data, {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=120) as answer:
        found: dict[str, Any] = json.load(answer)
    return found


def test_what_a_server_keeps_outlives_it(model: Path, tmp_path: Path) -> None:
    """It is killed after its answer; the next one reads the prefix from disk, and says the same."""
    store = StoreConfig(memory="64MiB", disk=tmp_path / "kv")
    with serving(model, store, tmp_path / "first.log") as address:
        first = ask(address, Wishes(keep=(Keep(300, 3600.0),)))
        files = tmp_path / "kv" / "entries"
        ends_s = time.monotonic() + 60
        while (
            len([file for file in files.rglob("*") if "-" in file.name and file.is_file()]) < 2
            and time.monotonic() < ends_s
        ):
            time.sleep(0.05)
    with serving(model, store, tmp_path / "second.log") as address:
        second = ask(address, Wishes())
    assert first["kv_transfer_params"][KEY]["kept_tokens"] == 288
    assert second["kv_transfer_params"][KEY]["loaded_tokens"] == {"disk": 288}
    assert first["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
    assert second["usage"]["prompt_tokens_details"]["cached_tokens"] == 288
    assert first["choices"][0]["message"] == second["choices"][0]["message"]
