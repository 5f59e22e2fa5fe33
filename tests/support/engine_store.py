"""An engine with a store in a process of its own: `python engine_store.py MODEL FOLDER SCENE` prints JSON."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import kvsdk

from kvsdk_vllm import StoreConfig
from kvsdk_vllm._engine import Job
from kvsdk_vllm._shared import SharedEngine, acquire, release
from kvsdk_vllm.store.wishes import Keep, Wishes

SETTINGS = {"max_model_len": 1024, "max_num_seqs": 8, "kv_cache_memory_bytes": 96 << 20}
PROMPT = [(number * 7919) % 40_000 + 10 for number in range(600)]
KEPT = 576
"""Whole blocks of 32 in the first 590 tokens."""
SAID = 6
TIMEOUT_S = 120


class Engine:
    """Runs prompts one after another, and looks at what is left of them."""

    def __init__(self, model: str, folder: str, **store: Any) -> None:
        self._shared: SharedEngine = acquire(model, SETTINGS, StoreConfig(memory=None, disk=folder, **store))
        self._number = 0

    @property
    def scheduler(self) -> Any:
        """The engine's own."""
        core: Any = self._shared.thread.engine.engine_core
        return core.engine_core.scheduler

    @property
    def connector(self) -> Any:
        """The scheduler's side; both have one store."""
        return self.scheduler.connector

    def begin(
        self,
        prompt: Sequence[int],
        wishes: Wishes | None = None,
        salt: str | None = None,
        max_tokens: int = SAID,
    ) -> Any:
        """Hand a prompt to the engine; a queue of what comes, and a call that aborts it."""
        from vllm import SamplingParams

        self._number += 1
        extra = None if wishes is None else {"kv_transfer_params": wishes.to_params()}
        params = SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True, extra_args=extra)
        asked: Any = {"prompt_token_ids": list(prompt), **({} if salt is None else {"cache_salt": salt})}
        came: SimpleQueue[Any] = SimpleQueue()
        job = Job(f"store-{self._number}", asked, params, came.put)
        self._shared.thread.submit(job)
        return came, lambda: self._shared.thread.abort(job.id)

    def run(
        self, prompt: Sequence[int], wishes: Wishes | None = None, salt: str | None = None
    ) -> dict[str, Any]:
        """Continue a prompt greedily."""
        began_s = time.perf_counter()
        came, _ = self.begin(prompt, wishes, salt)
        output = came.get(timeout=TIMEOUT_S)
        first_s = time.perf_counter() - began_s
        while not isinstance(output, Exception) and not output.finished:
            output = came.get(timeout=TIMEOUT_S)
        if isinstance(output, Exception):
            raise output
        told = (output.kv_transfer_params or {}).get("kvsdk", {})
        return {
            "said": list(output.outputs[0].token_ids),
            "cached": output.num_cached_tokens,
            "first_s": first_s,
            **told,
        }

    def forget(self) -> None:
        """Let the device's cache go, not the store, and what is on its way to the disk get there."""
        self.settle()
        self.connector._store().flush(TIMEOUT_S)
        assert self._shared.thread.engine.reset_prefix_cache()

    def settle(self) -> None:
        """Until no request is left, nor anything of one that is being saved."""
        ends_s = time.monotonic() + TIMEOUT_S
        while self.scheduler.has_requests():
            assert time.monotonic() < ends_s
            time.sleep(0.005)

    def left(self) -> dict[str, int]:
        """What requests still hold."""
        return {
            "requests": len(self.scheduler.requests),
            "known": len(self.connector._scheduling),
            "running": len(self.connector._running),
            "free": self.scheduler.kv_cache_manager.block_pool.get_num_free_blocks(),
        }

    def close(self) -> None:
        """Stop."""
        release(self._shared)


def keep(model: str, folder: str) -> None:
    """Compute a prompt and keep it, then wait to be killed."""
    engine = Engine(model, folder)
    found = engine.run(PROMPT, Wishes(keep=(Keep(590, 3600.0),)))
    engine.settle()
    assert engine.connector._store().flush(TIMEOUT_S)
    _say(found)
    time.sleep(TIMEOUT_S)


