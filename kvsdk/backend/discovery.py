"""Finding a backend by its scheme, through the entry points of the group `kvsdk.backends`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.util import find_spec
from typing import Any, cast

from kvsdk._text import did_you_mean
from kvsdk.backend.protocol import Backend
from kvsdk.errors import BackendNotInstalled, ConfigurationError, UnknownScheme

GROUP = "kvsdk.backends"


@dataclass(frozen=True, slots=True)
class BackendSpec:
    """What an adapter is made from: the scheme, what follows it, and the client's options.

    An adapter's entry point is a callable that takes a `BackendSpec` and gives a `Backend`.
    """

    scheme: str
    target: str
    options: Mapping[str, Any] = field(default_factory=dict)


@cache
def _factories() -> Mapping[str, Any]:
    from importlib.metadata import entry_points

    return {point.name: point for point in entry_points(group=GROUP)}


def backend(address: str | Backend, **options: Any) -> Backend:
    """The backend at an address such as `"anthropic:claude-sonnet-5-5"`. Opens and sends nothing.

    Args:
        address: `"scheme:target"`, or a `Backend`, which is returned as it is.
        **options: The adapter's own options, such as `base_url` and `api_key`.

    Raises:
        UnknownScheme: No adapter has this scheme.
        ConfigurationError: The address has no target, or an option is unknown to the adapter.
    """
    if not isinstance(address, str):
        if options:
            raise ConfigurationError(
                f"options {', '.join(options)} need a backend by name, not one made already"
            )
        return address
    scheme, colon, target = address.partition(":")
    point = _factories().get(scheme)
    if point is None:
        hint = "" if colon else " An address is 'scheme:target', such as 'anthropic:claude-sonnet-5-5'."
        raise UnknownScheme(f"unknown backend {scheme!r}.{hint}{did_you_mean(scheme, _factories())}")
    if not target:
        raise ConfigurationError(f"{address!r} names no model; write '{scheme}:MODEL'")
    factory = cast("Callable[[BackendSpec], Backend]", point.load())
    return factory(BackendSpec(scheme, target, options))


def require_package(package: str, *, extra: str) -> None:
    """Raise `BackendNotInstalled`, with the pip line, unless a package can be imported."""
    if find_spec(package) is None:
        raise BackendNotInstalled(
            f"{package} is not installed; run: pip install 'kvsdk[{extra}]'", backend=extra
        )


def reject_unknown_options(spec: BackendSpec, known: Iterable[str]) -> None:
    """Raise `ConfigurationError` when the client was given an option that the adapter does not take."""
    names = tuple(known)
    for name in spec.options:
        if name not in names:
            raise ConfigurationError(
                f"{spec.scheme} takes no option {name!r}.{did_you_mean(name, names)}", backend=spec.scheme
            )
