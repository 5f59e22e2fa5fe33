"""`kvsdk prices`: what is known of prices, and where from."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kvsdk.cli.arguments import moment
from kvsdk.cli.tables import Column, Format, count, dollars, render, show
from kvsdk.errors import InvalidRequest
from kvsdk.prompt import TTL_SECONDS, Message, Request

if TYPE_CHECKING:
    from kvsdk.cost import PriceBook, PriceRule, Rates

_RULES = tuple(
    Column(key, title, is_number=False)
    for key, title in (
        ("vendor", "vendor"),
        ("models", "models"),
        ("when", "when"),
        ("effect", "effect"),
        ("source", "source"),
        ("date", "read on"),
    )
)
_WHEN = ("since", "until", "weekdays", "terms", "above_input_tokens")
_NOT_EFFECTS = frozenset({*_WHEN, "provider", "host", "models", "source", "date", "name"})


def prices_command(
    address: Annotated[
        list[str] | None, typer.Argument(help="Backends, such as anthropic:claude-opus-5-5; none: the rules.")
    ] = None,
    prices: Annotated[Path | None, typer.Option(help="A TOML file with prices of your own.")] = None,
    at: Annotated[str | None, typer.Option(help="A day, or a time in UTC; now by default.")] = None,
    term: Annotated[
        list[str] | None, typer.Option(help="What a response may say, such as service_tier=flex.")
    ] = None,
    form: Annotated[Format, typer.Option("--format", help="How to print it.")] = Format.table,
) -> None:
    """Print a model's rates in dollars per million tokens, or the rules that correct the price list."""
    from kvsdk.cost import PriceBook

    book = PriceBook(prices)
    if not address:
        _print([_rule(rule) for rule in book.rules], _RULES, form)
        return
    day = moment("at", at) or datetime.now(UTC)
    rows = [row for one in address for row in _rates(book, one, day, _terms(term or ()))]
    ttls = [f"write {ttl}" for ttl in TTL_SECONDS if any(f"write {ttl}" in row for row in rows)]
    columns = [
        Column("model", "model", is_number=False),
        Column("above", "prompts above", count),
        *(Column(key, key, dollars) for key in ("input", "read", *ttls, "output")),
        Column("storage", "kept an hour", dollars),
        Column("source", "source", is_number=False),
    ]
    said = [column for column in columns if any(row.get(column.key) is not None for row in rows)]
    _print(rows, said, form)


def _print(rows: Sequence[dict[str, Any]], columns: Sequence[Column], form: Format) -> None:
    if form is Format.table:
        show("", columns, rows, None)
    else:
        typer.echo(render(columns, rows, None, form))


def _rates(book: PriceBook, address: str, at: datetime, terms: dict[str, str]) -> list[dict[str, Any]]:
    from dataclasses import replace

    from kvsdk.backend import Outcome, backend
    from kvsdk.cost import NoPrice
    from kvsdk.usage import Usage

    found = backend(address)
    bill = found.bill(Outcome.of_usage(found.model, Usage()), Request(messages=(Message.user("-"),)))
    if not bill.lines:
        raise InvalidRequest(f"{address} has no list price: {bill.unpriced}", field="address")
    tariff = bill.lines[0].tariff
    try:
        card = book.card(replace(tariff, terms={**tariff.terms, **terms}), at)
    except NoPrice as error:
        raise InvalidRequest(str(error), field="address") from None
    return [_row(address, above, rates) for above, rates in card]


def _row(address: str, above: int, rates: Rates) -> dict[str, Any]:
    return {
        "model": address,
        "above": above if above > 0 else None,
        "input": rates.fresh,
        "read": rates.read,
        **{f"write {ttl}": rate for ttl, rate in rates.write.items()},
        "output": rates.output,
        "storage": rates.storage_per_hour,
        "source": rates.source,
    }


def _rule(rule: PriceRule) -> dict[str, Any]:
    given = rule.model_dump(mode="json", exclude_unset=True)
    return {
        "vendor": rule.provider or rule.host,
        "models": " ".join(pattern.pattern for pattern in rule.models),
        "when": _words({key: given[key] for key in _WHEN if key in given}),
        "effect": _words({key: value for key, value in given.items() if key not in _NOT_EFFECTS}),
        "source": f"{rule.name}: {rule.source}",
        "date": rule.date.isoformat(),
    }


def _words(given: dict[str, Any]) -> str | None:
    """Keys and values as a person writes them."""
    terms = given.pop("terms", {})
    return ", ".join(f"{key}={_value(value)}" for key, value in {**given, **terms}.items()) or None


def _value(value: Any) -> str:
    if isinstance(value, dict):
        return " ".join(f"{key}={_value(item)}" for key, item in value.items())
    return "|".join(map(str, value)) if isinstance(value, list) else str(value)


def _terms(given: Sequence[str]) -> dict[str, str]:
    terms = {}
    for word in given:
        name, mark, value = word.partition("=")
        if not mark or not name or not value:
            raise InvalidRequest(
                f"--term is NAME=VALUE, such as service_tier=flex, not {word!r}", field="term"
            )
        terms[name] = value
    return terms
