"""The real engine with a store: what is kept survives a kill, comes back whole or not at all, holds nothing.

Each scene is a process of its own (`engine_store.py`): an engine with a store is the only one in its process.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from engine_store import KEPT, PROMPT, SAID
from processes import SEARCH

pytestmark = [pytest.mark.engine, pytest.mark.timeout(400)]

SCRIPT = Path(__file__).parents[2] / "support" / "engine_store.py"


def start(model: Path, folder: Path, scene: str) -> subprocess.Popen[str]:
    command = [sys.executable, SCRIPT, str(model), str(folder), scene]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=SEARCH)


def said(process: subprocess.Popen[str], *, is_killed: bool = False) -> dict[str, Any]:
    """What a scene found, and its end."""
    assert process.stdout is not None
    with process:
        line = process.stdout.readline()
        if is_killed:
            process.send_signal(signal.SIGKILL)
        _, errors = process.communicate()
    assert line, errors[-3000:]
    assert process.returncode == (-signal.SIGKILL if is_killed else 0), errors[-3000:]
    found: dict[str, Any] = json.loads(line)
    return found


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("store")


@pytest.fixture(scope="module")
def kept(model: Path, folder: Path) -> dict[str, Any]:
    """A prompt of 600 tokens, computed and kept by a process that was killed afterwards."""
    return said(start(model, folder, "keep"), is_killed=True)


@pytest.fixture(scope="module")
def scenes(model: Path, folder: Path, kept: dict[str, Any]) -> dict[str, Any]:
    """What another process found."""
    return said(start(model, folder, "restore"))


def test_whole_blocks_of_a_prefix_are_kept(kept: dict[str, Any]) -> None:
    """Of 590 tokens 18 blocks of 32."""
    assert (kept["cached"], kept["kept_tokens"]) == (0, KEPT)


def test_another_process_goes_on_with_the_same_words(kept: dict[str, Any], scenes: dict[str, Any]) -> None:
    """All that was kept comes from the disk, and the answer is the one of the process that was killed."""
    restored = scenes["restored"]
    assert restored["said"] == kept["said"]
    assert restored["loaded_tokens"] == {"disk": KEPT}
    assert (restored["cached"], restored["missing_tokens"]) == (KEPT, 0)


def test_every_way_gives_the_same_answer(kept: dict[str, Any], scenes: dict[str, Any]) -> None:
    """From the device, from the store, computed, after damage."""
    runs = [value for name, value in scenes.items() if name not in ("session", "next turn", "left")]
    assert len(runs) == 9
    assert [run["said"] for run in runs] == [kept["said"]] * 9
    assert len(kept["said"]) == SAID


def test_who_wants_nothing_loaded_computes(scenes: dict[str, Any]) -> None:
    """And the store has it still."""
    assert (scenes["computed"]["cached"], scenes["computed"]["loaded_tokens"]) == (0, {})
    assert scenes["again"]["loaded_tokens"] == {"disk": KEPT}


def test_another_tenant_finds_nothing(scenes: dict[str, Any]) -> None:
    """Not on the device, not in the store, and not sooner."""
    other = scenes["tenant"]
    assert (other["cached"], other["loaded_tokens"], other["missing_tokens"]) == (0, {}, 0)


@pytest.mark.parametrize(
    ("damage", "reason"),
    [("corrupt", "what the disk tier has is no good"), ("short", "nothing is stored for these tokens")],
)
def test_damage_costs_time_only(scenes: dict[str, Any], damage: str, reason: str) -> None:
    """What cannot be trusted is computed, said, and kept again."""
    hurt, healed = scenes[damage], scenes[f"{damage}, kept again"]
    came = sum(hurt["loaded_tokens"].values())
    assert 0 < hurt["missing_tokens"] == KEPT - came
    assert reason in hurt["reason"]
    assert hurt["first_s"] > scenes["device"]["first_s"]
    assert healed["loaded_tokens"] == {"disk": KEPT}


def test_a_turn_of_a_session_is_kept_with_its_answer(scenes: dict[str, Any]) -> None:
    """90 tokens and 5 of the 6 that were said make 2 blocks; the third begins at 64 and ends at 96."""
    assert scenes["session"]["kept_tokens"] == (90 + SAID - 1) // 32 * 32 == 64
    assert scenes["next turn"]["loaded_tokens"] == {"disk": 64}


def test_nothing_is_held_afterwards(scenes: dict[str, Any]) -> None:
    """Requests, their records and blocks are as before."""
    before, after = scenes["left"]
    assert after == {**before, "requests": 0, "known": 0, "running": 0}


def test_trouble_ends_no_request(model: Path, tmp_path: Path) -> None:
    """100 requests that are aborted leave nothing behind; a disk that fails costs its hits alone."""
    found = said(start(model, tmp_path, "trouble"))
    before, after = found["aborted"]
    assert after == {**before, "requests": 0, "known": 0, "running": 0}
    for run in found["failed"]:
        assert run["said"] == found["right"]["said"]
        assert run["loaded_tokens"] == {}
    assert found["failed"][0]["missing_tokens"] == KEPT
    assert len(PROMPT) == 600
    before, after = found["left"]
    assert after == before


def test_preempted_requests_keep_what_is_theirs(model: Path, tmp_path: Path) -> None:
    """Five prompts in room for four: what each of them keeps is its own, though its blocks go to others."""
    found = said(start(model, tmp_path, "crowd"))
    assert found["preempted"] > 0
    computed = [run["said"] for run in found["computed"]]
    assert found["together"] == computed
    assert [run["said"] for run in found["restored"]] == computed
    assert [run["loaded_tokens"] for run in found["restored"]] == [{"disk": 448}] * 5


def test_a_breakpoint_outlives_the_engine(model: Path, tmp_path: Path) -> None:
    """By the client: the second engine reads from disk what the first one kept for an hour."""
    first, second = said(start(model, tmp_path, "client"))["replies"]
    assert first["status"] == second["status"] == ["honoured", "1h"]
    assert first["text"] == second["text"]
    assert first["read"] == 0
    kept = second["read"]
    assert kept % 32 == 0
    assert first["input"] - 64 < kept < first["input"]
    assert first["notes"] == [f"{kept:,} tokens up to the last breakpoint go to the store"]
    assert second["notes"] == [*first["notes"], f"read from the store: {kept:,} from disk"]
    assert "is the only one of its process" in first["refused"]
