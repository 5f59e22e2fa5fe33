"""Findings of one request, without sending it."""

from __future__ import annotations

from typing import Any

import kvsdk
import pytest
from kvsdk import Capabilities, Message, Text, Tool
from kvsdk.caching import TokenScale, digest, lint, plan
from kvsdk.prompt import Request
from kvsdk.reply import Finding

VENDOR = Capabilities(
    breakpoints="honoured",
    ttls=("5m",),
    default_ttl="5m",
    markable=frozenset({"tools:tool", "system:text", "user:text"}),
    min_tokens=512,
    caches_only_at_marks=True,
)
MANUAL = "The pump has valves and gaskets. " * 100
ADVISORY = Capabilities(breakpoints="advisory", min_tokens=1024)


def found(asked: Request, capabilities: Capabilities = VENDOR) -> tuple[Finding, ...]:
    return lint(asked, plan(asked, capabilities), digest(asked), capabilities, TokenScale())


def request(text: str = MANUAL, **changes: Any) -> Request:
    fields: dict[str, Any] = {
        "messages": (Message.user("Which valve?"),),
        "system": (Text(text, cache=True),),
    }
    return Request(**(fields | changes))


def test_a_clean_request_has_no_finding() -> None:
    """A long manual, marked, and a question."""
    assert found(request()) == ()


@pytest.mark.parametrize(
    ("system", "what"),
    [
        (f"Date: 2026-11-30\n{MANUAL}", "a date (line 1)"),
        (f"{MANUAL}\nToday is Monday, 30 November 2026.", "a date (line 2)"),
        (f"It is 14:02.\n{MANUAL}", "a time (line 1)"),
        (f"{MANUAL}\n{MANUAL} 2026-11-30T14:02:11Z {MANUAL}", "a timestamp (line 2)"),
        (f"{MANUAL} f81d4fae-7dec-11d0-a765-00a0c91e6bf6 {MANUAL}", "a UUID (line 1)"),
        (f"Session req_8f3a99xyz. {MANUAL}", "an id (line 1)"),
        (f"Build deadbeefcafe0123. {MANUAL}", "a hash (line 1)"),
        (f"Request #4711. {MANUAL}", "a number (line 1)"),
        (f"[17] {MANUAL}", "a number (line 1)"),
        (f"Date: 2026-11-30 {MANUAL} Today: 2026-11-30", "2 dates (the first in line 1)"),
    ],
)
def test_a_value_that_changes_before_a_breakpoint(system: str, what: str) -> None:
    """Its kind and line, and what to do."""
    (finding,) = found(request(system))
    assert (finding.where, finding.kind) == ("system[0]", "volatile")
    assert what in finding.detail
    assert "move it into the last user message" in finding.detail


@pytest.mark.parametrize(
    "system",
    [
        f"1. Be brief.\n2. Be kind.\n{MANUAL}",
        f"{MANUAL} The norm of 2019-04-01 holds. {MANUAL}",
        f"{MANUAL} Torque is 14 Nm at 20 C, part A7, revision 4.2. {MANUAL}",
        f"3 rules hold. {MANUAL}",
    ],
)
def test_what_is_part_of_a_manual_is_not_suspected(system: str) -> None:
    """Numbered lists, figures, and a date in the middle of a text."""
    assert found(request(system)) == ()


def test_what_stands_behind_the_last_breakpoint_may_change() -> None:
    """That is its place."""
    system = (Text(MANUAL, cache=True), Text("Date: 2026-11-30"))
    assert found(request(system=system)) == ()


def test_a_tools_description_and_a_backend_that_caches_everything() -> None:
    """Without marks the whole of tools and system is a prefix."""
    tool = Tool("look", "Looks. Today is 2026-11-30.", {})
    asked = Request(messages=(Message.user("x"),), tools=(tool,), system=(Text("Now: 14:02"),))
    assert [one.where for one in found(asked, ADVISORY)] == ["tools[0]", "system[0]"]
    assert "its description has a date" in found(asked, ADVISORY)[0].detail
    assert found(asked, Capabilities(breakpoints="none")) == ()


def test_a_breakpoint_below_the_minimum() -> None:
    """The model caches no prefix so short: 400 bytes are about 100 tokens."""
    (finding,) = found(request("S" * 400))
    assert (finding.where, finding.kind) == ("system[0]", "below_minimum")
    assert "about 100 tokens" in finding.detail
    assert "minimum of 512" in finding.detail


def test_no_breakpoint_where_only_marks_cache() -> None:
    """Said of a prompt that is long enough to be cached, at the last piece that stays the same."""
    (finding,) = found(request(system=(Text(MANUAL),)))
    assert (finding.where, finding.kind) == ("system[0]", "no_breakpoint")
    assert found(request(system=(Text("Short."),))) == ()
    assert found(request(system=(Text(MANUAL * 9),)), ADVISORY) == ()
    assert found(request(system=(Text(MANUAL),), auto_cache=True)) == ()


def test_a_breakpoint_behind_the_question_of_a_single_turn() -> None:
    """It is written and never read; in a session, or a conversation, the next turn reads it."""
    question = Message.user("Which valve?", cache=True)
    (finding,) = found(request(messages=(question,)))
    assert (finding.where, finding.kind) == ("messages[0].parts[0]", "never_read")
    assert found(request(messages=(question,), session="s")) == ()
    assert found(request(messages=(Message.user("a"), Message.assistant("b"), question))) == ()
    assert found(request(auto_cache=True)) == ()


def test_explain_has_the_findings() -> None:
    """Nothing is sent."""
    client = kvsdk.Client("anthropic:claude-sonnet-5-5", api_key="test")
    shown = client.explain("Which valve?", system=[Text(f"Date: 2026-11-30\n{MANUAL}", cache="5m")])
    assert [(one.where, one.kind) for one in shown.lint] == [("system[0]", "volatile")]
