"""Reused memory."""

from __future__ import annotations

import pytest
from kvsdk.store.tiers.buffers import BufferPool

STEP = 1 << 16


def test_memory_is_used_again_after_its_last_holder() -> None:
    """The second buffer of a size lies where the first one lay."""
    pool = BufferPool()
    first = pool.take(100)
    first.view[:4] = b"mark"
    first.release()
    assert bytes(pool.take(90).view[:4]) == b"mark"


def test_memory_is_not_used_again_while_somebody_holds_it() -> None:
    """Two holders: one release is not enough."""
    pool = BufferPool()
    first = pool.take(100)
    first.view[:4] = b"mark"
    first.hold()
    first.release()
    other = pool.take(100)
    other.view[:4] = b"else"
    assert bytes(first.view[:4]) == b"mark"


def test_a_buffer_has_the_size_that_was_asked_for() -> None:
    """Memory is rounded up, the view is not."""
    pool = BufferPool()
    assert [len(pool.take(size)) for size in (1, STEP, STEP + 1)] == [1, STEP, STEP + 1]
    assert pool.used_bytes == STEP + STEP + 2 * STEP


def test_used_bytes_count_what_is_held() -> None:
    """Nothing is left when all is released."""
    pool = BufferPool()
    buffers = [pool.take(10), pool.take(STEP * 3)]
    assert pool.used_bytes == STEP + 3 * STEP
    for buffer in buffers:
        buffer.release()
    assert pool.used_bytes == 0


def test_no_more_is_kept_than_was_said() -> None:
    """A pool that may keep one step gives the second one back to the system."""
    pool = BufferPool(spare_bytes=STEP)
    first, second = pool.take(1), pool.take(1)
    first.view[:1] = b"1"
    second.view[:1] = b"2"
    first.release()
    second.release()
    assert bytes(pool.take(1).view[:1]) == b"1"
    assert bytes(pool.take(1).view[:1]) == b"\0"


def test_a_buffer_that_was_let_go_cannot_be_held() -> None:
    """Held after its release, it would be another's memory."""
    buffer = BufferPool().take(1)
    buffer.release()
    with pytest.raises(AssertionError, match="nobody holds"):
        buffer.hold()
