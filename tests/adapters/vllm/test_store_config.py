"""Which tiers an engine's KV goes to, and what a request asks for and is told: values, and their JSON."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from kvsdk.errors import ConfigurationError

from kvsdk_vllm import StoreConfig, backend
from kvsdk_vllm.store.told import load_seconds, read_tokens, store_notes
from kvsdk_vllm.store.wishes import Keep, Wishes


def test_a_configuration_goes_as_json_and_back(tmp_path: Path) -> None:
    """With a path as text."""
    config = StoreConfig(memory=None, disk=tmp_path, disk_capacity="5GiB", codec="zstd", deadline_s=2.5)
    assert StoreConfig.from_json(config.to_json()) == StoreConfig(
        memory=None, disk=str(tmp_path), disk_capacity="5GiB", codec="zstd", deadline_s=2.5
    )


def test_tiers_are_the_fastest_first(tmp_path: Path) -> None:
    """Memory, disk, bucket."""
    config = StoreConfig(memory="1MiB", disk=tmp_path / "disk", object=tmp_path.as_uri())
    assert [tier.name for tier in config.tiers()] == ["memory", "disk", "object"]
    assert [tier.name for tier in StoreConfig().tiers()] == ["memory"]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"memory": None}, "needs memory, disk or object"),
        ({"disk_capacity": "1GiB"}, "disk_capacity is of disk"),
    ],
)
def test_a_store_of_nothing_is_refused(options: dict[str, Any], words: str) -> None:
    """With the arguments' names."""
    with pytest.raises(ConfigurationError, match=words):
        StoreConfig(**options)


@pytest.mark.parametrize("text", ["", "[]", "null", '{"disc": "/kv"}', '{"memory": null}'])
def test_json_that_is_none_is_refused(text: str) -> None:
    """Such as a field that no store has."""
    with pytest.raises(ConfigurationError):
        StoreConfig.from_json(text)


def test_a_field_that_is_unknown_is_named() -> None:
    """By a configuration of another version."""
    with pytest.raises(ConfigurationError, match="a store has no disc, tape; was it configured by another"):
        StoreConfig.from_json('{"tape": 1, "disc": 2}')


def test_a_client_wants_a_configuration() -> None:
    """Not a path, whose capacity and tiers would be guessed."""
    from kvsdk.backend import BackendSpec

    with pytest.raises(ConfigurationError, match="store is a StoreConfig, not '/kv'"):
        backend(BackendSpec("vllm", "/model", {"store": "/kv"}))


# ---------------------------------------------------------------------- what a request asks for


def test_wishes_go_as_parameters_and_back() -> None:
    """All of them."""
    wishes = Wishes(keep=(Keep(300, 60.0), Keep(7)), session="s", pin=True, load=False)
    assert Wishes.of(wishes.to_params()) == wishes


@pytest.mark.parametrize("params", [None, {}, {"other": 1}])
def test_who_asks_for_nothing_gets_the_usual(params: Any) -> None:
    """KV is loaded, and none kept."""
    assert Wishes.of(params) == Wishes()


@pytest.mark.parametrize(
    "asked",
    [
        5,
        "keep",
        {"keep": 5},
        {"keep": [5]},
        {"keep": [[-1]]},
        {"keep": [[True]]},
        {"keep": [[1, 0]]},
        {"keep": [[1, "1h"]]},
        {"keep": [[1, 2, 3]]},
        {"session": 5},
        {"pin": "yes"},
        {"load": 0},
    ],
)
def test_what_is_not_understood_is_said_and_left_out(asked: Any) -> None:
    """It comes from outside, and an error would end the engine."""
    wishes = Wishes.of({"kvsdk": asked})
    assert wishes.problem is not None
    assert wishes == Wishes(problem=wishes.problem)


# ---------------------------------------------------------------------- what it is told

TOLD = {"kept_tokens": 0, "loaded_tokens": {}, "missing_tokens": 0, "load_s": 0.0, "reason": None}


def told(**changes: Any) -> dict[str, Any]:
    return {"kvsdk": {**TOLD, **changes}}


def test_notes_say_what_went_where() -> None:
    """One for each direction, and one for what did not come."""
    assert store_notes(told()) == store_notes(None) == store_notes({}) == ()
    assert store_notes(told(kept_tokens=1152)) == ("1,152 tokens up to the last breakpoint go to the store",)
    assert store_notes(told(loaded_tokens={"memory": 256, "disk": 1024})) == (
        "read from the store: 256 from memory, 1,024 from disk",
    )
    assert store_notes(told(missing_tokens=96, reason="it is corrupt")) == (
        "96 tokens were computed again: it is corrupt",
    )
    assert store_notes(told(reason="not understood")) == ("not understood",)


def test_what_did_not_come_was_not_read() -> None:
    """vLLM counts it as cached all the same."""
    assert read_tokens(2048, told(missing_tokens=512)) == 1536
    assert read_tokens(2048, None) == 2048
    assert read_tokens(None, told()) is None
    assert load_seconds(told(load_s=0.5)) == {"load_s": 0.5}
    assert load_seconds(told()) == load_seconds(None) == {}
