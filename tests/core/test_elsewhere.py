"""What a ledger's requests would have cost on another backend."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest
from kvsdk import ConfigurationError, Cost, UnknownScheme, Usage
from kvsdk.cost import LedgerRow
from kvsdk.cost.ledger.row import PrefixMark
from kvsdk.cost.reports.elsewhere import Elsewhere

SONNET, TERRA = "anthropic:claude-sonnet-5-5", "openai:gpt-6.1-terra"
AT = datetime(2026, 11, 30, 12, tzinfo=UTC)
MTOK = Decimal(1_000_000)


def row(*prefix: PrefixMark, minutes: float = 0, total: int = 2000, **changes: Any) -> LedgerRow:
    fields: dict[str, Any] = {
        "id": f"row_{minutes}",
        "operation_id": "op",
        "attempt": 1,
        "at": AT + timedelta(minutes=minutes),
        "state": "ok",
        "backend": "vllm",
        "model": "m",
        "usage": Usage.of_total(total, output=0),
        "prefix": prefix,
    }
    return LedgerRow(**(fields | changes))


def sonnet(
    *, fresh: int = 0, read: int = 0, write_5m: int = 0, write_1h: int = 0, output: int = 0
) -> Decimal:
    """In dollars: 2 a million, reads a twentieth, writes 1.25 and 2 times as much."""
    return (fresh * 2 + read * Decimal("0.1") + write_5m * Decimal("2.5") + write_1h * 4 + output * 10) / MTOK


def terra(*, fresh: int = 0, read: int = 0, write: int = 0, output: int = 0) -> Decimal:
    """Half of that; a write that is kept 30 minutes costs 1.25 times the input."""
    return (fresh + read * Decimal("0.05") + write * Decimal("1.25") + output * 5) / MTOK


def test_the_demos_two_questions() -> None:
    """The document of 1,650 tokens is written by the first question and read by the second."""
    document = PrefixMark(1650, "document", None)
    first = row(document, PrefixMark(1661, "one", ""), usage=Usage.of_total(1661, read=0, output=22))
    second = row(
        document, PrefixMark(1660, "two", ""), minutes=1, usage=Usage.of_total(1660, read=1632, output=48)
    )
    anthropic, openai = Elsewhere(SONNET), Elsewhere(TERRA)
    costs = [anthropic.cost(first), anthropic.cost(second)]
    assert costs[0].total == sonnet(write_5m=1650, fresh=11, output=22) == Decimal("0.004367")
    assert costs[1].total == sonnet(read=1650, fresh=10, output=48) == Decimal("0.000665")
    assert openai.cost(first).total == terra(write=1650, fresh=11, output=22) == Decimal("0.0021835")
    assert openai.cost(second).total == terra(read=1650, fresh=10, output=48) == Decimal("0.0003325")
    assert all(cost.estimated for cost in costs)
    assert costs[0].reason == "tokens as counted by another tokenizer"


def test_the_first_question_pays_for_the_rest_without_a_mark() -> None:
    """Tokens after the last mark are fresh, and each row's are its own."""
    other = Elsewhere(SONNET)
    for minutes, expected in ((0, sonnet(write_5m=1500, fresh=500)), (1, sonnet(read=1500, fresh=500))):
        assert other.cost(row(PrefixMark(1500, "document"), minutes=minutes)).total == expected


@pytest.mark.parametrize(("minutes", "is_read"), [(4.9, True), (5.1, False)])
def test_the_cache_keeps_a_prefix_as_long_as_its_ttl(minutes: float, is_read: bool) -> None:
    """Five minutes by default."""
    other = Elsewhere(SONNET)
    other.cost(row(PrefixMark(2000, "document")))
    expected = sonnet(read=2000) if is_read else sonnet(write_5m=2000)
    assert other.cost(row(PrefixMark(2000, "document"), minutes=minutes)).total == expected


@pytest.mark.parametrize(
    ("asked", "address", "written", "keeps_minutes"),
    [
        ("12h", SONNET, sonnet(write_1h=2000), 59.0),  # rounded down to an hour
        ("30m", SONNET, sonnet(write_5m=2000), 4.9),  # rounded down to five minutes
        ("5m", TERRA, terra(write=2000), 29.0),  # below the shortest there, which is 30 minutes
        ("1h", TERRA, terra(write=2000), 29.0),  # rounded down
        (None, TERRA, terra(write=2000), 29.0),  # the default there
    ],
)
def test_a_ttl_that_it_lacks_is_rounded_down(
    asked: str | None, address: str, written: Decimal, keeps_minutes: float
) -> None:
    """As for a request that is sent there: the price of the write and the life are the rounded TTL's."""
    price = sonnet if address == SONNET else terra
    mark = PrefixMark(2000, "document", asked)
    other = Elsewhere(address)
    assert other.cost(row(mark)).total == written
    assert other.cost(row(mark, minutes=keeps_minutes)).total == price(read=2000)
    assert other.cost(row(mark, minutes=2 * keeps_minutes + 2)).total == written


def test_with_breakpoints_openai_looks_at_nothing_else() -> None:
    """The end of the turn before is no breakpoint of this one, so only the system text is read."""
    other = Elsewhere(TERRA)
    system = PrefixMark(2000, "system", None)
    other.cost(row(system, PrefixMark(2100, "turn 1", None), total=2100))
    marks = (system, PrefixMark(2100, "turn 1", ""), PrefixMark(2200, "turn 2", None))
    assert other.cost(row(*marks, minutes=1, total=2200)).total == terra(read=2000, write=200)


