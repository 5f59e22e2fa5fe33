"""A vLLM engine in this process, stepped by one background thread.

Calls from many threads and event loops meet in the engine's own scheduler: each submits its request and gets
its outputs as they come, so they run in one batch, stream, and can be aborted.

The time that the engine is busy is divided among the requests by the tokens it computes for each (see
`_meter`); the shares of all requests sum to it. A request's share up to its first token is its prefill, the
rest its decode. Before the first batch that computes something for it, it waits and pays nothing.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from kvsdk.errors import BackendError, BackendUnavailable, RequestRejected

from kvsdk_vllm._meter import StepMeter

if TYPE_CHECKING:
    from vllm import RequestOutput, SamplingParams
    from vllm.inputs import TokensPrompt
    from vllm.v1.engine.llm_engine import LLMEngine

logger = logging.getLogger("kvsdk.vllm")

_AWAIT_S = 0.001
"""How often an engine looks whether a connector has loaded what all of its requests wait for."""

_TIDY_S = 0.005
"""How often an idle engine looks whether a connector has saved what it is saving."""


@dataclass(slots=True)
class Job:
    """One request in the engine. `deliver` gets its outputs, or an error, on the engine's thread.

    Its seconds grow with every batch; `queue_s` is None until it has left the queue.
    """

    id: str
    prompt: TokensPrompt
    params: SamplingParams
    deliver: Callable[[RequestOutput | BackendError], None]
    session: str | None = None
    prefill_s: float = 0.0
    decode_s: float = 0.0
    queue_s: float | None = None
    submitted_s: float = field(default_factory=time.perf_counter)
    ttft_s: float | None = None
    output_tokens: int = 0
    engine_id: str | None = None


class EngineThread:
    """Owns a `LLMEngine`, made and touched by its own thread only. Thread-safe.

    Args:
        make: Makes the engine. It runs on the thread, because OpenMP's settings belong to the thread that
            made them; what it raises, the constructor raises.
    """

    def __init__(self, make: Callable[[], LLMEngine]) -> None:
        self._wake = threading.Condition()
        self._inbox: deque[Job] = deque()
        self._aborts: deque[str] = deque()
        self._running: dict[str, Job] = {}
        self._closing = False
        self._failure: BaseException | None = None
        self._meter = StepMeter()
        self._prefill_s = 0.0
        self._prefilled_tokens = 0
        self._is_ready = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(make,), name="kvsdk-vllm", daemon=True)
        self._thread.start()
        self._is_ready.wait()
        if self._failure is not None:
            raise self._failure

    @property
    def engine(self) -> LLMEngine:
        """The engine, to read its settings."""
        return self._engine

    @property
    def prefill_s_per_token(self) -> float | None:
        """Engine seconds per computed prompt token, over all requests so far; None before the first."""
        return self._prefill_s / self._prefilled_tokens if self._prefilled_tokens else None

    @property
    def busy_s(self) -> float:
        """Seconds that the engine was busy so far, up to the last batch."""
        return self._meter.busy_s

    def submit(self, job: Job) -> None:
        """Hand a request to the engine.

        Raises:
            BackendUnavailable: The engine has stopped.
        """
        with self._wake:
            if self._closing or self._failure is not None:
                reason = self._failure or "it was closed"
                raise BackendUnavailable(f"the engine has stopped: {reason}", backend="vllm")
            self._inbox.append(job)
            self._wake.notify()

    def abort(self, job_id: str) -> None:
        """Stop a request; one that has ended or is unknown is left alone."""
        with self._wake:
            self._aborts.append(job_id)
            self._wake.notify()

    def close(self) -> None:
        """Stop the thread; requests that still run end with an error. May be called twice."""
        with self._wake:
            self._closing = True
            self._wake.notify()
        self._thread.join()

    def _run(self, make: Callable[[], LLMEngine]) -> None:
        try:
            self._engine = make()
            self._meter.watch(self._engine)
        except BaseException as error:  # noqa: BLE001  # raised again by the constructor
            self._failure = error
            return
        finally:
            self._is_ready.set()
        try:
            while self._take_in():
                if self._running:
                    self._step()
                else:
                    self._tidy()
                if not self._running:
                    self._meter.rest()
            self._engine.engine_core.shutdown()
            self._fail_all(BackendUnavailable("the engine was closed", backend="vllm"))
        except Exception as error:  # whatever stops the engine must reach its callers
            logger.exception("the engine failed")
            self._failure = error
            self._fail_all(BackendUnavailable(f"the engine failed: {error}", backend="vllm"))

    def _take_in(self) -> bool:
        """Wait for work and hand it to the engine; False when closing."""
        with self._wake:
            while not (self._inbox or self._aborts or self._running or self._closing):
                if not self._wake.wait(_TIDY_S if self._is_untidy() else None):
                    break
            jobs, self._inbox = list(self._inbox), deque()
            aborts, self._aborts = list(self._aborts), deque()
            is_open = not self._closing
        for job in jobs:
            self._add(job)
        for job_id in aborts:
            job = self._running.pop(job_id, None)
            if job is not None:
                self._engine.abort_request([job.engine_id or job.id], internal=True)
        return is_open

    def _is_untidy(self) -> bool:
        """Whether requests that have ended still hold blocks, which a connector is saving."""
        scheduler = self._connected()
        return scheduler is not None and scheduler.has_requests()

    def _connected(self) -> Any:
        """The engine's scheduler, if it has a connector."""
        core: Any = getattr(self._engine.engine_core, "engine_core", None)
        return None if core is None or core.scheduler.connector is None else core.scheduler

    def _tidy(self) -> None:
        """Let the engine see what has been saved."""
        if self._is_untidy():
            self._engine.step()

    def _add(self, job: Job) -> None:
        from vllm.exceptions import VLLMValidationError

        try:
            job.engine_id = self._engine.add_request(
                job.id,
                job.prompt,
                job.params,
                session_id=job.session,
            )
        except (ValueError, TypeError, VLLMValidationError) as error:  # the engine's own checks of a request
            job.deliver(RequestRejected(str(error), backend="vllm"))
        else:
            self._running[job.id] = job

    def _step(self) -> None:
        self._meter.begin(time.perf_counter())
        outputs = self._engine.step()
        now_s = time.perf_counter()
        self._bill(now_s)
        for output in outputs:
            job = self._running.get(output.request_id)
            if job is not None:
                self._hand_out(job, output, now_s)
        if not outputs and self._is_awaiting():
            time.sleep(_AWAIT_S)

    def _is_awaiting(self) -> bool:
        """Whether all that is left waits for a connector, which needs this thread to stand aside."""
        scheduler = self._connected()
        return scheduler is not None and not scheduler.running

    def _bill(self, now_s: float) -> None:
        """Give each request its share of the time since the last batch."""
        started_s = self._meter.started_s
        assert started_s is not None
        jobs = {job.engine_id or job.id: job for job in self._running.values()}
        for name, seconds in self._meter.end(now_s, jobs).items():
            job = jobs.get(name) or jobs.get(name.partition("_")[2])  # one of several answers: "0_ID"
            if job is None:
                continue
            if job.queue_s is None and self._meter.is_exact:
                job.queue_s = max(0.0, started_s - job.submitted_s)
            if job.ttft_s is None:
                job.prefill_s += seconds
            else:
                job.decode_s += seconds

    def _hand_out(self, job: Job, output: Any, now_s: float) -> None:
        if job.ttft_s is None and output.outputs and output.outputs[0].token_ids:
            job.ttft_s = now_s - job.submitted_s
            self._prefill_s += job.prefill_s
            self._prefilled_tokens += len(output.prompt_token_ids or ()) - (output.num_cached_tokens or 0)
        job.output_tokens += len(output.outputs[0].token_ids) if output.outputs else 0
        if output.finished:
            del self._running[job.id]
        job.deliver(output)

    def _fail_all(self, error: BackendError) -> None:
        with self._wake:
            waiting = [*self._running.values(), *self._inbox]
            self._running.clear()
            self._inbox.clear()
        for job in waiting:
            job.deliver(error)