def restore(model: str, folder: str) -> None:
    """All that happens in an engine that finds what another one has kept."""
    engine = Engine(model, folder)
    engine.run(PROMPT[::-1][:70])  # the first run of a process is slow
    before = engine.left()
    found = {"restored": engine.run(PROMPT), "device": engine.run(PROMPT)}
    for name, wishes, salt in (
        ("computed", Wishes(load=False), None),
        ("tenant", None, "somebody else"),
        ("again", None, None),
    ):
        engine.forget()
        found[name] = engine.run(PROMPT, wishes, salt)
    for name, spoil in (("corrupt", _flip), ("short", _cut)):
        engine.forget()
        for file in sorted((Path(folder) / "entries").rglob("*-*"))[:2]:
            spoil(file)
        found[name] = engine.run(PROMPT, Wishes(keep=(Keep(590, 3600.0),)))
        engine.forget()
        found[f"{name}, kept again"] = engine.run(PROMPT)
    engine.forget()
    found["session"] = engine.run(PROMPT[:90], Wishes(session="s"))
    engine.forget()
    found["next turn"] = engine.run([*PROMPT[:90], *found["session"]["said"], *PROMPT[200:240]])
    _say({**found, "left": [before, _after(engine)]})
    engine.close()


def trouble(model: str, folder: str) -> None:
    """Requests that are aborted wherever they are, and a tier from which nothing comes."""
    engine = Engine(model, folder)
    right = engine.run(PROMPT, Wishes(keep=(Keep(590),)))
    engine.forget()
    before = engine.left()
    for number in range(100):
        came, abort = engine.begin(PROMPT[: 60 + 5 * number], Wishes(keep=(Keep(1000),), session=str(number)))
        if number % 3:
            time.sleep(0.001 * (number % 7))
        abort()
        del came
    aborted = [before, _after(engine)]
    engine.forget()

    def broken(*_: Any, **__: Any) -> Any:
        raise OSError(5, "Input/output error")

    tier = engine.connector._store()._levels.all[0].tier
    tier.get = broken
    failed = [engine.run(PROMPT) for _ in range(3) if engine.forget() is None]
    _say({"right": right, "aborted": aborted, "failed": failed, "left": [before, _after(engine)]})
    engine.close()


def crowd(model: str, folder: str) -> None:
    """More requests than there is room for: some are preempted while their prefixes are being saved."""
    engine = Engine(model, folder)
    preempted: list[str] = []
    preempt = engine.scheduler._preempt_request

    def noting(request: Any, *rest: Any, **named: Any) -> Any:
        preempted.append(request.request_id)
        return preempt(request, *rest, **named)

    engine.scheduler._preempt_request = noting
    prompts = [[(number * 7919 + seed) % 40_000 + 10 for number in range(480)] for seed in range(5)]
    coming = [engine.begin(each, Wishes(keep=(Keep(479),)), max_tokens=80)[0] for each in prompts]
    together = [_all_of(came)[:SAID] for came in coming]
    alone = []
    for load in (False, True):
        for each in prompts:
            engine.forget()
            alone.append(engine.run(each, Wishes(load=load)))
    _say({"preempted": len(preempted), "together": together, "computed": alone[:5], "restored": alone[5:]})
    engine.close()


def _all_of(came: Any) -> list[int]:
    """What a request has said in the end."""
    output = came.get(timeout=TIMEOUT_S)
    while not isinstance(output, Exception) and not output.finished:
        output = came.get(timeout=TIMEOUT_S)
    if isinstance(output, Exception):
        raise output
    return list(output.outputs[0].token_ids)


def client(model: str, folder: str) -> None:
    """Two questions about a text, by the client; then another client in the same process."""
    manual = "Open the blue suction valve first, then the red delivery valve. " * 30
    options: dict[str, Any] = {"store": StoreConfig(disk=folder), "ledger": None, **SETTINGS}
    found = []
    for _ in range(2):
        with kvsdk.Client(f"vllm:{model}", **options) as asking:
            system = [kvsdk.Text(manual, cache="1h")]
            reply = asking.generate("Which valve comes first?", system=system, max_tokens=4, temperature=0)
            refused = _refused(f"vllm:{model}")
        (report,) = reply.cache.breakpoints
        found.append(
            {
                "text": reply.text,
                "input": reply.usage.input_tokens,
                "read": reply.usage.cache_read_tokens,
                "status": [report.status, report.granted_ttl],
                "notes": reply.cache.notes,
                "refused": refused,
            }
        )
    _say({"replies": found})


def _refused(address: str) -> str | None:
    """What a second engine in the process is told."""
    try:
        with kvsdk.Client(address, **SETTINGS, ledger=None) as other:
            other.generate("Hi", max_tokens=1)
    except kvsdk.ConfigurationError as error:
        return str(error)
    return None


def _after(engine: Engine) -> dict[str, int]:
    engine.settle()
    return engine.left()


def _flip(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)


def _cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-1])


def _say(found: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(found) + "\n")
    sys.stdout.flush()


SCENES: dict[str, Callable[[str, str], None]] = {
    "keep": keep,
    "restore": restore,
    "trouble": trouble,
    "crowd": crowd,
    "client": client,
}

if __name__ == "__main__":
    SCENES[sys.argv[3]](sys.argv[1], sys.argv[2])
