"""What a log of requests says about its cache: per request the miss and its cost, and findings. No I/O."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from decimal import Decimal

from kvsdk.backend import Backend, Capabilities, Outcome
from kvsdk.backend import backend as find_backend
from kvsdk.caching import (
    Plan,
    Seen,
    TokenScale,
    cached_blocks,
    digest,
    expect_miss,
    explain_miss,
    known_traits,
    lint,
    plan,
    traits,
)
from kvsdk.caching.log import LoggedRequest
from kvsdk.caching.volatile import shape
from kvsdk.cli.explain_findings import FindingBook
from kvsdk.cost import rate
from kvsdk.errors import UnknownScheme
from kvsdk.prompt import TTL_SECONDS, Text
from kvsdk.reply import Miss
from kvsdk.usage import Usage

_SESSIONS = 1_000
_REMEMBERED = 3
"""Requests kept of each session: conversations that take turns under one key are told apart by them."""

_ANY = Capabilities(breakpoints="advisory")
"""What is taken for a backend that the log does not name: it caches every prefix."""


@dataclass(frozen=True, slots=True)
class ExplainedRequest:
    """One line of the log, explained.

    Attributes:
        line: Its number.
        session: Its conversation: a name, or `#1` and so on where the log has none.
        model: The backend and model.
        miss: Why less was read than could have been; None for none.
        input_tokens: Of the prompt, as reported, or an estimate.
        read_tokens: Read from the cache, as reported or expected; None where unknown.
        missed_tokens: What the session's earlier request had left in the cache and was not read.
        cost_usd: What those cost more than reading them; None without a price.
        is_estimated: Whether the counts are estimates of ours.
    """

    line: int
    session: str
    model: str | None
    miss: Miss | None
    input_tokens: int
    read_tokens: int | None
    missed_tokens: int | None
    cost_usd: Decimal | None
    is_estimated: bool


@dataclass(frozen=True, slots=True)
class _Earlier:
    """A request that came before.

    Attributes:
        seen: Its prefix, and how much of it is cached.
        ends: Where its marks were.
        opening: The index of its first message's first piece.
        left_tokens: What it left in the cache, as reported, or an estimate.
    """

    seen: Seen
    ends: tuple[int, ...]
    opening: int
    left_tokens: int

    def readable(self, common: int, capabilities: Capabilities) -> int:
        """Leading pieces that can still be read when only `common` of them are equal."""
        common = min(common, self.seen.cached_blocks)
        if not capabilities.caches_only_at_marks:
            return common
        return max((end + 1 for end in self.ends if end < common), default=0)


@dataclass(slots=True)
class LogExplainer:
    """Explains the requests of a log one after another. Remembers the latest of up to 1,000 sessions.

    Attributes:
        address: The backend to judge all requests by; None for the one that each line names.
        findings: What is wrong with the requests themselves.
        unnamed: Lines that name no backend that is known.
    """

    address: str | None = None
    findings: FindingBook = field(default_factory=FindingBook)
    unnamed: int = 0
    _sessions: OrderedDict[object, tuple[str, list[_Earlier]]] = field(default_factory=OrderedDict)
    _numbered: int = 0
    _backends: dict[tuple[str, str | None], Backend | None] = field(default_factory=dict)

    def explain(self, logged: LoggedRequest) -> ExplainedRequest:
        """Explain the next request.

        Raises:
            InvalidRequest: Its text is none.
        """
        request = replace(logged.request, session=logged.session)
        backend = self._backend(logged)
        capabilities = backend.capabilities if backend else _ANY
        self.unnamed += backend is None
        planned, prefix = plan(request, capabilities), digest(request)
        usage = logged.usage or Usage()
        scale = TokenScale.measured(prefix.size_bytes, usage.input_tokens)
        seen = Seen(
            logged.address or "",
            prefix,
            cached_blocks(planned, prefix, capabilities),
            logged.at_s,
            planned.ttl_s,
            scale,
        )
        name, earlier = self._session(logged, seen)
        before = _best(seen, earlier, is_certain=logged.session is not None)
        seen = replace(seen, traits=traits(request, prefix, known_traits(before.seen if before else None)))
        opening = next((i for i, block in enumerate(prefix.blocks) if block.section == "messages"), 0)
        ends = tuple(end for end in planned.ends if end is not None)
        earlier.append(_Earlier(seen, ends, opening, _left_tokens(seen, usage, capabilities)))
        del earlier[:-_REMEMBERED]
        self.findings.add(logged.line, lint(request, planned, prefix, capabilities, scale), prefix)
        self.findings.add_tools(logged.line, [tool.name for tool in request.tools])
        row = _row(logged, name, seen, before, capabilities)
        return replace(row, cost_usd=_extra_cost(row, logged, planned, seen, backend))

    @property
    def remembered_sessions(self) -> int:
        """How many sessions are remembered."""
        return len(self._sessions)

    def _backend(self, logged: LoggedRequest) -> Backend | None:
        address = self.address or logged.address
        if address is None or ":" not in address:
            return None
        api = logged.api if address.startswith("openai:") else None
        if (address, api) not in self._backends:
            try:
                found = find_backend(address, **({"api": api} if api else {}))
            except UnknownScheme:  # a model's name may have a colon
                found = None
            self._backends[address, api] = found
        return self._backends[address, api]

    def _session(self, logged: LoggedRequest, seen: Seen) -> tuple[str, list[_Earlier]]:
        """The name and the earlier requests of a line's session: what it says, or whoever begins alike."""
        key: object = ("session", logged.session)
        name = logged.session
        if name is None:
            key = ("key", logged.cache_key) if logged.cache_key else ("start", _start(logged, seen))
            name = logged.cache_key
        if key not in self._sessions:
            if name is None:
                self._numbered += 1
                name = f"#{self._numbered}"
            self._sessions[key] = (name, [])
        self._sessions.move_to_end(key)
        while len(self._sessions) > _SESSIONS:
            self._sessions.popitem(last=False)
        return self._sessions[key]