def test_a_row_without_breakpoints_gets_one_at_its_end() -> None:
    """As `cache="auto"` would set it; what goes on the prompt reads it."""
    other = Elsewhere(SONNET)
    first = row(PrefixMark(2000, "one", ""))
    second = row(PrefixMark(2000, "one", ""), PrefixMark(3000, "two", ""), minutes=1, total=3000)
    assert other.cost(first).total == sonnet(write_5m=2000)
    assert other.cost(second).total == sonnet(read=2000, write_5m=1000)


@pytest.mark.parametrize(("address", "ttl"), [(SONNET, None), (SONNET, ""), (TERRA, "")])
def test_every_turn_of_a_conversation_reads_the_one_before(address: str, ttl: str | None) -> None:
    """A row marks only the last turn's end and its own, and is cut where all turns before it ended.

    With breakpoints and without; OpenAI's cache, which looks at ends of messages, then needs none.
    """
    price = sonnet if address == SONNET else terra
    written = "write_5m" if address == SONNET else "write"
    other = Elsewhere(address)
    for turn in range(1, 8):
        tokens = 2000 + 100 * turn
        before = [PrefixMark(tokens - 100, f"turn {turn - 1}", "")] if turn > 1 else []
        prefix = [PrefixMark(2000, "system", ttl), *before, PrefixMark(tokens, f"turn {turn}", ttl)]
        cost = other.cost(row(*prefix, minutes=turn, total=tokens))
        expected = {written: 2100} if turn == 1 else {"read": tokens - 100, written: 100}
        assert cost.total == price(**expected)


@pytest.mark.parametrize(("address", "is_shared"), [(SONNET, True), (TERRA, False)])
def test_tenants_are_apart_where_the_backend_keeps_them_apart(address: str, is_shared: bool) -> None:
    """The same document of another tenant is read only where there is no partition."""
    price, written = (sonnet, "write_5m") if address == SONNET else (terra, "write")
    other = Elsewhere(address)
    other.cost(row(PrefixMark(2000, "document"), tenant="acme"))
    second = other.cost(row(PrefixMark(2000, "document"), tenant="umbrella", minutes=1))
    assert second.total == (price(read=2000) if is_shared else price(**{written: 2000}))


def test_a_row_older_than_the_marks_reads_and_writes_what_it_did_here() -> None:
    """1,200 read and 300 written here are so there; below the minimum nothing is."""
    other = Elsewhere(SONNET)
    usage = Usage.of_parts(fresh=500, read=1200, write=300, output=7)
    assert other.cost(row(usage=usage)).total == sonnet(fresh=500, read=1200, write_5m=300, output=7)
    short = Usage.of_parts(fresh=10, read=300, write=0, output=0)
    assert other.cost(row(usage=short)).total == sonnet(fresh=310)
    assert other.cost(row(usage=Usage.of_total(900, output=0))).total == sonnet(fresh=900)


def test_a_cache_that_fills_itself_sells_no_writes() -> None:
    """An older model of OpenAI's: what was written here is fresh there."""
    other = Elsewhere("openai:gpt-5.5")
    written = other.cost(row(usage=Usage.of_parts(fresh=0, read=0, write=2000, output=0))).total
    assert written == other.cost(row(usage=Usage.of_parts(fresh=2000, read=0, write=0, output=0))).total
    assert written is not None
    assert written > 0


@pytest.mark.parametrize(
    ("changes", "address", "reason"),
    [
        ({"usage": Usage(output_tokens=5)}, SONNET, "the count of input tokens is not known"),
        ({"usage": Usage.of_total(2000)}, SONNET, "the count of output tokens was not reported"),
        ({"prefix": (PrefixMark(2000, "document", "2h"),)}, SONNET, "unknown TTL '2h'"),
        ({}, "anthropic:claude-nonesuch", "claude-nonesuch"),
        ({}, "vllm:m", "the engine did not report the time it took"),
    ],
)
def test_what_cannot_be_said_has_a_reason_and_no_total(
    changes: dict[str, Any], address: str, reason: str
) -> None:
    """Unknown counts, breakpoints that nobody takes, and models without a list price."""
    cost = Elsewhere(address).cost(row(**changes))
    assert cost.total is None
    assert reason in (cost.reason or "")


def test_a_refused_attempt_costs_nothing_there_either() -> None:
    """It was not processed; one of which nothing is known stays unknown."""
    refused = row(usage=Usage(), cost=Cost(total=Decimal(0)), state="failed")
    lost = row(usage=Usage(), cost=Cost(), state="failed")
    assert Elsewhere(SONNET).cost(refused).total == 0
    assert Elsewhere(SONNET).cost(lost).total is None


@pytest.mark.parametrize("sizes", [(2500, 3000), (1500, 1500), (1600, 1500), (2000, 0)])
def test_sizes_that_do_not_fit_are_made_to(sizes: tuple[int, int]) -> None:
    """Marks beyond the total, at one place, or crossing: the counts still sum to what was counted."""
    prefix = (PrefixMark(sizes[0], "one"), PrefixMark(sizes[1], "two"))
    other = Elsewhere(SONNET)
    first, second = other.cost(row(*prefix)), other.cost(row(*prefix, minutes=1))
    assert first.without_cache == sonnet(fresh=2000)
    assert first.input is not None
    assert first.cache_write is not None
    assert first.input / 2 + first.cache_write / Decimal("2.5") == 2000 / MTOK
    assert second.total is not None
    assert first.total is not None
    assert second.total < first.total


def test_an_address_that_is_none_is_refused() -> None:
    """An unknown scheme, and one without a model."""
    with pytest.raises(UnknownScheme):
        Elsewhere("antropic:claude-sonnet-5-5")
    with pytest.raises(ConfigurationError):
        Elsewhere("anthropic:")
