"""What a row says of what was billed, and where the prompt's prefixes end."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from pathlib import Path

import pytest
from anthropic_wire import message
from kvsdk import Client, ConfigurationError, Message, Text
from kvsdk.cost import LedgerRow, PriceBook, rate
from loopback import Loopback

Rows = Callable[[], list[LedgerRow]]
USAGE = {
    "input_tokens": 10,
    "cache_read_input_tokens": 90,
    "cache_creation_input_tokens": 0,
    "output_tokens": 10,
}


def test_the_speed_and_place_that_were_billed_decide(
    connect: Callable[..., Client], loopback: Loopback, rows: Rows
) -> None:
    """The response says fast and US although neither was asked for: 2 x 1.1 times the usual."""
    loopback.script(
        message(model="claude-opus-5-5", usage=USAGE),
        message(model="claude-opus-5-5", usage={**USAGE, "speed": "fast", "inference_geo": "us"}),
    )
    client = connect()
    usual, special = client.generate("x").cost, client.generate("x").cost
    assert usual.total == (Decimal(4) * 10 + Decimal("0.2") * 90 + Decimal(20) * 10) / 1_000_000
    assert special.total == usual.total * 2 * Decimal("1.1")
    bill = rows()[1].bill
    assert bill is not None
    assert bill.lines[0].tariff.terms == {"speed": "fast", "inference_geo": "us"}


def test_a_row_can_be_priced_again_from_what_it_keeps(client: Client, loopback: Loopback, rows: Rows) -> None:
    """The bill as it comes back from the ledger gives the very cost of the reply, TTLs and searches too."""
    loopback.script(message(usage={**USAGE, "server_tool_use": {"web_search_requests": 2}}))
    reply = client.generate("x", system=[Text("y" * 9000, cache="1h")])
    (row,) = rows()
    assert row.bill is not None
    assert row.bill.lines[0].tariff.asked_ttls == ("1h",)
    assert rate(row.bill, at=row.at) == reply.cost == row.cost
    assert row.cost.tools == Decimal("0.02")


def test_prices_of_ones_own(connect: Callable[..., Client], loopback: Loopback, tmp_path: Path) -> None:
    """A contract's file on the client: its rates in the reply's cost, its name in the source."""
    path = tmp_path / "contract.toml"
    path.write_text(
        """
        version = "v3"
        [[prices]]
        provider = "anthropic"
        models = ["claude-opus-5-5"]
        factor = "0.5"
        source = "contract 4711"
        date = 2026-11-20
        """
    )
    loopback.script(*[message(model="claude-opus-5-5", usage=USAGE)] * 3)
    listed = connect().generate("x").cost
    for prices in (path, PriceBook(path)):
        cost = connect(prices=prices).generate("x").cost
        assert cost.total == listed.total / 2
        assert "contract.toml v3" in str(cost.price_source)


@pytest.mark.parametrize("prices", ["none.toml", 5])
def test_prices_that_cannot_be_read_are_refused(connect: Callable[..., Client], prices: object) -> None:
    """When the client is made, not at the first answer."""
    with pytest.raises(ConfigurationError, match=r"prices"):
        connect(prices=prices)


def test_a_row_has_the_places_where_prefixes_end(client: Client, loopback: Loopback, rows: Rows) -> None:
    """The breakpoint as it was asked for, the prompt's end, and in the next turn what it shares with it."""
    usage = {**USAGE, "input_tokens": 910}  # 1000 tokens for 4000 bytes and a little
    loopback.script(message(usage=usage), message(usage=usage))
    chat = client.session("s")
    system = [Text("y" * 3600, cache="1h")]
    first = [Message.user("a" * 400)]
    chat.generate(first, system=system)
    chat.generate([*first, Message.assistant("ok"), Message.user("b" * 400)], system=system)
    one, two = rows()
    assert [(mark.tokens, mark.ttl) for mark in one.prefix] == [(900, "1h"), (1000, "")]
    assert [mark.ttl for mark in two.prefix] == ["1h", "", ""]
    assert [mark.digest for mark in two.prefix[:2]] == [mark.digest for mark in one.prefix]
    assert two.prefix[2].tokens == 1000
    assert "yyy" not in repr(two)