# ---------------------------------------------------------------------- sessions


def _start(logged: LoggedRequest, seen: Seen) -> object:
    """What requests of one application begin with: the names of the tools, or the first text's shape."""
    if logged.request.tools:
        return tuple(sorted(tool.name for tool in logged.request.tools))
    first = next((block.part for block in logged.request.blocks()), None)
    looks = shape(first.text) if isinstance(first, Text) else None
    return looks.digest if looks else seen.prefix.blocks[0].digest


def _best(seen: Seen, earlier: Iterable[_Earlier], *, is_certain: bool) -> _Earlier | None:
    """The earlier request that this one has most in common with; of several, the latest.

    Where the log names no session, a request that begins with another first message is another
    conversation: it can read what stands before the messages, and nothing else is expected of it.
    """
    common = -1
    best: _Earlier | None = None
    for one in earlier:
        alike = seen.prefix.common_blocks(one.seen.prefix)
        if alike >= common:
            common, best = alike, one
    if best is None or is_certain or common != best.opening or best.opening == len(best.seen.prefix.blocks):
        return best
    shared = min(best.seen.cached_blocks, best.opening)
    seen = replace(best.seen, cached_blocks=shared)
    return replace(best, seen=seen, left_tokens=seen.cached_tokens) if shared else None


def _left_tokens(seen: Seen, usage: Usage, capabilities: Capabilities) -> int:
    """What a request left in the cache: where only marks cache, what it read and wrote."""
    reported = (usage.cache_read_tokens or 0) + (usage.cache_write_tokens or 0)
    return reported if reported and capabilities.breakpoints == "honoured" else seen.cached_tokens


# ---------------------------------------------------------------------- one row


