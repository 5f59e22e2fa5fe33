"""Which entries of a tier go first when there is no room.

A policy is an order. What it orders are the entries that may go: whole, not pinned, and the last of their
prefix, so that a head never goes before its tail whatever they were given. Entries that have expired are not
there any more, so they go before all others, under every policy, pinned or not.
"""

from __future__ import annotations

from hashlib import blake2b

from kvsdk._text import did_you_mean
from kvsdk.errors import InvalidRequest
from kvsdk.store.tiers.tier import PolicyName

_ORDERS: dict[PolicyName, str] = {
    "lru": "used_at, depth_tokens DESC",
    "hints": "is_demoted DESC, is_held, used_at, depth_tokens DESC",
}
_EXPIRED_ORDER = "expires_at, depth_tokens DESC"

_MAY_GO = """
    SELECT id, name, bytes, state, owner, expires_at FROM entries AS head
    WHERE state = 1 AND {which}
    AND (:before IS NULL OR key IS NOT :before)
    AND NOT EXISTS (
        SELECT 1 FROM entries AS tail WHERE tail.before = head.key AND tail.state <> 2 AND tail.id <> head.id
    )
    ORDER BY {order}, id LIMIT 1
"""


class Policy:
    """The order of a policy, in SQL.

    Attributes:
        index: A statement that makes the index which the order needs.
        choices: Queries for the entry to go next, to be asked in turn. Their parameters are `now`, and
            `before`: the key of an entry that must stay, since what is to come follows it.

    Raises:
        InvalidRequest: There is no such policy.
    """

    def __init__(self, name: PolicyName) -> None:
        if name not in _ORDERS:
            raise InvalidRequest(
                f"there is no policy {name!r}.{did_you_mean(str(name), _ORDERS)}", field="policy"
            )
        order = _ORDERS[name]
        self.index = (
            f"CREATE INDEX IF NOT EXISTS by_{name} ON entries ({order}) WHERE state = 1 AND is_pinned = 0"
        )
        self.choices = (
            _MAY_GO.format(which="expires_at <= :now", order=_EXPIRED_ORDER),
            _MAY_GO.format(which="is_pinned = 0", order=order),
        )


def links(name: str) -> tuple[int | None, int | None]:
    """What an entry is called by those after it, and what it calls the one before it.

    Names of three words, such as `kv/<key before>/256-<key>`, say so; the others stand for themselves. 64
    bits of a hash are enough: entries that share them by chance only stay a little longer.
    """
    words = name.split("/")
    if len(words) != 3:
        return None, None
    kind, before, last = words
    return _number(kind, last.rpartition("-")[2]), _number(kind, before)


def _number(kind: str, key: str) -> int:
    return int.from_bytes(blake2b(f"{kind}/{key}".encode(), digest_size=8).digest(), "big", signed=True)
