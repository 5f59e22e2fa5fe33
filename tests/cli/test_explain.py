"""`kvsdk explain`, as a user runs it."""

from __future__ import annotations

import csv
import io
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from kvsdk.caching.log import LoggedRequest, read_log
from kvsdk.cli import main
from kvsdk.cli.explain_log import LogExplainer

MANUAL = "The pump has valves and gaskets. " * 400
TOOLS = [
    {"name": name, "description": f"{name}es.", "input_schema": {"type": "object"}}
    for name in ("search", "fetch")
]
DAY = 86_400
Log = Callable[..., str]


def anthropic(
    *, at: Any, usage: tuple[int, int, int] | None = None, date: str = "2026-11-30", **changes: Any
) -> dict[str, Any]:
    """A body of Messages with a marked system, and what it used: fresh, read, written."""
    system = f"Today is {date}.\n{MANUAL}"
    line = {
        "session": "support-1",
        "at": at,
        "model": "claude-sonnet-5-5",
        "max_tokens": 100,
        "tools": TOOLS,
        "system": [{"type": "text", "text": system, "cache_control": {"type": "ephemeral"}}],
        "messages": [{"role": "user", "content": "Which valve?"}],
        **changes,
    }
    if usage is not None:
        names = ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens")
        line["usage"] = {**dict(zip(names, usage, strict=True)), "output_tokens": 50}
    return line


def openai(*, cached: int, written: int, **changes: Any) -> dict[str, Any]:
    """A body of Responses, and what it used of 3,500 tokens."""
    details = {"cached_tokens": cached, "cache_write_tokens": written}
    return {
        "model": "gpt-5.6",
        "instructions": MANUAL,
        "input": [{"role": "user", "content": "Which valve?"}],
        "prompt_cache_key": "acme",
        "usage": {"input_tokens": 3500, "output_tokens": 5, "input_tokens_details": details},
        **changes,
    }


@pytest.fixture
def log(tmp_path: Path) -> Log:
    """Writes a log; a line that is no dict is written as it is."""

    def write(*lines: Any) -> str:
        path = tmp_path / "log.jsonl"
        texts = [json.dumps(line).encode() if isinstance(line, dict) else line for line in lines]
        path.write_bytes(b"\n".join(texts) + b"\n")
        return str(path)

    return write


@pytest.fixture
def explain(log: Log, capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, dict[str, Any], str]]:
    """Explains lines as JSON; gives the status, the data and what was said on stderr."""

    def run(*lines: Any, arguments: tuple[str, ...] = ()) -> tuple[int, dict[str, Any], str]:
        status = _run("explain", log(*lines), "--format", "json", *arguments)
        out, err = capsys.readouterr()
        return status, json.loads(out), err

    return run


Explain = Callable[..., tuple[int, dict[str, Any], str]]


