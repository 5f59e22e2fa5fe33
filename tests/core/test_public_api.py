"""What the package exports, what its import costs, and that the twins are twins."""

from __future__ import annotations

import inspect
import subprocess
import sys
from typing import Any

import kvsdk
import pytest
from kvsdk import AsyncClient, AsyncSession, AsyncStream, Client, Session, Stream

HEAVY = ("anthropic", "openai", "torch", "numpy", "vllm", "sqlalchemy", "pydantic", "genai_prices", "pytest")


def test_all_names_exactly_what_is_public() -> None:
    """`__all__` has every public name of the package and none twice."""
    public = {
        name
        for name, value in vars(kvsdk).items()
        if not name.startswith("_") and not inspect.ismodule(value)
    }
    assert sorted(kvsdk.__all__) == sorted(public)


def test_everything_public_has_a_docstring() -> None:
    """Classes and functions say what they are."""
    values = [getattr(kvsdk, name) for name in kvsdk.__all__]
    undocumented = [
        value
        for value in values
        if (inspect.isclass(value) or inspect.isfunction(value)) and not value.__doc__
    ]
    assert undocumented == []


@pytest.mark.parametrize(
    "statement", ["import kvsdk", "import kvsdk.cost", "import kvsdk_anthropic, kvsdk_openai"]
)
def test_the_import_is_light(statement: str) -> None:
    """Nothing heavy is loaded before it is used: no vendor's SDK, no torch, no database."""
    code = f"import sys; {statement}; print([name for name in {HEAVY} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "[]", done.stderr


def test_the_version_is_the_distributions() -> None:
    """One number in two places."""
    from importlib.metadata import version

    assert kvsdk.__version__ == version("kvsdk")


# ---------------------------------------------------------------------- sync and async

PAIRS = [(Client, AsyncClient), (Session, AsyncSession), (Stream, AsyncStream)]
AWAITED_NAMES = {
    "close": "aclose",
    "__enter__": "__aenter__",
    "__exit__": "__aexit__",
    "__iter__": "__aiter__",
    "__next__": "__anext__",
}


def members(kind: type) -> dict[str, Any]:
    """The public members and the protocol's, by name."""
    names = [
        name
        for name in dir(kind)
        if not name.startswith("_") or name in {*AWAITED_NAMES, *AWAITED_NAMES.values()}
    ]
    return {name: inspect.getattr_static(kind, name) for name in names}


def plain(annotation: Any) -> str:
    """A return type without what asynchrony adds to it."""
    return str(annotation).replace("Async", "")


@pytest.mark.parametrize(("sync", "twin"), PAIRS)
def test_the_twins_have_the_same_members(sync: type, twin: type) -> None:
    """Under the names that async has for them."""
    assert {AWAITED_NAMES.get(name, name) for name in members(sync)} == set(members(twin))


@pytest.mark.parametrize(("sync", "twin"), PAIRS)
def test_the_twins_have_the_same_signatures(sync: type, twin: type) -> None:
    """Parameters, their kinds, defaults and annotations, and what comes back."""
    others = members(twin)
    for name, member in {"__init__": sync.__init__, **members(sync)}.items():  # type: ignore[misc]
        if not inspect.isfunction(member) or (name == "__init__" and sync is not Client):
            continue
        one = inspect.signature(member)
        other = inspect.signature(
            twin.__init__ if name == "__init__" else others[AWAITED_NAMES.get(name, name)]
        )  # type: ignore[misc]
        assert list(one.parameters.values()) == list(other.parameters.values()), name
        assert plain(one.return_annotation) == plain(other.return_annotation), name


def test_what_waits_is_awaited() -> None:
    """Methods that may wait are coroutines in the async client; those that do not are not."""
    waits = {name for name, value in members(AsyncClient).items() if inspect.iscoroutinefunction(value)}
    assert waits >= {"generate", "count_tokens", "explain", "aclose"}
    assert not waits & {"stream", "session"}
