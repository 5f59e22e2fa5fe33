"""What the conformance suite asks of an adapter's scripted server."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol


class VendorServer(Protocol):
    """A server on loopback that speaks the vendor's protocol and answers what it is told, in that order.

    Each method adds one answer. Every answer, a refusal too, has a request id where the vendor puts it; every
    answer that is not a refusal has counts of tokens, except where its method says otherwise.
    """

    @property
    def bodies(self) -> Sequence[Mapping[str, Any]]:
        """The bodies of the requests so far, decoded."""
        ...

    def whole(self, text: str) -> None:
        """A text."""
        ...

    def streamed(self, *pieces: str) -> None:
        """A stream of one text that arrives in pieces. Its counts are those of `whole`."""
        ...

    def tool_call(self, name: str, arguments: Mapping[str, Any]) -> None:
        """A call of a tool, after reasoning where the vendor has any that must come back unchanged."""
        ...

    def without_usage(self, text: str) -> None:
        """A text, and no counts at all."""
        ...

    def cut(self, *pieces: str) -> None:
        """A stream that ends, without an error, before the vendor's last event."""
        ...

    def rate_limited(self, message: str) -> None:
        """A refusal because of the rate (429) that names no time to wait."""
        ...

    def failed(self, message: str) -> None:
        """A failure of the vendor's own (500, 529 or the like)."""
        ...
