"""Finding a backend by its address."""

from __future__ import annotations

from typing import Any

import kvsdk
import pytest
from kvsdk import Client, ConfigurationError, UnknownScheme


@pytest.mark.parametrize(
    ("address", "scheme", "model"),
    [
        ("anthropic:claude-sonnet-5-5", "anthropic", "claude-sonnet-5-5"),
        ("openai:gpt-5.6-sol", "openai", "gpt-5.6-sol"),
        ("openai+http://127.0.0.1:9/v1#org/model:tag", "openai", "org/model:tag"),
        ("openai+https://host/v1#m", "openai", "m"),
    ],
)
def test_an_address_is_a_backend(address: str, scheme: str, model: str) -> None:
    """Made without a key, a connection or the vendor's SDK."""
    made = kvsdk.backend(address)
    assert (made.scheme, made.model) == (scheme, model)


def test_an_unknown_scheme_gets_a_hint() -> None:
    """The nearest known."""
    with pytest.raises(UnknownScheme, match="Did you mean 'anthropic'"):
        kvsdk.backend("antropic:claude")


def test_what_is_no_address_is_told_how_one_looks() -> None:
    """A model's name alone."""
    with pytest.raises(UnknownScheme, match="scheme:target"):
        kvsdk.backend("claude-sonnet-5-5")


def test_a_backend_is_its_own_address() -> None:
    """One that is made already takes no options more."""
    made = kvsdk.backend("anthropic:claude-sonnet-5-5", api_key="k")
    assert kvsdk.backend(made) is made
    with pytest.raises(ConfigurationError, match="base_url"):
        kvsdk.backend(made, base_url="http://127.0.0.1")
    with Client(made) as client:
        assert client.backend is made


@pytest.mark.parametrize("wrong", [5, None, ["anthropic:m"], object()])
def test_what_is_no_backend_is_refused(wrong: Any) -> None:
    """By its type."""
    with pytest.raises(ConfigurationError, match=type(wrong).__name__):
        Client(wrong)
