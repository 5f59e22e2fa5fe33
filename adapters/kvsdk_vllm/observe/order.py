"""Batches in the order of their numbers, with what is missing named or asked for. No socket is touched."""

from __future__ import annotations

from collections.abc import Callable

from kvsdk_vllm.observe.values import Gap, KvEvent, Restarted
from kvsdk_vllm.observe.wire import Message, to_batch


class Order:
    """Puts what arrives in order. Changes state; belongs to one thread at a time.

    A batch that comes too early is held until those before it were repeated by the engine, or cannot be. It
    is one batch: while it is held, no other is taken from the stream.

    Args:
        can_replay: Whether the engine can be asked to repeat batches.
        on_fault: Called with the words for each thing that is not understood.
    """

    def __init__(self, *, can_replay: bool, on_fault: Callable[[str], None]) -> None:
        self.next_seq = 0
        """The number of the batch that comes next."""
        self.asks = 0
        """How many replays were wanted so far; a new number is a new one."""
        self._can_replay = can_replay
        self._on_fault = on_fault
        self._held: Message | None = None
        self._last: int | None = None
        self._answered = False
        self._progressed = False

    @property
    def wants_from(self) -> int | None:
        """The number that a replay is to start at; None when nothing is missing.

        It is one before the first that is missing: by that batch an engine shows that it is the same one.
        """
        return None if self._held is None else max(self.next_seq - 1, 0)

    def take(self, message: Message) -> list[KvEvent]:
        """A batch came on the stream; the events that are in order now."""
        assert self._held is None
        events: list[KvEvent] = []
        if message.seq < self.next_seq:
            events.append(self._restart(message.seq))
        if message.seq == self.next_seq:
            return [*events, *self._deliver(message)]
        self._held = message
        if not self._can_replay:
            return [*events, *self.end_replay()]
        self._ask()
        return events

    def take_replayed(self, message: Message) -> list[KvEvent]:
        """A batch came in a replay.

        The engine drops what does not fit into its queue while it repeats, so a hole in the middle is asked
        for again; a hole at the start is what it does not keep any more.
        """
        assert self._held is not None
        is_first, self._answered = not self._answered, True
        if message.seq < self.next_seq:
            return self._compare(message)
        if message.seq > self.next_seq and not is_first:
            return self.end_replay()
        events: list[KvEvent] = []
        if message.seq < self._held.seq:
            events = [*self._lose(message.seq), *self._deliver(message)]
            self._progressed = True
        return [*events, *self.end_replay()] if message.seq >= self._held.seq - 1 else events

    def end_replay(self) -> list[KvEvent]:
        """No more comes in the replay: asked again if it brought something, else what is missing is lost."""
        assert self._held is not None
        if self.next_seq < self._held.seq and self._progressed:
            self._ask()
            return []
        held, self._held = self._held, None
        return [*self._lose(held.seq), *self._deliver(held)]

    def _ask(self) -> None:
        self.asks += 1
        self._answered = self._progressed = False

    def _compare(self, message: Message) -> list[KvEvent]:
        """The batch before the missing ones, again: when it is another one now, so is the engine."""
        if message.seq != self.next_seq - 1 or hash(message.payload) == self._last:
            return []
        restarted = self._restart(message.seq)
        self._ask()
        return [restarted]

    def _restart(self, seq: int) -> Restarted:
        self.next_seq, self._last = 0, None
        return Restarted(seq=seq)

    def _lose(self, seq: int) -> list[KvEvent]:
        """All before this number is lost."""
        first, self.next_seq = self.next_seq, seq
        return [Gap(first=first, last=seq - 1, reason="lost")] if first < seq else []

    def _deliver(self, message: Message) -> tuple[KvEvent, ...]:
        batch = to_batch(message)
        for fault in batch.faults:
            self._on_fault(fault)
        self.next_seq, self._last = message.seq + 1, hash(message.payload)
        return batch.events
