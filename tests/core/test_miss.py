"""Why a cache missed."""

from __future__ import annotations

from typing import Any

import pytest
from kvsdk import Capabilities, Message, Miss, Text, Tool, Usage
from kvsdk.caching import Seen, TokenScale, cached_blocks, digest, explain_miss, plan
from kvsdk.prompt import Request

VENDOR = Capabilities(
    breakpoints="honoured",
    ttls=("5m", "1h"),
    default_ttl="5m",
    markable=frozenset({"tools:tool", "system:text", "user:text"}),
    min_tokens=512,
    caches_only_at_marks=True,
)
COLD = Usage.of_parts(fresh=50, read=0, write=3000)
WARM = Usage.of_parts(fresh=50, read=3000, write=0)
LOOK = Tool("look", "", {})


def request(
    question: str = "x", system: str = "S" * 12000, tools: tuple[Tool, ...] = (LOOK,), **changes: Any
) -> Request:
    """A long system with a mark, and a question."""
    return Request(
        messages=(Message.user(question),), system=(Text(system, cache="5m"),), tools=tools, **changes
    )


def seen(
    asked: Request, *, at_s: float = 0.0, model: str = "v:m", capabilities: Capabilities = VENDOR
) -> Seen:
    planned, prefix = plan(asked, capabilities), digest(asked)
    kept = cached_blocks(planned, prefix, capabilities)
    return Seen(model, prefix, kept, at_s, planned.ttl_s, TokenScale())


def why(now: Seen, before: Seen | None, usage: Usage = COLD, *, has_session: bool = True) -> Miss | None:
    return explain_miss(now, before, usage, VENDOR, has_session=has_session)


def test_a_hit_is_no_miss() -> None:
    """What was to be read was read, whatever follows the mark."""
    assert why(seen(request("y")), seen(request("x")), WARM) is None


def test_a_backend_that_does_not_say_is_no_miss() -> None:
    """Unknown is not a miss."""
    assert why(seen(request()), None, Usage(input_tokens=3050)) is None


def test_without_anything_to_cache_there_is_no_miss() -> None:
    """No mark where only marks cache."""
    plain = Request(messages=(Message.user("x"),))
    assert why(seen(plain), None, Usage.of_parts(fresh=3000, read=0, write=0)) is None


def test_the_first_request_of_a_session() -> None:
    """It writes what the next ones read."""
    miss = why(seen(request()), None)
    assert miss is not None
    assert miss.kind == "first_request"


def test_without_a_session_nothing_can_be_compared() -> None:
    """The reason is unknown, and the text says why."""
    miss = why(seen(request()), None, has_session=False)
    assert miss is not None
    assert miss.kind == "evicted_or_unknown"
    assert "without a session" in miss.detail


@pytest.mark.parametrize(
    ("changed", "kind", "where"),
    [
        (request(tools=(Tool("look", "other", {}),)), "tools", "tools[0]"),
        (request(tools=(LOOK, Tool("turn", "", {}))), "tools", "tools[1]"),
        (request(tools=()), "tools", "tools[0]"),
        (request(system="T" * 12000), "system", "system[0]"),
    ],
)
def test_a_change_before_the_mark_is_found_at_its_place(changed: Request, kind: str, where: str) -> None:
    """The first piece that differs from the session's last request."""
    miss = why(seen(changed), seen(request()))
    assert miss is not None
    assert (miss.kind, miss.where) == (kind, where)
    assert where in miss.detail


def test_a_changed_message_is_found_where_messages_are_marked() -> None:
    """An edited earlier turn."""

    def turns(first: str) -> Request:
        return Request(messages=(Message.user(first * 4000), Message.user("x", cache=True)))

    miss = why(seen(turns("b")), seen(turns("a")))
    assert miss is not None
    assert (miss.kind, miss.where) == ("messages", "messages[0].parts[0]")


def test_a_partly_read_prefix_is_a_miss_with_its_share() -> None:
    """What stood before the change was read; the text says how much."""
    marked = (Text("A" * 8000, cache=True), Text("B" * 8000, cache=True))
    other = (marked[0], Text("C" * 8000, cache=True))
    one, two = (Request(messages=(Message.user("x"),), system=system) for system in (marked, other))
    miss = why(seen(two), seen(one), Usage.of_parts(fresh=5, read=2000, write=2000))
    assert miss is not None
    assert (miss.kind, miss.where) == ("system", "system[1]")
    assert "2000 tokens before it were read" in miss.detail


def test_another_model_is_another_cache() -> None:
    """Both are named."""
    miss = why(seen(request(), model="v:new"), seen(request(), model="v:old"))
    assert miss is not None
    assert miss.kind == "model"
    assert "v:old" in miss.detail
    assert "v:new" in miss.detail


def test_a_setting_that_enters_the_key() -> None:
    """The same prompt with another tool choice."""
    miss = why(seen(request(tool_choice="none")), seen(request()))
    assert miss is not None
    assert (miss.kind, miss.where) == ("settings", "tool_choice")


@pytest.mark.parametrize(
    ("age_s", "kind"), [(299, "evicted_or_unknown"), (300, "ttl_expired"), (4000, "ttl_expired")]
)
def test_an_unchanged_prefix_has_expired_or_is_gone(age_s: float, kind: str) -> None:
    """By the TTL of its marks, from the start of the last request."""
    miss = why(seen(request(), at_s=1000 + age_s), seen(request(), at_s=1000))
    assert miss is not None
    assert miss.kind == kind


def test_too_short_outranks_the_first_request_and_needs_no_session() -> None:
    """Nothing read and nothing written, below the minimum: that is the reason."""
    short = seen(request(system="S" * 400))
    none = Usage.of_parts(fresh=150, read=0, write=0)
    for has_session in (True, False):
        miss = why(short, None, none, has_session=has_session)
        assert miss is not None
        assert miss.kind == "below_minimum"
        assert "minimum" in miss.detail
        assert "512" in miss.detail


def test_what_was_written_was_long_enough() -> None:
    """A write proves it, whatever the estimate says."""
    miss = why(seen(request(system="S" * 400)), None)
    assert miss is not None
    assert miss.kind == "first_request"


def test_what_is_kept_ends_at_the_last_breakpoint_or_is_all_or_nothing() -> None:
    """Without breakpoints a backend that caches on its own keeps all; one that needs marks, nothing."""
    marked = request()
    plain = Request(messages=(Message.user("x"), Message.user("y")))
    free, none = Capabilities(breakpoints="advisory"), Capabilities(breakpoints="none")
    kept = [
        [seen(asked, capabilities=one).cached_blocks for one in (VENDOR, free, none)]
        for asked in (marked, plain)
    ]
    assert kept == [[2, 2, 0], [0, 2, 0]]


def test_token_estimates_are_bytes_by_four_until_measured() -> None:
    """Then they are scaled to what the backend counted."""
    assert TokenScale().tokens(400) == 100
    assert TokenScale.measured(300, 100).tokens(600) == 200
    assert TokenScale.measured(0, 100) == TokenScale.measured(300, None) == TokenScale()
