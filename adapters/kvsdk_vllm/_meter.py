"""How the time of an engine's steps is divided among its requests.

The engine is busy from the start of a step until nothing is left to run, gaps between steps included. Each
stretch, from the end of one batch to the end of the next, is divided by the tokens that the batch computed
for each request: chunks of prompts and generated tokens alike. A request that waits has none and pays
nothing, and neither do prompt tokens that were read from the prefix cache.

What is exact: the tokens are the scheduler's own count of the batch whose results have just come, so they are
right with chunked prefill, pre-emption (what is computed again counts again) and batches that are scheduled
ahead. A stretch in which nothing was computed, such as a wait for KV from elsewhere, is added to the next
one; where none follows it was no one's. What a request had in flight when it was aborted is no one's either.

Where the scheduler is not in this process, a stretch is divided evenly among the requests that were in the
engine, waiting ones included, and how long each waited is not known.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from typing import Any


def divide(seconds: float, tokens: Mapping[str, int]) -> dict[str, float]:
    """Seconds in proportion to tokens; the parts sum to the whole. Nobody's, when there are no tokens."""
    total = sum(tokens.values())
    return {name: seconds * count / total for name, count in tokens.items() if count} if total else {}


class StepMeter:
    """Divides an engine's time, batch by batch. Not thread-safe: it belongs to the engine's thread."""

    def __init__(self) -> None:
        self.busy_s = 0.0
        """Seconds that were divided so far."""
        self.started_s: float | None = None
        """When the current stretch began; None while the engine rests."""
        self.is_exact = False
        """Whether the scheduler's counts are noted."""
        self._computed: Counter[str] = Counter()

    def watch(self, engine: Any) -> None:
        """Note the tokens of each batch as its results reach the scheduler; read at vllm 0.32.0.

        An engine whose scheduler is elsewhere is left alone, and its time is divided evenly.
        """
        try:
            scheduler = engine.engine_core.engine_core.scheduler
            update = scheduler.update_from_output

            def noting(batch: Any, *rest: Any, **named: Any) -> Any:
                self.note(batch.num_scheduled_tokens)
                return update(batch, *rest, **named)

            scheduler.update_from_output = noting
        except AttributeError:
            return
        self.is_exact = True

    def note(self, tokens: Mapping[str, int]) -> None:
        """A batch's results have come: the tokens it computed for each request, by the engine's id."""
        self._computed.update(tokens)

    def begin(self, now_s: float) -> None:
        """A step begins. Where the engine was busy already, the stretch began at the end of the last."""
        if self.started_s is None:
            self.started_s = now_s

    def end(self, now_s: float, running: Collection[str]) -> dict[str, float]:
        """A step has ended: the seconds of each request since the last batch, by the engine's id.

        Args:
            now_s: The time.
            running: The requests in the engine, waiting ones included.
        """
        assert self.started_s is not None
        tokens, self._computed = self._computed, Counter()
        shares = divide(now_s - self.started_s, tokens if self.is_exact else dict.fromkeys(running, 1))
        if shares:
            self.busy_s += now_s - self.started_s
            self.started_s = now_s
        return shares

    def rest(self) -> None:
        """Nothing is left to run."""
        self.started_s = None
