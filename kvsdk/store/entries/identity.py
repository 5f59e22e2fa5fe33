"""Whose KV a store keeps, and in which form: what decides whether one store may read another's entries."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass

from kvsdk.errors import InvalidRequest
from kvsdk.kv.identity.fingerprint import Fingerprint
from kvsdk.kv.identity.hashing import key_root

Digest = str | bytes
Media = Sequence[Digest | tuple[int, Digest]]

_DOMAIN = b"kvsdk.store.identity.1\0"


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """A model and a form of storing; only entries of the same identity are ever read.

    Attributes:
        fingerprint: Of the model and engine.
        rank: Which of the devices that share the model's heads and layers it is.
        dtype: What KV is stored in, where that is not the KV's own dtype (lossy).
        codec: What it is compressed with.
    """

    fingerprint: Fingerprint
    rank: int = 0
    dtype: str | None = None
    codec: str | None = None

    @property
    def is_plain(self) -> bool:
        """Whether it is whole KV as the engine has it."""
        return self._form == {}

    @property
    def _form(self) -> dict[str, object]:
        """What sets entries of the same model apart."""
        own = self.fingerprint
        sizes = {"tensor_parallel": own.tensor_parallel or 1, "pipeline_parallel": own.pipeline_parallel or 1}
        split = {**sizes, "rank": self.rank} if any(size > 1 for size in sizes.values()) else {}
        kept = {"dtype": self.dtype, "codec": self.codec}
        return {**split, **{name: value for name, value in kept.items() if value is not None}}

    def digest(self) -> bytes:
        """32 bytes; a plain one's are the fingerprint's own.

        Raises:
            ConfigurationError: A REFUSE field of the fingerprint is unknown.
        """
        digest = self.fingerprint.digest()
        if self.is_plain:
            return digest
        form = json.dumps(self._form, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(_DOMAIN + digest + form.encode()).digest()

    def root(self, *, tenant: str | None, lora: Digest | None, media: Media) -> bytes:
        """What a prompt's keys hold under.

        Raises:
            InvalidRequest: A field has another type, or media are not in order.
        """
        placed = [item if isinstance(item, tuple) else (0, item) for item in media]
        return key_root(fingerprint=self.digest(), tenant_salt=tenant, lora=lora, media=placed)

    @property
    def record_name(self) -> str:
        """The name of the entry that says what this identity is."""
        return f"fp/{self.digest().hex()}"

    def to_json(self) -> str:
        """As it is written in that entry."""
        known = {"rank": self.rank, "dtype": self.dtype, "codec": self.codec}
        return json.dumps({"fingerprint": json.loads(self.fingerprint.to_json()), **known}, sort_keys=True)

    @classmethod
    def from_json(cls, text: bytes) -> Identity:
        """What `to_json` wrote.

        Raises:
            InvalidRequest: It is none, or one that a newer kvsdk wrote.
        """
        try:
            found = json.loads(text)
            fingerprint = Fingerprint.from_json(json.dumps(found.pop("fingerprint")))
            return cls(fingerprint=fingerprint, **found)
        except KeyError:
            raise InvalidRequest("this is no record of a fingerprint: it has none", field="fp") from None
        except (ValueError, TypeError, AttributeError, RecursionError) as error:
            raise InvalidRequest(f"this is no record of a fingerprint: {error}", field="fp") from error

    def explain(self, other: Identity) -> str:
        """Why the other's entries are not read, by the names of the fields."""
        parts = []
        mismatch = self.fingerprint.explain_mismatch(other.fingerprint)
        if mismatch is not None:
            parts.append(str(mismatch))
        for name in ("rank", "dtype", "codec"):
            ours, theirs = getattr(self, name), getattr(other, name)
            if ours != theirs:
                parts.append(f"{name} is {ours!r} here and {theirs!r} there")
        return "; ".join(parts)
