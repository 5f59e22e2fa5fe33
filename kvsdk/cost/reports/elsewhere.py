"""What the same tokens would have cost on another backend, at its list price. Always an estimate."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from decimal import Decimal
from functools import lru_cache

from kvsdk.backend import Outcome, backend
from kvsdk.backend.cache_model import CacheBlock, CacheSettings
from kvsdk.caching import plan
from kvsdk.cost.ledger.row import LedgerRow
from kvsdk.cost.prices.rating import rate
from kvsdk.cost.reports.prefix_paths import PrefixPaths
from kvsdk.errors import InvalidRequest
from kvsdk.prompt import Breakpoint, Message, Request, Text
from kvsdk.reply import Cost, Predicted
from kvsdk.usage import Usage

_WHY = "tokens as counted by another tokenizer"
_NO_BREAKPOINT = ""
_PLANS = 4096


class Elsewhere:
    """Another backend that is shown a ledger's rows and says what each would have cost there.

    Its cache is the backend's own cache model, which sees the requests in their order and at their times, and
    their breakpoints as `kvsdk.caching.plan` places them there: a TTL that it lacks is rounded down. Where
    the application set none and the backend caches nothing without, the prompt's end is one, as
    `cache="auto"` would set it. Tenants are apart where the backend keeps them apart.

    The tokens are those that were counted here, and another model's tokenizer counts others; it may also have
    answered at another length. Server tools are left out. A row that is older than the marks in the ledger is
    taken to read and write there what it read and wrote here.

    Feed rows in the order of sending. Needs no SDK and no key. Not thread-safe.

    Args:
        address: The backend, such as `"anthropic:claude-sonnet-5-5"`.

    Raises:
        UnknownScheme: No adapter has this scheme.
        ConfigurationError: The address names no model.
    """

    def __init__(self, address: str) -> None:
        self.address = address
        self._backend = backend(address)
        self._capabilities = self._backend.capabilities
        self._model = self._backend.cache_model()
        self._paths = PrefixPaths()
        self._plan = lru_cache(maxsize=_PLANS)(self._place)

    def cost(self, row: LedgerRow) -> Cost:
        """What the next row would have cost. Without a total where nothing can be said, with the reason."""
        usage = row.usage
        if usage.input_tokens is None:
            if row.cost.total == 0:
                return Cost(total=Decimal(0), estimated=True, reason="refused; nothing was processed")
            return Cost(estimated=True, reason="the count of input tokens is not known")
        try:
            predicted, request = self._predict(row, usage.input_tokens)
        except InvalidRequest as error:
            return Cost(estimated=True, reason=str(error))
        counts = Usage(
            input_tokens=usage.input_tokens,
            cache_read_tokens=predicted.read_tokens,
            cache_write_tokens=predicted.write_tokens,
            fresh_tokens=predicted.fresh_tokens,
            output_tokens=usage.output_tokens,
            reasoning_tokens=usage.reasoning_tokens,
            cache_write_by_ttl=dict(predicted.write_by_ttl) or None,
        )
        bill = self._backend.bill(Outcome.of_usage(self._backend.model, counts), request)
        cost = rate(bill, at=row.at)
        return replace(cost, estimated=True, reason=cost.reason or _WHY)

    def _predict(self, row: LedgerRow, input_tokens: int) -> tuple[Predicted, Request]:
        cuts = self._paths.cut(row.prefix) if row.prefix else []
        if not cuts or len(cuts) > input_tokens:
            return self._as_here(row.usage, input_tokens), self._plan((None,))
        asked = {mark.digest: mark.ttl for mark in row.prefix}
        request = self._plan(tuple(asked.get(digest, _NO_BREAKPOINT) for digest, _ in cuts))
        blocks = self._blocks(cuts, request, row.id, input_tokens)
        settings: CacheSettings = {}
        if self._capabilities.tenant == "partition":
            settings["scope"] = row.tenant
        if self._honours_marks and not self._capabilities.caches_only_at_marks:
            settings["mode"] = "explicit" if request.is_marked else "implicit"
        return self._model.observe(row.at.timestamp(), blocks, **settings), request

    @property
    def _honours_marks(self) -> bool:
        return self._capabilities.breakpoints == "honoured"

    def _place(self, ttls: tuple[str | None, ...]) -> Request:
        """A request with breakpoints like these, planned for the backend; its texts do not matter."""
        parts = [
            Text("-", cache=None if ttl == _NO_BREAKPOINT else Breakpoint(ttl))  # type: ignore[arg-type]
            for ttl in ttls
        ]
        is_unmarked = all(ttl == _NO_BREAKPOINT for ttl in ttls)
        needs_one = is_unmarked and self._capabilities.caches_only_at_marks
        asked = Request(messages=(Message.user(*parts),), auto_cache=needs_one)
        return plan(asked, self._capabilities).request

    def _blocks(
        self, cuts: Sequence[tuple[str, int]], request: Request, id: str, input_tokens: int
    ) -> list[CacheBlock]:
        """The prompt as the cache model sees it; the tokens sum to what was counted."""
        ends = _increasing([tokens for _, tokens in cuts], input_tokens)
        blocks = []
        before = 0
        for at, (end, mark) in enumerate(zip(ends, request.marks(), strict=True)):
            ttl = mark.ttl if mark is not None and self._honours_marks else None
            blocks.append(CacheBlock("messages", at, "user", "text", cuts[at][0], end - before, ttl))
            before = end
        if before < input_tokens:
            rest = input_tokens - before
            blocks.append(CacheBlock("messages", len(cuts), "user", "text", f"rest:{id}", rest))
        return blocks

    def _as_here(self, usage: Usage, input_tokens: int) -> Predicted:
        """Of a row without marks: what was read and written here, where it is long enough there."""
        read = min(usage.cache_read_tokens or 0, input_tokens)
        write = min(usage.cache_write_tokens or 0, input_tokens - read)
        if self._capabilities.breakpoints == "none" or read + write < (self._capabilities.min_tokens or 0):
            read = write = 0
        if self._capabilities.breakpoints == "advisory":
            write = 0  # a cache that fills itself sells no writes
        ttl = self._capabilities.default_ttl
        split = {ttl: write} if ttl and write else {}
        return Predicted(read, write, split, input_tokens - read - write)


def _increasing(ends: Sequence[int], total: int) -> list[int]:
    """Ends of blocks, none of them empty, the last within the total. Sizes are estimates and may cross."""
    forward: list[int] = []
    for end in ends:
        forward.append(max(end, forward[-1] + 1 if forward else 1))
    limit = total
    backward = []
    for end in reversed(forward):
        backward.append(min(end, limit))
        limit = backward[-1] - 1
    return backward[::-1]