def _run(*arguments: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert isinstance(ended.value.code, int)
    return ended.value.code


def _misses(data: dict[str, Any]) -> list[tuple[str | None, str | None]]:
    return [(row["miss"], row["where"]) for row in data["rows"]]


def test_a_date_in_the_system_prompt(explain: Explain) -> None:
    """The next day misses; what it cost is the difference between writing and reading its tokens."""
    status, data, _ = explain(
        anthropic(at=0, usage=(20, 0, 3400)),
        anthropic(at=60, usage=(20, 3400, 0)),
        anthropic(at=120, usage=(20, 0, 3400), date="2026-12-01"),
    )
    assert status == 1
    assert _misses(data) == [("first_request", None), (None, None), ("system", "system[0]")]
    row = data["rows"][2]
    assert row["how"] == "a date (line 1) changed; nothing else did"
    assert (row["input_tokens"], row["read_tokens"], row["missed_tokens"]) == (3420, 0, 3400)
    # Sonnet 5.5: $2 per million fresh; writing is 1.25 of it, reading 0.05
    assert Decimal(row["cost_usd"]) == 3400 * (Decimal(2) * Decimal("1.25") - Decimal("0.1")) / 1_000_000
    assert data["total"]["cost_usd"] == row["cost_usd"]
    assert data["total"]["misses"] == {"system": 1}
    (finding,) = data["findings"]
    assert (finding["finding"], finding["where"], finding["requests"]) == ("volatile", "system[0]", 3)
    assert finding["detail"].endswith("(in this log it changed)")


def test_tools_from_a_set(explain: Explain) -> None:
    """The same tools in another order: a miss, and a finding that names both lines."""
    status, data, _ = explain(
        anthropic(at=0, usage=(20, 0, 3400), date="-"),
        anthropic(at=60, usage=(20, 0, 3400), date="-", tools=TOOLS[::-1]),
    )
    assert status == 1
    assert _misses(data)[1] == ("tools", "tools[0]")
    (finding,) = data["findings"]
    assert finding["finding"] == "tool_order"
    assert "line 2 sends the 2 tools of line 1 in another order" in finding["detail"]
    assert "sort them by name" in finding["detail"]


@pytest.mark.parametrize(
    ("changes", "at", "kind", "how"),
    [
        ({}, 400, "ttl_expired", "last used 6 min 40 s ago; kept for 5 min"),
        ({"thinking": {"type": "enabled"}}, 60, "settings", "thinking.type was unset, is enabled"),
        ({"tool_choice": {"type": "any"}}, 60, "settings", "tool_choice was unset, is required"),
        (
            {"tool_choice": {"type": "auto", "disable_parallel_tool_use": True}},
            60,
            "settings",
            "tool_choice was unset, is auto and tool_choice.disable_parallel_tool_use was unset, is on",
        ),
        (
            {"model": "claude-opus-5-5"},
            60,
            "model",
            "the model was anthropic:claude-sonnet-5-5, is anthropic:claude-opus-5-5; caches are per model",
        ),
        (
            {},
            60,
            "evicted_or_unknown",
            "the prefix is unchanged since 60 s ago; the backend no longer has it",
        ),
    ],
)
def test_other_misses(explain: Explain, changes: dict[str, Any], at: int, kind: str, how: str) -> None:
    """With their reason, as a log of bodies names it, and a price."""
    _, data, _ = explain(
        anthropic(at=0, usage=(20, 0, 3400), date="-"),
        anthropic(at=at, usage=(20, 0, 3400), date="-", **changes),
    )
    row = data["rows"][1]
    assert (row["miss"], row["how"]) == (kind, how)
    assert row["missed_tokens"] == 3400
    assert Decimal(row["cost_usd"]) > 0


def test_a_log_without_usage_is_predicted(explain: Explain) -> None:
    """Counts are estimates, and the log's reader is told so."""
    status, data, err = explain(
        anthropic(at="2026-11-30T10:00:00Z", date="-"),
        anthropic(at="2026-11-30T10:01:00Z", date="-"),
        anthropic(at="2026-11-30T10:30:00Z", date="-"),
    )
    assert status == 1
    assert [row["miss"] for row in data["rows"]] == ["first_request", None, "ttl_expired"]
    read = data["rows"][1]["read_tokens"]
    assert 3200 < read < 3500
    assert data["rows"][2]["missed_tokens"] == read
    assert all(row["estimated"] for row in data["rows"])
    assert "3 requests without usage: misses are predicted" in err


def test_a_change_behind_an_earlier_mark_leaves_what_stands_before_it(explain: Explain) -> None:
    """Predicted for a backend that caches at marks: the tools are read, the system is not."""
    tools = [*TOOLS[:1], {**TOOLS[1], "description": MANUAL, "cache_control": {"type": "ephemeral"}}]
    _, data, _ = explain(
        anthropic(at=0, date="2026-11-30", tools=tools), anthropic(at=1, date="2026-12-01", tools=tools)
    )
    row = data["rows"][1]
    assert (row["miss"], row["where"]) == ("system", "system[0]")
    assert 3200 < row["read_tokens"] < 3500
    assert 3200 < row["missed_tokens"] < 3500


def test_openai_bodies(explain: Explain) -> None:
    """Responses and Chat, with their own meters; reasoning effort is part of the key."""
    chat = {
        "model": "gpt-4.1",
        "messages": [{"role": "developer", "content": MANUAL}, {"role": "user", "content": "Which valve?"}],
        "response": {
            "usage": {
                "prompt_tokens": 3400,
                "completion_tokens": 1,
                "prompt_tokens_details": {"cached_tokens": 3328},
            }
        },
    }
    status, data, _ = explain(
        openai(cached=0, written=3400),
        openai(cached=3400, written=0),
        openai(cached=0, written=3400, reasoning={"effort": "high"}),
        chat,
    )
    assert status == 1
    assert _misses(data)[2] == ("settings", "extra.openai.reasoning.effort")
    assert data["rows"][2]["how"] == "reasoning.effort was unset, is high"
    assert [row["session"] for row in data["rows"]] == ["acme", "acme", "acme", "#1"]
    assert data["rows"][3]["read_tokens"] == 3328


def test_our_own_shape(explain: Explain) -> None:
    """The arguments of a call, as JSON."""
    line = {
        "model": "anthropic:claude-sonnet-5-5",
        "metadata": {"session": "s"},
        "system": [{"text": MANUAL, "cache": "1h"}],
        "tools": [{"name": "look", "description": "", "schema": {"type": "object"}}],
        "messages": [
            {"role": "user", "parts": [{"text": "q"}]},
            {"role": "assistant", "parts": [{"id": "1", "name": "look", "arguments": {"z": 1, "a": 2}}]},
            {"role": "tool", "parts": [{"call_id": "1", "content": "3 bar", "cache": True}]},
        ],
    }
    swapped = json.loads(json.dumps(line).replace('{"z": 1, "a": 2}', '{"a": 2, "z": 1}'))
    _, data, _ = explain(line, swapped)
    assert _misses(data)[1] == ("messages", "messages[1].parts[0]")
    assert "the key order of the arguments in a call of 'look' changed" in data["rows"][1]["how"]


def test_conversations_without_a_name(explain: Explain) -> None:
    """Requests that begin alike are one application; another first message is another conversation."""

    def line(*texts: str) -> dict[str, Any]:
        roles = ("user", "assistant")
        messages = [{"role": roles[n % 2], "content": text} for n, text in enumerate(texts)]
        return {"model": "gpt-4.1", "messages": [{"role": "system", "content": MANUAL}, *messages]}

    status, data, _ = explain(
        line("a"), line("x"), line("a", "b", "c"), line("x", "y", "z"), line("a", "edited", "c", "d", "e")
    )
    assert [row["session"] for row in data["rows"]] == ["#1"] * 5
    assert [row["miss"] for row in data["rows"]] == ["first_request", None, None, None, "messages"]
    assert status == 1


def test_nothing_found(explain: Explain) -> None:
    """Exit 0: a hit, and a session's first request, are no faults."""
    status, data, _ = explain(
        anthropic(at=0, usage=(20, 0, 3400), date="-"), anthropic(at=9, usage=(20, 3400, 0), date="-")
    )
    assert (status, data["findings"], data["total"]["misses"]) == (0, [], {})


def test_another_backend_is_the_judge(explain: Explain) -> None:
    """`--backend`: its minimum, its TTLs and its prices; lines that name none are not guessed at."""
    line = {"session": "s", "system": [{"text": MANUAL, "cache": True}], "messages": "q"}
    late = {**line, "at": 4000}
    _, data, err = explain({**line, "at": 0}, late)
    assert _misses(data) == [("first_request", None), (None, None)]
    assert "2 requests without a known backend" in err
    _, data, err = explain({**line, "at": 0}, late, arguments=("--backend", "anthropic:claude-opus-5-5"))
    assert _misses(data)[1] == ("ttl_expired", None)
    assert Decimal(data["rows"][1]["cost_usd"]) > 0
    assert "known backend" not in err


def test_an_unpriced_model_has_no_cost(explain: Explain) -> None:
    """Unknown, not zero."""
    lines = [
        anthropic(at=at, usage=(20, 0, 3400), date=str(at), model="claude-imagined-9") for at in range(2)
    ]
    _, data, err = explain(*lines)
    assert data["rows"][1]["cost_usd"] is None
    assert data["total"]["cost_usd"] is None
    assert "1 miss without a known price" in err


HOSTILE = [
    (b"{", "it is not JSON"),
    (b"[1, 2]", "it is no JSON object but a list"),
    (b"\xff\xfe", "it is not UTF-8"),
    (b"[" * 100_000, "nested too deeply"),
    (b'{"messages": []}', "messages is empty"),
    (b"{}", "neither messages nor input"),
    (b'{"messages": 3}', "messages is a list, not int"),
    (b'{"messages": [1]}', "messages[0]"),
    (b'{"messages": [{"role": "king", "content": "x"}]}', "role 'king'"),
    (b'{"messages": "q", "system": 3}', "system is a list, not int"),
    (b'{"messages": "q", "tools": [3]}', "tools[0]"),
    (b'{"messages": "q", "tools": [{"name": "a"}, {"name": "a"}]}', "two tools are called 'a'"),
    (b'{"messages": "q", "at": "yesterday"}', "at is seconds or an ISO date and time"),
    (b'{"messages": "q", "at": NaN}', "at is seconds or an ISO date and time"),
    (b'{"messages": "q", "usage": []}', "usage is an object"),
    (b'{"messages": "q", "usage": {"prompt_tokens": -1}}', "prompt_tokens is a count, not -1"),
    (b'{"messages": "q", "usage": {"prompt_tokens": "9"}}', "prompt_tokens is a count, not '9'"),
    (b'{"messages": "half \\ud83d"}', "surrogate"),
    (b'{"messages": [{"role": "user", "content": [{"text": "a", "cache": "7m"}]}]}', "unknown TTL '7m'"),
]


@pytest.mark.parametrize(("line", "reason"), HOSTILE)
def test_a_bad_line(explain: Explain, line: bytes, reason: str) -> None:
    """Its number and the reason on stderr, exit 1; the lines around it are explained all the same."""
    good = anthropic(at=0, usage=(20, 3400, 0), date="-")
    status, data, err = explain(good, line, b"", good)
    assert status == 1
    assert "line 2: " in err
    assert reason in err
    assert [row["line"] for row in data["rows"]] == [1, 4]
    assert data["total"]["bad_lines"] == 1


def test_bad_lines_can_be_skipped(explain: Explain) -> None:
    """`--skip-bad` counts them, and they are no fault."""
    good = anthropic(at=0, usage=(20, 3400, 0), date="-")
    status, data, err = explain(good, *[line for line, _ in HOSTILE], arguments=("--skip-bad",))
    assert status == 0
    assert data["total"]["bad_lines"] == len(HOSTILE)
    assert f"{len(HOSTILE)} bad lines skipped" in err
    assert "line 2" not in err


def test_what_kvsdk_does_not_carry_is_compared_all_the_same(explain: Explain) -> None:
    """A vendor's own blocks and tools count as opaque text."""
    own = {"type": "server_tool_use", "id": "s1", "name": "web_search", "input": {"q": "valve"}}
    history = [
        {"role": "user", "content": [{"type": "container_upload", "file_id": "f1"}]},
        {"role": "assistant", "content": [own]},
        {
            "role": "user",
            "content": [{"type": "text", "text": "More.", "cache_control": {"type": "ephemeral"}}],
        },
    ]
    changed = json.loads(json.dumps(history).replace('"valve"', '"pump"'))
    tools = [*TOOLS, {"type": "web_search_20250305", "name": "web_search", "max_uses": 3}, {"type": "bash"}]
    _, data, _ = explain(
        anthropic(at=0, date="-", tools=tools, messages=history),
        anthropic(at=1, date="-", tools=tools, messages=changed),
    )
    assert _misses(data)[1] == ("messages", "messages[1].parts[0]")


def test_every_format(log: Log, capsys: pytest.CaptureFixture[str]) -> None:
    """Table and Markdown have sums, findings and a summary; csv the rows alone."""
    path = log(*(anthropic(at=at, usage=(20, 0, 3400), date=f"2026-11-0{at + 1}") for at in range(3)))
    for form in ("table", "md"):
        assert _run("explain", path, "--format", form) == 1
        out = capsys.readouterr().out
        assert "a date (line 1) changed" in out
        assert "in this log it changed" in out
        assert "3 requests in 1 session, 2 misses (system 2): 6,800 tokens" in out
        assert out.count("support-1") == 3
    assert _run("explain", path, "--format", "csv") == 1
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert [row["miss"] for row in rows] == ["first_request", "system", "system"]


def test_a_table_has_a_limit(log: Log, capsys: pytest.CaptureFixture[str]) -> None:
    """The rest is counted, and the sums are over all."""
    path = log(*(anthropic(at=at, usage=(20, 3400, 0), date="-") for at in range(5)))
    assert _run("explain", path, "--limit", "2") == 0
    out = capsys.readouterr().out
    assert out.count("support-1") == 2
    assert "3 more rows" in out
    assert "5 requests in 1 session" in out


def test_wrong_use(log: Log, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit 2, and the reason."""
    path = log(anthropic(at=0))
    assert _run("explain", str(tmp_path / "none.jsonl")) == 2
    assert "there is no log at" in capsys.readouterr().err
    assert _run("explain", path, "--backend", "antropic:x") == 2
    assert "Did you mean 'anthropic'?" in capsys.readouterr().err
    assert _run("explain", path, "--format", "xml") == 2
    assert _run("explain") == 2


def test_an_empty_log(log: Log, capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing found, and that is said."""
    assert _run("explain", log(b"", b"  ")) == 0
    assert "the log holds no request" in capsys.readouterr().err


def test_standard_input(log: Log) -> None:
    """`-` reads it, and a pipe gets no colours."""
    data = Path(log(anthropic(at=0, usage=(20, 3400, 0), date="-"))).read_bytes()
    command = [sys.executable, "-m", "kvsdk", "explain", "-"]
    done = subprocess.run(command, input=data, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
    assert b"support-1" in done.stdout
    assert b"\x1b" not in done.stdout


def test_a_log_larger_than_memory_is_read_line_by_line() -> None:
    """No line is asked for before the one before it is explained, and sessions are forgotten in the end."""
    taken = 0

    def endless() -> Iterator[bytes]:
        nonlocal taken
        for taken in range(3000):
            yield json.dumps({"session": f"s{taken}", "messages": "q"}).encode()

    explainer = LogExplainer()
    for number, item in enumerate(read_log(endless())):
        assert isinstance(item, LoggedRequest)
        explainer.explain(item)
        assert taken == number
    assert explainer.remembered_sessions == 1000
