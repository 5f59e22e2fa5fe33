"""What an application may say of a prompt's KV, checked at once: no tier shall fail over it later."""

from __future__ import annotations

from kvsdk.errors import InvalidRequest
from kvsdk.prompt import TTL_SECONDS
from kvsdk.store.tiers.tier import Hints

_LONGEST_S = 1e300
"""A whole number may be too large for a float."""


def hints_of(session: str | None, ttl: str | float | None, pin: bool, now: float) -> Hints:
    """The hints that `KVStore.put` was given.

    Args:
        session: Who will want it again.
        ttl: How long it may be served.
        pin: Whether it must stay.
        now: Seconds since 1970.

    Raises:
        InvalidRequest: An argument is wrong.
    """
    if session is not None:
        check_session(session)
    if not isinstance(pin, bool):
        raise InvalidRequest(f"pin is True or False, not {pin!r:.80}", field="pin")
    return Hints(session=session, expires_at=None if ttl is None else now + _seconds(ttl), pinned=pin)


def check_session(session: str) -> str:
    """A session's name as it is.

    Raises:
        InvalidRequest: It is no text, or one that cannot be written down.
    """
    if not isinstance(session, str):
        raise InvalidRequest(f"session is a name, not a {type(session).__name__}", field="session")
    try:
        session.encode()
    except UnicodeEncodeError as error:
        raise InvalidRequest("session is a name without lone surrogates", field="session") from error
    return session


def _seconds(ttl: str | float) -> float:
    seconds = TTL_SECONDS.get(ttl) if isinstance(ttl, str) else ttl
    if isinstance(seconds, bool) or not isinstance(seconds, (int, float)) or not seconds > 0:
        known = ", ".join(map(repr, TTL_SECONDS))
        raise InvalidRequest(f"ttl is {known} or seconds above 0, not {ttl!r:.80}", field="ttl")
    return float(min(seconds, _LONGEST_S))
