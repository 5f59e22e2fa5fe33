"""The in-process engine as channels, sync and async."""

from __future__ import annotations

import asyncio
import queue
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from kvsdk.backend import Answer, Call
from kvsdk.errors import BackendError, BackendTimeout, BackendUnavailable

from kvsdk_vllm._engine import Job
from kvsdk_vllm._render import Prepared, Renderer, prepare
from kvsdk_vllm._shared import SharedEngine, release
from kvsdk_vllm.store.told import load_seconds, read_tokens, store_notes

if TYPE_CHECKING:
    from vllm import RequestOutput


class EngineEvents:
    """One request's outputs as events (see `_reply`)."""

    def __init__(self, engine: SharedEngine, call: Call, prepared: Prepared) -> None:
        assert call.request is not None
        self.request_id: str | None = call.id
        self._engine = engine
        self._ready: deque[dict[str, Any]] = deque()
        self._is_over = False
        self._meters: dict[str, Any] = {}
        self._sieve, self._notes = prepared.sieve, prepared.notes
        self._job = Job(call.id, prepared.prompt, prepared.params, self._deliver, call.request.session)
        engine.thread.submit(self._job)

    def abort(self) -> None:
        """Stop the request unless it has ended. What it used until now is in the meters of its last event."""
        if not self._is_over:
            self._is_over = True
            self._engine.thread.abort(self._job.id)
            self._meters.update(self._used())

    def _deliver(self, item: RequestOutput | BackendError) -> None:
        raise NotImplementedError

    def _take(self, item: RequestOutput | BackendError) -> None:
        """Turn an output into events; each carries the meters as they stand."""
        if isinstance(item, BackendError):
            self._is_over = True
            raise item
        output = item.outputs[0]
        if output.finish_reason == "error":
            self._is_over = True
            raise BackendUnavailable("the engine failed at this request", backend="vllm")
        meters = self._meters = self._measure(item)
        for event in self._sieve.feed(output.text):
            self._ready.append({**event, "meters": meters})
        if item.finished:
            self._is_over = True
            for event in self._sieve.finish():
                self._ready.append({**event, "meters": meters})
            reason = {"finish_reason": output.finish_reason, "stop_reason": output.stop_reason}
            notes = (*self._notes, *store_notes(item.kv_transfer_params))
            self._ready.append({"type": "end", "meters": meters, "notes": notes, **reason})

    def _measure(self, item: RequestOutput) -> dict[str, Any]:
        return {
            "id": self._job.id,
            "prompt_tokens": len(item.prompt_token_ids or ()),
            "cached_tokens": read_tokens(item.num_cached_tokens, item.kv_transfer_params),
            "created_tokens": item.num_cache_creation_tokens,
            **load_seconds(item.kv_transfer_params),
            **self._used(),
        }

    def _used(self) -> dict[str, Any]:
        """What grows while the engine computes."""
        job = self._job
        return {
            "output_tokens": job.output_tokens,
            "ttft_s": job.ttft_s,
            "prefill_s": job.prefill_s,
            "decode_s": job.decode_s,
            "queue_s": job.queue_s,
            "prefill_s_per_token": self._engine.thread.prefill_s_per_token,
        }


class SyncEvents(EngineEvents):
    """Events for a thread that waits."""

    def __init__(self, engine: SharedEngine, call: Call, prepared: Prepared, timeout_s: float | None) -> None:
        self._queue: queue.SimpleQueue[RequestOutput | BackendError] = queue.SimpleQueue()
        self._ends_at = None if timeout_s is None else time.monotonic() + timeout_s
        super().__init__(engine, call, prepared)

    def _deliver(self, item: RequestOutput | BackendError) -> None:
        self._queue.put(item)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return self

    def __next__(self) -> dict[str, Any]:
        while not self._ready:
            if self._is_over:
                raise StopIteration
            left_s = None if self._ends_at is None else max(0.0, self._ends_at - time.monotonic())
            try:
                item = self._queue.get(timeout=left_s)
            except queue.Empty:
                self.abort()
                raise BackendTimeout("the engine did not answer in time", backend="vllm") from None
            self._take(item)
        return self._ready.popleft()

    def close(self) -> None:
        self.abort()


class AsyncEvents(EngineEvents):
    """Events for a coroutine that awaits."""

    def __init__(self, engine: SharedEngine, call: Call, prepared: Prepared, timeout_s: float | None) -> None:
        self._loop = asyncio.get_running_loop()
        self._queue: asyncio.Queue[RequestOutput | BackendError] = asyncio.Queue()
        self._ends_at = None if timeout_s is None else self._loop.time() + timeout_s
        super().__init__(engine, call, prepared)

    def _deliver(self, item: RequestOutput | BackendError) -> None:
        try:
            self._loop.call_soon_threadsafe(self._queue.put_nowait, item)
        except RuntimeError:  # the loop was closed under a running request
            self.abort()

    def __aiter__(self) -> AsyncEvents:
        return self

    async def __anext__(self) -> dict[str, Any]:
        while not self._ready:
            if self._is_over:
                raise StopAsyncIteration
            try:
                async with asyncio.timeout_at(self._ends_at):
                    item = await self._queue.get()
            except TimeoutError:
                self.abort()
                raise BackendTimeout("the engine did not answer in time", backend="vllm") from None
            self._take(item)
        return self._ready.popleft()

    async def close(self) -> None:
        self.abort()


class EngineChannel:
    """The engine for threads."""

    def __init__(self, engine: SharedEngine, renderer: Renderer) -> None:
        self._engine: SharedEngine | None = engine
        self._renderer = renderer

    def send(self, call: Call, timeout_s: float | None) -> Answer:
        events = self.stream(call, timeout_s)
        try:
            return Answer(list(events), events.request_id)
        finally:
            events.close()

    def stream(self, call: Call, timeout_s: float | None) -> SyncEvents:
        assert self._engine is not None
        return SyncEvents(self._engine, call, prepare(self._engine, call, self._renderer), timeout_s)

    def count_tokens(self, call: Call, timeout_s: float | None) -> int | None:
        assert self._engine is not None
        return len(self._renderer.token_ids(self._engine, call)[0])

    def close(self) -> None:
        engine, self._engine = self._engine, None
        if engine is not None:
            release(engine)


class AsyncEngineChannel:
    """The engine for one event loop. Starting it and rendering a prompt are done on a thread."""

    def __init__(self, start: Callable[[], SharedEngine], renderer: Renderer) -> None:
        self._start = start
        self._engine: SharedEngine | None = None
        self._renderer = renderer
        self._lock = asyncio.Lock()

    async def send(self, call: Call, timeout_s: float | None) -> Answer:
        events = await self.stream(call, timeout_s)
        try:
            return Answer([event async for event in events], events.request_id)
        finally:
            await events.close()

    async def stream(self, call: Call, timeout_s: float | None) -> AsyncEvents:
        engine = await self._started()
        prepared = await asyncio.to_thread(prepare, engine, call, self._renderer)
        return AsyncEvents(engine, call, prepared, timeout_s)

    async def count_tokens(self, call: Call, timeout_s: float | None) -> int | None:
        engine = await self._started()
        ids, _ = await asyncio.to_thread(self._renderer.token_ids, engine, call)
        return len(ids)

    async def close(self) -> None:
        engine, self._engine = self._engine, None
        if engine is not None:
            await asyncio.to_thread(release, engine)

    async def _started(self) -> SharedEngine:
        async with self._lock:
            if self._engine is None:
                self._engine = await asyncio.to_thread(self._start)
            return self._engine
