"""What a request asks of the store: `kv_transfer_params["kvsdk"]`, as JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

KEY = "kvsdk"


@dataclass(frozen=True, slots=True)
class Keep:
    """A prefix of the prompt that is kept.

    Attributes:
        tokens: How many, at least; whole blocks of them are kept.
        ttl_s: For how long; None for as long as there is room.
    """

    tokens: int
    ttl_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Wishes:
    """What a request asks for; without any, it is computed as ever, with what others have kept.

    Attributes:
        keep: Prefixes of the prompt, for its breakpoints.
        session: Which session it belongs to; with one, prompt and answer are kept while the session lives.
        pin: Whether what is kept must stay until the session's end.
        load: Whether KV may come from the store.
        problem: Why what was asked for was not understood, and left out.
    """

    keep: tuple[Keep, ...] = ()
    session: str | None = None
    pin: bool = False
    load: bool = True
    problem: str | None = None

    def to_params(self) -> dict[str, Any]:
        """As `kv_transfer_params`, which vLLM hands through."""
        keep = [[each.tokens, each.ttl_s] for each in self.keep]
        return {KEY: {"keep": keep, "session": self.session, "pin": self.pin, "load": self.load}}

    @classmethod
    def of(cls, params: Mapping[str, Any] | None) -> Wishes:
        """Read them. Nothing is raised, which would stop the engine for all: what is wrong is left out."""
        asked = (params or {}).get(KEY)
        if asked is None:
            return cls()
        try:
            return cls(
                keep=tuple(_keep(*each) for each in asked.get("keep", ())),
                session=_checked(asked.get("session"), str, None, "session"),
                pin=_checked(asked.get("pin"), bool, False, "pin"),
                load=_checked(asked.get("load"), bool, True, "load"),
            )
        except (TypeError, ValueError, AttributeError) as error:
            return cls(problem=f"{KEY} in kv_transfer_params was not understood: {error}")


def _keep(tokens: Any, ttl_s: Any = None) -> Keep:
    if not isinstance(tokens, int) or isinstance(tokens, bool) or tokens < 0:
        raise ValueError(f"keep has a number of tokens, not {tokens!r}")
    if ttl_s is not None and (isinstance(ttl_s, bool) or not isinstance(ttl_s, int | float) or not ttl_s > 0):
        raise ValueError(f"keep has seconds above 0, not {ttl_s!r}")
    return Keep(tokens, ttl_s)


def _checked(value: Any, kind: type, default: Any, name: str) -> Any:
    if value is None:
        return default
    if not isinstance(value, kind):
        raise TypeError(f"{name} is no {kind.__name__}: {value!r}")
    return value