def _row(
    logged: LoggedRequest, name: str, now: Seen, before: _Earlier | None, capabilities: Capabilities
) -> ExplainedRequest:
    usage, old = logged.usage, before.seen if before else None
    if usage is not None and usage.cache_read_tokens is not None:
        miss = explain_miss(now, old, usage, capabilities, has_session=True)
        read: int | None = usage.cache_read_tokens
    else:
        miss = expect_miss(now, old, capabilities)
        read = _expected_read(now, before, miss, capabilities)
    total = usage.input_tokens if usage else None
    tokens = now.scale.tokens(now.prefix.size_bytes) if total is None else total
    missed = None
    if miss is not None and before is not None and miss.kind not in ("first_request", "below_minimum"):
        missed = max(0, min(before.left_tokens, tokens) - (read or 0))
    return ExplainedRequest(
        logged.line, name, logged.address, miss, tokens, read, missed, None, is_estimated=total is None
    )


def _expected_read(
    now: Seen, before: _Earlier | None, miss: Miss | None, capabilities: Capabilities
) -> int | None:
    """Tokens that will be read where no answer says so; a change leaves what stood before it."""
    if before is None or (miss is not None and miss.kind in _NOTHING_READ):
        return 0
    common = now.prefix.common_blocks(before.seen.prefix)
    blocks = before.readable(common, capabilities)
    tokens = now.scale.tokens(now.prefix.ends_bytes[blocks - 1]) if blocks else 0
    return tokens if tokens >= (capabilities.min_tokens or 0) else 0


_NOTHING_READ = ("model", "settings", "ttl_expired", "below_minimum", "first_request", "evicted_or_unknown")


def _extra_cost(
    row: ExplainedRequest, logged: LoggedRequest, planned: Plan, seen: Seen, backend: Backend | None
) -> Decimal | None:
    """What the missed tokens cost more than reading them would have, at the list price of the day."""
    if not row.missed_tokens or backend is None or row.read_tokens is None:
        return None
    usage = _whole_usage(row, logged.usage, planned, seen, backend.capabilities)
    at = datetime.now(UTC) if logged.at_s is None else datetime.fromtimestamp(logged.at_s, UTC)
    costs = []
    for counts in (usage, _had_it_been_read(usage, row.missed_tokens)):
        outcome = Outcome.of_usage(backend.model, counts)
        costs.append(rate(backend.bill(outcome, planned.request), at=at).total)
    actual, hit = costs
    return None if actual is None or hit is None else actual - hit


def _whole_usage(
    row: ExplainedRequest, usage: Usage | None, planned: Plan, seen: Seen, capabilities: Capabilities
) -> Usage:
    """Every count of the input, reported or estimated, and no output: it costs the same either way."""
    read, write = row.read_tokens or 0, usage.cache_write_tokens if usage else None
    rest = row.input_tokens - read
    if write is None:
        write = max(0, seen.cached_tokens - read) if capabilities.breakpoints == "honoured" else 0
    write = min(write, rest)
    split = usage.cache_write_by_ttl if usage and usage.cache_write_by_ttl else None
    granted = [entry.granted_ttl for entry in planned.breakpoints if entry.granted_ttl]
    if split is None and write and granted:
        split = {max(granted, key=lambda ttl: TTL_SECONDS[ttl]): write}
    return Usage.of_parts(fresh=rest - write, read=read, write=write, output=0, write_by_ttl=split)


def _had_it_been_read(usage: Usage, missed: int) -> Usage:
    """The same input with the missed tokens read; those that were written longest come first."""
    written, fresh = usage.cache_write_tokens or 0, usage.fresh_tokens or 0
    unwritten = min(missed, written)
    split = dict(usage.cache_write_by_ttl) if usage.cache_write_by_ttl is not None else None
    rest = unwritten
    for ttl in sorted(split or (), key=lambda ttl: -TTL_SECONDS.get(ttl, 0)):
        assert split is not None
        taken = min(rest, split[ttl])
        split[ttl] -= taken
        rest -= taken
    fresh -= min(fresh, missed - unwritten)
    read = (usage.input_tokens or 0) - fresh - (written - unwritten)
    return Usage.of_parts(fresh=fresh, read=read, write=written - unwritten, output=0, write_by_ttl=split)
